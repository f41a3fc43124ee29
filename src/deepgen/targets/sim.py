"""A simulated device: a deterministic cost function with seeded noise and faults on demand.

Search, resume, chaos and cluster tests run on it in seconds. Its name carries its options:
`sim`, `sim:noise=0.02,seed=3,faults=0.2`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from deepgen.targets.base import Target
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.json import digest
from deepgen.vocabulary.measurement import Verdict

FAULTS = (
    Verdict.BUILD_FAILED,
    Verdict.BUILD_TIMEOUT,
    Verdict.WRONG,
    Verdict.CRASHED,
    Verdict.TIMED_OUT,
    Verdict.OUT_OF_MEMORY,
    Verdict.REFUSED,
)


@dataclass(frozen=True)
class Sim(Target):
    """The options of a simulated device."""

    languages: ClassVar[tuple[str, ...]] = ("sim",)
    runner: ClassVar[str] = "sim"
    computes: ClassVar[bool] = False
    simulated: ClassVar[bool] = True

    noise: float = 0.02  # standard deviation of a sample, as a share of the true time
    seed: int = 0  # a different seed gives a different landscape
    faults: float = 0.0  # share of configs that end in a fault, one verdict each
    gap: float = -1.0  # if >= 0: two values of SWIZZLE are good, one `gap` slower than the other; the rest is flat
    build_seconds: float = 0.0  # mean of the lognormal build time
    measure_seconds: float = 0.0  # the same for a measurement
    peak_gflops: float = 1000.0

    def peak(self, dtype: str) -> float | None:
        return self.peak_gflops

    def describe(self) -> str:
        return f"{self.name}: simulated, {self.noise:.0%} noise, {self.faults:.0%} faults"


def parse_sim(options: str) -> Sim:
    """The simulated device described by the part of its name after the colon."""
    types: dict[str, Any] = {f.name: type(f.default) for f in fields(Sim) if f.name != "name"}
    values: dict[str, Any] = {}
    for word in filter(None, options.split(",")):
        key, _, value = word.partition("=")
        try:
            values[key] = types[key](value)
        except (KeyError, ValueError) as error:
            allowed = ", ".join(f"{k}={t.__name__}" for k, t in types.items())
            raise BadInput(f"target sim:{options}: {word!r} is not an option", allowed=allowed) from error
    return Sim(name=f"sim:{options}" if options else "sim", **values)


def fault(sim: Sim, config: Mapping[str, Any]) -> Verdict | None:
    """The fault of this config, if it has one."""
    draw = _uniform(sim.seed, "fault", config)
    if draw >= sim.faults:
        return None
    return FAULTS[int(draw / sim.faults * len(FAULTS))]


def true_seconds(sim: Sim, flops: int, config: Mapping[str, Any]) -> float:
    """The time of a config without noise: a valley in each knob, interacting pairs, and small ruggedness."""
    if sim.gap >= 0.0:
        return flops / (sim.peak_gflops * 1e9) * _two_optima(sim, config)
    slowdown = 1.0
    names = sorted(config)
    for i, name in enumerate(names):
        best = _uniform(sim.seed, "best", name) * 3.0 + 3.0  # the valley is between 2**3 and 2**6
        distance = _height(config[name]) - best
        slowdown += 0.12 * distance * distance
        other = names[(i + 1) % len(names)]
        slowdown += 0.05 * abs(distance - (_height(config[other]) - 4.5))
    slowdown *= 1.0 + 0.1 * _uniform(sim.seed, "rugged", config)
    return flops / (sim.peak_gflops * 1e9) * slowdown


def noisy(sim: Sim, seconds: float, key: str, count: int) -> list[float]:
    """Samples around the true time: lognormal, so that slow outliers are more likely than fast ones."""
    import numpy as np  # imported late: commands that only read studies do not wait for it

    rng = np.random.default_rng(int(digest([sim.seed, key], 16), 16))
    return [float(s) for s in seconds * np.exp(sim.noise * rng.standard_normal(count))]


def duration(mean: float, key: str) -> float:
    """A lognormal duration with that mean, the same for the same key."""
    import numpy as np

    if mean <= 0.0:
        return 0.0
    sigma = 0.5
    z = np.random.default_rng(int(digest(["duration", key], 16), 16)).standard_normal()
    return mean * math.exp(sigma * float(z) - sigma * sigma / 2.0)


def _two_optima(sim: Sim, config: Mapping[str, Any]) -> float:
    """Two good values of one knob, `gap` apart; the seed determines which one is better."""
    first, second = (0, 1) if sim.seed % 2 == 0 else (1, 0)
    return {first: 1.0, second: 1.0 + sim.gap}.get(config.get("SWIZZLE", -1), 1.5)


def _height(value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return math.log2(1.0 + abs(value))
    return 8.0 * _uniform(0, "height", value)


def _uniform(seed: int, word: str, value: Any) -> float:
    if isinstance(value, Mapping):
        value = {k: (list(v) if isinstance(v, tuple) else v) for k, v in value.items()}
    elif isinstance(value, tuple):
        value = list(value)
    return int(digest([seed, word, value], 12), 16) / float(16**12)
