"""Bursts are timed and checked like turns, and the system reports how long threads waited for a core."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from faulty_kernels import TARGET, build, kernel

from deepgen.operators import gemm
from deepgen.run.measure import conditions
from deepgen.run.measure.base import BURST, CALL, Contender, Policy, Task
from deepgen.run.measure.cpu_entrant import as_spelled
from deepgen.run.measure.process_state import Threads, Waits
from deepgen.run.measure.supervisor import Supervisor
from deepgen.vocabulary import Verdict


@pytest.fixture(scope="module")
def supervisor() -> Iterator[Supervisor]:
    supervisor = Supervisor(Task(gemm(37, 29, 23), TARGET, policy=Policy(timeout_seconds=2.0)))
    yield supervisor
    supervisor.close()


def test_a_kernel_its_call_and_a_baseline_are_timed_in_bursts(supervisor: Supervisor) -> None:
    good = kernel()
    built = build(good)
    entries = [Contender(way, good, built, way) for way in (BURST, CALL)]
    results = supervisor.compare([*entries, Contender("numpy", timed=BURST)], 3, 0)
    assert [m.verdict for m in results] == [Verdict.CORRECT] * 3, [m.detail for m in results]
    assert all(len(m.samples) == 3 and 0.0 <= float(m.conditions["waited_share"]) <= 1.0 for m in results)  # type: ignore[arg-type]
    assert all(m.conditions["runs_checked"] >= 5 for m in results)  # type: ignore[operator]


def test_a_kernel_that_is_wrong_in_a_burst_is_wrong(supervisor: Supervisor) -> None:
    """Correct unless it is called often; on a busy machine a burst may have three calls only."""
    faulty = kernel("multiply(A, B, C, M, N, K); if (++calls > 20) C[0] += 1;")
    built = build(faulty)
    [measured] = supervisor.compare([Contender("", faulty, built, BURST)], 8, 0)
    assert measured.verdict is Verdict.WRONG and "C[0, 0]" in measured.detail


def test_a_kernel_that_reads_past_its_end_later_on_is_caught_by_the_last_look(supervisor: Supervisor) -> None:
    """While runs are timed, libraries may prefetch there, so reads by others are tolerated too."""
    faulty = kernel("multiply(A, B, C, M, N, K); if (++calls > 3) *(volatile float *)C = C[0] + 0 * A[M * K + 64];")
    measured = supervisor.measure(faulty, build(faulty))
    assert measured.verdict is Verdict.CRASHED and "past the end of A" in measured.detail


def test_the_waits_of_this_process() -> None:
    before = Threads().waits()
    sum(range(1_000_000))
    waits = Threads().waits() - before
    assert waits.ran >= 0.0 and waits.waited >= 0.0
    assert Waits(3.0, 1.0).share == 0.25 and Waits(0.0, 0.0).share is None


@pytest.mark.parametrize(
    ("group", "file", "text", "seconds"),
    [
        ("0::/box", "box/cpu.stat", "usage_usec 9\nthrottled_usec 2000000\n", 2.0),
        ("4:cpu,cpuacct:/box\n0::/", "cpu,cpuacct/box/cpu.stat", "throttled_time 1500000000\n", 1.5),
        ("0::/elsewhere", "cpu.stat", "throttled_usec 0\n", 0.0),
        ("0::/", "none", "", 0.0),
    ],
)
def test_the_limit_of_a_container_is_read(
    group: str, file: str, text: str, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    (tmp_path / "own").write_text(group)
    monkeypatch.setattr(conditions, "_GROUPS", tmp_path)
    monkeypatch.setattr(conditions, "_OWN_GROUP", tmp_path / "own")
    conditions._container.cache_clear()
    assert conditions._throttled() == seconds
    conditions._container.cache_clear()


@pytest.mark.parametrize("inputs", [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)])
@pytest.mark.parametrize("words", [{}, {"out": 7}, {"out": 7, "more": 8}])
def test_calls_in_a_row_are_the_same_calls_however_they_are_spelled(
    inputs: tuple[int, ...], words: dict[str, int]
) -> None:
    seen: list[tuple[tuple[int, ...], dict[str, int]]] = []

    def call(*given: int, **named: int) -> int:
        seen.append((given, named))
        return len(seen)

    assert as_spelled(partial(call, *inputs, **words))(3) == 3
    assert seen == [(inputs, words)] * 3
