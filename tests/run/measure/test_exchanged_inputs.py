"""Large inputs alternate by exchanging pages, and large outputs are judged in parts: faults are noticed as before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty_kernels import TARGET, build, kernel

from deepgen.operators import gemm, softmax
from deepgen.run.measure.base import Policy, Task
from deepgen.run.measure.bench import Bench, look_for_damage
from deepgen.run.measure.guarded import Guarded, Placement
from deepgen.run.measure.harness import BLOCK, PARTS, Steps
from deepgen.run.measure.supervisor import Supervisor
from deepgen.vocabulary import Verdict

WIDE = softmax(700, 1031)  # 2.9 MB each: pages are exchanged, outputs are judged in parts


def shown(bench: Bench, of: int) -> bool:
    inputs = bench.alternating.under(frozenset())[of].inputs
    return all((bench.arrays[name] == array).all() for name, array in inputs.items())


def access(place: int) -> str:
    """What this process may do at an address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, end = (int(number, 16) for number in line.split()[0].split("-"))
        if first <= place < end:
            return line.split()[1]
    return "nothing"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(WIDE, 0, "normal", tmp_path, placed=Placement.LINES)
    yield bench
    bench.close()


def test_inputs_alternate_without_being_copied(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    writing = Bench._writing

    def counted(self: Bench, names: Iterable[str], *more: Any) -> Steps:
        copied.extend(names)
        return writing(self, names, *more)

    monkeypatch.setattr(Bench, "_writing", counted)
    sets = bench.alternating.under(frozenset())
    for run in range(1, 8):
        bench.use(sets[run % 2])
        assert shown(bench, run % 2)
        look_for_damage(bench.buffers.values())
    assert len(copied) == 1, "the second set, once"
    held = bench.buffers["x"]
    assert access(held.start) == "r--p", "a kernel that writes to it traps"
    assert [access(at) for at in held._others] == ["---p", "---p"], "and one that gets lost"


def test_what_another_contender_may_have_changed_is_rewritten_in_both_sets(bench: Bench) -> None:
    sets = bench.alternating.under(frozenset())
    bench.taken_by("a kernel")
    for run in range(4):
        bench.use(sets[run % 2])
        bench.buffers["x"].protect(read_only=False)
        bench.arrays["x"][3] = 7.0
    bench.taken_by("its rival")
    for run in range(4):
        bench.use(sets[run % 2])
        assert shown(bench, run % 2)


@pytest.mark.parametrize("failing", [1, 2, 3, 4])
def test_where_pages_cannot_be_exchanged_inputs_are_copied(
    failing: int, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves: list[int] = []
    move = Guarded._move

    def fails(self: Guarded, source: int, to: int) -> bool:
        moves.append(source)
        return len(moves) != failing and move(self, source, to)

    monkeypatch.setattr(Guarded, "_move", fails)
    sets = bench.alternating.under(frozenset())
    for run in range(1, 6):
        bench.use(sets[run % 2])
        assert shown(bench, run % 2)
        look_for_damage(bench.buffers.values())
    assert len(moves) <= failing, "it is not tried again"


def test_each_block_is_judged_in_its_turn(bench: Bench) -> None:
    chosen = bench.alternating.under(frozenset())[0]
    bench.use(chosen)
    correct = chosen.answers["y"].values.astype(np.float32)
    out = bench.buffers["y"].all
    bench.reset()
    bench.arrays["y"][...] = correct
    right = bench.judge()
    noticed: dict[int, list[bool]] = {0: [], 5 * BLOCK + 17: [], out.size - 1: []}
    for place, seen in noticed.items():
        for _ in range(PARTS):
            bench.reset(partly=True)
            bench.arrays["y"][...] = correct
            out[place] ^= 1
            seen.append(not bench.same_as(right, partly=True))
        assert not bench.same_as(right)
    assert [seen.count(True) for seen in noticed.values()] == [1, 1, 1]
    bench.reset()
    bench.arrays["y"][...] = correct
    out[BLOCK] ^= 1
    assert not bench.same_as(right, partly=True), "a run that is judged as a whole is"


def test_what_a_kernel_does_not_write_is_noticed_in_each_run(bench: Bench) -> None:
    """Outputs hold poison in the part that is judged, or results for the other inputs."""
    sets = bench.alternating.under(frozenset())
    rights = []
    for chosen in sets:
        bench.use(chosen)
        bench.reset()
        bench.arrays["y"][...] = chosen.answers["y"].values
        rights.append(bench.judge())
    for run in range(4 * PARTS):
        bench.use(sets[run % 2])
        bench.reset(partly=True)
        assert not bench.same_as(rights[run % 2], partly=True), run
        bench.arrays["y"][...] = sets[run % 2].answers["y"].values


_WRITES = """
#include <sys/mman.h>
static void overwrite(const float *A, long n) {
    unsigned long first = (unsigned long)A / 65536 * 65536;
    mprotect((void *)first, (unsigned long)(A + n) - first, PROT_READ | PROT_WRITE);
    for (long i = 0; i < n; i++) ((float *)A)[i] = 1;
}
"""


@pytest.mark.parametrize(
    ("body", "helpers", "words"),
    [
        ("multiply(A, B, C, M, N, K); if (calls > 3) overwrite(A, M * K);", _WRITES, "wrote to its input A"),
        ("if (calls < 5) multiply(A, B, C, M, N, K);", "", "correct at first but not on call 5"),
        ("if (calls % 4) multiply(A, B, C, M, N, K); else multiply(A, B, C, M / 2, N, K);", "", "call"),
    ],
)  # fmt: skip
def test_faults_of_later_calls_on_large_tensors_are_found_in_a_trial(body: str, helpers: str, words: str) -> None:
    supervisor = Supervisor(Task(gemm(700, 700, 700), TARGET, policy=Policy(min_samples=12, max_samples=12)))
    bad = kernel(body, helpers)
    try:
        measured = supervisor.measure(bad, build(bad))
        assert measured.verdict is Verdict.WRONG and words in measured.detail, measured
        good = kernel()
        assert supervisor.measure(good, build(good)).ok
    finally:
        supervisor.close()
