"""Configs that earlier runs on an H200 found good: where a benchmark begins.

They are read from the results under `benchmarks/h200`. A shape is offered what was found for it in its own dtype and
layout first, then what was found for it in others, as far as its space has such points.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deepgen.generators import by_name
from deepgen.generators.base import Generator
from deepgen.operators import Gemm
from deepgen.space import Space
from deepgen.targets import Cuda
from gpu_bench import Config, Shape, key_of

RESULTS = Path(__file__).resolve().parent / "h200"
Found = tuple[Gemm, str, Config]  # the problem, the family, and a config that was good


def found_before(folder: Path = RESULTS) -> list[Found]:
    """The best of each file first."""
    out: list[tuple[int, Found]] = []
    for file in sorted(folder.glob("[a-z]*.json")):
        data = json.loads(file.read_text())
        if isinstance(data, dict):
            out += [*_of_sweep(data), *_of_benchmark(data)]
    return [found for _, found in sorted(out, key=lambda pair: pair[0])]


def _of_sweep(data: dict[str, Any]) -> Iterator[tuple[int, Found]]:
    for row in data.get("finals", ()):
        if "operator" in row and "config" in row:
            problem = Gemm.from_json(row["operator"])
            for place, config in enumerate([row["config"], *row.get("top", ())]):
                yield place, (problem, row.get("family", "sm90_gemm"), config)


def _of_benchmark(data: dict[str, Any]) -> Iterator[tuple[int, Found]]:
    for row in data.get("rows", ()):
        if "operator" in row and "family" in row:
            problem = Gemm.from_json(row["operator"])
            yield 0, (problem, row["family"], row["config"])
            for place, other in enumerate(row.get("next", ())):
                yield 1 + place, (problem, other["family"], other["config"])


def won_before(problem: Gemm, target: Cuda, folder: Path) -> tuple[Generator, Config] | None:
    """What won this very problem in the results of its dtype and layout that lie in a folder."""
    file = folder / f"gemm_{problem.a}_{problem.layout}.json"
    for row in json.loads(file.read_text())["rows"] if file.exists() else ():
        if row["operator"] == problem.to_json():
            family = by_name(row["family"])
            return next(((family, c) for c in fitting(family.space(problem, target), row["config"])), None)
    return None


def known(problem: Gemm, family: Generator, target: Cuda, before: list[Found], most: int) -> list[Config]:
    """The family's configs that this problem's space has, the nearest problem's first, and the one without search."""
    space = family.space(problem, target)

    def apart(other: Gemm) -> int:
        return (other.a != problem.a) + 2 * (other.layout != problem.layout)

    same = [(apart(p), c) for p, name, c in before if name == family.name and _shape(p) == _shape(problem)]
    found: dict[str, Config] = {}
    for _, config in sorted(same, key=lambda pair: pair[0]):
        if len(found) < most:
            found.update({key_of(fitted): fitted for fitted in fitting(space, config)})
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
