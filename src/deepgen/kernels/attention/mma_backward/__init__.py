"""The backward pass of attention on products of warps: every sum has one owner, so results do not depend on timing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from deepgen.kernels import FirstRanked
from deepgen.kernels.attention import (
    backward_arguments,
    backward_macros,
    backward_refused,
    backward_requires,
    backward_sums,
)
from deepgen.kernels.shared import gpu_kernel, served, sources
from deepgen.operators import AttentionBackward, Operator
from deepgen.space import Space, implies, maximum
from deepgen.targets import Cuda, Target
from deepgen.vocabulary import Kernel, LaunchPlan, Step

_FILES = (("", ("backward_mma.cu",)), ("deepgen.kernels.attention.mma_decode", ("warps.h", "dialect_mma.h")))
_RESERVED = 44  # registers for addresses, counters and operands
_SIDES = ("KEYS", "QUERIES")


class MmaBackward(FirstRanked):
    """Two launches with seven products in all, sums in registers: f16 and bf16 on sm_80 and later."""

    name = "mma_backward"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Cuda) or not target.has("ldmatrix", "cp_async"):
            return "it supports NVIDIA GPUs from sm_80 on"
        return backward_refused(operator)

    def space(self, operator: Operator, target: Target) -> Space:
        backward, gpu = served(operator, target, AttentionBackward, Cuda)
        s, d = Space(self.name), backward.width
        warps, stages = s.knob("WARPS", [2, 4, 8]), s.knob("STAGES", [2, 3])
        blocks = s.knob("MIN_BLOCKS", [1, 2, 3])
        shares = []
        for side in _SIDES:
            high, wide = s.knob(f"{side}_HIGH", [1, 2]), s.knob(f"{side}_WIDE", [16, 32, 64])
            sums = d if side == "KEYS" else d // 2
            needed = s.derive(f"{side.lower()}_registers", high * (sums + wide + wide // 4) + _RESERVED)
            rows, own, other = warps * high * 16, *_lengths(backward, side)
            of = f" ({side.lower()})"
            s.require(needed <= gpu.registers_per_thread, "sums and scores fit in a thread's registers" + of)
            s.require(needed * warps * 32 * blocks <= gpu.registers_per_sm, "so many blocks' registers fit" + of)
            s.require(implies(rows > 32, rows < 2 * own), "a block has not many more rows than there are" + of)
            s.require(implies(wide > 16, wide < 2 * other), "nor has a tile" + of)
            shares.append(_shared_bytes(d, warps, stages, high, wide))
        shared = s.derive("shared_bytes", maximum(*shares))
        s.require(shared <= gpu.shared_per_block, "rows and stages fit in shared memory")
        s.require((shared + gpu.shared_reserved) * blocks <= gpu.shared_per_sm, "so many blocks' shares of it fit")
        return s

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        backward, _ = served(operator, target, AttentionBackward, Cuda)
        files = (source for package, names in _FILES for source in sources(package or __name__, names))
        of = backward.dtype
        macros = {
            "TYPE_A": of, "TYPE_B": of, "MMA": f"m16n8k16.row.col.f32.{of}.{of}.f32",
            **backward_macros(backward), **config,
        }  # fmt: skip
        return gpu_kernel(self.name, "cuda", tuple(files), macros, _plan(backward, config))

    def ranked(self, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
        """Wide tiles first, of many rows."""
        space = self.space(operator, target)
        every = product((8, 4, 2), (2, 1), (1, 2), (64, 32, 16), (2, 1), (64, 32, 16))
        for warps, blocks, keys_high, keys_wide, queries_high, queries_wide in every:
            config = {
                "WARPS": warps, "STAGES": 2, "MIN_BLOCKS": blocks, "KEYS_HIGH": keys_high, "KEYS_WIDE": keys_wide,
                "QUERIES_HIGH": queries_high, "QUERIES_WIDE": queries_wide,
            }  # fmt: skip
            if not space.explain(config):
                yield config


def _lengths(backward: AttentionBackward, side: str) -> tuple[int, int]:
    """How many rows there are of a block's own side, and of the other."""
    both = backward.keys, backward.queries
    return both if side == "KEYS" else both[::-1]


def _shared_bytes(width: int, warps: Any, stages: Any, high: Any, wide: Any) -> Any:
    """Of a block, for numbers or knobs: own rows, and stages of the other side's with sums of queries."""
    line = (width // 8 | 1) * 16
    return 2 * warps * high * 16 * line + stages * wide * (2 * line + 8)


def _plan(backward: AttentionBackward, c: Mapping[str, Any]) -> LaunchPlan:
    steps = [backward_sums(backward)]
    for side, size, heads in (("KEYS", "SK", "HK"), ("QUERIES", "SQ", "H")):
        high, wide = c[f"{side}_HIGH"], c[f"{side}_WIDE"]
        steps.append(
            Step(
                side.lower(),
                backward_arguments(backward, ("dk", "dv") if side == "KEYS" else ("dq",)),
                grid=(f"ceil_div({size}, {c['WARPS'] * high * 16}) * B * {heads}", 1, 1),
                block=(c["WARPS"] * 32, 1, 1),
                shared_bytes=_shared_bytes(backward.width, c["WARPS"], c["STAGES"], high, wide),
            )
        )
    return LaunchPlan(tuple(steps), requires=backward_requires(backward, aligned=True))
