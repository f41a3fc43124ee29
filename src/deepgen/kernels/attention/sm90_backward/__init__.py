"""The backward pass of attention on Hopper's tensor cores: every sum has one owner, which keeps it in registers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from deepgen.kernels import FirstRanked
from deepgen.kernels.attention import (
    backward_macros,
    backward_refused,
    backward_requires,
    strided,
    strides_of,
)
from deepgen.kernels.attention.sm90_attention import (
    ATOM,
    REGISTERS,
    ROWS,
    atoms,
    product_of_columns,
    product_of_rows,
)
from deepgen.kernels.shared import defines, served, sources
from deepgen.operators import AttentionBackward, Operator
from deepgen.space import Space, implies, where
from deepgen.targets import Cuda, Target
from deepgen.vocabulary import (
    Arg,
    DescriptorArg,
    Kernel,
    LaunchPlan,
    ScalarArg,
    Source,
    Step,
    TensorArg,
    TensorMapSpec,
    WorkspaceArg,
)

_OWN = ("backward_sm90.cu", "sides.h", "copies.h")
_ATTENTION, _GEMM = "deepgen.kernels.attention.sm90_attention", "deepgen.kernels.gemm.sm90_gemm"
_SIDES = ("KEYS", "QUERIES")
_BLOCKS = {1: 2, 2: 1, 3: 1}  # on a multiprocessor, by warpgroups that consume
_RESERVED, _ODD = 32, 16  # registers for addresses and counters; and for windows and caps
_OPERANDS = 26  # registers beside the sums of an instruction
_TILES = (32, 48, 64, 80, 96, 112, 128)  # rows
_ALIGN = 1024
_NARROW, _SHORT = 64, 512
_OVERLAPS = {"none": 0, "scores": 1, "all": 2}


class Sm90Backward(FirstRanked):
    """Copy engine, barriers, products of warpgroups with weights in registers: f16 and bf16 on sm_90a."""

    name = "sm90_backward"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Cuda) or not target.has("wgmma", "tma", "setmaxnreg"):
            return "it supports cuda:sm_90a only"
        return backward_refused(operator)

    def space(self, operator: Operator, target: Target) -> Space:
        backward, gpu = served(operator, target, AttentionBackward, Cuda)
        s, d = Space(self.name), backward.width
        for side in _SIDES:
            consumers, wide = s.knob(f"{side}_CONSUMERS", [1, 2, 3]), s.knob(f"{side}_WIDE", list(_TILES))
            stages, overlap = s.knob(f"{side}_STAGES", [2, 3, 4]), s.knob(f"{side}_OVERLAP", list(_OVERLAPS))
            own, begins = (
                where(consumers == 1, REGISTERS[1, 2][n], where(consumers == 2, REGISTERS[2, 1][n], REGISTERS[3, 1][n]))
                for n in (0, 2)
            )
            of_keys = side == "KEYS"
            odd = _odd(backward, wide)
            packed = where(overlap == "all", wide // 2 if of_keys else wide // 4, 0)
            held = (d if of_keys else d // 2) + wide + packed + odd
            of = f" ({side.lower()})"
            s.require(held + _RESERVED <= own, "scores, their gradients and sums fit in registers" + of)
            sums = where(wide > d, wide, d) // 2
            s.require(sums + _OPERANDS <= begins, "an instruction's sums fit at the start" + of)
            shared = _shared_bytes(d, of_keys, consumers, wide, stages)
            room = where(consumers == 1, gpu.shared_per_sm // 2 - gpu.shared_reserved, gpu.shared_per_block)
            s.require(shared <= room, "tiles of so many blocks fit in shared memory" + of)
            rows, others = (backward.keys, backward.queries) if of_keys else (backward.queries, backward.keys)
            few = _least(backward, d if of_keys else d // 2)
            s.require(implies(consumers > few, (consumers - 1) * ROWS < rows), "every warpgroup has rows" + of)
            s.require(implies(wide > 32, wide < 2 * others), "a tile has not many more rows than there are" + of)
            s.require(implies(stages > 2, (overlap != "none") | (stages < 4)), "stages are filled" + of)
        return s

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        backward, _ = served(operator, target, AttentionBackward, Cuda)
        macros: dict[str, int | str] = {"TYPE": backward.dtype, **backward_macros(backward)}
        macros |= {name: _OVERLAPS.get(value, value) for name, value in config.items()}
        for side in _SIDES:
            consumers = config[f"{side}_CONSUMERS"]
            own, fetching, _ = REGISTERS[consumers, _BLOCKS[consumers]]
            macros |= {f"{side}_REGISTERS": own, f"{side}_DOWN": fetching, f"{side}_BLOCKS": _BLOCKS[consumers]}
        products = Source("products.h", _products(backward, config))
        return Kernel(
            name=self.name,
            language="cuda",
            sources=(
                *sources(__name__, _OWN), *sources(_ATTENTION, ("instructions.h",)),
                *sources(_GEMM, ("numbers.h", "hopper.h")), products,
            ),
            flags=("-std=c++17", *defines(macros)),
            plan=_plan(backward, config),
        )  # fmt: skip

    def ranked(self, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
        """Two warpgroups first, or one where rows are few or would leave multiprocessors without a block; three stages,
        as much beside exponentials as fits, and the widest tiles that leave room for these."""
        backward, gpu = served(operator, target, AttentionBackward, Cuda)
        space = self.space(operator, target)
        keys, queries = (list(enumerate(_choices(side, _alone(backward, gpu, side)))) for side in _SIDES)
        for (_, own), (_, other) in sorted(product(keys, queries), key=lambda pair: pair[0][0] + pair[1][0]):
            config = {**own, **other}
            if not space.explain(config):
                yield config


def _alone(backward: AttentionBackward, gpu: Cuda, side: str) -> bool:
    """Whether one warpgroup a block is tried first: two such blocks hide each other's beginnings and ends. Measured for
    narrow heads only."""
    rows, heads = (backward.keys, backward.kv_heads) if side == "KEYS" else (backward.queries, backward.heads)
    blocks = backward.batch * heads * -(-rows // (2 * ROWS))
    return backward.width <= _NARROW and (rows <= _SHORT or blocks < gpu.multiprocessors)


def _choices(side: str, alone: bool) -> Iterator[dict[str, Any]]:
    tiles = {
        "KEYS": ((64, "all"), (48, "all"), (64, "scores"), (32, "all"), (32, "scores")),
        "QUERIES": ((128, "all"), (64, "all"), (128, "scores"), (96, "all"), (48, "all"), (32, "all")),
    }
    for consumers, stages, (wide, overlap) in product((1, 2) if alone else (2, 1), (3, 2), tiles[side]):
        named = {"CONSUMERS": consumers, "WIDE": wide, "STAGES": stages, "OVERLAP": overlap}
        yield {f"{side}_{name}": value for name, value in named.items()}


def _odd(backward: AttentionBackward, wide: Any) -> Any:
    """Registers for windows and caps."""
    return _ODD * (backward.window > 0) + wide // 2 * (backward.softcap > 0)


def _least(backward: AttentionBackward, sums: int) -> int:
    """How many warpgroups leave registers enough for the narrowest tile: two have more each than one in each of two
    blocks."""
    needed = sums + _TILES[0] + _odd(backward, _TILES[0]) + _RESERVED
    return 1 if needed <= REGISTERS[1, 2][0] else 2


def _shared_bytes(width: int, of_keys: bool, consumers: Any, wide: Any, stages: Any) -> Any:
    """Of a block, for numbers or knobs: own rows, and stages of the other side's with sums of queries."""
    line = atoms(width) * 2 * ATOM
    barriers = (1 + 3 * stages) * 8
    return _ALIGN + 2 * consumers * ROWS * line + stages * wide * (2 * line + (8 if of_keys else 0)) + barriers


def _products(backward: AttentionBackward, c: Mapping[str, Any]) -> str:
    of = backward.dtype
    return f"""// The products of a warpgroup: 64 own rows by a tile's; weights in registers by a tile's columns.
#pragma once
#include "numbers.h"

{product_of_rows("product_with_queries", c["KEYS_WIDE"], of)}
{product_of_rows("product_with_keys", c["QUERIES_WIDE"], of)}
{product_of_columns(backward.width, of)}"""


def _plan(backward: AttentionBackward, c: Mapping[str, Any]) -> LaunchPlan:
    pitch = f"ceil_div(SQ, {c['KEYS_WIDE']}) * {c['KEYS_WIDE']}"
    of_queries = WorkspaceArg("sums", f"B * H * {pitch} * 8")
    sums = Step(
        "sums",
        (
            *(arg for name in ("o", "dout") for arg in strided(backward, name)),
            TensorArg("lse"),
            of_queries,
            *(ScalarArg("i32", size) for size in ("B", "H", "SQ", pitch)),
        ),
        grid=(f"ceil_div(B * H * {pitch}, 32)", 1, 1),
        block=(256, 1, 1),
    )
    steps = [sums]
    for side, size, heads in (("KEYS", "SK", "HK"), ("QUERIES", "SQ", "H")):
        consumers, wide, stages = (c[f"{side}_{knob}"] for knob in ("CONSUMERS", "WIDE", "STAGES"))
        own, others = ("k", "v"), ("q", "dout")
        if side == "QUERIES":
            own, others = others, own
        args: tuple[Arg, ...] = (
            *(_map(backward, name, ROWS) for name in own),
            *(_map(backward, name, wide) for name in others),
            of_queries,
            *(ScalarArg("i32", value) for value in ("H", "H // HK", "SQ", "SK", "window", pitch)),
            *(ScalarArg("f32", number) for number in ("scale", "softcap")),
            *(arg for name in (("dk", "dv") if side == "KEYS" else ("dq",)) for arg in strided(backward, name)),
        )
        steps.append(
            Step(
                side.lower(),
                args,
                grid=(f"ceil_div({size}, {consumers * ROWS}) * B * {heads}", 1, 1),
                block=((consumers + 1) * 128, 1, 1),
                shared_bytes=_shared_bytes(backward.width, side == "KEYS", consumers, wide, stages),
                overlaps=True,
            )
        )
    return LaunchPlan(tuple(steps), requires=backward_requires(backward, aligned=True))


def _map(backward: AttentionBackward, name: str, rows: int) -> DescriptorArg:
    sizes = ("D", "SQ", "H", "B") if name in ("q", "dout") else ("D", "SK", "HK", "B")
    apart = tuple(f"{stride} * 2" for stride in strides_of(backward, name))
    return DescriptorArg(name, TensorMapSpec((ATOM, rows, 1, 1), "128", "256", sizes, apart))
