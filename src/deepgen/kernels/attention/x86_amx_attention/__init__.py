"""Attention in bf16 on AMX tiles: both products by tiles, the softmax between them by vectors of 512 bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import ceil
from typing import Any

from deepgen.kernels import FirstRanked, Rank
from deepgen.kernels.attention import rows_of
from deepgen.kernels.attention.c_attention import few, kernel, refused
from deepgen.kernels.shared import served, sources, thread_counts
from deepgen.operators import Attention, Operator
from deepgen.space import Space, implies
from deepgen.targets import X86, Target
from deepgen.vocabulary import Kernel

_NEEDS = ("amx_tile", "amx_bf16", "avx512f", "avx512bw", "avx512dq")
_WIDEST = 256
_ROWS = 32  # queries of a part, as in attention_rooms.h
_PARTS, _KEYS = (1, 2, 4, 8, 16), (64, 128, 256, 512)
_PACK = ("tile", "head", "ahead")  # 0, 1, 2 in attention_amx.c
_FILES = ("attention_rooms.h", "attention_pack.h", "attention_products.h", "attention_weights.h", "tiles.h")
_BUFFERS = 3  # blocks of K and V that a thread packs in turn
_SQUARE = 1024  # bytes of a tile register
# Clocks of a core, by counts of instructions; none was measured by itself.
_DOT = 16.0  # a product of two tiles of 16 lines of 64 bytes
_WEIGH = 5.6  # 16 scores: 11 operations on two units
_ROW = 12.0  # what else a row of a step takes
_STEP = 200.0  # what else a step takes
_KEY_SQUARE, _VALUE_SQUARE = 128.0, 112.0  # packing one: its shuffles, and 64 to read and to store it
_QUERY = 10.0  # copying a query's 32 numbers, or storing 32 of its results
_FROM_L1, _FROM_L2, _FROM_L3 = 128.0, 32.0, 8.0  # bytes
_WAKING = 10_000.0  # threads for a second round
_ENOUGH = 8  # rows from which tiles were faster than c_decode: 1.3 to 3 times with 8 to 16, 0.7 to 0.9 with 4
_SHOWN = 0.1  # of the shorter of two kinds of work that overlap


class X86AmxAttention(FirstRanked):
    """Blocks of 32 queries by blocks of keys, packed keys and values, an online softmax: bf16, all options."""

    name = "x86_amx_attention"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, X86):
            return "it supports x86 targets only"
        if (reason := refused(operator, target)) is not None:
            return reason
        attention, cpu = served(operator, target, Attention, X86)
        if attention.dtype != "bf16":
            return "it computes bf16 only"
        if attention.lengths:
            return "it supports batches that all have as many keys, not lengths or pages"
        if max(attention.width, attention.v_width) > _WIDEST:
            return f"it supports heads up to {_WIDEST} wide"
        return None if cpu.has(*_NEEDS) else "it needs " + ", ".join(_NEEDS)

    def rank(self, operator: Operator, target: Target) -> Rank:
        """For a few queries packing keys takes longer than multiplying them."""
        attention, cpu = served(operator, target, Attention, X86)
        return Rank.YIELDS if few(attention, cpu) and rows_of(attention) < _ENOUGH else Rank.SPECIALISED

    def space(self, operator: Operator, target: Target) -> Space:
        attention, cpu = served(operator, target, Attention, X86)
        s = Space(self.name)
        parts, keys = s.knob("PARTS", _PARTS), s.knob("KEYS", _KEYS)
        pack = s.knob("PACK", _PACK)
        s.knob("OVERLAP", [False, True])
        s.knob("THREADS", thread_counts(cpu.cores))
        s.require(
            implies(parts > _PARTS[0], parts < 2 * _parts_of(attention)),
            "a tile has not many more queries than there are",
        )
        s.require(implies(keys > _KEYS[0], keys < 2 * attention.keys), "nor keys")
        for when in _PACK:
            small = ((parts == _PARTS[0]) & (keys == _KEYS[0])) | (_room(attention, parts, keys, when) <= cpu.l2_bytes)
            s.require(implies(pack == when, small), f"what a thread works with fits in L2, packed by {when}")
        return s

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        attention, cpu = served(operator, target, Attention, X86)
        parts, keys, pack, threads = (config[knob] for knob in ("PARTS", "KEYS", "PACK", "THREADS"))
        macros = {"BF16": 1, **config, "PACK": _PACK.index(pack), "OVERLAP": int(config["OVERLAP"])}
        memory = f"{threads} * {_room(attention, parts, keys, pack)}"
        if pack != "tile":
            heads = "B * HK" if pack == "ahead" else str(threads)
            memory += f" + {heads} * ceil_div(SK, {keys}) * {_block(attention, keys)}"
        own = kernel(self.name, (__name__, "attention_amx.c"), attention, cpu, macros, memory)
        return replace(own, sources=(*own.sources, *sources(__name__, _FILES)))

    def ranked(self, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
        """The best by a count of clocks first."""
        attention, cpu = served(operator, target, Attention, X86)
        space = self.space(attention, cpu)
        every: Iterator[dict[str, Any]] = (
            {"PARTS": parts, "KEYS": keys, "PACK": pack, "OVERLAP": overlap, "THREADS": cpu.cores}
            for parts, keys, pack, overlap in product(_PARTS, _KEYS, _PACK, (True, False))
        )
        costs = sorted(every, key=lambda config: _clocks(attention, cpu, config))
        return (config for config in costs if not space.explain(config))


def _squares(width: int) -> int:
    """Squares of 32 numbers along a row."""
    return ceil(width / 32)


def _parts_of(attention: Attention) -> int:
    """Of all heads that share one of K."""
    return attention.heads // attention.kv_heads * ceil(attention.queries / _ROWS)


def _block(attention: Attention, keys: Any) -> Any:
    """Bytes of `block` in attention_rooms.h, for a number or a knob."""
    return keys // 16 * (_squares(attention.width) + _squares(attention.v_width)) * _SQUARE + 64


def _part(attention: Attention) -> int:
    """Bytes of `part` there."""
    own = 2 * _SQUARE * (_squares(attention.width) + 2 * _squares(attention.v_width) + 1) + 2 * 64 + 5 * 8
    return ceil(own / 64) * 64


def _stage(keys: Any) -> Any:
    """Bytes of `stage` there: scores in f32 and weights in bf16."""
    return keys * _ROWS * 6


def _room(attention: Attention, parts: Any, keys: Any, pack: str) -> Any:
    """Bytes of `room` there."""
    return parts * _part(attention) + 2 * _stage(keys) + (_BUFFERS * _block(attention, keys) if pack == "tile" else 0)


def _clocks(attention: Attention, cpu: X86, c: Mapping[str, Any]) -> float:
    """Of the busiest thread: the steps of its parts, packing, and waiting for threads that have a tile more."""
    parts, keys = int(c["PARTS"]), int(c["KEYS"])
    heads, squares = attention.batch * attention.kv_heads, _squares(attention.width) + _squares(attention.v_width)
    tiles = heads * ceil(_parts_of(attention) / parts)
    seen = _seen(attention)
    steps = seen / keys + 0.5 if seen < attention.keys else ceil(seen / keys)
    rows = min(_ROWS, attention.queries)
    loads, beside = _moved(attention, cpu, parts, keys)
    dots = seen / 16 * squares * 2 * _DOT
    by_tiles = _overlapped(dots, dots / _DOT * _SQUARE / _FROM_L1 + steps * loads / _FROM_L2)
    by_vectors = rows * (seen / 16 * _WEIGH + steps * _ROW) + steps * beside / _FROM_L2
    both = _overlapped(by_tiles, by_vectors) if c["OVERLAP"] else by_tiles + by_vectors
    work = heads * _parts_of(attention) * (both + steps * _STEP + rows * squares * _QUERY)
    return (work + _packing(attention, cpu, c, tiles)) * ceil(tiles / cpu.cores) * cpu.cores / tiles


def _packing(attention: Attention, cpu: X86, c: Mapping[str, Any], tiles: int) -> float:
    """Clocks of all threads that pack, and that read what others packed or what L2 does not hold."""
    parts, keys, pack = int(c["PARTS"]), int(c["KEYS"]), c["PACK"]
    heads, seen = attention.batch * attention.kv_heads, _seen(attention)
    each = (_squares(attention.width) * _KEY_SQUARE + _squares(attention.v_width) * _VALUE_SQUARE) / 16
    head: int = _block(attention, keys) * ceil(attention.keys / keys)
    work = tiles * head / _FROM_L3 if head > cpu.l2_bytes / 2 else 0.0
    if pack == "tile":
        of_tile = min(float(attention.keys), seen + (parts - 1) * _ROWS * (seen < attention.keys))
        return work + tiles * of_tile * each
    if pack == "head":
        return work + heads * min(_shares(heads, tiles // heads, cpu.cores), cpu.cores) * attention.keys * each
    return work + heads * (attention.keys * each + 2 * head / _FROM_L3) + _WAKING * cpu.cores * (cpu.cores > 1)


def _shares(heads: int, tiles: int, threads: int) -> int:
    """As in attention_amx.c."""
    even = (n for n in range(1, tiles) if ceil(heads * n / threads) * threads * 10 <= heads * n * 11)
    return next(even, tiles)


def _seen(attention: Attention) -> float:
    """Keys beside which an average part has steps."""
    of_query = 2 * attention.batch * attention.heads * attention.queries * (attention.width + attention.v_width)
    masked = attention.causal or attention.window > 0
    return ceil(min(float(attention.keys), attention.work().flops / of_query + _ROWS * masked) / 32) * 32.0


def _overlapped(first: float, second: float) -> float:
    return max(first, second) + _SHOWN * min(first, second)


def _moved(attention: Attention, cpu: X86, parts: int, keys: int) -> tuple[int, int]:
    """Bytes that tiles and vectors of a step move to or from L2, as L1 does not hold them from step to step."""
    part, stages, block = _part(attention), 2 * _stage(keys), _block(attention, keys)
    sums = 4 * _SQUARE * _squares(attention.v_width)
    of_part = part + sums if parts > 1 and parts * part + stages + block > cpu.l1d_bytes else 0
    of_block = block if parts == 1 or 2 * part + stages + block > cpu.l1d_bytes else 0
    of_stage = stages if stages > cpu.l1d_bytes else 0  # by tiles and by vectors alike
    return of_part + of_block + of_stage, of_stage
