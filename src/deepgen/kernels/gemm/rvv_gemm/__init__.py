"""GEMM with the vector instructions of RISC-V, for registers of any length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.kernels.gemm.rvv_gemm import tile
from deepgen.kernels.shared import covering, defines, epilogue, nearest, served, sources
from deepgen.operators import Gemm, Operator
from deepgen.space import Space
from deepgen.targets import Riscv, Target
from deepgen.vocabulary import Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg, WorkspaceArg, dtype

_FORMATS = {("f32", "f32", "f32"): 32, ("f16", "f16", "f32"): 16, ("i8", "i32", "i32"): 8}  # of A and B, C, sums
_ACTIVATION = ("none", "relu", "gelu", "silu")
_GROUPS = {1: ("m1", "mf2", "mf4"), 2: ("m2", "m1", "mf2"), 4: ("m4", "m2", "m1"), 8: ("m8", "m4", "m2")}
_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15)
_WIDE = (1, 2, 3, 4, 5, 6)
_DEPTHS = (64, 128, 256, 512, 1024, 2048)
_WIDTHS = (64, 128, 256, 512, 1024, 2048)
_LEAST_L2 = 256 << 10  # if a board's facts do not include it
_SIZES = ("M", "N", "K", "batch", "lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c")


class RvvGemm:
    """Register tiles of whole vector register groups, for vectors of any length; packing, unrolling, prefetching."""

    name = "rvv_gemm"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Riscv):
            return "it supports riscv targets only"
        if not isinstance(operator, Gemm):
            return "it supports gemm only"
        if operator.a != operator.b or (operator.a, operator.c, operator.acc) not in _FORMATS:
            return "it computes in f32, in f16 with sums in f32, or in i8 with sums in i32"
        if operator.a == "f16" and not target.has("zvfh"):
            return "f16 needs a target with zvfh"
        plain = (operator.alpha, operator.beta) == (1.0, 0.0) and operator.activation in _ACTIVATION[:2]
        if operator.a == "i8" and not plain:
            return "in i8 it has no alpha or beta, and relu is the only activation"
        if operator.epilogue:
            return epilogue.REFUSED
        return None if operator.scales == "none" else "it has no scales"

    def space(self, operator: Operator, target: Target) -> Space:
        gemm, chip = served(operator, target, Gemm, Riscv)
        size = dtype(gemm.a).bytes
        s = Space(self.name)
        group = s.knob("LMUL", [g for g in _GROUPS if g == 1 or g * _lanes(chip) // 2 < gemm.n])
        rows = s.knob("MR", [r for r in _ROWS if r <= gemm.m])
        wide = s.knob("NR", list(_WIDE))
        s.knob("UNROLL", [1, 2, 4, 8])
        depth = s.knob("KC", _depths(gemm))
        width = s.knob("NC", covering(_WIDTHS, gemm.n))
        s.knob("PACK_A", ["none", "strip"])
        s.knob("PACK_B", _packings(gemm))
        s.knob("PREFETCH", [0, 4])
        s.require(rows * wide * group + group <= chip.vector_registers, "a tile and a group of B fit in registers")
        s.require((wide == 1) | ((wide - 1) * group * _lanes(chip) < gemm.n), "a tile is no wider than C")
        s.require(width >= wide * group * _lanes(chip), "a block has at least one tile of columns")
        room = max(chip.l2_bytes, _LEAST_L2)
        s.require((width <= _WIDTHS[0]) | (width * depth * size <= room), "a block of B fits in L2")
        return s

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        gemm, _ = served(operator, target, Gemm, Riscv)
        sums, second, fourth = _GROUPS[config["LMUL"]]
        pack_a, pack_b = config["PACK_A"] == "strip", config["PACK_B"] == "block"
        a_t = gemm.layout[0] == "t"
        macros = {
            "FORMAT": _FORMATS[gemm.a, gemm.c, gemm.acc],
            "LMUL": sums,
            "SECOND": second,
            "FOURTH": fourth,
            **{name: config[name] for name in ("MR", "NR", "KC", "NC")},
            "A_T": int(a_t),
            "B_T": int(gemm.layout[1] == "t"),
            "PACK_A": int(pack_a),
            "PACK_B": int(pack_b),
            "BIAS": int(gemm.bias),
            "ACTIVATION": _ACTIVATION.index(gemm.activation),
        }
        by_rows = not a_t and not pack_a
        tiles = tile.Tiles(
            tile.FORMATS[gemm.a],
            sums,
            second,
            config["MR"],
            config["NR"],
            config["UNROLL"],
            by_rows,
            config["PREFETCH"],
        )
        numbers = (config["MR"] if pack_a else 0) + (config["NC"] if pack_b else 0)
        factor = "i32" if gemm.a == "i8" else "f32"
        arguments = (
            TensorArg("A"),
            TensorArg("B"),
            TensorArg("bias") if gemm.bias else ScalarArg("i64", 0),
            TensorArg("C"),
            WorkspaceArg("packed", max(64, numbers * config["KC"] * dtype(gemm.a).bytes)),
            *(ScalarArg("i64", name) for name in _SIZES),
            *(ScalarArg(factor, name) for name in ("alpha", "beta")),
        )
        files = sources(__name__, ("gemm_rvv.c", "rvv_numbers.h"))
        return Kernel(
            name=self.name,
            language="c",
            sources=(*files, Source("tile.h", tile.text(tiles))),
            flags=("-std=gnu11", *defines(macros)),
            plan=LaunchPlan((Step("deepgen_gemm", arguments),)),
        )

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        gemm, chip = served(operator, target, Gemm, Riscv)
        group = max(g for g in _GROUPS if g <= 4 and (g == 1 or g * _lanes(chip) <= gemm.n))
        wide = max(w for w in _WIDE if w * group <= 4 and (w == 1 or w * group * _lanes(chip) <= gemm.n))
        rows = max(r for r in _ROWS if r <= gemm.m and r * wide * group + group <= chip.vector_registers)
        widths = [w for w in covering(_WIDTHS, gemm.n) if w >= wide * group * _lanes(chip)]
        return {
            "LMUL": group,
            "MR": rows,
            "NR": wide,
            "UNROLL": 4,
            "KC": nearest(_depths(gemm), 256),
            "NC": nearest(widths, 256),
            "PACK_A": "none",
            "PACK_B": _packings(gemm)[0],
            "PREFETCH": 0,
        }


def _lanes(chip: Riscv) -> int:
    """Sums per register."""
    return chip.vlen // 32


def _packings(gemm: Gemm) -> list[str]:
    return ["none", "block"] if gemm.layout[1] == "n" else ["block"]


def _depths(gemm: Gemm) -> list[int]:
    """Blocks of K. Results in f16 cannot hold the sums of a block, so all of K is one block there."""
    return covering(_DEPTHS, gemm.k) if gemm.a != "f16" else [-(-gemm.k // 64) * 64]
