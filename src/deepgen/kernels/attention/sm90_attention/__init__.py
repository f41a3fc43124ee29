"""Attention on Hopper's tensor cores: the copy engine feeds warpgroups that alternate between products and softmax."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deepgen.kernels.attention.sm90_attention.lower import (
    REGISTERS,
    ROWS,
    eight,
    macros,
    plan,
    products_header,
    shared_bytes,
)
from deepgen.kernels.shared import defines, served, sources
from deepgen.operators import Attention, Operator
from deepgen.space import Space, implies, maximum, minimum, where
from deepgen.space.expr import points
from deepgen.targets import Cuda, Target
from deepgen.vocabulary import Kernel, Source

_OWN, _SHARED = ("attention_sm90.cu", "values.h", "rows.h", "instructions.h"), ("numbers.h", "hopper.h")
_GEMM = "deepgen.kernels.gemm.sm90_gemm"
_WIDEST = 256  # columns of an instruction, and rows of a box that the copy engine takes
_RESERVED = 32  # registers for addresses, counters, maxima and sums
_ODD = 16  # and for windows, caps and what is added to scores
_OPERANDS = 26  # registers beside the sums of an instruction
_TILES = tuple(range(32, _WIDEST + 1, 16))  # of keys
_USUAL = 128  # keys of a tile, where they fit
_WIDE, _NARROWER, _MANY = 192, 96, 2048  # keys of a tile of 8-bit numbers, from so many keys on
_TIMED = 128  # columns of heads up to which maxima that are seldom looked for have been timed
_FEW = 512  # queries, for which high tiles are mostly empty
_LONG = 1 << 30  # places are counted in 32 bits


class Sm90Attention:
    """Copy engine, barriers, products of warpgroups with weights in registers: f16, bf16 and f8e4m3 on sm_90a."""

    name = "sm90_attention"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Cuda) or not target.has("wgmma", "tma", "setmaxnreg"):
            return "it supports cuda:sm_90a only"
        if not isinstance(operator, Attention):
            return "it supports attention only"
        if operator.dtype not in ("bf16", "f16", "f8e4m3"):
            return "it multiplies f16, bf16 and f8e4m3"
        widths, least = (operator.width, operator.v_width), 16 // operator.format.bytes
        if any(width % least for width in widths) or max(widths) > _WIDEST:
            return f"it supports heads whose width is a multiple of {least}, up to {_WIDEST}"
        if operator.page:
            return "it supports keys that follow each other, not pages"
        if max(operator.queries, operator.keys) > _LONG:
            return "it has 32-bit indices of queries and keys"
        return None

    def space(self, operator: Operator, target: Target) -> Space:
        attention, gpu = served(operator, target, Attention, Cuda)
        s = Space(self.name)
        consumers, blocks = s.knob("CONSUMERS", [1, 2, 3]), s.knob("BLOCKS", [1, 2])
        s.require(points(["CONSUMERS", "BLOCKS"], [*REGISTERS]), "registers are shared out among so many warpgroups")
        bn = s.knob("BN", [n for n in _TILES if n % (32 // attention.format.bytes) == 0])
        stages = s.knob("STAGES", [2, 3, 4])
        single = s.knob("SINGLE", [False, True], when=bn >= attention.keys)
        overlap = s.knob("OVERLAP", [False, True])
        ping_pong = s.knob("PING_PONG", [False, True], when=consumers > 1)
        s.knob("EARLY", [0, 1, 2, 4], when=(consumers > 1) & ping_pong & overlap)
        queries = s.knob("QUERIES", ["shared", "registers"])
        looped = overlap & (bn < attention.keys)
        seldom = s.knob("SELDOM", [False, True], when=looped)
        s.knob("LAZY", [False, True], when=~looped | ~seldom)
        s.knob("POLYNOMIALS", [0] if attention.lse else [0, 2, 4, 6])  # their errors show in logarithms of sums
        s.knob("DYNAMIC", [False, True])
        s.knob("TOGETHER", ["one", "fit"])
        s.require(implies(bn >= attention.keys, single), "a single tile needs no loop")
        own, begins = (
            where(consumers == 2, of[2, 1], where(consumers == 3, of[3, 1], of[1, 2]))
            for of in ({key: each[place] for key, each in REGISTERS.items()} for place in (0, 2))
        )
        size = attention.format.bytes
        steps = -(-attention.width * size // 32)
        held = bn // 2 + bn * size // 8 + attention.v_width // 2 + where(queries == "registers", 4 * steps, 0)
        reserved = _RESERVED + _ODD * _odd(attention)
        s.require(held + reserved <= own, "scores, weights and results fit in registers")
        # Compilers want what one instruction adds to within the registers that a thread begins with.
        s.require(maximum(bn, attention.v_width) // 2 + _OPERANDS <= begins, "an instruction's sums fit at the start")
        shared = shared_bytes(attention, consumers, bn, stages)
        room = minimum(gpu.shared_per_block, gpu.shared_per_sm // blocks - gpu.shared_reserved)
        s.require(shared <= room, "tiles of so many blocks fit in shared memory")
        least = 1 if attention.v_width // 2 + _OPERANDS <= REGISTERS[1, 2][2] else 2
        s.require(implies(consumers > least, (consumers - 1) * ROWS < attention.queries), "every warpgroup has rows")
        s.require(implies(bn > _TILES[0], bn - 16 < attention.keys), "a tile has no more keys than there are")
        s.require(implies(stages > 2, stages * bn < 2 * attention.keys + bn), "stages are filled")
        return s

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        attention, gpu = served(operator, target, Attention, Cuda)
        products = Source(
            "products.h", products_header(attention, config["BN"], queries=config["QUERIES"] == "registers")
        )
        return Kernel(
            name=self.name,
            language="cuda",
            sources=(*sources(__name__, _OWN), *sources(_GEMM, _SHARED), products),
            flags=("-std=c++17", *defines(macros(attention, config))),
            plan=plan(attention, config, gpu.multiprocessors),
        )

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        attention, gpu = served(operator, target, Attention, Cuda)
        space = self.space(attention, gpu)
        return next(config for config in _choices(attention) if not space.explain(config))


def _odd(attention: Attention) -> bool:
    """Whether scores take registers of their own between products and exponentials."""
    return attention.window > 0 or attention.softcap > 0 or attention.bias or attention.alibi


def _choices(attention: Attention) -> Iterator[dict[str, Any]]:
    """Wide tiles of keys first, with queries in registers and three stages where they fit; few rows have fewer
    warpgroups. Many keys of 8 bits have three warpgroups with narrower tiles where all queries see them, and tiles that
    are wider still where not."""
    uneven = attention.causal or attention.window > 0 or attention.lengths
    small, narrow, short = eight(attention), attention.v_width <= 64, attention.queries <= _FEW
    many = small and not narrow and attention.keys >= _MANY
    # Of 8 bits sums soon exceed what weights may be where the first tile has few keys that a query sees.
    seldom = max(attention.width, attention.v_width) <= _TIMED and not (small and uneven) and not _odd(attention)
    if many and seldom and not short:
        yield _choice(attention, 3, _NARROWER, "shared", 3, seldom=True, alternate=False)
    for consumers in (3, 2) if narrow and not short else (2, 1):
        for bn in reversed([n for n in _TILES if n <= (_WIDE if many else _USUAL)]):
            for queries, stages in (("registers", 3), ("registers", 2), ("shared", 2)):
                alternate = consumers > 1 and (narrow or (seldom and not small and bn < attention.keys))
                yield _choice(attention, consumers, bn, queries, stages, seldom=seldom, alternate=alternate)


def _choice(
    attention: Attention, consumers: int, bn: int, queries: str, stages: int, *, seldom: bool, alternate: bool
) -> dict[str, Any]:
    uneven = attention.causal or attention.window > 0 or attention.lengths
    several, single = consumers > 1, bn >= attention.keys
    maxima: dict[str, Any] = {"LAZY": True} if single else {"SELDOM": seldom, **({} if seldom else {"LAZY": True})}
    return {
        "CONSUMERS": consumers, "BLOCKS": 1 if several else 2, "BN": bn, "STAGES": stages,
        **({"SINGLE": True} if single else {}), "OVERLAP": True, **({"PING_PONG": alternate} if several else {}),
        **({"EARLY": 0} if alternate else {}), "QUERIES": queries, **maxima, "POLYNOMIALS": 0, "DYNAMIC": uneven,
        "TOGETHER": "fit" if uneven else "one",
    }  # fmt: skip
