"""Kernels that are wanted for several shapes: timed at each, and judged by the geometric mean of their times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from deepgen.run.counters.counted import Counted
from deepgen.run.measure.base import Contender, Runner
from deepgen.vocabulary import Artifact, Json, Kernel, Measurement
from deepgen.vocabulary.measurement import geometric_mean


class OverShapes:
    """A runner over all timed shapes of a task."""

    def __init__(self, runner: Runner, timed: int) -> None:
        self._runner, self._timed = runner, timed

    def measure(self, kernel: Kernel, artifact: Artifact, *, beat: float | None = None, shape: int = 0) -> Measurement:
        """`beat` says nothing of one shape: a kernel may lose there and win on the whole."""
        measured: list[Measurement] = []
        for place in range(self._timed):
            measured.append(self._runner.measure(kernel, artifact, shape=place))
            if not measured[-1].ok:
                break
        return combined(measured)

    def verify(self, kernel: Kernel, artifact: Artifact, seed: int, probe: str, shape: int = 0) -> Measurement:
        return self._runner.verify(kernel, artifact, seed, probe, shape)

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int, shape: int = 0) -> list[Measurement]:
        """One that fails at a shape is not run at the next."""
        found: list[list[Measurement]] = [[] for _ in contenders]
        for place in range(self._timed):
            racing = [i for i, measured in enumerate(found) if all(m.ok for m in measured)]
            raced = self._runner.compare([contenders[i] for i in racing], rounds, seed, place) if racing else []
            for i, measured in zip(racing, raced, strict=True):
                found[i].append(measured)
        return [combined(measured) for measured in found]

    def count(self, kernel: Kernel, artifact: Artifact, events: Sequence[str], shape: int = 0) -> Counted:
        """At the first shape only: shares and rates of several cannot be combined."""
        return self._runner.count(kernel, artifact, events, shape)

    def close(self) -> None:
        self._runner.close()


def combined(measured: Sequence[Measurement]) -> Measurement:
    """Sample i is the geometric mean of sample i at each shape; the first shape that failed decides the verdict."""
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
