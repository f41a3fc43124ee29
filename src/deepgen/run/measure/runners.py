"""Runners around another runner: over several shapes, and with counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

from deepgen.run.call import plans
from deepgen.run.counters import OCCUPANCY, OF_MIX, Counted, events_of, is_static
from deepgen.run.measure.base import Contender, Runner, Task
from deepgen.toolchains import instruction_mix
from deepgen.vocabulary import Artifact, DeepgenError, Json, Kernel, Measurement, completed
from deepgen.vocabulary.measurement import geometric_mean


class OverShapes:
    """A runner for all timed shapes of a task."""

    def __init__(self, runner: Runner, timed: int) -> None:
        self._runner, self._timed = runner, timed

    def measure(self, kernel: Kernel, artifact: Artifact, *, beat: float | None = None, shape: int = 0) -> Measurement:
        """`beat` does not apply to a single shape: a kernel may be slower there and faster overall."""
        measured: list[Measurement] = []
        for place in range(self._timed):
            measured.append(self._runner.measure(kernel, artifact, shape=place))
            if not measured[-1].ok:
                break
        return combined(measured)

    def verify(self, kernel: Kernel, artifact: Artifact, seed: int, probe: str, shape: int = 0) -> Measurement:
        return self._runner.verify(kernel, artifact, seed, probe, shape)

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int, shape: int = 0) -> list[Measurement]:
        """A contender that fails at a shape is not run at the next."""
        by_contender: list[list[Measurement]] = [[] for _ in contenders]
        for place in range(self._timed):
            racing = [i for i, measured in enumerate(by_contender) if all(m.ok for m in measured)]
            raced = self._runner.compare([contenders[i] for i in racing], rounds, seed, place) if racing else []
            for i, measured in zip(racing, raced, strict=True):
                by_contender[i].append(measured)
        return [combined(measured) for measured in by_contender]

    def count(self, kernel: Kernel, artifact: Artifact, events: Sequence[str], shape: int = 0) -> Counted:
        """Count at the first shape only: shares and rates of several shapes cannot be combined."""
        return self._runner.count(kernel, artifact, events, shape)

    def close(self) -> None:
        self._runner.close()


def combined(measured: Sequence[Measurement]) -> Measurement:
    """Sample i is the geometric mean of sample i at each shape; the first failed shape determines the verdict."""
    for place, one in enumerate(measured):
        if not one.ok:
            return replace(one, detail=f"at shape {place + 1}: {one.detail}", samples=())
    samples = [geometric_mean(row) for row in zip(*(m.samples for m in measured), strict=False)]
    seconds: list[Json] = [median(m.samples) for m in measured]
    return replace(
        measured[0],
        samples=tuple(samples),
        error=max(m.error or 0.0 for m in measured),
        conditions={**measured[0].conditions, "shapes": seconds},
    )


class Counting:
    """A runner that also counts events, in separate runs, so that it does not affect times."""

    def __init__(self, runner: Runner, task: Task, toolchains: Mapping[str, str] | None) -> None:
        self._runner, self._task, self._toolchains = runner, task, toolchains
        self._events = events_of(task.counters, task.target)

    def measure(self, kernel: Kernel, artifact: Artifact, *, beat: float | None = None, shape: int = 0) -> Measurement:
        measured = self._runner.measure(kernel, artifact, beat=beat, shape=shape)
        return self.count(kernel, artifact, self._events, shape).kept_in(measured) if measured.ok else measured

    def verify(self, kernel: Kernel, artifact: Artifact, seed: int, probe: str, shape: int = 0) -> Measurement:
        return self._runner.verify(kernel, artifact, seed, probe, shape)

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int, shape: int = 0) -> list[Measurement]:
        return self._runner.compare(contenders, rounds, seed, shape)

    def count(self, kernel: Kernel, artifact: Artifact, events: Sequence[str], shape: int = 0) -> Counted:
        counted = Counted()
        if of_mix := [event for event in events if event.startswith(OF_MIX)]:
            counted |= self._mix(artifact, of_mix)
        if OCCUPANCY in events:
            counted |= self._occupancy(kernel, artifact, shape)
        if dynamic := [event for event in events if not is_static(event)]:
            counted |= self._runner.count(kernel, artifact, dynamic, shape)
        return replace(counted, values={event: counted.values[event] for event in events if event in counted.values})

    def close(self) -> None:
        self._runner.close()

    def _mix(self, artifact: Artifact, events: Sequence[str]) -> Counted:
        try:
            mix = instruction_mix(Path(artifact.binary), self._task.target, self._toolchains)
        except DeepgenError as error:
            return Counted.nothing(events, str(error))
        shares = {event: mix[part] for event in events if (part := event[len(OF_MIX) :]) in mix}
        return Counted(shares) | Counted.nothing(set(events) - set(shares), "no such class of instructions")

    def _occupancy(self, kernel: Kernel, artifact: Artifact, shape: int) -> Counted:
        """The occupancy of the entry that uses the most registers. Build facts lack it if sizes are symbolic."""
        facts = artifact.facts
        usages: Any = facts.get("entries") or dict.fromkeys((step.entry for step in kernel.plan.steps), facts)
        steps = [s for s in completed(kernel, artifact.plan).plan.steps if "registers" in usages.get(s.entry, {})]
        if not steps:
            return Counted.nothing([OCCUPANCY], "the compiler reports no register count")
        main = max(steps, key=lambda step: int(usages[step.entry]["registers"]))
        usage = usages[main.entry]
        if "occupancy" in usage:
            return Counted({OCCUPANCY: float(usage["occupancy"])})
        scalars = self._task.shapes[shape].scalars()
        threads = prod(int(plans.evaluate(size, scalars)) for size in main.block)
        shared = int(usage["shared_bytes"]) + int(plans.evaluate(main.shared_bytes, scalars))
        resident = self._task.target.residence(threads, int(usage["registers"]), shared)
        if resident is None:
            return Counted.nothing([OCCUPANCY], "the target has no multiprocessors")
        return Counted({OCCUPANCY: resident[1]})
