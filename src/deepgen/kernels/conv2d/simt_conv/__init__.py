"""Convolutions in f32 on the plain arithmetic units of GPUs: `simt_gemm` with columns gathered from the image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from math import gcd, inf, prod
from typing import Any

from deepgen.kernels import FirstRanked, Rank
from deepgen.kernels.conv2d import epilogue_header
from deepgen.kernels.conv2d.simt_conv.geometry import ImplicitConv, convolution_of
from deepgen.kernels.gemm import counters, simt_gemm, sums
from deepgen.kernels.gemm.simt_gemm import KINDS, ranked
from deepgen.kernels.gemm.simt_gemm.lower import LoweredSimt, lower
from deepgen.kernels.gemm.simt_gemm.model import least_seconds, seconds
from deepgen.kernels.gemm.simt_gemm.space import GatheredGemm, simt_space
from deepgen.kernels.shared import NOTHING, gpu_kernel, language_of, of_several_kinds
from deepgen.operators import Operator, gemm
from deepgen.space import Expr, Space, divides, implies
from deepgen.targets import Gpu, Target
from deepgen.vocabulary import Arg, Kernel, LaunchPlan, ScalarArg, Step, TensorArg, WorkspaceArg

_SIZE = 4  # bytes of an element
_WHOLE = 4  # filters are packed in multiples of this, for loads of 16 bytes
_PACKERS = 256  # threads of a block of the first step, as in entry.h
_PACKING = 3e-6  # seconds of that step
_LEAST_FILTERS = 8  # per group: with fewer, most of a tile is idle
_MANY_ROUNDS = 8


class SimtConv(FirstRanked):
    """An implicit GEMM of filters by pixels, channels first: one to three dimensions, transposed too, CUDA and HIP."""

    name = "simt_conv"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Gpu):
            return "it supports GPUs only"
        conv = convolution_of(operator)
        return conv if isinstance(conv, str) else None

    def rank(self, operator: Operator, target: Target) -> Rank:
        """For few filters per group, kernels by rules are faster."""
        conv, _ = _served(operator, target)
        return Rank.SPECIALISED if conv.filters >= _LEAST_FILTERS else Rank.SURPASSED

    def space(self, operator: Operator, target: Target) -> Space:
        return _space(*_served(operator, target))

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        conv, gpu = _served(operator, target)
        lowered = lower(as_gemm(conv), config, gpu.warp, {})
        files = (
            *simt_gemm.source_files(__name__, ("operands.h", "gather.h", "classes.h", "entry.h"), banded=False),
            epilogue_header("finished.h", conv.epilogue),
        )
        return gpu_kernel(self.name, language_of(gpu), files, *_launched(conv, config, lowered))

    def ranked(self, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
        conv, gpu = _served(operator, target)
        return of_several_kinds(_timed(conv, gpu), _space(conv, gpu), KINDS)

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        return _seconds(*_served(operator, target), config)

    def least_seconds(self, operator: Operator, target: Target) -> float:
        conv, gpu = _served(operator, target)
        return least_seconds(_of_all_classes(conv), gpu)


def _served(operator: Operator, target: Target) -> tuple[ImplicitConv, Gpu]:
    conv = convolution_of(operator)
    assert isinstance(conv, ImplicitConv) and isinstance(target, Gpu), "ask refuses() first"
    return conv, target


@lru_cache(64)
def as_gemm(conv: ImplicitConv) -> GatheredGemm:
    """The product of filters by pixels for one class of pixels; each group of each image is a matrix."""
    filters = -(-conv.filters // _WHOLE) * _WHOLE
    batch = conv.images * conv.groups
    image = batch * conv.channels * prod(side.size for side in conv.sides) * _SIZE
    plain = gemm(filters, conv.pixels, conv.lines, dtype="f32", layout="tn", batch=batch)
    return GatheredGemm(
        **vars(plain), gathered_bytes=image, gathered_run=gcd(conv.run, _WHOLE), apart=conv.counts[2],
        channels=conv.channels, guarded=sum(side.guarded for side in conv.sides),
    )  # fmt: skip


def _of_all_classes(conv: ImplicitConv) -> GatheredGemm:
    """The same with the products of all classes together."""
    return replace(as_gemm(conv), k=max(1, sum(conv.class_lines)))


@lru_cache(8)
def _space(conv: ImplicitConv, gpu: Gpu) -> Space:
    space = simt_space("simt_conv", as_gemm(conv), gpu)
    knobs = ("INNER_B", "FIXUP", "BM", "BN", "TM", "TN", "SPLIT_U", "LOAD_B")
    inner, fixup, bm, bn, tm, tn, split_u, load = (Expr("knob", (), name) for name in knobs)
    threads = (bm // tm) * (bn // tn) * split_u
    space.require(inner == "row", "pixels are gathered along a line")
    several = len(conv.class_lines) > 1  # which are not equally long
    space.require(fixup.isin(["none"] if several else ["none", "stream"]), "sums are not added up by another step")
    whole = divides(bn // load, threads) | divides(threads, bn // load)
    space.require(whole, "a thread gathers whole lines, or a run of each")
    if conv.counts[2] > 1:
        rows = space.knob("ROWS_WHOLE", [False, True])
        stages, pad, bk, staged = (Expr("knob", (), name) for name in ("STAGES", "PAD", "BK", "STAGE_ROWS"))
        space.require(implies(rows, (split_u == 1) & (staged == 0)), "whole rows have their own way to memory")
        held = ((bm + bn) * (bk + pad) + 2 * pad * bk) * _SIZE * stages + bm * (bn * conv.sides[2].apart + 1) * _SIZE
        space.require(implies(rows, held <= gpu.shared_per_block), "whole rows fit in shared memory")
    return space


@lru_cache(2)
def _timed(conv: ImplicitConv, gpu: Gpu) -> list[tuple[float, dict[str, Any]]]:
    """Seconds and configs, the fastest by the model first; the space may not admit all of them."""
    product = _product(conv, {})
    configs = [config for time, config in ranked(product, gpu) if time < inf and not _even(product, gpu, config)]
    if conv.counts[2] > 1:
        configs = [{**config, "ROWS_WHOLE": rows} for rows in (False, True) for config in configs]
    return sorted(((_seconds(conv, gpu, config), config) for config in configs), key=lambda row: row[0])


def _even(product: GatheredGemm, gpu: Gpu, config: Mapping[str, Any]) -> bool:
    """Whether blocks would share tiles for nothing: with many rounds of tiles, the last one hardly counts."""
    tiles: int = -(-product.m // config["BM"]) * -(-product.n // config["BN"]) * product.batch
    return config["FIXUP"] == "stream" and tiles > _MANY_ROUNDS * int(config["BLOCKS"])


def _seconds(conv: ImplicitConv, gpu: Gpu, config: Mapping[str, Any]) -> float:
    return _PACKING + seconds(_product(conv, config), gpu, config)


def _product(conv: ImplicitConv, config: Mapping[str, Any]) -> GatheredGemm:
    """The product of the launch: as many matrices as there are classes, all with the mean number of steps."""
    product, lines, bk = as_gemm(conv), conv.class_lines, config.get("BK", 1)
    steps = -(-sum(-(-each // bk) for each in lines) // len(lines))
    return replace(product, k=max(1, steps * bk), batch=product.batch * len(lines))


def _launched(
    conv: ImplicitConv, config: Mapping[str, Any], lowered: LoweredSimt
) -> tuple[Mapping[str, int | str], LaunchPlan]:
    """The macros of a config, and its launch."""
    rows, one_tap = bool(config.get("ROWS_WHOLE")), conv.channels % config["BK"] == 0
    held_at = -(-lowered.shared_bytes // 16) * 16
    macros = {
        **lowered.macros, **_macros(conv), "ROWS_WHOLE": int(rows), "ONE_TAP": int(one_tap), "HELD_AT": held_at,
    }  # fmt: skip
    if one_tap:
        macros["EDGE_K"] = 0
    elif any(lines % config["BK"] for lines in conv.class_lines):
        macros["EDGE_K"] = max(1, int(macros["EDGE_K"]))
    if rows:
        held = config["BM"] * (config["BN"] * conv.sides[2].apart + 1) * _SIZE
        lowered = replace(lowered, shared_bytes=held_at + held)
    return macros, _plan(conv, config, lowered)


def _macros(conv: ImplicitConv) -> dict[str, int]:
    each = {
        "IN": "size", "OUT": "out", "PIXELS": "pixels", "KERNEL": "kernel", "TAPS": "most_taps", "STEP": "step",
        "APART": "apart", "PADDED": "pad", "DILATION": "dilation", "PERIOD": "period", "GUARD": "guarded",
    }  # fmt: skip
    sides = [*zip("DHW", conv.sides, strict=True)]
    return {
        **{f"{name}_{letter}": int(getattr(side, field)) for name, field in each.items() for letter, side in sides},
        **{f"STRIDE_{letter}": 1 if side.transposed else side.stride for letter, side in sides},
        **{f"CLASSES_{letter}": count for letter, count in zip("DHW", conv.counts, strict=True)},
        "CHANNELS": conv.channels,
        "FILTERS": conv.filters,
        "CONV_GROUPS": conv.groups,
        "CLASS_LINES": conv.lines,
        "ALL_LINES": conv.all_lines,
        "TRANSPOSED": int(conv.transposed),
        "SCATTERED": int(any(side.apart > 1 for side in conv.sides)),
        "BIAS": int("bias" in conv.epilogue),
        "RESIDUAL": int("residual" in conv.epilogue),
    }


def _plan(conv: ImplicitConv, config: Mapping[str, Any], lowered: LoweredSimt) -> LaunchPlan:
    """Filters are packed, and then all classes of pixels are convolved. N is an argument."""
    product = as_gemm(conv)
    packed = WorkspaceArg("packed", conv.groups * conv.all_lines * product.m * _SIZE)
    lines = WorkspaceArg("lines", conv.all_lines * 2 * _SIZE)
    numbers = conv.groups * conv.channels * prod(side.kernel for side in conv.sides) * product.m
    packing = Step(
        "pack_filters", (TensorArg("weight"), packed, lines), (-(-numbers // _PACKERS), 1, 1), (_PACKERS, 1, 1)
    )
    tiles = -(-product.m // config["BM"]) * -(-product.n // config["BN"])
    streamed = config["FIXUP"] == "stream"
    blocks = config.get("BLOCKS", 1)
    partial = blocks * config["BM"] * config["BN"] * config["SPLIT_U"] * _SIZE
    added = (TensorArg(name) if name in conv.epilogue else NOTHING for name in ("bias", "residual"))
    tensors: tuple[Arg, ...] = (
        TensorArg("x"), packed, lines, *added, TensorArg("y"),
        *((sums(partial), counters(blocks * _SIZE)) if streamed else [NOTHING] * 2),
        ScalarArg("i32", f"N * {conv.groups}"),
    )  # fmt: skip
    shares = prod(conv.counts[:2]) * (1 if config.get("ROWS_WHOLE") else conv.counts[2])
    grid = blocks if streamed else f"N * {conv.groups * tiles * shares}"
    convolve = Step("convolve", tensors, (grid, 1, 1), (lowered.threads, 1, 1), shared_bytes=lowered.shared_bytes)
    requires = ((f"{name} == {size}", f"{name} = {size}, for which it was made") for name, size in conv.named)
    most = (2**31 - 2**12) // (conv.groups * max(conv.pixels, tiles * shares))
    return LaunchPlan(steps=(packing, convolve), requires=(*requires, (f"N <= {most}", f"at most {most} images")))
