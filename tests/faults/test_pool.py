"""Every fault of the pool gets what is due to it: on this processor, and on a GPU that is emulated one of each kind.

`python tests/faults/pool` runs them all, also on a real GPU.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pool import FAULTS, Fault
from pool.awaited import AWAITED
from pool.emulated import emulated
from pool.runner import CPU, Place, tried

from deepgen.targets import resolve
from needs import toolchain

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


def cases(faults: Iterable[Fault]) -> list[Any]:
    """As parameters; those that are awaited must fail, so that whoever mends one takes it off the list."""
    wins = {fault.full_name: pytest.mark.xfail(strict=True, reason=f"{fault.point}: it wins") for fault in faults}
    plain = {fault.full_name for fault in faults if fault.language in ("c", "expression") and fault.name in AWAITED}
    awaited = plain | set(AWAITED)
    return [pytest.param(fault, id=name, marks=wins[name] if name in awaited else ())
            for fault in faults for name in [fault.full_name]]  # fmt: skip


# Triton's compiler takes long, and on a GPU the same judge decides: one of each point.
ONE_OF_EACH = list({(f.point, f.language): f for f in reversed(FAULTS)}.values())
ON_CPU = [f for f in FAULTS if f.language in CPU.languages and (f.language != "triton" or f in ONE_OF_EACH)]
EMULATED = [f for f in ONE_OF_EACH if f.language == "cuda"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pool")


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    toolchain(resolve("cuda:sm_90a"), "cuda")
    with emulated(tmp_path_factory.mktemp("gpu")) as place:
        yield place


@pytest.mark.parametrize("fault", cases(ON_CPU))
def test_each_gets_what_is_due(fault: Fault, tmp_path: Path, cache: Path) -> None:
    outcome = tried(fault, CPU, tmp_path / "study", cache)
    assert outcome.due(fault), outcome


@pytest.mark.parametrize("fault", cases(EMULATED))
def test_one_of_each_kind_in_cuda_gets_it_too(fault: Fault, gpu: Place, tmp_path: Path, cache: Path) -> None:
    outcome = tried(fault, gpu, tmp_path / "study", cache)
    assert outcome.due(fault), outcome


def test_names_are_unique_and_nothing_is_awaited_that_is_not_there() -> None:
    names = [fault.full_name for fault in FAULTS]
    assert len(set(names)) == len(names)
    assert set(AWAITED) <= {*names, *(fault.name for fault in FAULTS)}


def test_each_stands_under_a_heading_of_the_page_on_verification() -> None:
    page = Path(__file__).parents[2] / "docs/verification.md"
    headings = {line.strip("# ") for line in page.read_text().splitlines() if line.startswith("##")}
    assert {fault.point for fault in FAULTS} <= headings
