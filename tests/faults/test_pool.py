"""Every fault of the pool has the expected outcome: all on this CPU, and one of each kind on an emulated GPU.

`python tests/faults/pool` runs them all, also on a real GPU.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pool import FAULTS, Fault
from pool.emulated import emulated
from pool.runner import CPU, POLICY, Place, tried
from pool.texts import described

import deepgen as dg
from deepgen.run.measure.base import Policy
from deepgen.targets import resolve
from deepgen.tuning.finals import crowning
from needs import toolchain

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


# Triton's compiler is slow, and on a GPU the same judge decides: one of each point.
ONE_OF_EACH = list({(f.point, f.language): f for f in reversed(FAULTS)}.values())
ON_CPU = [f for f in FAULTS if f.language in CPU.languages and (f.language != "triton" or f in ONE_OF_EACH)]
EMULATED = [f for f in ONE_OF_EACH if f.language == "cuda"]
# Points that need many calls; of all others one of each point.
CALLED = ("Threads", "The process", "Kernels that watch the judge")
# In a fresh process only what may act differently there. The other winners are kernels that are right.
AFRESH = "Kernels that watch the judge"
FEW_CALLS = replace(POLICY, calls_seconds=0.02, race_seconds=0.1)


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> Policy:
    """The checks of winners take a second: all of them if they detect the fault."""
    whole = fault.point in CALLED or fault in ONE_OF_EACH
    monkeypatch.setattr(crowning, "LAST_CALLS", fault.point == AFRESH or (whole and fault.language == "cuda"))
    return POLICY if whole else FEW_CALLS


@pytest.fixture(scope="module")
def cache(shared_cache: Path) -> Path:
    return shared_cache / "deepgen"


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    toolchain(resolve("cuda:sm_90a"), "cuda")
    with emulated(tmp_path_factory.mktemp("gpu")) as place:
        yield place


@pytest.mark.parametrize("fault", ON_CPU, ids=lambda fault: fault.full_name)
def test_each_gets_what_is_due(fault: Fault, policy: Policy, tmp_path: Path, cache: Path) -> None:
    outcome = tried(fault, CPU, tmp_path / "study", cache, policy)
    assert outcome.due(fault), outcome


@pytest.mark.parametrize("fault", EMULATED, ids=lambda fault: fault.full_name)
def test_one_of_each_kind_in_cuda_gets_it_too(
    fault: Fault, policy: Policy, gpu: Place, tmp_path: Path, cache: Path
) -> None:
    outcome = tried(fault, gpu, tmp_path / "study", cache, policy)
    assert outcome.due(fault), outcome


@pytest.mark.parametrize("name", ["the factor is a constant", "indices of 16 bits", "results kept by sixteen samples"])
def test_the_judge_finds_what_finals_find(name: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowning, "LAST_CALLS", True)
    fault = next(fault for fault in ON_CPU if fault.name == name)
    result = dg.judge(described(fault), {"FAULT": 1}, target="cpu", engine=dg.LocalEngine(cache=cache))
    assert not result.right, result.tried


def test_names_are_unique() -> None:
    names = [fault.full_name for fault in FAULTS]
    assert len(set(names)) == len(names)


def test_each_stands_under_a_heading_of_the_page_on_how_kernels_are_verified() -> None:
    page = Path(__file__).parents[2] / "docs/how-verified.md"
    headings = {line.strip("# ") for line in page.read_text().splitlines() if line.startswith("##")}
    assert {fault.point for fault in FAULTS} <= headings
