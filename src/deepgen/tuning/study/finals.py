"""Finals as recorded: who took part, how long each kernel took, and which shapes the winner supports.

They are read and checked here, whether they come from a journal or from a bundle's results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from deepgen.vocabulary import codec
from deepgen.vocabulary.codec import Serializable, coded
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.json import Json, JsonObject
from deepgen.vocabulary.measurement import Properties, Verdict

if TYPE_CHECKING:
    from deepgen.operators import Signature

MOST_SECONDS = 1e9
_OF_WINNER = frozenset({"ties", "tie_broken_by", "rounds", "serves", "properties", "conditions", "waited"})


@dataclass(frozen=True)
class Slower:
    """The time as a multiple of the leader's, with its confidence interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class RacedTrial:
    """A finalist: its trial, its time and its samples, round by round."""

    trial: int
    rank: int
    config: Mapping[str, Any]
    default: bool  # whether the search began with this config
    kernel_id: str
    seconds: float
    samples: tuple[float, ...]
    slower_than_leader: Slower


@dataclass(frozen=True)
class OursInBursts(Serializable):
    """The winner's seconds, and the baseline's time as a multiple of it."""

    seconds: float
    ratio: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Bursts(Serializable):
    """A baseline and the winner, each in back-to-back runs of its own, as users call them."""

    seconds: float  # of the baseline
    kernel: OursInBursts
    call: OursInBursts | None = None  # when called through Python, as users call the loaded kernel


@dataclass(frozen=True)
class RacedBaseline:
    """A baseline, and its time as a multiple of the winner's."""

    name: str
    seconds: float
    ratio: float | None
    interval: tuple[float, float] | None
    samples: tuple[float, ...] = ()
    bursts: Bursts | None = field(default=None, metadata=coded(omit=True))
    noisy: str | None = field(default=None, metadata=coded(omit=True))  # why the ratio is meaningless
    error: float | None = field(default=None, metadata=coded(omit=True))  # as a multiple of the tolerance, if above it
    form: str = field(default="", metadata=coded(omit=True))  # padded copies, if its library needs them

    def compared(self) -> tuple[float, tuple[float, float]] | None:
        """The relevant ratio and its interval, from bursts if there are any; None if it is meaningless."""
        if self.noisy:
            return None
        if self.bursts is not None:
            return self.bursts.kernel.ratio, self.bursts.kernel.interval
        return None if self.ratio is None or self.interval is None else (self.ratio, self.interval)

    @property
    def title(self) -> str:
        """Its name, and the form in which it ran."""
        return f"{self.name}, {self.form}" if self.form else self.name

    def shown(self) -> JsonObject:
        """The baseline without its samples."""
        interval: Json = None if self.interval is None else [*self.interval]
        row: JsonObject = {"name": self.title, "seconds": self.seconds, "ratio": self.ratio, "interval": interval}
        bursts = None if self.bursts is None else self.bursts.to_json()
        return {**row, "bursts": bursts, "noisy": self.noisy, "error": self.error, "form": self.form or None}


@dataclass(frozen=True)
class DroppedTrial:
    """A kernel that was correct in the search and dropped out of the finals."""

    trial: int
    verdict: Verdict
    detail: str


@dataclass(frozen=True)
class LostBaseline(Serializable):
    """A baseline that the winner could not be compared with."""

    name: str
    verdict: Verdict
    detail: str
    error: float | None = None


@dataclass(frozen=True)
class Serves:
    """Which shapes the winner supports, if it was wrong at others or not tried there."""

    only: tuple[Mapping[str, int], ...] | None = None  # sizes; None: all that the kernel claims to support
    right_at: tuple[str, ...] = ()
    why: str | None = field(default=None, metadata=coded(omit=True))
    dense: str | None = field(default=None, metadata=coded(omit=True))  # why arrays must be dense
    untried: int = field(default=0, metadata=coded(omit=True))  # other shapes not tried before time ran out
    # Values of scalars, if no others were tried before time ran out.
    values: Mapping[str, float] = field(default_factory=dict, metadata=coded(omit=True))
    # Values of scalars without others to try: flags and divisors of no declared range, or expected arrays.
    fixed: Mapping[str, float] = field(default_factory=dict, metadata=coded(omit=True))

    def requirements(self, signature: Signature) -> tuple[tuple[str, str], ...]:
        """What a shape must satisfy, each condition with its reason in words."""
        dense = (*(self._dense(signature) if self.dense else ()), *self._values())
        if not self.only:
            return dense
        shapes = [" and ".join(f"{name} == {size}" for name, size in sizes.items()) for sizes in self.only]
        words = "it supports only " + " or ".join(shapes).replace(" == ", "=").replace(" and ", " ")
        untried = f"{self.untried} other shapes were not tested for lack of time; `deepgen retest` tests them"
        why = f"it was {self.why}" if self.why is not None else untried
        return ((" or ".join(f"({shape})" for shape in shapes), f"{words}: {why}"), *dense)

    def _values(self) -> Iterator[tuple[str, str]]:
        for name, value in {**self.values, **self.fixed}.items():
            words = f"{name}={value:g}: other values were not tested for lack of time; `deepgen retest` tests them"
            if name in self.fixed:
                words = f"{name}={value:g} is its only tested value; a declared range=(low, high) has others tested"
            yield f"{name} == {value!r}", words

    def _dense(self, signature: Signature) -> Iterator[tuple[str, str]]:
        words = f"it supports dense arrays only: with padded rows it was {self.dense}"
        for param in signature.params:
            for i in range(len(param.shape) - 1):
                product = " * ".join(f"({size})" for size in param.shape[i + 1 :])
                yield f"stride_{param.name}_{i} == {product}", words


@dataclass(frozen=True)
class ShapeTimes(Serializable):
    """The times at one of several shapes."""

    operator: str
    seconds: float | None
    baselines: Mapping[str, float | None]


@dataclass(frozen=True)
class Waited(Serializable):
    """How long finals waited for a quiet machine, what disturbed it first, and what still did at the end."""

    seconds: float = 0.0
    by: str | None = None
    disturbed: str | None = None


@dataclass(frozen=True)
class Finals:
    """The result of finals; without a winner if every finalist failed."""

    winner: int | None
    ties: tuple[int, ...] = ()
    tie_broken_by: str | None = None
    rounds: int = 0
    finalists: tuple[RacedTrial, ...] = ()
    baselines: tuple[RacedBaseline, ...] = ()
    baselines_lost: tuple[LostBaseline, ...] = ()
    dropped: tuple[DroppedTrial, ...] = ()
    serves: Serves | None = None
    properties: Properties | None = field(default=None, metadata=coded(omit=True))  # of the winner
    afresh: int | None = field(default=None, metadata=coded(omit=True))  # the seed of calls in a fresh process
    shapes: tuple[ShapeTimes, ...] = field(default=(), metadata=coded(omit=True))
    conditions: tuple[Mapping[str, Any], ...] = ()
    waited: Waited | None = None
    left_out: tuple[str, ...] = field(default=(), metadata=coded(omit=True))  # skipped for lack of time
    trials: int | None = field(default=None, metadata=coded(omit=True))  # ended trials when they were run
    peak_gflops: float | None = None
    bandwidth: float | None = None
    retest: bool = field(default=False, metadata=coded(omit=True))
    bundle: str | None = field(default=None, metadata=coded(omit=True))  # the bundle they ran in

    @property
    def best(self) -> RacedTrial | None:
        return self.finalist(self.winner)

    def finalist(self, trial: int | None) -> RacedTrial | None:
        return next((row for row in self.finalists if row.trial == trial), None)

    @property
    def noisy(self) -> str | None:
        """Why the times of these finals are meaningless, or None."""
        return next((f"{row.name}: {row.noisy}" for row in self.baselines if row.noisy), None)

    def seconds(self) -> dict[int, float]:
        """The time of each trial that took part."""
        return {row.trial: row.seconds for row in self.finalists}

    @property
    def compared(self) -> set[str]:
        """The names of the baselines that were raced or could not be."""
        return {row.name for row in self.baselines} | {row.name for row in self.baselines_lost}

    def dropped_reasons(self) -> list[str]:
        """Why kernels that were correct in the search dropped out, one line each."""
        return [f"trial {row.trial} is {row.verdict.value} {row.detail}" for row in self.dropped]

    def to_json(self) -> JsonObject:
        data = codec.to_json(self)
        return {key: data[key] for key in data if self.winner is not None or key not in _OF_WINNER}

    @staticmethod
    def from_json(data: Any, where: str | None = None) -> Finals:
        """Raises BadInput if the data is inconsistent."""
        finals = codec.from_json(Finals, data, where)
        flaw = next(finals._flaws(), None)
        if flaw is not None:
            raise BadInput(flaw, where=where)
        return finals

    def _flaws(self) -> Iterator[str]:
        """Every inconsistency, in words."""
        trials = [row.trial for row in self.finalists]
        if len(set(trials)) != len(trials):
            yield "a finalist is listed twice"
        if (self.winner not in trials) if trials else self.winner is not None:
            yield "the winner is not a finalist"
        if not set(self.ties) <= set(trials):
            yield "ties are not among the finalists"
        if self.tie_broken_by not in (None, "default", "resources"):
            yield "tie_broken_by is unknown"
        for name in ("peak_gflops", "bandwidth"):
            rate = getattr(self, name)
            if rate is not None and not 0 < rate < math.inf:
                yield f"{name} is not a rate"
        for row in self.finalists:
            name, ratio = f"finalist {row.trial}", row.slower_than_leader
            if not all(map(_is_time, (row.seconds, *row.samples))) or not row.samples:
                yield f"{name} has no time"
            elif not math.isclose(median(row.samples), row.seconds, rel_tol=1e-9):
                yield f"the time of {name} does not match its samples"
            if not all(value > 0 for value in (ratio.estimate, ratio.low, ratio.high)):
                yield f"{name} has no ratio to the leader"
        for one in self.baselines:
            if not _is_time(one.seconds):
                yield f"baseline {one.name} has no time"
            if not all(value > 0 for value in (*filter(None, [one.ratio]), *(one.interval or ()))):
                yield f"baseline {one.name} has no ratio"
            for ours in (one.bursts.kernel, one.bursts.call) if one.bursts else ():
                times = () if ours is None else (ours.seconds, ours.ratio, *ours.interval)
                if not all(map(_is_time, times)):
                    yield f"baseline {one.name} has no times in bursts"
        if any(shape.seconds is not None and not _is_time(shape.seconds) for shape in self.shapes):
            yield "a shape has no time"
        serves = self.serves or Serves()
        if serves.only and serves.why is None and not serves.untried:
            yield "serves gives no reason"
        if not all(
            name.isidentifier() for sizes in (*(serves.only or ()), serves.values, serves.fixed) for name in sizes
        ):
            yield "serves lists no shapes"


def _is_time(value: float) -> bool:
    return 0.0 < value < MOST_SECONDS
