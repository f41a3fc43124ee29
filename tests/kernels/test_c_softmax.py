"""Softmax in plain C is correct on this CPU for any format, rows and columns, on hard inputs."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from kernel_runs import Runs

from deepgen import generators, targets
from deepgen.kernels.softmax.c_softmax import CSoftmax
from deepgen.operators import gemm, softmax
from deepgen.operators.softmax import DTYPES, PROBES
from deepgen.vocabulary import Kernel

FAMILY = CSoftmax()
# Less than a vector, whole vectors, and vectors with a remainder; one row, and more rows than threads take at once.
SIZES = [(1, 1), (2, 7), (9, 37), (3, 128), (40, 1000)]


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("method", ["reread", "kept", "online"])
def test_results_are_right_on_any_sizes(name: str, method: str) -> None:
    here = targets.resolve("cpu")
    operator = softmax(9, 37, dtype=name)
    configs = FAMILY.space(operator, here).restrict({"METHOD": method}).sample(2, seed=len(name))
    for flag, config in zip(("-O3", "-O1"), configs, strict=True):
        runs = Runs(FAMILY.emit(operator, here, config), here, flag)
        for rows, cols in SIZES:
            for probe in PROBES:
                assert runs.wrong(softmax(rows, cols, dtype=name), probe) == ""


def test_it_is_found_for_processors_and_for_softmax_alone() -> None:
    for target in ("arm:neon", "x86:avx2", "x86:avx512"):
        assert generators.find(softmax(64, 64), targets.resolve(target)).name == FAMILY.name
    assert "CPUs" in str(FAMILY.refuses(softmax(64, 64), targets.resolve("cuda:sm_80")))
    assert "softmax" in str(FAMILY.refuses(gemm(64, 64, 64), targets.resolve("x86:avx2")))


def test_a_small_problem_is_one_threads() -> None:
    """Waking another thread takes longer than its share of the work."""
    assert FAMILY.default(softmax(8, 64), targets.resolve("x86:avx2"))["THREADS"] == 1


def test_the_emitted_kernel_is_the_one_we_looked_at(golden: Callable[[str, str], str]) -> None:
    operator, chip = softmax(4096, 1000, dtype="bf16"), targets.resolve("x86:avx512").limited_to(1)
    kernel = FAMILY.emit(operator, chip, FAMILY.default(operator, chip))
    assert Kernel.from_json(kernel.to_json()) == kernel
    told = {"sources": [s.name for s in kernel.sources], "flags": kernel.flags, "plan": kernel.to_json()["plan"]}
    assert golden("c_softmax/rows.json", json.dumps(told, indent=1) + "\n") == ""
