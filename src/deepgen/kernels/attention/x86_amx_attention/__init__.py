"""Attention in bf16 on AMX tiles: both products by tiles, the softmax between them by vectors of 512 bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import ceil
from typing import Any

from deepgen.kernels.attention.c_attention import few, kernel, refused
from deepgen.kernels.base import Rank
from deepgen.kernels.shared import served, sources, thread_counts
from deepgen.operators import Attention, Operator
from deepgen.space import Expr, Space, implies
from deepgen.targets import X86, Target
from deepgen.vocabulary import Kernel

_NEEDS = ("amx_tile", "amx_bf16", "avx512f", "avx512bw", "avx512dq")
_WIDEST = 256
_ROWS = 32  # queries of a part, as in attention_rooms.h
_PARTS, _KEYS = (1, 2, 4, 8, 16), (64, 128, 256, 512)
_FILES = ("attention_rooms.h", "attention_pack.h", "attention_products.h", "attention_weights.h", "tiles.h")
_BUFFERS = 3  # blocks of K and V that a thread packs in turn
_SQUARE = 1024  # bytes of a tile register
# Clocks of a core, by counts of instructions; none has been measured.
_DOT = 16.0  # a product of two tiles of 16 lines of 64 bytes
_WEIGH = 5.6  # 16 scores: 11 instructions on two units
_ROW = 12.0  # what else a row of a step takes
_STEP = 200.0  # what else a step takes
_KEY_SQUARE, _VALUE_SQUARE = 64.0, 32.0  # packing one, by the shuffles
_QUERY = 30.0  # reading a query's square and storing its results
_FROM_L2 = 32.0  # bytes a clock
_FROM_MEMORY = 8.0
_WAKING = 10_000.0  # a second round of threads
_SHOWN = 0.1  # of the shorter of two kinds of work that overlap


class X86AmxAttention:
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
        if max(attention.width, attention.v_width) > _WIDEST:
            return f"it supports heads up to {_WIDEST} wide"
        return None if cpu.has(*_NEEDS) else "it needs " + ", ".join(_NEEDS)

    def rank(self, operator: Operator, target: Target) -> Rank:
        """For a few queries packing keys takes longer than multiplying them."""
        return Rank.YIELDS if few(*served(operator, target, Attention, X86)) else Rank.SPECIALISED

    def space(self, operator: Operator, target: Target) -> Space:
        attention, cpu = served(operator, target, Attention, X86)
        s = Space(self.name)
        parts, keys = s.knob("PARTS", _PARTS), s.knob("KEYS", _KEYS)
        ahead = s.knob("AHEAD", [False, True])
        s.knob("OVERLAP", [False, True])
        s.knob("THREADS", thread_counts(cpu.cores))
        s.require(
            implies(parts > _PARTS[0], parts < 2 * _parts_of(attention)),
            "a tile has not many more queries than there are",
        )
        s.require(implies(keys > _KEYS[0], keys < 2 * attention.keys), "nor keys")
        for packed in (False, True):
            small = ((parts == _PARTS[0]) & (keys == _KEYS[0])) | (_room(attention, parts, keys, packed) <= cpu.l2_bytes)
            s.require(implies(ahead == packed, small), f"what a thread works with fits in L2, packed ahead: {packed}")
        return s

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        attention, cpu = served(operator, target, Attention, X86)
        parts, keys, ahead = (int(config[knob]) for knob in ("PARTS", "KEYS", "AHEAD"))
        macros = {"BF16": 1, **{knob: int(value) for knob, value in config.items()}}
        memory = f"{config['THREADS']} * {_room(attention, parts, keys, bool(ahead))}"
        if ahead:
            memory += f" + B * HK * ceil_div(SK, {keys}) * {_block(attention, keys)}"
        own = kernel(self.name, (__name__, "attention_amx.c"), attention, cpu, macros, memory)
        return replace(own, sources=(*own.sources, *sources(__name__, _FILES)))

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return next(self.ranked(operator, target))

    def ranked(self, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
        """The best by a count of clocks first."""
        attention, cpu = served(operator, target, Attention, X86)
        space = self.space(attention, cpu)
        every = (
            {"PARTS": parts, "KEYS": keys, "AHEAD": ahead, "OVERLAP": overlap, "THREADS": cpu.cores}
            for parts, keys, ahead, overlap in product(_PARTS, _KEYS, (False, True), (True, False))
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
    return keys // 16 * (_squares(attention.width) + _squares(attention.v_width)) * _SQUARE


def _part(attention: Attention) -> int:
    """Bytes of `part` there."""
    own = 2 * _SQUARE * (_squares(attention.width) + 2 * _squares(attention.v_width) + 1) + 2 * 64 + 5 * 8
    return ceil(own / 64) * 64


def _stage(keys: Any) -> Any:
    """Bytes of `stage` there: scores in f32 and weights in bf16."""
    return keys * _ROWS * 6


def _room(attention: Attention, parts: Any, keys: Any, ahead: bool) -> Any:
    """Bytes of `room` there."""
    return parts * _part(attention) + 2 * _stage(keys) + (0 if ahead else _BUFFERS * _block(attention, keys))


def _clocks(attention: Attention, cpu: X86, c: Mapping[str, Any]) -> float:
    """Of the busiest thread: steps of all parts, packing, and threads without a tile."""
    parts, keys = int(c["PARTS"]), int(c["KEYS"])
    heads = attention.batch * attention.kv_heads
    tiles = heads * ceil(_parts_of(attention) / parts)
    seen = attention.work().flops / (2 * attention.batch * attention.heads * (attention.width + attention.v_width))
    masked = attention.causal or attention.window > 0
    of_part = min(float(attention.keys), seen / attention.queries + (_ROWS if masked else 0))
    of_part = ceil(of_part / 32) * 32
    steps = of_part / keys + 0.5 if masked else ceil(of_part / keys)
    squares = _squares(attention.width) + _squares(attention.v_width)
    dots = of_part / 16 * squares * 2 * _DOT
    rows = min(_ROWS, attention.queries)
    weighing = rows * (of_part / 16 * _WEIGH + steps * _ROW)
    both = max(dots, weighing) + _SHOWN * min(dots, weighing) if c["OVERLAP"] else dots + weighing
    each = both + steps * (_STEP + _moved(attention, cpu, parts, keys) / _FROM_L2) + rows * squares * _QUERY
    work = heads * _parts_of(attention) * each
    whole = attention.keys / 16 * (_squares(attention.width) * _KEY_SQUARE + _squares(attention.v_width) * _VALUE_SQUARE)
    if c["AHEAD"]:
        blocks = heads * ceil(attention.keys / keys)
        stored = 2 * _block(attention, blocks * keys) / _FROM_MEMORY
        work += heads * whole + stored + _WAKING * (cpu.cores > 1) * cpu.cores
    else:
        share = min(1.0, (of_part + (parts * _ROWS if masked else 0)) / attention.keys)
        work += tiles * share * whole
    return work * ceil(tiles / cpu.cores) * cpu.cores / tiles


def _moved(attention: Attention, cpu: X86, parts: int, keys: int) -> int:
    """Bytes of a step that come from L2, or go there, because L1 does not hold them from step to step."""
    part, stage, block = _part(attention), _stage(keys), _block(attention, keys)
    moved = 0
    if parts > 1 and parts * part + 2 * stage + block > cpu.l1d_bytes:
        moved += part + 2 * _SQUARE * 2 * _squares(attention.v_width)
    if parts == 1 or 2 * stage + block + 2 * part > cpu.l1d_bytes:
        moved += block
    return moved + (2 * stage if 2 * stage > cpu.l1d_bytes else 0)
