"""A disturbed measurement is recognised as such, with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deepgen.run.measure import conditions
from deepgen.run.measure.conditions import MachineReading, contaminated, describe, read

CORES = 2
BEFORE = MachineReading(at=100.0, busy=50.0, stolen=1.0, ours=20.0)
QUIET = MachineReading(at=101.0, busy=51.0, stolen=1.0, ours=21.0)


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixes the number of cores, whatever the machine has and whatever cores the tests are moved to."""
    monkeypatch.setattr(conditions, "_cores", lambda: set(range(CORES)))


def test_our_own_work_is_no_disturbance() -> None:
    assert contaminated(BEFORE, QUIET) is None


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (replace(QUIET, stolen=1.0 + 0.1 * CORES), "hypervisor took 10%"),
        (replace(QUIET, busy=51.0 + 0.5 * CORES), "other processes took 50%"),
        (replace(QUIET, stolen=1.01), None),  # one tick of the kernel's clock
        (replace(QUIET, busy=51.0 + 0.5 * CORES, builds=2), None),  # known, intended, and paused for finals
    ],
)
def test_disturbances_are_named(after: MachineReading, words: str | None) -> None:
    found = contaminated(BEFORE, after)
    assert (words in found) if words and found else found is words


def test_what_is_stored_is_plain_and_true_of_this_machine() -> None:
    before = read(0.0, 1)
    told = describe(before, read(0.0, 3))
    assert told["builds"] == 3
    for share in ("stolen_share", "others_share"):
        assert 0.0 <= float(told[share]) <= 1.0  # type: ignore[arg-type]
