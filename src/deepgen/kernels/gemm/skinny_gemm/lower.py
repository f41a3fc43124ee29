"""How `gemm_skinny.cu` is compiled and launched for a config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deepgen.kernels.gemm import counters, sums
from deepgen.kernels.gemm.mma_gemm import formats
from deepgen.kernels.gemm.mma_gemm.space import along_k
from deepgen.kernels.shared import NOTHING
from deepgen.operators import Gemm
from deepgen.vocabulary import Arg, LaunchPlan, Step, dtype

BLOCK_BYTES = 64  # of K, shared by four lanes


@dataclass(frozen=True)
class Sides:
    """Which operand is thin, and how both are laid out in memory."""

    thin_m: bool
    thin: int  # rows of the thin operand
    large: int
    thin_along: bool  # whether it is contiguous along K
    large_along: bool
    plain: bool  # multiplied without tensor cores

    @property
    def padded(self) -> int:
        whole = 4 if self.plain else 8
        return -(-self.thin // whole) * whole


@dataclass(frozen=True)
class LoweredSkinny:
    macros: Mapping[str, int | str]
    threads: int
    shared_bytes: int
    rows: int  # of the large matrix, per block


def sides(gemm: Gemm) -> Sides:
    thin_m = gemm.m <= gemm.n
    thin, large = (gemm.m, gemm.n) if thin_m else (gemm.n, gemm.m)
    names = "AB" if thin_m else "BA"
    return Sides(thin_m, thin, large, along_k(gemm, names[0]), along_k(gemm, names[1]), gemm.a == "f32")


def row_blocks(gemm: Gemm, config: Mapping[str, Any]) -> int:
    """Blocks of eight rows of the large matrix per warp."""
    return 2 * int(config["TILES"]) if sides(gemm).large_along else formats.WIDEST // dtype(gemm.a).bytes


def lower(gemm: Gemm, config: Mapping[str, Any]) -> LoweredSkinny:
    c, s, size = config, sides(gemm), dtype(gemm.a).bytes
    blocks = row_blocks(gemm, c)
    rows = c["WARPS_R"] * blocks * 8
    round_k = c["UNROLL"] * c["WARPS_K"] * BLOCK_BYTES // size  # elements of K per round
    rounds, splits = -(-gemm.k // round_k), c["SPLITS"]
    buffers = 1 if rounds <= c["CHUNK"] * splits else 2
    large, thin = ("B", "A") if s.thin_m else ("A", "B")
    edge = {"large": int(s.large % rows != 0), "thin": int(s.thin != s.padded)}
    macros: dict[str, int | str] = {
        **formats.result_macros(gemm, formats.store_width(gemm, 8 if s.thin_m else s.padded)),
        "MMA": "none" if s.plain else formats.product_name(gemm),
        "PLAIN": int(s.plain),
        "THIN_M": int(s.thin_m),
        "THIN": s.padded,
        "THIN_ALONG": int(s.thin_along),
        "ALONG": int(s.large_along),
        "ROW_BLOCKS": blocks,
        **{knob: c[knob] for knob in ("WARPS_R", "WARPS_K", "UNROLL", "CHUNK", "MIN_BLOCKS")},
        "BUFFERS": buffers,
        "HINT": int(c["HINT"]),
        "SPLIT": int(splits > 1),
        "COPY_LARGE": formats.aligned_bytes(gemm, large),
        "COPY_THIN": formats.aligned_bytes(gemm, thin),
        "EDGE_LARGE": edge["large"],
        "EDGE_M": edge["thin" if s.thin_m else "large"],
        "EDGE_N": edge["large" if s.thin_m else "thin"],
        "EDGE_K": int(gemm.k % round_k != 0),
    }
    line = c["CHUNK"] * round_k * size
    pitch = line + (64 if line % 128 == 0 else 0)
    sums = c["WARPS_K"] * (s.padded * (rows + 4) if s.thin_m else rows * (s.padded + 8)) * 4
    return LoweredSkinny(macros, c["WARPS_R"] * c["WARPS_K"] * 32, max(buffers * s.padded * pitch, sums), rows)


def plan(gemm: Gemm, config: Mapping[str, Any], lowered: LoweredSkinny) -> LaunchPlan:
    s, splits = sides(gemm), config["SPLITS"]
    tiles = f"ceil_div({'N' if s.thin_m else 'M'}, {lowered.rows}) * batch"
    partial: Arg = NOTHING
    arrived: Arg = NOTHING
    if splits > 1:
        partial = sums(f"{tiles} * {splits * lowered.rows * s.padded * 4}")
        arrived = counters(f"{tiles} * 4")
    args = formats.arguments(gemm, partial, arrived, splits)
    step = Step("gemm", args, (f"{tiles} * {splits}", 1, 1), (lowered.threads, 1, 1), shared_bytes=lowered.shared_bytes)
    return LaunchPlan(steps=(step,), requires=_requires(gemm, s, lowered))


def _requires(gemm: Gemm, s: Sides, lowered: LoweredSkinny) -> tuple[formats.Requirement, ...]:
    m, size = dict(lowered.macros), dtype(gemm.a).bytes
    thin, large = ("M", "N") if s.thin_m else ("N", "M")
    out = [(f"{thin} <= {s.padded}", f"{thin} of at most {s.padded}")]
    if not m[f"EDGE_{thin}"]:
        out = [(f"{thin} == {s.padded}", f"{thin} of {s.padded}")]
    if not m["EDGE_LARGE"]:
        out.append((f"{large} % {lowered.rows} == 0", f"{large} that is a multiple of {lowered.rows}"))
    if not m["EDGE_K"]:
        round_k = int(m["UNROLL"]) * int(m["WARPS_K"]) * BLOCK_BYTES // size
        out.append((f"K % {round_k} == 0", f"K that is a multiple of {round_k}"))
    copied, store = int(m["COPY_LARGE"]), int(m["STORE"])
    along = "K" if s.large_along else large
    if copied > size:
        out.append((f"{along} % {copied // size} == 0", f"{along} that is a multiple of {copied // size}"))
    if store > 1:
        out.append((f"N % {store} == 0", f"N that is a multiple of {store}"))
    widths = {"A" if s.thin_m else "B": int(m["COPY_THIN"]) if s.thin_along else size}
    widths |= {"B" if s.thin_m else "A": copied, "C": store * dtype(gemm.c).bytes}
    return (*out, *formats.alignment_required(gemm, widths))
