"""Every fault of the pool gets what is due to it, on this machine's processor."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pool import FAULTS
from pool.awaited import AWAITED
from pool.runner import CPU, tried

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

ON_CPU = {fault.name: fault for fault in FAULTS if fault.language in CPU.languages}
CASES = [
    pytest.param(
        name, marks=pytest.mark.xfail(strict=True, reason=f"{fault.point}: it wins") if name in AWAITED else ()
    )
    for name, fault in ON_CPU.items()
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pool")


@pytest.mark.parametrize("name", CASES)
def test_each_gets_what_is_due(name: str, tmp_path: Path, cache: Path) -> None:
    fault = ON_CPU[name]
    outcome = tried(fault, CPU, tmp_path / "study", cache)
    assert outcome.due(fault), outcome


def test_names_are_unique_and_nothing_is_awaited_that_is_not_there() -> None:
    names = [fault.full_name for fault in FAULTS]
    assert len(set(names)) == len(names)
    assert set(AWAITED) <= {fault.name for fault in FAULTS}
