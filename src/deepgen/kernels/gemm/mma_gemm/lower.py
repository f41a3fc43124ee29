"""From a config to what `gemm_mma.cu` is compiled with and how it is launched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deepgen.kernels.gemm.mma_gemm import formats
from deepgen.operators import Gemm
from deepgen.vocabulary import Arg, LaunchPlan, Size, Step, dtype

FIXUPS = {"none": 0, "step": 1, "last": 2, "stream": 3}
_REDUCERS = 256  # threads of a block of the second step, as in share.h


@dataclass(frozen=True)
class LoweredMma:
    """The macros of a config, and what follows from them."""

    macros: Mapping[str, int | str]
    threads: int
    shared_bytes: int


def along_k(gemm: Gemm, side: str) -> bool:
    """Whether memory is contiguous along K."""
    return gemm.layout[0] == "n" if side == "A" else gemm.layout[1] == "t"


def spread(gemm: Gemm, side: str) -> bool:
    """Whether lanes own four neighbouring rows: where neither kind of matrix load turns the elements."""
    return not along_k(gemm, side) and dtype(gemm.a).bytes != 2


def lower(gemm: Gemm, config: Mapping[str, Any]) -> LoweredMma:
    c, size, acc = config, dtype(gemm.a).bytes, dtype(gemm.acc).bytes
    everywhere = c["GUARD"] == "all"
    run = 8 if spread(gemm, "B") else 2 * c["WIDE"]
    macros: dict[str, int | str] = {
        **formats.result_macros(gemm, 1 if everywhere else formats.store_width(gemm, run)),
        "MMA": formats.product_name(gemm),
        "A_T": int(gemm.layout[0] == "t"),
        "B_T": int(gemm.layout[1] == "t"),
        **{knob: c[knob] for knob in ("BM", "BN", "BK", "WM", "WN", "WARPS_K", "STAGES", "FRAGMENTS", "WIDE")},
        **{knob: c[knob] for knob in ("MAPPING", "MIN_BLOCKS")},
        "COPY_A": size if everywhere else formats.aligned_bytes(gemm, "A"),
        "COPY_B": size if everywhere else formats.aligned_bytes(gemm, "B"),
        "FIXUP": FIXUPS[c["FIXUP"]],
        "HINT": 0,
        "EDGE_M": int(everywhere or gemm.m % c["BM"] != 0),
        "EDGE_N": int(everywhere or gemm.n % c["BN"] != 0),
        "EDGE_K": int(everywhere or gemm.k % c["BK"] != 0),
    }
    warps = c["BM"] // c["WM"] * (c["BN"] // c["WN"])
    tiles = (c["BM"] + c["BN"]) * c["BK"] * size * c["STAGES"]
    added = c["BM"] * c["BN"] * acc if c["WARPS_K"] > 1 else 0
    return LoweredMma(macros, warps * c["WARPS_K"] * 32, max(tiles, added))


def plan(gemm: Gemm, config: Mapping[str, Any], lowered: LoweredMma) -> LaunchPlan:
    """One step, or two where the parts of K are added up by a second one."""
    c, acc = config, dtype(gemm.acc).bytes
    tiles = f"ceil_div(M, {c['BM']}) * ceil_div(N, {c['BN']}) * batch"
    slot = c["BM"] * c["BN"] * acc
    splits, blocks = c.get("SPLITS", 1), c.get("BLOCKS", 1)
    grid: Size = {"none": tiles, "stream": blocks}.get(c["FIXUP"], f"{tiles} * {splits}")
    spaces: dict[str, tuple[Arg, Arg]] = {
        "none": (formats.NOTHING, formats.NOTHING),
        "step": (formats.sums(f"{splits * acc} * M * N * batch"), formats.NOTHING),
        "last": (formats.sums(f"{tiles} * {splits * slot}"), formats.counters(f"{tiles} * 4")),
        "stream": (formats.sums(blocks * slot), formats.counters(blocks * 4)),
    }
    args = formats.arguments(gemm, *spaces[c["FIXUP"]], splits)
    steps = [Step("gemm", args, (grid, 1, 1), (lowered.threads, 1, 1), shared_bytes=lowered.shared_bytes)]
    if c["FIXUP"] == "step":
        runs = f"ceil_div(batch * M * N, {_REDUCERS * min(4, int(lowered.macros['STORE']))})"
        steps.append(Step("gemm_reduce", args, (runs, 1, 1), (_REDUCERS, 1, 1)))
    return LaunchPlan(steps=tuple(steps), requires=_requires(gemm, c, lowered.macros))


def _requires(gemm: Gemm, c: Mapping[str, Any], macros: Mapping[str, Any]) -> tuple[formats.Requirement, ...]:
    out = [
        (f"{letter} % {c['B' + letter]} == 0", f"{letter} that is a multiple of {c['B' + letter]}")
        for letter in "MNK"
        if not macros[f"EDGE_{letter}"]
    ]
    store = macros["STORE"]
    if store > 1 and macros["EDGE_N"]:
        out.append((f"N % {store} == 0", f"N that is a multiple of {store}"))
    widths = {"A": macros["COPY_A"], "B": macros["COPY_B"], "C": store * dtype(gemm.c).bytes}
    return (*out, *formats.alignment_required(gemm, widths))
