"""The runner of RISC-V kernels, under qemu or on a board. Results are verified here; costs are counts or times."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from deepgen.operators import Answer, Operator
from deepgen.run.counters import Counted
from deepgen.run.measure import handed, limits
from deepgen.run.measure.base import WAYS, Contender, Task
from deepgen.run.measure.bench import Rejected, error_of, on_call
from deepgen.run.measure.channel import DOING, WorkerStage
from deepgen.run.measure.guarded import Placement
from deepgen.run.measure.race import race
from deepgen.run.riscv import perf, program
from deepgen.run.riscv.board import RemoteBoard
from deepgen.run.riscv.program import ANSWERS, COUNTS, InstructionCounts, ProgramHost, Ran, Run, TimedCalls, Wanted
from deepgen.run.riscv.qemu import Qemu
from deepgen.targets import Riscv
from deepgen.targets.riscv import TABLES
from deepgen.toolchains import Cache
from deepgen.vocabulary import Artifact, BadInput, DeepgenError, Json, Kernel, Measurement, Verdict, completed
from deepgen.vocabulary.folders import Scratch

_SLOWER = 10.0  # times as slow under qemu as the slowest kernels allowed elsewhere
_STARTING = 5.0  # seconds
_ATTEMPTS = 3  # of a run that was killed from outside
_PARTS = 5  # of the rounds in which programs are compared: all programs run in each part
_COLD = 2  # times the cache size: memory that is written to make caches cold
_LEAST_COLD = 4 << 20
_FEW_CALLS, _MORE_CALLS = 2, 8  # counts per call are differences between these, which cancels the rest of the program
_SAMPLED_NANOSECONDS, _MOST_CALLS = 0.5e9, 2000  # of calls that are sampled
# The second run has other inputs, and finds tables in the state that calls leave.
_COUNTED = Wanted((Run(0), Run(1, counted=True)))
_VERIFIED = Wanted((Run(0), Run(1), Run(0)), placed=Placement.TIGHT)
_OFF = Wanted((Run(0),), placed=Placement.OFF)


@dataclass(frozen=True)
class _Drawn:
    """Alternating sets of inputs: the folder that holds them, and the answers to each."""

    folder: Path
    answers: tuple[Mapping[str, Answer], ...]


class RiscvRunner:
    """Runs every kernel as a program of its own, so that a bad one ends only its own process."""

    def __init__(
        self,
        task: Task,
        *,
        cache: Cache | Path | None = None,
        toolchains: Mapping[str, str] | None = None,
        arrays: Path | None = None,
    ) -> None:
        if not isinstance(task.target, Riscv):
            raise BadInput(f"{task.target.name} is not a RISC-V target")
        self.task, self._target = task, task.target
        self._scratch = Scratch("riscv")
        self._place = _place(self._target, self._scratch.path, toolchains, cache)
        self._arrays = arrays or self._scratch.path
        self._numbers = itertools.count()
        self._drawn = lru_cache(maxsize=4)(self._draw)

    def measure(self, kernel: Kernel, artifact: Artifact, *, beat: float | None = None, shape: int = 0) -> Measurement:
        policy = self.task.policy
        # Every counted run has the same cost, so one run gives the least number of samples.
        return self._measured(kernel, artifact, shape, policy.min_samples, policy.max_samples, policy.max_seconds)

    def verify(self, kernel: Kernel, artifact: Artifact, seed: int, probe: str, shape: int = 0) -> Measurement:
        if probe in WAYS:
            return Measurement(Verdict.REFUSED, "on RISC-V a kernel is called with dense arrays, from one thread")
        verified = self._tried(kernel, artifact, seed, probe, shape, _VERIFIED, 0)
        if not verified.ok or probe != "normal":
            return verified
        off = self._tried(kernel, artifact, seed, probe, shape, _OFF, 0)
        return verified if off.ok else replace(off, detail=f"{off.detail}, {DOING[WorkerStage.OFF]}")

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int, shape: int = 0) -> list[Measurement]:
        """Compare programs of one kernel each. If times are measured, the programs alternate, each running a part of
        its rounds, so that a change of the clock frequency affects all of them."""
        built = []
        for contender in contenders:
            if contender.kernel is None or contender.artifact is None:
                raise DeepgenError(f"no baseline {contender.name!r} runs on {self._target.name}")
            built.append((contender.kernel, contender.artifact))
        share = rounds if self._place.counts else -(-rounds // _PARTS)
        parts: list[list[Measurement]] = [[] for _ in built]

        def time_rounds(present: Sequence[int], some: int, first: int) -> Mapping[int, Sequence[float]]:
            for number in present:
                parts[number].append(self._measured(*built[number], shape, some, some, 0.0))
            return {number: parts[number][-1].samples for number in present if parts[number][-1].ok}

        race(range(len(built)), time_rounds, share, lambda result: min(share, rounds - result.rounds))
        return [_whole(part) for part in parts]

    def count(self, kernel: Kernel, artifact: Artifact, events: Sequence[str], shape: int = 0) -> Counted:
        if not isinstance(self._place, RemoteBoard):
            return Counted.nothing(events, "under qemu only instructions are counted, not hardware events")
        lacking = self._place.uncountable(events)
        counted = Counted(missing=lacking)
        for profile, meant in perf.profiles([event for event in events if event not in lacking]):
            counted |= self._profiled(self._place, kernel, artifact, profile, meant, shape)
        return counted

    def close(self) -> None:
        self._place.close()
        self._scratch.close()

    def _profiled(
        self,
        board: RemoteBoard,
        kernel: Kernel,
        artifact: Artifact,
        profile: perf.Profile,
        events: Sequence[str],
        shape: int,
    ) -> Counted:
        """Events of one call: the difference of two programs, the second of which calls the kernel more often."""

        def ran(calls: int) -> Ran:
            wanted = Wanted((Run(0), Run(1)), TimedCalls(calls, calls, 0.0))
            text, drawn, seconds = self._requested(kernel, artifact, self.task.seed, "normal", shape, wanted)
            return board.run(Path(artifact.binary), drawn.folder, text, seconds, counted=False, profile=profile)

        few = ran(_FEW_CALLS)
        more = _MORE_CALLS
        if profile.sampled:
            times = [line["nanoseconds"] for line in program.answers(few.read(ANSWERS)) if line.get("timed")]
            more = min(_MOST_CALLS, max(more, int(_SAMPLED_NANOSECONDS / max(1, *times)))) if times else more
        return perf.per_call(
            profile, few.read(profile.output), ran(_FEW_CALLS + more).read(profile.output), more, events
        )

    def _measured(
        self, kernel: Kernel, artifact: Artifact, shape: int, least: int, most: int, seconds: float
    ) -> Measurement:
        wanted = _COUNTED
        if not self._place.counts:
            cold = (
                _COLD * max(self._target.l2_bytes, self._target.l3_bytes, _LEAST_COLD) if self.task.policy.cold else 0
            )
            wanted = Wanted((Run(0), Run(1)), TimedCalls(least, most, seconds, cold))
        return self._tried(kernel, artifact, self.task.seed, "normal", shape, wanted, least)

    def _tried(
        self, kernel: Kernel, artifact: Artifact, seed: int, probe: str, shape: int, wanted: Wanted, samples: int
    ) -> Measurement:
        try:
            text, drawn, seconds = self._requested(kernel, artifact, seed, probe, shape, wanted)
        except BadInput as error:
            return Measurement(Verdict.REFUSED, str(error))
        try:
            ran = self._ran(Path(artifact.binary), drawn.folder, text, seconds, counted=wanted.costs)
            answered = program.answers(ran.read(ANSWERS))
            program.check(answered, ran)
            worst = _judged(answered, ran.folder, drawn, self.task.shapes[shape], probe)
        except Rejected as why:
            unknown = self._place.lacks if why.detail.startswith("SIGILL") else ""
            detail = f"{why.detail}: {unknown}" if unknown else why.detail
            return Measurement(why.verdict, detail, error=why.error, conditions=self._place.conditions)
        if not wanted.costs:
            return Measurement(Verdict.CORRECT, error=worst, conditions=self._place.conditions)
        return self._costed(answered, ran, worst, samples)

    def _requested(
        self, kernel: Kernel, artifact: Artifact, seed: int, probe: str, shape: int, wanted: Wanted
    ) -> tuple[str, _Drawn, float]:
        """A request, its inputs, and its time limit. Raises BadInput for unsupported shapes."""
        operator = self.task.shapes[shape]
        if handed.needed(operator):
            handed.hand_over(operator, seed, probe, self._arrays)
        drawn = self._drawn(seed, probe, shape)
        call = self._call_seconds(shape)
        whole = completed(kernel, artifact.plan)
        text = program.text(whole, operator, wanted, sets=len(drawn.answers), vlen=self._target.vlen, seconds=call)
        return text, drawn, _STARTING + wanted.most_runs * (call + 1.0)

    def _costed(self, answered: Sequence[Mapping[str, Any]], ran: Ran, error: float, samples: int) -> Measurement:
        """A measurement with times, or with cycles at the target's clock instead."""
        if not self._place.counts:
            times = tuple(line["nanoseconds"] * 1e-9 for line in answered if line.get("timed"))
            conditions = {**self._place.conditions, "cold": self.task.policy.cold}
            return Measurement(Verdict.CORRECT, "", times, error, conditions=conditions)
        counts = InstructionCounts.from_text(ran.read(COUNTS))
        cycles = counts.cycles(TABLES[self._target.costs])
        facts: dict[str, Json] = {
            **self._place.conditions,
            "costs": self._target.costs,
            "instructions": counts.instructions,
            "cycles": cycles,
        }
        seconds = cycles / self._target.counts_a_second
        return Measurement(Verdict.CORRECT, "", (seconds,) * samples, error, dict(counts.named()), facts)

    def _ran(self, program: Path, inputs: Path, text: str, seconds: float, *, counted: bool) -> Ran:
        """Run a program, and again if it was killed from outside."""
        for _ in range(_ATTEMPTS):
            ran = self._place.run(program, inputs, text, seconds, counted=counted)
            if ran.code != -signal.SIGKILL or not ran.in_time:
                break
        return ran

    def _call_seconds(self, shape: int) -> float:
        if self.task.policy.timeout_seconds is not None:
            return self.task.policy.timeout_seconds
        return (_SLOWER if self._place.counts else 1.0) * limits.run_seconds(self.task.at(shape))

    def _draw(self, seed: int, probe: str, shape: int) -> _Drawn:
        folder = self._scratch.path / f"inputs-{next(self._numbers)}"
        folder.mkdir()
        answers = []
        for number, (inputs, answer) in enumerate(handed.arrays(self.task.shapes[shape], seed, probe, self._arrays)):
            for name, array in inputs.items():
                (folder / f"set-{number}-{name}").write_bytes(np.ascontiguousarray(array).tobytes())
            answers.append(answer())
        return _Drawn(folder, tuple(answers))


def _place(
    target: Riscv, scratch: Path, toolchains: Mapping[str, str] | None, cache: Cache | Path | None
) -> ProgramHost:
    return RemoteBoard(target.host, scratch) if target.host else Qemu(target, scratch, toolchains, cache)


def _whole(parts: Sequence[Measurement]) -> Measurement:
    """The rounds of all parts together; an error in any part stands for all."""
    if not parts[-1].ok:
        return parts[-1]
    samples = tuple(sample for part in parts for sample in part.samples)
    return replace(parts[-1], samples=samples, error=max(part.error or 0.0 for part in parts))


def _judged(
    answered: Sequence[Mapping[str, Any]], folder: Path, drawn: _Drawn, operator: Operator, probe: str
) -> float:
    """The largest error of the written results, as a share of the tolerance. Raises Rejected."""
    worst = 0.0
    outputs = [t for t in operator.tensors() if t.role != "input" and operator.signature()[t.name].checked]
    for line in answered:
        for tensor in outputs if line.get("saved") else ():
            try:
                raw = (folder / f"result-{int(line['run'])}-{tensor.name}").read_bytes()
                got = np.frombuffer(raw, tensor.dtype.numpy()).reshape(tensor.shape)
                want = drawn.answers[int(line["set"])][tensor.name]
            except (OSError, ValueError, TypeError, KeyError, IndexError):  # a kernel may write to the answers
                raise Rejected(Verdict.WRONG, "its files were changed or removed") from None
            with on_call(line["run"] + 1):
                worst = max(worst, error_of(got, want, tensor, operator.tolerance_on(tensor.name, probe), None))
    return worst
