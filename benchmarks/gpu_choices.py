"""What the GPU benchmark tries: configs that are known, that models rank first, of kinds that did well, and near."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import simt_candidates as simt

from deepgen.generators import by_name
from deepgen.kernels.base import Generator
from deepgen.kernels.gemm.mma_gemm import defaults as mma_model
from deepgen.kernels.gemm.skinny_gemm import defaults as skinny_model
from deepgen.kernels.gemm.sm90_gemm.defaults import Way
from deepgen.kernels.gemm.sm90_gemm.defaults import config as sm90_config
from deepgen.operators import Gemm
from deepgen.targets import Cuda
from deepgen.vocabulary import dtype
from gpu_bench import Config, Shape
from gpu_known import Found, fitting, known

HERE = Path(__file__).resolve().parent
FAMILIES = {"f32": ("simt_gemm", "skinny_gemm"), "f64": ("simt_gemm",)}
TENSOR_CORES = ("sm90_gemm", "skinny_gemm", "mma_gemm")
SMALL = 5e9  # flops
TURNED = (128, 144, 160, 168, 176, 192)  # columns of tiles at which warpgroups take turns
STORED = 0.75  # of the bytes: from here on a product is bound by its results
Choice = tuple[Generator, Config]


def around(family: Generator, problem: Gemm, target: Cuda, config: Config) -> list[Config]:
    """One knob changed at a time."""
    if family.name == "simt_gemm":
        return [c for c in (*simt.turned(config), *simt.neighbours(config)) if simt.valid(c)]
    # Not by the space's own neighbours: they take a table of the whole space, which is seconds of a host's time.
    space = family.space(problem, target)
    changed = [{**config, k.name: v} for k in space.knobs if k.name in config for v in k.values if v != config[k.name]]
    return [c for some in changed for c in fitting(space, some) if c != config]


def fixed(choice: Choice) -> Choice | None:
    """The same with its sizes in the code, which is rarely slower, where they are not."""
    family, config = choice
    return (family, {**config, "FIXED": True}) if config.get("FIXED") is False else None


def serving(problem: Gemm, target: Cuda) -> list[Generator]:
    families = [by_name(name) for name in FAMILIES.get(problem.a, TENSOR_CORES)]
    found = [f for f in families if f.refuses(problem, target) is None]
    # Warp-wide products reach two thirds of this chip's rate: where products take long they are not worth a trial.
    small = problem.flops() < SMALL or len(found) == 1
    return [f for f in found if f.name != "mma_gemm" or small]


def first_choices(problem: Gemm, target: Cuda, before: list[Found], options: argparse.Namespace) -> list[Choice]:
    out: list[Choice] = []
    for family in serving(problem, target):
        configs = known(problem, family, target, before, options.known)
        if family.name == "simt_gemm":
            shape: Shape = (problem.batch, problem.m, problem.n, problem.k)
            configs += simt_known(shape) + simt.candidates(shape, options.known)
        else:
            configs += modelled(family, problem, target, options.modelled)
        out += [(family, c) for c in configs]
    if options.modelled:
        for family in serving(problem, target):
            kinds = [*in_turns(family, problem, target), *storing(family, problem, target)]
            out += [(family, c) for c in kinds]
    return out


def modelled(family: Generator, problem: Gemm, target: Cuda, most: int) -> list[Config]:
    """What a family's own model ranks first, few of one tile and way to share out K."""
    models: dict[str, Any] = {"mma_gemm": mma_model, "skinny_gemm": skinny_model}
    if family.name not in models or not most:
        return []
    model, space = models[family.name], family.space(problem, target)
    chosen, seen = list[Config](), dict[Any, int]()
    for c in sorted(model.candidates(problem, target), key=lambda c: float(model.seconds(problem, target, c))):
        kind = tuple(c.get(k) for k in ("BM", "BN", "WARPS_K", "FIXUP", "TILES", "WARPS_R", "SPLITS"))
        if seen.get(kind, 0) < 2 and not space.explain(c):
            seen[kind] = seen.get(kind, 0) + 1
            chosen.append(c)
        if len(chosen) == most:
            break
    return chosen


def in_turns(family: Generator, problem: Gemm, target: Cuda) -> list[Config]:
    """Of the Hopper family, for large products: two warpgroups that take turns at tiles of 128 rows, in several orders.

    Its model ranks them too low: it knows nothing of power, nor that neighbours' requests are merged on their way.
    """
    if family.name != "sm90_gemm" or problem.flops() < SMALL:
        return []
    orders: tuple[Config, ...] = (
        {"GROUP": 8}, {"GROUP": 12}, {"GROUP": 16}, {"ALONG": "N"}, {"HILBERT": True}, {"CACHE": "A"}
    )  # fmt: skip
    ways = [Way(2, 2, bn, turns=True, cluster=c) for bn in TURNED for c in ((1, 1), (2, 1))]
    return _ordered(family, problem, target, ways, orders)


def storing(family: Generator, problem: Gemm, target: Cuda) -> list[Config]:
    """Of the Hopper family, where results are most of the bytes: by turns, in orders that finish whole rows of C soon.

    Of 44 ways to do batch 32 of 2048x2048x128, the fastest by two percent were pairs of blocks at 64 x 256 along N.
    """
    results = problem.batch * problem.m * problem.n * dtype(problem.c).bytes
    if family.name != "sm90_gemm" or problem.flops() < SMALL or results < STORED * problem.least_bytes():
        return []
    orders: tuple[Config, ...] = (
        {"ALONG": "N"}, {"ALONG": "N", "GROUP": 1}, {"ALONG": "N", "GROUP": 2}, {"ALONG": "N", "GROUP": 16},
        {"ALONG": "N", "BUFFERS": 3}, {"ALONG": "N", "CACHE": "stream"}, {"GROUP": 12},
    )  # fmt: skip
    tiles = ((1, 256), (1, 192), (2, 128), (2, 192))
    ways = [Way(2, rows, bn, turns=True, cluster=c) for rows, bn in tiles for c in ((1, 1), (2, 1), (1, 2))]
    return _ordered(family, problem, target, ways, orders)


def _ordered(
    family: Generator, problem: Gemm, target: Cuda, ways: list[Way], orders: tuple[Config, ...]
) -> list[Config]:
    """Every way in every order, as far as the space has them."""
    space = family.space(problem, target)
    made = [c for way in ways if (c := sm90_config(problem, target, way)) is not None]
    return [{**c, **order} for c in made for order in orders if not space.explain({**c, **order})]


def simt_known(shape: Shape) -> list[Config]:
    file = HERE / "h200/simt_gemm_configs.json"
    found: list[Config] = json.loads(file.read_text()).get(str(list(shape)), []) if file.exists() else []
    return found
