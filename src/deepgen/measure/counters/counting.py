"""A runner that counts, too: events of right kernels after they were timed, and what their disassembly tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from deepgen.build import instruction_mix
from deepgen.measure.base import Contender, Runner, Task
from deepgen.measure.counters import names
from deepgen.measure.counters.counted import Counted
from deepgen.vocabulary import Artifact, DeepgenError, Kernel, Measurement


class Counting:
    """Around another runner. Counting has runs of its own, so that it changes no time."""

    def __init__(self, runner: Runner, task: Task, toolchains: Mapping[str, str] | None) -> None:
        self._runner, self._target, self._toolchains = runner, task.target, toolchains
        self._events = names.events(task.counters, task.target)

    def measure(self, kernel: Kernel, artifact: Artifact, *, beat: float | None = None, shape: int = 0) -> Measurement:
        measured = self._runner.measure(kernel, artifact, beat=beat, shape=shape)
        return self.count(kernel, artifact, self._events, shape).kept_in(measured) if measured.ok else measured

    def verify(self, kernel: Kernel, artifact: Artifact, seed: int, probe: str, shape: int = 0) -> Measurement:
        return self._runner.verify(kernel, artifact, seed, probe, shape)

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int, shape: int = 0) -> list[Measurement]:
        return self._runner.compare(contenders, rounds, seed, shape)

    def count(self, kernel: Kernel, artifact: Artifact, events: Sequence[str], shape: int = 0) -> Counted:
        static = [event for event in events if event.startswith(names.STATIC)]
        counted = self._static(artifact, static) if static else Counted()
        if dynamic := [event for event in events if event not in static]:
            counted |= self._runner.count(kernel, artifact, dynamic, shape)
        return replace(counted, values={event: counted.values[event] for event in events if event in counted.values})

    def close(self) -> None:
        self._runner.close()

    def _static(self, artifact: Artifact, events: Sequence[str]) -> Counted:
        try:
            mix = instruction_mix(Path(artifact.binary), self._target, self._toolchains)
        except DeepgenError as error:
            return Counted.nothing(events, str(error))
        found = {event: mix[part] for event in events if (part := event[len(names.STATIC) :]) in mix}
        return Counted(found) | Counted.nothing(set(events) - set(found), "no such class of instructions")
