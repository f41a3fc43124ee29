"""Configs that earlier runs on an H200 found good: where a benchmark begins.

They are read from the results under `benchmarks/h200`. A shape is offered what was best for it in its own dtype and
layout first, then the next best there and the best in others, as far as its space has such points.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from deepgen.generators import by_name
from deepgen.kernels.base import Generator
from deepgen.operators import Gemm
from deepgen.space import Space
from deepgen.targets import Cuda
from gpu_bench import Config, Shape, key_of

RESULTS = Path(__file__).resolve().parent / "h200"


class Found(NamedTuple):
    """A config that was good."""

    problem: Gemm
    family: str
    config: Config
    place: int = 0  # among those of its file: the best is 0


def found_before(folder: Path = RESULTS) -> list[Found]:
    """The best of each file first."""
    out: list[Found] = []
    for file in sorted(folder.glob("[a-z]*.json")):
        data = json.loads(file.read_text())
        if isinstance(data, dict):
            out += [*_of_sweep(data), *_of_benchmark(data)]
    return sorted(out, key=lambda found: found.place)


def _of_sweep(data: dict[str, Any]) -> Iterator[Found]:
    for row in data.get("finals", ()):
        if "operator" in row and "config" in row:
            problem = Gemm.from_json(row["operator"])
            for place, config in enumerate([row["config"], *row.get("top", ())]):
                yield Found(problem, row.get("family", "sm90_gemm"), config, place)


def _of_benchmark(data: dict[str, Any]) -> Iterator[Found]:
    for row in data.get("rows", ()):
        if "operator" in row and "family" in row and "config" in row:
            problem = Gemm.from_json(row["operator"])
            yield Found(problem, row["family"], row["config"], row.get("place", 0))
            for place, other in enumerate(row.get("next", ())):
                yield Found(problem, other["family"], other["config"], 1 + place)


def won_before(problem: Gemm, target: Cuda, folder: Path) -> tuple[Generator, Config] | None:
    """What won this very problem in the results of its dtype and layout that lie in a folder."""
    file = folder / f"gemm_{problem.a}_{problem.layout}.json"
    for row in json.loads(file.read_text())["rows"] if file.exists() else ():
        if row["operator"] == problem.to_json():
            family = by_name(row["family"])
            return next(((family, c) for c in fitting(family.space(problem, target), row["config"])), None)
    return None


def known(problem: Gemm, family: Generator, target: Cuda, before: list[Found], most: int) -> list[Config]:
    """Configs that this problem's space has, the best of the nearest problems first, and the one without search."""
    space = family.space(problem, target)

    def apart(other: Found) -> int:
        return other.place + 2 * (other.problem.a != problem.a) + 3 * (other.problem.layout != problem.layout)

    same = [f for f in before if f.family == family.name and _shape(f.problem) == _shape(problem)]
    found: dict[str, Config] = {}
    for other in sorted(same, key=apart):
        if len(found) < most:
            found.update({key_of(fitted): fitted for fitted in fitting(space, other.config)})
    default = dict(family.default(problem, target))
    return list({**found, key_of(default): default}.values())


def fitting(space: Space, config: Config) -> Iterator[Config]:
    """The config, or what is nearest to it where the space has other knobs or fewer values."""
    names = {knob.name for knob in space.knobs}
    kept = {name: value for name, value in config.items() if name in names}
    straight = {**{k: v for k, v in kept.items() if k != "BUFFERS"}, "STORE": "straight"}
    for made in (kept, straight) if "STORE" in names else (kept,):
        missing = {knob.name: knob.values[0] for knob in space.knobs if knob.name not in made and knob.when is None}
        perhaps = [
            {knob.name: knob.values[0]} for knob in space.knobs if knob.name not in made and knob.when is not None
        ]
        for extra in ({}, *perhaps):
            whole = {**made, **missing, **extra}
            if not space.explain(whole):
                yield whole
                return


def _shape(p: Gemm) -> Shape:
    return p.batch, p.m, p.n, p.k
