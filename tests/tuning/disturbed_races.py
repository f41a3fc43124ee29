"""How often the intervals of finals contain the true ratio, in a model of a disturbed machine.

Each final is a race of two kernels whose true ratio is drawn from 0.8 to 1.25. A round's times are multiplied by

- noise of each sample: log-normal, 1% to 4%, drawn for each final;
- drift that both share: a random walk of the machine's clock, 0.5% a round;
- neighbours: phases that last some rounds and slow both by the same factor, up to 3, but each sample by up to 10% more
  or less; a fifth of the rounds are in one;
- spikes: one sample of a hundred takes up to 30 times as long.

The race is the tuner's own: rounds are added until its rules are satisfied. The 99% intervals must contain the truth in
at least 97% of the finals, and their median width must be at most 5% of the ratio.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from deepgen.run.measure.base import Contender
from deepgen.run.measure.race import paired_ratio
from deepgen.tuning.finals.race import run_race
from deepgen.vocabulary import Measurement, Verdict

HOLDS, WIDTH = 0.97, 0.05
OURS, OTHER = "ours", "other"
KINDS = ("calm", "noise", "drift", "neighbours", "spikes", "all")


@dataclass
class Machine:
    """Times two contenders according to the model; it keeps its phase between chunks of rounds."""

    ratio: float
    kind: str
    rng: np.random.Generator
    noise: float = field(init=False)
    clock: float = 0.0  # log of the drift
    neighbour: float = 0.0  # log of the slowdown
    rounds: int = 0

    def __post_init__(self) -> None:
        self.noise = self.rng.uniform(0.01, 0.04) if self._has("noise") else 0.005

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int) -> list[Measurement]:
        rows = [self._round() for _ in range(rounds)]
        self.rounds += rounds
        place = {OURS: 0, OTHER: 1}
        samples = [tuple(row[place[one.name]] for row in rows) for one in contenders]
        return [Measurement(Verdict.CORRECT, samples=times) for times in samples]

    def _round(self) -> tuple[float, float]:
        rng = self.rng
        if self._has("drift"):
            self.clock += 0.005 * rng.standard_normal()
        if self._has("neighbours") and rng.random() < 0.1:  # phases change every ten rounds
            self.neighbour = rng.uniform(0.0, np.log(3.0)) if rng.random() < 0.2 else 0.0
        return self._sample(1.0), self._sample(self.ratio)

    def _sample(self, seconds: float) -> float:
        rng = self.rng
        log = self.clock + self.neighbour + self.noise * rng.standard_normal()
        if self.neighbour:
            log += rng.uniform(-0.1, 0.1)
        if self._has("spikes") and rng.random() < 0.01:
            log += rng.uniform(0.0, np.log(30.0))
        return float(seconds * np.exp(log))

    def _has(self, disturbance: str) -> bool:
        return self.kind in (disturbance, "all")


def held(kind: str, seed: int) -> tuple[bool, float, int]:
    """One final: whether its interval contains the truth, its width, and the number of rounds."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    machine = Machine(float(np.exp(rng.uniform(np.log(0.8), np.log(1.25)))), kind, rng)
    contenders = [Contender(OURS), Contender(OTHER)]
    race, _ = run_race(machine, contenders, [OURS, OTHER], seed, max_seconds=60.0, shown=[OURS, OTHER])  # type: ignore[arg-type]
    assert race is not None
    ratio = paired_ratio(race.samples[OTHER], race.samples[OURS])
    return ratio.low <= machine.ratio <= ratio.high, ratio.width, machine.rounds


@dataclass(frozen=True)
class Row:
    disturbed_by: str
    finals: int
    hold: float
    median_width: float
    median_rounds: float


def coverage(kind: str, finals: int) -> Row:
    holds, widths, rounds = zip(*(held(kind, seed) for seed in range(finals)), strict=True)
    return Row(kind, finals, sum(holds) / finals, median(widths), median(rounds))
