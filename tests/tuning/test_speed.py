"""The speed shown for a run: a share of the bound that applies to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from deepgen.operators import Recorded, Work, gemm
from deepgen.tuning.speed import ARITHMETIC, MEMORY, Bound, bound, speed
from deepgen.tuning.study.text import bound_text, rate_text


@dataclass(frozen=True)
class Operations(Recorded):
    """A fixed amount of work, and nothing else."""

    name: ClassVar[str] = "work"

    def work(self) -> Work:
        return Work(self.data["operations"], self.data["read"], self.data["written"])


def of(flops: int, moved: int) -> Operations:
    return Operations({"operations": {"f32": flops}, "read": moved // 2, "written": moved - moved // 2})


@pytest.mark.parametrize(
    ("flops", "moved", "peak", "bandwidth", "wanted"),
    [
        (10**9, 10**6, 100.0, 10.0, Bound(ARITHMETIC, 0.01)),
        (10**6, 10**9, 100.0, 10.0, Bound(MEMORY, 0.1)),
        (10**6, 10**9, 100.0, None, Bound(MEMORY, None)),
        (10**6, 10**9, None, 10.0, Bound(MEMORY, 0.1)),
        (10**9, 10**6, None, 10.0, Bound(ARITHMETIC, None)),
        (10**9, 10**6, None, None, Bound(ARITHMETIC, None)),
    ],
)
def test_the_longer_of_arithmetic_and_memory_bounds(
    flops: int, moved: int, peak: float | None, bandwidth: float | None, wanted: Bound
) -> None:
    assert bound(of(flops, moved), peak, bandwidth) == wanted


def test_rates_are_shown_of_what_bounds() -> None:
    by_memory = speed([of(10**6, 10**9)], 0.2, 100.0, 10.0)
    assert rate_text(by_memory) + bound_text(by_memory) == "5.0 GB/s, 50.0% of bandwidth"
    by_arithmetic = speed([of(10**9, 10**6)], 0.02, 100.0, None)
    assert rate_text(by_arithmetic) + bound_text(by_arithmetic) == "50.0 GFLOP/s, 50.0% of peak"
    unknown = speed([of(10**9, 10**6)], 0.02, None, None)
    assert rate_text(unknown) + bound_text(unknown) == "50.0 GFLOP/s"


def test_of_several_shapes_geometric_means_are_shown() -> None:
    # At 0.01 s and 0.04 s both run at half of the peak; their mean is 0.02 s.
    shapes = [of(5 * 10**8, 10**6), of(2 * 10**9, 10**6)]
    both = speed(shapes, 0.02, 100.0, None)
    assert both["gflops"] == pytest.approx(50.0) and both["share_of_bound"] == pytest.approx(0.5)


def test_a_large_gemm_is_bound_by_arithmetic_and_one_row_by_memory() -> None:
    assert bound(gemm(4096, 4096, 4096), 60e3, 4800).by == ARITHMETIC
    assert bound(gemm(1, 4096, 4096), 60e3, 4800).by == MEMORY
