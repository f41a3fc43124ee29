"""Our kernels and baselines compared on any target, by deepgen's own finals: verified, interleaved, paired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepgen import baselines
from deepgen.generators import Generator
from deepgen.libraries.racing import Runners, compared
from deepgen.operators import Operator
from deepgen.run.measure.base import Contender, Policy, Task
from deepgen.run.measure.race import paired_ratio
from deepgen.space import Space
from deepgen.targets import Target
from deepgen.toolchains import build_once
from deepgen.tuning import Request, tune
from deepgen.vocabulary import DeepgenError, Measurement

Config = Mapping[str, Any]
OURS, DEFAULT = "deepgen", "default"
ROUGH = "less accurate"


@dataclass(frozen=True)
class Beside:
    """A contender's time, and its ratio to ours with the 99% interval."""

    seconds: float
    ratio: float
    low: float
    high: float
    remark: str = ""  # padded copies, or less accurate


@dataclass(frozen=True)
class Raced:
    """The result of a race. Ratios above 1: ours is faster."""

    seconds: float
    rounds: int
    beside: Mapping[str, Beside]
    failed: Mapping[str, str]  # contenders without a time, and why

    @property
    def ratio(self) -> float | None:
        """The ratio over the fastest baseline that is as accurate."""
        able = [one for name, one in self.beside.items() if name in baselines.BASELINES and one.remark != ROUGH]
        return min((one.ratio for one in able), default=None)


@dataclass(frozen=True)
class Choice:
    """A kernel to race."""

    family: Generator
    config: Config


@dataclass(frozen=True)
class Place:
    """Where kernels are raced: the target, the state of caches, and the maximum number of threads (None: all)."""

    target: Target
    cold: bool = True
    threads: int | None = None

    def policy(self) -> Policy:
        return Policy(cold=self.cold, threads=self.threads)

    def limited(self) -> Target:
        """The target limited to the number of cores for these threads."""
        return self.target if self.threads is None else self.target.limited_to(self.threads)


def tuned(operator: Operator, place: Place, family: Generator, seconds: float, out: Path, **more: Any) -> Config:
    """The config of a study's winner; with no time, the family's default."""
    if seconds <= 0:
        return family.default(operator, place.limited())
    domains = dict(more.pop("domains", {}))
    if place.threads is not None and "THREADS" in {knob.name for knob in family.space(operator, place.target).knobs}:
        domains.setdefault("THREADS", sorted({1, place.threads}))
    request = Request(
        operator,
        place.target,
        trials=more.pop("trials", 100_000),
        time_budget=seconds,
        domains=domains,
        policy=place.policy(),
        baselines=False,
        generator=family,
        out=out,
        **more,
    )
    return tune(request).best().trial.config


def race(
    operator: Operator,
    place: Place,
    choices: Mapping[str, Choice],
    runners: Runners,
    names: Sequence[str] | None = None,
    rounds: int | None = None,
) -> Raced:
    """The first choice is ours; the others and the baselines (all that can run, or these) are timed with it."""
    kernels = {name: one.family.emit(operator, place.target, one.config) for name, one in choices.items()}
    able = baselines.find(operator, place.target)
    others = baselines.raced(able, operator) if names is None else [name for name in names if name in able]
    failed = {name: "it cannot run here" for name in names or () if name not in able}
    contenders = [Contender(name, kernel, build_once(kernel, place.target)) for name, kernel in kernels.items()]
    contenders += map(Contender, others)
    measured = compared(runners.on(Task(operator, place.target, policy=place.policy())), contenders, rounds)
    by_name = {contender.name: one for contender, one in zip(contenders, measured, strict=True)}
    ours = by_name.pop(next(iter(choices)))
    if not ours.ok or ours.seconds is None:
        raise DeepgenError(f"{operator.describe()}: ours is {ours.verdict}: {ours.detail}")
    failed |= {name: f"{one.verdict}: {one.detail}" for name, one in by_name.items() if not one.ok}
    beside = {name: _beside(one, ours) for name, one in by_name.items() if one.ok}
    return Raced(ours.seconds, len(ours.samples), beside, failed)


def _beside(other: Measurement, ours: Measurement) -> Beside:
    rounds = min(len(other.samples), len(ours.samples))
    ratio = paired_ratio(other.samples[:rounds], ours.samples[:rounds])
    remark = ROUGH if (other.error or 0.0) > 1.0 else str(other.conditions.get("form", ""))
    return Beside(other.seconds or 0.0, ratio.estimate, ratio.low, ratio.high, remark)


def fitting(space: Space, config: Config) -> dict[str, Any] | None:
    """A recorded config, or the closest one if the space now has other knobs or fewer values."""
    names = {knob.name for knob in space.knobs}
    kept = {name: value for name, value in config.items() if name in names}
    straight = {**{name: value for name, value in kept.items() if name != "BUFFERS"}, "STORE": "straight"}
    for start in (kept, straight) if "STORE" in names else (kept,):
        lacking = [knob for knob in space.knobs if knob.name not in start]
        always = {knob.name: knob.values[0] for knob in lacking if knob.when is None}
        for extra in ({}, *({knob.name: knob.values[0]} for knob in lacking if knob.when is not None)):
            whole = {**start, **always, **extra}
            if not space.explain(whole):
                return whole
    return None


__all__ = (
    "DEFAULT", "OURS", "ROUGH", "Beside", "Choice", "Config", "Place", "Raced",
    "fitting", "race", "tuned",
)  # fmt: skip
