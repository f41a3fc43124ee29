"""Attention of few queries over many keys: every byte of K and V read once, for all heads that share it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import product
from math import ceil
from typing import Any

from deepgen.kernels import FirstRanked, Rank, overlapped
from deepgen.kernels.attention import (
    length_arguments,
    option_arguments,
    option_macros,
    resolved_for,
    rows_of,
    strides_of,
    widths_required,
)
from deepgen.kernels.gemm import counters, sums
from deepgen.kernels.shared import NOTHING, gpu_kernel, served, sources
from deepgen.operators import Attention, Operator
from deepgen.space import Space, implies, where
from deepgen.targets import Cuda, Gpu, Target
from deepgen.vocabulary import Arg, Kernel, LaunchPlan, ScalarArg, Step, TensorArg

_OWN = ("decode_mma.cu", "warps.h", "dialect_mma.h")
_MOST_ROWS, _FEW = 128, 32  # queries times heads that share a head of K: that are served, and where it comes first
_WIDEST, _LONG = 256, 1 << 30
_APART = 1 << 24  # numbers between rows of K or V: 32 bits reach all that a warp copies at once
_PRODUCT = 16  # rows, keys and columns of a product
_NOTE = 16  # bytes of shared memory for a word between blocks
_AHEAD = 8  # parts that are on their way while others are joined
_RESERVED = 46  # registers for addresses, counters, maxima and sums


class MmaDecode(FirstRanked):
    """Warps stream keys and values of their own through shared memory: f16 and bf16 on sm_80 and later."""

    name = "mma_decode"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Cuda) or not target.has("ldmatrix", "cp_async"):
            return "it supports NVIDIA GPUs from sm_80 on"
        if not isinstance(operator, Attention):
            return "it supports attention only"
        if operator.dtype not in ("bf16", "f16"):
            return "it multiplies f16 and bf16"
        if operator.width % _PRODUCT or operator.v_width % _PRODUCT or max(operator.width, operator.v_width) > _WIDEST:
            return f"it supports heads whose width is a multiple of {_PRODUCT}, up to {_WIDEST}"
        if rows_of(operator) > _MOST_ROWS:
            return f"it supports few queries: SQ times the heads that share one of K is at most {_MOST_ROWS}"
        if operator.keys > _LONG:
            return "it has 32-bit indices of keys"
        return None

    def rank(self, operator: Operator, target: Target) -> Rank:
        attention, gpu = served(operator, target, Attention, Cuda)
        few = rows_of(attention) <= _FEW or not gpu.has("wgmma")
        return Rank.SPECIALISED if few else Rank.YIELDS

    def space(self, operator: Operator, target: Target) -> Space:
        return _space(*served(operator, target, Attention, Cuda))

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        attention, gpu = served(operator, target, Attention, Cuda)
        launch = _plan(attention, config, gpu.multiprocessors)
        files = resolved_for(attention, sources(__name__, _OWN))
        return gpu_kernel(self.name, "cuda", files, _macros(attention, config), launch)

    def ranked(self, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
        return iter([dict(config) for config in _ranked(*served(operator, target, Attention, Cuda))])

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        return None if self.refuses(operator, target) else _seconds(*served(operator, target, Attention, Cuda), config)


def _rows(attention: Attention) -> list[int]:
    """How many of them a block may have."""
    rows = rows_of(attention)
    return [next(n for n in (1, 2, 4, 8, 16) if n >= min(rows, 16)), *([32] if rows > 16 else [])]


def _space(attention: Attention, gpu: Gpu) -> Space:
    s = Space(MmaDecode.name)
    rows, keys = s.knob("ROWS", _rows(attention)), s.knob("KEYS", [16, 32, 64])
    stages, warps = s.knob("STAGES", [2, 3, 4, 6, 8]), s.knob("WARPS", [1, 2, 4, 8])
    blocks = s.knob("MIN_BLOCKS", [1, 2, 3, 4, 6])
    splits = s.knob("SPLITS", [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64])
    queries = s.knob("QUERIES", ["registers", "shared"])
    d, dv = attention.width, attention.v_width
    of_rows = (rows + (_PRODUCT - 1)) // _PRODUCT
    needed = s.derive("registers", of_rows * (dv // 2 + where(queries == "shared", 4, d // 4) + keys // 2) + _RESERVED)
    s.require(needed <= gpu.registers_per_thread, "queries, scores and results fit in a thread's registers")
    s.require(needed * warps * 32 * blocks <= gpu.registers_per_sm, "so many blocks' registers fit")
    s.require(warps * 32 * blocks <= gpu.threads_per_sm, "so many blocks' threads fit in a multiprocessor")
    shared = s.derive(
        "shared_bytes",
        _shared_bytes(attention, rows, keys, stages, warps)
        + where(queries == "shared", of_rows * _queries(attention), 0),
    )
    s.require(shared <= gpu.shared_per_block, "stages and results fit in shared memory")
    s.require((shared + gpu.shared_reserved) * blocks <= gpu.shared_per_sm, "so many blocks' shares of it fit")
    tile = warps * keys
    s.require(implies(tile > _PRODUCT, tile < 2 * attention.keys), "a tile is not much longer than the keys")
    s.require(implies(splits > 1, (splits - 1) * tile < attention.keys), "every part of the keys has a tile")
    s.require(implies(stages > 2, (stages - 2) * tile < attention.keys), "stages are filled")
    return s


def _shared_bytes(attention: Attention, rows: Any, keys: Any, stages: Any, warps: Any) -> Any:
    """Of a block, for numbers or knobs: stages with lines of an odd number of 16 bytes, and results of each warp."""
    lines = sum((width // 8 | 1) * 16 for width in (attention.width, attention.v_width))
    return _NOTE + warps * stages * keys * lines + warps * rows * ((attention.v_width + 8) * 4 + 8)


def _queries(attention: Attention) -> int:
    """Bytes of a product's rows of Q in shared memory."""
    return _PRODUCT * (attention.width // 8 | 1) * 16


def _macros(attention: Attention, c: Mapping[str, Any]) -> dict[str, int | str]:
    of = attention.dtype
    return {
        "TYPE_A": of,
        "TYPE_B": of,
        "MMA": f"m16n8k16.row.col.f32.{of}.{of}.f32",
        "D": attention.width,
        "DV": attention.v_width,
        **{knob: c[knob] for knob in ("ROWS", "KEYS", "STAGES", "WARPS", "MIN_BLOCKS")},
        "Q_SHARED": int(c["QUERIES"] == "shared"),
        **option_macros(attention),
        **({"PAGE": attention.page} if attention.page else {}),
        "AHEAD": _AHEAD,
    }


def _plan(attention: Attention, c: Mapping[str, Any], multiprocessors: int) -> LaunchPlan:
    row_tiles = f"ceil_div(SQ * (H // HK), {c['ROWS']})"
    splits, resident = c["SPLITS"], multiprocessors * c["MIN_BLOCKS"]
    blocks = f"B * HK * {splits}" if splits else f"max({resident} // {row_tiles}, 1)"
    grid = f"{blocks} * {row_tiles}"
    partial: Arg = NOTHING
    arrived: Arg = NOTHING
    if splits != 1:
        partial = sums(f"{grid} * {2 * c['ROWS'] * (attention.v_width + 2) * 4}")
        arrived = counters(f"B * HK * {row_tiles} * 4")
    strides = [stride for name in "qkvo" for stride in strides_of(attention, name)]
    args = (
        *(TensorArg(name) for name in "qkvo"),
        partial,
        arrived,
        *(ScalarArg("i64", stride) for stride in strides),
        *(ScalarArg("i32", size) for size in ("B", "H", "H // HK", "SQ", "SK", "window")),
        *(ScalarArg("f32", number) for number in ("scale", "softcap")),
        *option_arguments(attention),
        *length_arguments(attention),
    )
    shared = _shared_bytes(attention, *(c[knob] for knob in ("ROWS", "KEYS", "STAGES", "WARPS")))
    if c["QUERIES"] == "shared":
        shared += ceil(c["ROWS"] / _PRODUCT) * _queries(attention)
    step = Step("decode", args, (grid, 1, 1), (c["WARPS"] * 32, 1, 1), shared_bytes=shared)
    apart = "rows, heads and batches of {} that lie multiples of 16 bytes apart"
    requires = (
        *widths_required(attention),
        *(
            (f"{strides_of(attention, name)[0]} <= {_APART}", f"rows of {name} at most {_APART} numbers apart")
            for name in "kv"
        ),
        *((f"{stride} % 8 == 0", apart.format(stride.split("_")[1])) for stride in strides),
    )
    return LaunchPlan((step,), requires=requires)


# Microseconds, unless said otherwise. Assumed, not fitted.
_LAUNCH, _LATENCY = 3.0, 0.9  # of the kernel; from asking to having, with memory busy
_READ = 0.93  # of memory's nominal rate, that a plain read has
_FIRST, _SIXTEEN = 0.25, 0.12  # of a warp, for a stage: what waits for each other, and for each 16 keys of 128 numbers
_HEAD = 0.8  # a head's end and the next one's queries, for a block
_PARTS, _PART = 2.5, 0.06  # parts that are joined: once, and for each


def _seconds(attention: Attention, gpu: Gpu, c: Mapping[str, Any]) -> float:
    """What is read in waves of blocks, by as many as a multiprocessor holds, and what joins their parts."""
    groups, row_tiles = attention.batch * attention.kv_heads, ceil(rows_of(attention) / c["ROWS"])
    tile = c["WARPS"] * c["KEYS"]
    seen = min(attention.keys, attention.window + attention.queries) if attention.window else attention.keys
    tiles = ceil(seen / tile) * groups
    slots = gpu.multiprocessors * c["MIN_BLOCKS"]
    blocks = min(tiles * row_tiles, groups * c["SPLITS"] * row_tiles if c["SPLITS"] else slots)
    line = 2 * (attention.width + attention.v_width)
    each = ceil(tiles * row_tiles / blocks)  # tiles of a block
    rate = gpu.bandwidth_gbs * 1e3 * _READ  # bytes in a microsecond
    products = (_FIRST + c["KEYS"] / 16 * _SIXTEEN * ceil(c["ROWS"] / 16) * line / 512) * each
    late = each * _LATENCY / (c["STAGES"] - 1)
    whole = _LAUNCH
    for alive in [slots] * (blocks // slots) + ([blocks % slots] if blocks % slots else []):
        whole += overlapped([alive * each * tile * line / row_tiles / rate, late, products]) + _HEAD + _LATENCY
    parts = blocks / row_tiles / groups
    if parts > 1 or (not c["SPLITS"] and parts % 1):
        left = blocks * c["ROWS"] * attention.v_width * 4
        whole += _PARTS + ceil(parts) * _PART + 2 * left / rate
    return whole * 1e-6


@lru_cache(64)
def _ranked(attention: Attention, gpu: Gpu) -> tuple[Mapping[str, Any], ...]:
    """Twelve that the space admits, the fastest by the model first, of each number of warps and blocks one."""
    space, kept = _space(attention, gpu), dict[tuple[int, ...], Mapping[str, Any]]()
    for config in sorted(_candidates(attention), key=lambda config: _seconds(attention, gpu, config)):
        kind = config["WARPS"], config["MIN_BLOCKS"], config["SPLITS"]
        if kind not in kept and not space.explain(config):
            kept[kind] = config
            if len(kept) == 12:
                break
    return tuple(kept.values())


def _candidates(attention: Attention) -> Iterator[dict[str, Any]]:
    """With many sums, queries in shared memory and few keys at a time: compilers keep what they load in registers."""
    wide = attention.width + attention.v_width > _WIDEST
    rows = _rows(attention)[0 if wide else -1]
    many = wide or rows > _PRODUCT
    for warps, blocks, keys, stages, splits in product(
        (4, 2, 8, 1), (2, 1, 3, 4), (16,) if many else (16, 32), (3, 4, 2, 6), (0, 1, 2, 4, 8, 16, 32)
    ):
        yield {
            "ROWS": rows, "KEYS": keys, "STAGES": stages, "WARPS": warps, "MIN_BLOCKS": blocks, "SPLITS": splits,
            "QUERIES": "shared" if many else "registers",
        }  # fmt: skip
