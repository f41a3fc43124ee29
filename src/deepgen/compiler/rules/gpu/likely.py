"""Start configs: those that a static cost estimate predicts to be fast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import log2

from deepgen.compiler.costs import Counts
from deepgen.compiler.rules.draft import Tuned
from deepgen.compiler.rules.sketch import Sketch
from deepgen.space import Space, Value
from deepgen.targets import Gpu

_LOOKED_AT = 150  # sampled configs
_KEPT = 6  # configs to continue from, one knob at a time
_SWEEPS = 6


def _likely(sketch: Sketch, counts: Counts, gpu: Gpu) -> tuple[float, dict[str, Value]]:
    """The most promising config, with its estimated seconds."""
    space, usual = sketch.space, sketch.usual()
    drawn = [usual] if space.contains(usual) else []
    drawn += [dict(config) for config in space.sample(_LOOKED_AT, seed=0)]
    ranked: dict[object, tuple[float, dict[str, Value]]] = {}
    counted = counts.knobs
    changing = [knob for knob in sketch.knobs if knob.name in counted]
    waiting = [_with_usual(config, usual, counted, space) for config in drawn]
    fresh = {_key(config): config for config in waiting}
    refused, done = set[object](), set[object]()
    for _ in range(_SWEEPS):
        ranked |= {key: (counts.seconds(config, gpu), config) for key, config in fresh.items()}
        best = sorted(ranked.values(), key=lambda one: one[0])[:_KEPT]
        fresh, starts = {}, {key: config for _, config in best if (key := _key(config)) not in done}
        done |= starts.keys()  # whatever is near them has been looked at
        for near in (near for config in starts.values() for near in _near(config, changing)):
            key = _key(near)
            if key not in ranked and key not in fresh and key not in refused:
                if space.contains(near):
                    fresh[key] = near
                else:
                    refused.add(key)
        if not fresh:
            break
    return best[0]


def default(sketches: Sequence[Sketch], gpu: Gpu) -> tuple[Sketch, dict[str, Value]]:
    """The sketch and the config to use without a search."""
    counted = [(*_likely(one, one.counts, gpu), one) for one in sketches if one.counts is not None]
    if not counted:
        return sketches[0], near_usual(sketches[0])
    _, config, sketch = min(counted, key=lambda one: one[0])
    return sketch, config


def near_usual(sketch: Sketch) -> dict[str, Value]:
    """The usual config or, if it does not exist, the nearest of some sampled ones."""
    usual, space = sketch.usual(), sketch.space
    if space.contains(usual):
        return usual
    return min((dict(config) for config in space.sample(_LOOKED_AT, seed=0)), key=lambda config: _apart(config, usual))


def _with_usual(
    config: dict[str, Value], usual: Mapping[str, Value], counted: frozenset[str], space: Space
) -> dict[str, Value]:
    """The config with usual values for the knobs that the estimate does not depend on, if that exists."""
    plain = {name: value if name in counted else usual[name] for name, value in config.items()}
    return plain if plain == config or space.contains(plain) else config


def _near(config: Mapping[str, Value], knobs: Sequence[Tuned]) -> Iterator[dict[str, Value]]:
    for knob in knobs:
        for value in knob.values:
            if value != config.get(knob.name):
                yield {**config, knob.name: value}


def _key(config: Mapping[str, Value]) -> tuple[tuple[str, Value], ...]:
    return tuple(config.items())  # knobs are always in the order of the space


def _apart(one: Mapping[str, Value], other: Mapping[str, Value]) -> float:
    """The distance between two configs, in doublings."""
    pairs = ((value, other[name]) for name, value in one.items() if name in other)
    return sum(abs(log2(a + 1) - log2(b + 1)) for a, b in pairs if isinstance(a, int) and isinstance(b, int))
