"""The runner of RISC-V kernels under qemu: results are verified, and costs are weighted counts of instructions."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from deepgen.build import Cache, Group
from deepgen.build.process import End, Finished
from deepgen.measure import handed, limits
from deepgen.measure.base import STRIDED, Contender, Task
from deepgen.measure.counters.counted import Counted
from deepgen.measure.riscv import qemu, request
from deepgen.measure.riscv.counts import Counts
from deepgen.measure.riscv.request import Run
from deepgen.operators import Answer
from deepgen.operators.compare import compare, explain
from deepgen.scratch import Scratch
from deepgen.targets import Riscv
from deepgen.targets.riscv.costs import TABLES
from deepgen.vocabulary import Artifact, BadInput, DeepgenError, Json, Kernel, Measurement, Verdict, completed

_SLOWER = 10.0  # that a kernel may be under qemu than the slowest that is waited for elsewhere
_STARTING = 5.0  # seconds
_ATTEMPTS = 3  # at a run that something outside killed
_TIMED = (Run(0), Run(1, counted=True))  # the second finds other inputs, and caches and tables as calls leave them
_VERIFIED = (Run(0), Run(1), Run(0))


@dataclass(frozen=True)
class _Drawn:
    """Sets of inputs that take turns: the folder that has them, and the answers to each."""

    folder: Path
    answers: tuple[Mapping[str, Answer], ...]


@dataclass(frozen=True)
class _Outcome:
    """A program's verdict, and what it counted."""

    verdict: Verdict
    detail: str = ""
    error: float | None = None
    counts: Counts | None = None


class RiscvRunner:
    """Every kernel is a program of its own: a bad one ends its own process."""

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
        self._qemu = qemu.find(toolchains, cache)
        self._scratch = Scratch("riscv")
        self._arrays = arrays or self._scratch.path
        self._group = Group()
        self._numbers = itertools.count()
        self._drawn = lru_cache(maxsize=4)(self._draw)

    def measure(self, kernel: Kernel, artifact: Artifact, *, beat: float | None = None, shape: int = 0) -> Measurement:
        # Every run has the same cost: as many samples as others take at least.
        return self._measured(kernel, artifact, shape, self.task.policy.min_samples)

    def verify(self, kernel: Kernel, artifact: Artifact, seed: int, probe: str, shape: int = 0) -> Measurement:
        if probe == STRIDED:
            return Measurement(Verdict.REFUSED, "arrays must be dense here")
        outcome = self._tried(kernel, artifact, seed, probe, shape, _VERIFIED, tight=True)
        return self._told(outcome, 0)

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int, shape: int = 0) -> list[Measurement]:
        out = []
        for contender in contenders:
            if contender.kernel is None or contender.artifact is None:
                raise DeepgenError(f"no baseline {contender.name!r} runs under qemu")
            out.append(self._measured(contender.kernel, contender.artifact, shape, rounds))
        return out

    def count(self, kernel: Kernel, artifact: Artifact, events: Sequence[str], shape: int = 0) -> Counted:
        return Counted.nothing(events, "under qemu instructions are counted, and nothing else")

    def close(self) -> None:
        self._group.kill()
        self._scratch.close()

    def _measured(self, kernel: Kernel, artifact: Artifact, shape: int, samples: int) -> Measurement:
        return self._told(self._tried(kernel, artifact, self.task.seed, "normal", shape, _TIMED, tight=False), samples)

    def _told(self, outcome: _Outcome, samples: int) -> Measurement:
        """Cycles stand where others have times, at the target's clock."""
        conditions: dict[str, Json] = {"proxy": self._target.proxy, "qemu": self._qemu.version}
        if outcome.counts is None:
            return Measurement(outcome.verdict, outcome.detail, error=outcome.error, conditions=conditions)
        cycles = outcome.counts.cycles(TABLES[self._target.costs])
        counted = {"costs": self._target.costs, "instructions": outcome.counts.instructions, "cycles": cycles}
        seconds = cycles / (self._target.mhz * 1e6)
        counters = dict(outcome.counts.named())
        return Measurement(
            outcome.verdict, "", (seconds,) * samples, outcome.error, counters, {**conditions, **counted}
        )

    def _tried(
        self, kernel: Kernel, artifact: Artifact, seed: int, probe: str, shape: int, runs: Sequence[Run], *, tight: bool
    ) -> _Outcome:
        operator = self.task.shapes[shape]
        if handed.needed(operator):
            handed.hand_over(operator, seed, probe, self._arrays)
        drawn = self._drawn(seed, probe, shape)
        # A probe with a single set repeats it.
        runs = [Run(run.set % len(drawn.answers), run.counted) for run in runs]
        try:
            text = request.text(completed(kernel, artifact.plan), operator, runs, tight=tight)
        except BadInput as error:
            return _Outcome(Verdict.REFUSED, str(error))
        counted = any(run.counted for run in runs)
        finished, folder = self._run(Path(artifact.binary), drawn, text, self._seconds(len(runs), shape), counted)
        answers = folder / "answers"
        told = request.answers(_read(answers))
        fault = _fault(told, finished, started=answers.exists())
        if fault is not None:
            return fault
        judged = self._judged(told, folder, drawn, seed, probe, shape)
        if judged.verdict is not Verdict.CORRECT or not counted:
            return judged
        return _Outcome(judged.verdict, "", judged.error, Counts.from_text(_read(folder / qemu.COUNTS)))

    def _run(self, program: Path, drawn: _Drawn, text: str, seconds: float, counted: bool) -> tuple[Finished, Path]:
        """A process in a fresh folder. One that something outside killed is started again."""
        for last in (*(False,) * (_ATTEMPTS - 1), True):
            folder = self._scratch.path / f"run-{next(self._numbers)}"
            folder.mkdir()
            for file in drawn.folder.iterdir():
                (folder / file.name).symlink_to(file)
            (folder / "request").write_text(text)
            finished = self._qemu.run(program, folder, self._target, seconds, self._group, counted=counted)
            if finished.code != -signal.SIGKILL or finished.end is not End.ITSELF or last:
                break
        return finished, folder

    def _seconds(self, runs: int, shape: int) -> float:
        if self.task.policy.timeout_seconds is not None:
            return runs * self.task.policy.timeout_seconds
        return _STARTING + _SLOWER * runs * limits.run_seconds(self.task.at(shape))

    def _judged(
        self, told: Sequence[Mapping[str, Any]], folder: Path, drawn: _Drawn, seed: int, probe: str, shape: int
    ) -> _Outcome:
        """The results that were written, compared with the answers to their inputs."""
        operator = self.task.shapes[shape]
        worst = 0.0
        for line in told:
            if not line.get("saved"):
                continue
            for tensor in operator.tensors():
                if tensor.role == "input" or not operator.signature()[tensor.name].checked:
                    continue
                raw = (folder / f"result-{line['run']}-{tensor.name}").read_bytes()
                got = np.frombuffer(raw, tensor.dtype.numpy()).reshape(tensor.shape)
                want = drawn.answers[line["set"]][tensor.name]
                found = compare(got, want, tensor.dtype, operator.tolerance(tensor.name, probe))
                if not found.ok:
                    sentence = explain(tensor.name, got, want.values, tensor.dtype, found, None)
                    late = f"right at first but not on call {line['run'] + 1}: " if line["run"] else ""
                    return _Outcome(Verdict.WRONG, late + sentence, found.error if np.isfinite(found.error) else None)
                worst = max(worst, found.error)
        return _Outcome(Verdict.CORRECT, "", worst)

    def _draw(self, seed: int, probe: str, shape: int) -> _Drawn:
        folder = self._scratch.path / f"inputs-{next(self._numbers)}"
        folder.mkdir()
        answers = []
        for number, (inputs, answer) in enumerate(handed.arrays(self.task.shapes[shape], seed, probe, self._arrays)):
            for name, array in inputs.items():
                (folder / f"set-{number}-{name}").write_bytes(np.ascontiguousarray(array).tobytes())
            answers.append(answer())
        return _Drawn(folder, tuple(answers))


def _fault(told: Sequence[Mapping[str, Any]], finished: Finished, *, started: bool) -> _Outcome | None:
    """What ended a program before all its runs were over; None where nothing did."""
    for line in told:
        where = f"{line.get('buffer')} (at byte {line.get('byte')} of {line.get('bytes')})"
        if "died" in line:
            near = f" {line['where']} {where}" if "buffer" in line else ""
            if line.get("where") == "in":
                near = f" on writing to {where}, which is only read"
            return _Outcome(Verdict.CRASHED, f"{line['died']}{near}")
        if "damaged" in line:
            return _Outcome(Verdict.WRONG, f"wrote {line['damaged']} {where}")
        if "changed" in line:
            return _Outcome(Verdict.WRONG, f"left {line['changed']} changed")
        if "refused" in line:
            return _Outcome(Verdict.REFUSED, str(line["refused"]))
        if "failed" in line:
            if str(line["failed"]).startswith("no memory"):
                return _Outcome(Verdict.OUT_OF_MEMORY, str(line["failed"]))
            raise DeepgenError(f"the program could not do its work: {line['failed']}")
    if any("done" in line for line in told) and finished.code == 0:
        return None
    if finished.end is End.WALL_CLOCK:
        return _Outcome(Verdict.TIMED_OUT, f"did not finish within {finished.seconds:.3g} s under qemu")
    if finished.code < 0:
        return _Outcome(Verdict.CRASHED, signal.Signals(-finished.code).name)
    said = next((line.strip() for line in finished.log.splitlines() if line.strip()), "")
    if not started:
        raise DeepgenError(f"qemu did not start the program: {said or f'exit code {finished.code}'}")
    return _Outcome(Verdict.CRASHED, f"ended with exit code {finished.code} before its runs were over {said}".strip())


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
