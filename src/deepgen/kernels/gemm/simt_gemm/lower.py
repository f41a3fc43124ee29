"""How `gemm_simt.cu` is compiled and launched for a config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from deepgen.kernels.gemm import counters, sums
from deepgen.kernels.gemm.simt_gemm.space import BandedGemm
from deepgen.kernels.shared import NOTHING
from deepgen.operators import Gemm
from deepgen.operators.signature import stored
from deepgen.space import parse
from deepgen.vocabulary import Arg, LaunchPlan, ScalarArg, Step, TensorArg, dtype

FIXUPS = {"none": 0, "step": 1, "last": 2, "stream": 3}
_WIDEST = 16  # bytes of one load or store
_MANY_STEPS = 8  # of K: loads without guards are then worth the additional code
_REDUCERS = 256  # threads per block of the second step, as in schedule.h


@dataclass(frozen=True)
class LoweredSimt:
    """The macros of a config, and what follows from them."""

    macros: Mapping[str, int | str]
    threads: int
    shared_bytes: int


def group_k(config: Mapping[str, Any], size: int) -> int:
    """Steps of K that a thread loads at once: the width of a load, if K is innermost in shared memory."""
    if config["INNER_A"] != "k" and config["INNER_B"] != "k":
        return 1
    return gcd(_WIDEST // size, config["BK"] // config["SPLIT_U"])


def lower(gemm: Gemm, config: Mapping[str, Any], warp: int, dots: Mapping[str, int]) -> LoweredSimt:
    """`dots`: for each dtype, how many products the chip adds up in one instruction."""
    a, _, _, acc = gemm.dtypes
    c = config
    lanes_n = warp // c["LANES_M"]
    group = group_k(c, a.bytes)
    groups = c["BK"] // (group * c["SPLIT_U"])
    everywhere = c["GUARD"] == "all"
    inner = {side: int(c[f"INNER_{side}"] == "k") for side in "AB"}
    dot = dots.get(a.name, 1) if inner["A"] and inner["B"] else 1
    macros: dict[str, int | str] = {
        "TYPE_A": stored(gemm.a),
        "TYPE_B": stored(gemm.b),
        "TYPE_C": stored(gemm.c),
        "TYPE_ACC": gemm.acc,
        "TYPE_SCALE": scale_type(gemm),
        "DOT": dot if group % dot == 0 else 1,
        # An operator without beta never reads C, and its kernel is a third shorter.
        "BETA": int(gemm.beta != 0),
        "A_T": int(gemm.layout[0] == "t"),
        "B_T": int(gemm.layout[1] == "t"),
        **{knob: c[knob] for knob in ("BM", "BN", "BK", "TM", "TN", "SPLIT_U", "STAGES", "MAPPING", "STORE")},
        **{knob: c[knob] for knob in ("LANES_M", "LOAD_A", "LOAD_B", "LANE_ORDER", "MIN_BLOCKS")},
        "PAD_A": c.get("PAD_A", c.get("PAD", 0)),
        "PAD_B": c.get("PAD_B", c.get("PAD", 0)),
        "LANES_N": lanes_n,
        "WARPS_M": c["BM"] // (c["LANES_M"] * c["TM"]),
        "WARPS_N": c["BN"] // (lanes_n * c["TN"]),
        "WARP_SCATTER_A": _spread(c, "A", c["TM"]),
        "WARP_SCATTER_B": _spread(c, "B", c["TN"]),
        "THREAD_SCATTER_A": c["THREAD_SCATTER_A"],
        "THREAD_SCATTER_B": c["THREAD_SCATTER_B"],
        "LOAD_CONTINUOUS": int(c["LOAD_CONTINUOUS"]),
        "INNER_K_A": inner["A"],
        "INNER_K_B": inner["B"],
        "GROUP_K": group,
        "ASYNC": int(c["COPY"] == "async"),
        "REG_PREFETCH": int(c["REG_PREFETCH"]),
        "UNROLL": gcd(c["UNROLL"], groups),
        "STAGE_ROWS": c["STAGE_ROWS"],
        # Puts lanes on different banks; lines remain multiples of a store's width.
        "PAD_C": max(lanes_n, _WIDEST // acc.bytes if c["FIXUP"] == "last" else c["STORE"])
        if c["THREAD_SCATTER_B"] == 1
        else 0,
        "REDUCE_CONTINUOUS": int(c["REDUCE_CONTINUOUS"]),
        "FIXUP": FIXUPS[c["FIXUP"]],
        **({"BAND": 1} if isinstance(gemm, BandedGemm) else {}),
        "EDGE_M": 1 if everywhere else _edge(gemm.m, c["BM"], 1),
        "EDGE_N": 1 if everywhere else _edge(gemm.n, c["BN"], 1),
        "EDGE_K": 1 if everywhere else _edge(gemm.k, c["BK"], _MANY_STEPS),
    }
    threads = c["BM"] // c["TM"] * (c["BN"] // c["TN"]) * c["SPLIT_U"]
    return LoweredSimt(macros, threads, _shared_bytes(macros, a.bytes, acc.bytes))


def _edge(size: int, tile: int, most: int) -> int:
    """0: none. 1: everything is guarded. 2: the last tile is shifted back, or only the last step is guarded."""
    return 0 if size % tile == 0 else 2 if size >= most * tile else 1


def _spread(config: Mapping[str, Any], side: str, tile: int) -> int:
    """Contiguous elements that a warp's lanes divide before the next warp's begin: a thread's run, its tile, or a
    number."""
    words = {"thread": config[f"THREAD_SCATTER_{side}"], "tile": tile}
    scatter = config[f"WARP_SCATTER_{side}"]
    return int(words.get(scatter, scatter))


def scale_type(gemm: Gemm) -> str:
    """The type of alpha and beta; integers stay exact in f64."""
    return "f32" if gemm.acc == "f32" else "f64"


def _shared_bytes(m: Mapping[str, Any], size: int, acc_size: int) -> int:
    def tile(rows: int, inner: int, pad: int) -> int:
        lines, length = (rows, m["BK"]) if inner else (m["BK"], rows)
        return -(-lines * (length + pad) * size // 16) * 16

    stage = tile(m["BM"], m["INNER_K_A"], m["PAD_A"]) + tile(m["BN"], m["INNER_K_B"], m["PAD_B"])
    passes = m["SPLIT_U"] * m["WARPS_M"] * m["LANES_M"] * m["STAGE_ROWS"] * (m["BN"] + m["PAD_C"]) * acc_size
    return int(max(stage * m["STAGES"], passes))


def implied(gemm: Gemm, config: Mapping[str, Any], macros: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Conditions on other sizes that use the same binary: unguarded tiles stay whole, and accesses aligned."""
    out = [
        (f"{size} % {config[tile]} == 0", f"{size} that is a multiple of {config[tile]}")
        for size, tile in (("M", "BM"), ("N", "BN"), ("K", "BK"))
        if not macros[f"EDGE_{size}"]
    ]
    for size, tile in (("M", "BM"), ("N", "BN")):
        if macros[f"EDGE_{size}"] == 2:
            out.append((f"{size} >= {config[tile]}", f"{size} of at least {config[tile]}"))
    along = {"A": "KM"[macros["A_T"]], "B": "NK"[macros["B_T"]], "C": "N"}  # the contiguous dimension in memory
    for name, width in (("A", macros["LOAD_A"]), ("B", macros["LOAD_B"]), ("C", macros["STORE"])):
        if width > 1:
            strides = [f"ld{name.lower()}", *([f"stride_{name.lower()}"] if gemm.batch > 1 else [])]
            words = f"lines of {name} that are multiples of {width} elements"
            out += [(f"{size} % {width} == 0", words) for size in (along[name], *strides)]
    if macros["FIXUP"] in (FIXUPS["step"], FIXUPS["last"]):
        least = min(gemm.k, config.get("SPLITS", 1) * config["BK"])
        out.append((f"K >= {least}", f"K of at least {least}"))
    return tuple(out)


def plan(gemm: Gemm, config: Mapping[str, Any], lowered: LoweredSimt) -> LaunchPlan:
    """One step, or two if a second one adds up the parts of K."""
    c = config
    tiles = f"ceil_div(M, {c['BM']}) * ceil_div(N, {c['BN']}) * batch"
    tile = c["BM"] * c["BN"] * dtype(gemm.acc).bytes
    splits = c.get("SPLITS", 1)
    grid = {"none": tiles, "step": f"{tiles} * {splits}", "last": f"{tiles} * {splits}", "stream": c.get("BLOCKS", 1)}[
        c["FIXUP"]
    ]
    partial = {
        "step": f"{splits * dtype(gemm.acc).bytes} * M * N * batch",
        "last": f"{tiles} * {splits * tile}",
        "stream": c.get("BLOCKS", 1) * tile * c["SPLIT_U"],
    }.get(c["FIXUP"])
    arrived = {"last": f"{tiles} * 4", "stream": c.get("BLOCKS", 1) * 4}.get(c["FIXUP"])
    scale = scale_type(gemm)
    added = sums(partial) if partial else NOTHING
    args: tuple[Arg, ...] = (
        *(TensorArg(name) for name in ("A", "B", "C")),
        added,
        counters(arrived) if arrived else NOTHING,
        *(ScalarArg("i32", name) for name in ("M", "N", "K", "batch", "lda", "ldb", "ldc")),
        *(ScalarArg("i64", name) for name in ("stride_a", "stride_b", "stride_c")),
        *(ScalarArg(scale, name) for name in ("alpha", "beta")),
        ScalarArg("i32", splits),
    )
    steps = [Step("gemm", args, (grid, 1, 1), (lowered.threads, 1, 1), shared_bytes=lowered.shared_bytes)]
    if isinstance(gemm, BandedGemm):
        return LaunchPlan((_of_expression(gemm, steps[0]),))
    if c["FIXUP"] == "step":
        reduce: tuple[Arg, ...] = (
            TensorArg("C"),
            added,
            *(ScalarArg("i32", name) for name in ("M", "N", "batch", "ldc")),
            ScalarArg("i64", "stride_c"),
            *(ScalarArg(scale, name) for name in ("alpha", "beta")),
            ScalarArg("i32", splits),
        )
        runs = f"ceil_div(batch * M * N, {_REDUCERS * c['STORE']})"
        steps.append(Step("gemm_reduce", reduce, (runs, 1, 1), (_REDUCERS, 1, 1)))
    return LaunchPlan(steps=tuple(steps))


def _of_expression(gemm: BandedGemm, step: Step) -> Step:
    """The step for an expression: its tensors have other names, and its sizes are no scalars but fixed."""
    scalars, names = gemm.scalars(), dict(zip("ABC", gemm.names, strict=True))

    def fixed(arg: Arg) -> Arg:
        if isinstance(arg, TensorArg):
            return TensorArg(names[arg.tensor])
        if isinstance(arg, ScalarArg) and isinstance(arg.value, str):
            return replace(arg, value=scalars[arg.value])
        return arg

    args = (*map(fixed, step.args), ScalarArg("i32", gemm.least), ScalarArg("i32", gemm.most))
    tiles = parse(str(step.grid[0])).evaluate(scalars)
    assert isinstance(tiles, int)
    return replace(step, args=args, grid=(tiles, 1, 1))
