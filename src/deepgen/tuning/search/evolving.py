"""The moves that evolutionary strategies share: they always end in a valid config, or in none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deepgen.space import Space

Config = dict[str, Any]


def tournament(population: Sequence[tuple[float, int]], draws: int, rng: np.random.Generator) -> int:
    """The rank of the best of some drawn members."""
    return min(population[int(i)] for i in rng.integers(len(population), size=draws))[1]


def mutate(space: Space, config: Mapping[str, Any], rng: np.random.Generator) -> Config | None:
    """A valid config that differs in one knob."""
    around = space.neighbors(config)
    return around[int(rng.integers(len(around)))] if around else None


def mix(space: Space, one: Mapping[str, Any], other: Mapping[str, Any], rng: np.random.Generator) -> Config | None:
    """Each knob from either parent; where the requirements refuse that, knob by knob towards the other parent."""
    sources = {name: one if rng.random() < 0.5 else other for name in {**one, **other}}
    child = {name: source[name] for name, source in sources.items() if name in source}
    return child if space.contains(child) else repair(space, child, one)


def repair(space: Space, broken: Mapping[str, Any], valid: Mapping[str, Any]) -> Config:
    """The valid config with as many knobs as possible, one after another, set as in the broken one."""
    fixed = dict(valid)
    for name, value in broken.items():
        if name in fixed:
            tried = {**fixed, name: value}
            if space.contains(tried):
                fixed = tried
    return fixed
