"""Qualifying: finalists must be right on other inputs than they were timed on, and the winner at other shapes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from deepgen.run.measure import handed
from deepgen.run.measure.base import STRIDED, Task
from deepgen.tuning.engines.base import Arena
from deepgen.tuning.study.finals import DroppedTrial, Serves
from deepgen.vocabulary import Artifact, DeepgenError, Kernel, Trial, Verdict

OTHER_SEEDS = 2  # sets of inputs that a finalist must be right on, in addition to the study's own


@dataclass(frozen=True)
class Finalist:
    """A trial that takes part in the finals, with its kernel built."""

    trial: Trial
    kernel: Kernel
    artifact: Artifact
    default: bool  # whether the search began with this config

    @property
    def name(self) -> str:
        return f"trial {self.trial.id}"

    def order(self) -> tuple[bool, int, int, int]:
        """Among equals the default wins, then the one with the fewest resources, then the lowest rank."""
        facts = self.artifact.facts
        return not self.default, _fact(facts.get("shared_bytes")), _fact(facts.get("code_bytes")), self.trial.rank


def finals_inputs(task: Task) -> Iterator[tuple[int, int, str]]:
    """Shape, seed and probe of all that finals verify kernels on, beside what they are timed on."""
    for shape in range(len(task.timed)):
        for seed, probe in handed.sets(task.operator, task.seed, OTHER_SEEDS):
            if shape == 0 or (probe == "normal" and seed == task.seed + 1):
                yield shape, seed, probe
    for shape in range(len(task.timed), len(task.shapes)):
        yield shape, task.seed, "normal"


def tried_at_neighbours(session: Arena, task: Task, kernel: Kernel, max_seconds: float = inf) -> Serves:
    """Whether a kernel is right at other shapes that it says it serves; if not, it keeps those that it was timed at.

    When the time is up, the remaining shapes are skipped and counted, but at least one is tried.
    """
    ends = time.monotonic() + max_seconds
    right: list[int] = []
    untried = 0

    def wrong(shape: int, probe: str) -> str | None:
        """What is wrong there, in words; None where it is right or does not claim to serve the shape."""
        try:
            verdict = session.verify(kernel, task.seed, probe, shape)
        except DeepgenError:  # a user's operator may have no inputs or no reference of this shape
            return None
        if verdict.ok and probe != STRIDED:
            right.append(shape)
        if verdict.ok or verdict.verdict is Verdict.REFUSED:
            return None
        return f"{verdict.verdict.value.replace('_', ' ')} at {task.shapes[shape].describe()}: {verdict.detail}"

    why = None
    for place, shape in enumerate(range(len(task.timed), len(task.shapes))):
        if place and time.monotonic() > ends:
            untried = len(task.neighbours) - place
            break
        if why := wrong(shape, "normal"):
            break
    only = tuple(dict(operator.sizes()) for operator in task.timed) if why else None
    # A user's arrays may be parts of larger ones. Two shapes suffice: kernels get strides and sizes separately.
    strided = next(filter(None, (wrong(shape, STRIDED) for shape in right[:2])), None)
    return Serves(only, tuple(task.shapes[shape].describe() for shape in right), why, strided, untried)


def qualify(
    session: Arena,
    task: Task,
    candidates: Sequence[Trial],
    emit: Callable[[Trial], Kernel],
    keep: int,
    default: Trial | None,
    max_seconds: float = inf,
) -> tuple[list[Finalist], list[DroppedTrial]]:
    """Those that are right on other seeds and on extreme inputs too; the rest with the reason why not.

    When the time is up, those found so far are returned, but at least one is looked for.
    """
    ends = time.monotonic() + max_seconds
    finalists: list[Finalist] = []
    dropped: list[DroppedTrial] = []
    tests = [test for test in finals_inputs(task) if test[0] < len(task.timed)]
    for trial in candidates:
        if len(finalists) == keep or (finalists and time.monotonic() > ends):
            break
        kernel = emit(trial)
        artifact = session.build(kernel)
        for shape, seed, probe in tests:
            verdict = session.verify(kernel, seed, probe, shape)
            if not verdict.ok:
                where = f"on {probe} inputs of seed {seed}"
                where += f" at {task.shapes[shape].describe()}" if shape else ""
                dropped.append(DroppedTrial(trial.id, verdict.verdict, f"{where}: {verdict.detail}"))
                break
        else:
            finalists.append(Finalist(trial, kernel, artifact, default is not None and trial.id == default.id))
    return finalists, dropped


def _fact(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) else 0
