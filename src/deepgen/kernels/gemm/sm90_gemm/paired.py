"""Pairs of products, silu(x) * y: configs are those of one product with twice the columns, of which a tile has both
halves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from deepgen.kernels.gemm.sm90_gemm.defaults import choose, various
from deepgen.kernels.gemm.sm90_gemm.lower import ATOM_BYTES, LoweredSm90, lower, plan
from deepgen.kernels.gemm.sm90_gemm.model import seconds
from deepgen.kernels.gemm.sm90_gemm.operands import realigned
from deepgen.kernels.gemm.sm90_gemm.space import sm90_space
from deepgen.operators import Gemm
from deepgen.space import Space
from deepgen.targets import Cuda
from deepgen.vocabulary import Arg, DescriptorArg, LaunchPlan, dtype

_DRAWN = 64  # configs, if none that the model ranks is possible here


def unfit(gemm: Gemm) -> str | None:
    if gemm.pair == "none":
        return None
    if dtype(gemm.a).bytes != 2 or gemm.layout[1] != "t":
        return "of pairs it multiplies f16 and bf16, with B as N x K"
    if gemm.n % 8 or realigned(gemm):
        return "of pairs it multiplies matrices whose rows are multiples of 16 bytes"
    return None


def wide(gemm: Gemm) -> Gemm:
    """The one product with twice the columns."""
    return replace(gemm, n=2 * gemm.n, epilogue="", pair="none")


def space(name: str, gemm: Gemm, gpu: Cuda) -> Space:
    s = sm90_space(name, wide(gemm), gpu)
    knob = {knob.name: knob.values for knob in s.knobs}
    return s.restrict(
        {
            "FIXUP": "none",
            "CLUSTER_M": 1,
            "BN": [n for n in knob["BN"] if isinstance(n, int) and n % 32 == 0],
            "STORE": [way for way in knob["STORE"] if way in ("straight", "copy", "reuse", "late")],
        }
    )


def ranked(name: str, gemm: Gemm, gpu: Cuda) -> Iterator[Mapping[str, Any]]:
    own, product = space(name, gemm, gpu), wide(gemm)
    some: list[Mapping[str, Any]] = []
    for one in (choose(product, gpu), *various(product, gpu)):
        config = {name: value for name, value in one.items() if (name, value) != ("REALIGN", "engine")}
        if config not in some and not own.explain(config):
            some.append(config)
            yield config
    if not some:
        yield min(own.sample(_DRAWN, seed=0), key=lambda config: seconds(product, gpu, config))


def lowered(gemm: Gemm, config: Mapping[str, Any]) -> LoweredSm90:
    result = lower(gemm, _of_results(config))
    more = config["STAGES"] * config["ATOMS"] * ATOM_BYTES * (config["BN"] // 2)
    macros = {**result.macros, "PAIRED": 1, "JOINED": int(gemm.pair == "joined")}
    return replace(result, macros=macros, shared_bytes=result.shared_bytes + more)


def planned(gemm: Gemm, config: Mapping[str, Any], result: LoweredSm90, multiprocessors: int) -> LaunchPlan:
    whole = plan(gemm, _of_results(config), result, multiprocessors)
    (step,) = whole.steps
    args: list[Arg] = []
    for arg in step.args:
        if not isinstance(arg, DescriptorArg) or arg.tensor != "B":
            args.append(arg)
        elif gemm.pair == "joined":
            both = replace(arg, spec=replace(arg.spec, sizes=("K", "2 * N", "batch")))
            args += [both, both]
        else:
            apart = tuple(str(size).replace("ldb", "ldb2").replace("stride_b", "0") for size in arg.spec.strides or ())
            args += [arg, replace(arg, tensor="B2", spec=replace(arg.spec, strides=apart))]
    rows = () if gemm.pair == "joined" else (("ldb2 % 8 == 0", "lines of B2 that are multiples of 16 bytes"),)
    return replace(whole, steps=(replace(step, args=tuple(args)),), requires=(*whole.requires, *rows))


def _of_results(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config's columns are those of products."""
    return {**config, "BN": config["BN"] // 2}
