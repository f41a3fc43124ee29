"""f32 GEMM on x86 with AVX2 or AVX-512."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from deepgen.kernels import Rank
from deepgen.kernels.gemm.x86_gemm.defaults import default_config, guesses
from deepgen.kernels.gemm.x86_gemm.space import FLOAT, NEXT, along_k, along_n, gemm_space, worth_help
from deepgen.kernels.gemm.x86_gemm.tile import text
from deepgen.kernels.shared import c_kernel, epilogue, served
from deepgen.kernels.shared.x86 import HUGE_PAGE, TileCost, seconds
from deepgen.operators import Gemm, Operator
from deepgen.space import Space
from deepgen.targets import X86, Target
from deepgen.vocabulary import Arg, Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg, WorkspaceArg

_A_ROW_PAD = 16  # floats that fma_knobs.h adds to each packed row of A
_LINE = 64  # bytes
_MOST_LINES = 4  # per iteration of the innermost loop; more would delay the loads of the tile itself
_PARTS = ("knobs", "region", "result", "later", "tile", "pack", "blocks", "thin")
_SOURCES = (
    "gemm_fma.c",
    "x86_vector.h",
    "x86_pool.h",
    "x86_seldom.h",
    "x86_offer.h",
    "x86_call.h",
    "x86_curve.h",
    "x86_pages.h",
    *(f"fma_{part}.h" for part in _PARTS),
)
_PACK_A = {"none": 0, "rows": 1, "panels": 2}
_PACK_B = {"none": 0, "block": 1, "panel": 2, "ahead": 3, "first": 4}
_ACTIVATION = {"none": 0, "relu": 1, "gelu": 2, "silu": 3}
_PARTITION = {"m": 0, "n": 1, "mn": 2, "k": 3, "batch": 4}


class X86Gemm:
    """Register tiles, cache blocks, packing, loop order, unrolling, prefetch, threads: any M, N, K, all layouts."""

    name = "x86_gemm"
    _constant_b = False

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, X86):
            return "it supports x86 targets only"
        if not target.has("avx2", "fma"):
            return "it needs AVX2 and FMA"
        if not isinstance(operator, Gemm):
            return "it supports gemm only"
        if {operator.a, operator.b, operator.c, operator.acc} != {"f32"}:
            return "it computes in f32 only"
        if operator.epilogue:
            return epilogue.REFUSED
        if operator.scales != "none":
            return "it has no scales: f32 needs none"
        return None

    def space(self, operator: Operator, target: Target) -> Space:
        return gemm_space(self.name, *served(operator, target, Gemm, X86), constant_b=self._constant_b)

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        gemm, cpu = served(operator, target, Gemm, X86)
        lanes = cpu.vector_bytes // FLOAT
        plan = LaunchPlan(
            steps=(Step("deepgen_gemm", _arguments(gemm, config, lanes)),), prepare=_preparation(config, lanes)
        )
        macros = _macros(gemm, config, lanes)
        kernel = c_kernel(self.name, __name__, _SOURCES, macros, plan)
        if config["KIND"] != "tiles":
            return kernel
        return replace(kernel, sources=(*kernel.sources, Source("fma_loops.h", text(macros, lanes))))

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return default_config(*served(operator, target, Gemm, X86), constant_b=self._constant_b)

    def ranked(self, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
        gemm, cpu = served(operator, target, Gemm, X86)
        default = self.default(operator, target)
        yield default
        if not self._constant_b:
            yield from (config for config in guesses(gemm, cpu) if config != default)

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        gemm, cpu = served(operator, target, Gemm, X86)
        rows, vectors, lanes = config["MR"], config["NR"], cpu.vector_bytes // FLOAT
        # Two multiply-adds or two loads per clock; sums wait for the previous step.
        clocks = max(rows * vectors / 2, (rows + vectors) / 2, 4.0)
        if config["KIND"] == "thin":
            return seconds(gemm, {**config, "PACK_B": "none"}, TileCost(rows, vectors * lanes, 1, clocks))
        if config["KIND"] == "dot":
            return seconds(gemm, {**config, "PACK_B": "none"}, TileCost(rows, vectors, lanes, clocks))
        return seconds(gemm, config, TileCost(rows, vectors * lanes, 1, clocks))


class X86GemmConstant(X86Gemm):
    """The same family for constant B: it is packed once, ahead of time, and this adds nothing to a run."""

    name = "x86_gemm_constant_b"
    _constant_b = True

    def rank(self, operator: Operator, target: Target) -> Rank:
        return Rank.BY_NAME


def _macros(gemm: Gemm, config: Mapping[str, Any], lanes: int) -> dict[str, int]:
    """The knobs under the names of fma_knobs.h."""
    swap = config.get("SWAP", False)
    width = gemm.m if swap else gemm.n
    kind = config["KIND"]
    return {
        "A_T": int(not along_k(gemm)[0 if swap else 1]),
        "B_T": int(not along_n(gemm)[0 if swap else 1]),
        "SWAP": int(swap),
        "DOT": int(kind == "dot"),
        "THIN": int(kind == "thin"),
        "MR": config["MR"],
        "NR": config["NR"],
        "TAIL": 0 if kind != "tiles" else -(-(width % (config["NR"] * lanes)) // lanes),
        **{name: config.get(name, unused) for name, unused in (("MC", 64), ("NC", 1024), ("KC", 64), ("UNROLL", 1))},
        "PACK_A": _PACK_A[config.get("PACK_A", "none")],
        "PACK_B": _PACK_B[config.get("PACK_B", "none")],
        "OUTER_A": int(config.get("OUTER") == "a"),
        "INNER_A": int(config.get("INNER") == "a"),
        "PREFETCH": config["PREFETCH"],
        "PREFETCH_A": config.get("PREFETCH_A", 0),
        "NEXT_STRIP": int(config.get("NEXT_STRIP", False)),
        "NEXT_BLOCK": int(config.get("NEXT_BLOCK", False)),
        "AHEAD": int(config.get("AHEAD", False)),
        "PACK_FETCH": int(config.get("PACK_FETCH", False)),
        "NEXT_C": int(config.get("NEXT_C", False)),
        "NEXT": NEXT.index(config.get("NEXT", "none")),
        "NEXT_LINES": _next_lines(gemm, config, lanes),
        "STREAM_C": int(config.get("STREAM_C", False)),
        "HUGE_PAGES": int(config.get("HUGE_PAGES", False)),
        "PARTITION": _PARTITION[config.get("PARTITION", "m")],
        "TASKS": config.get("TASKS", 1),
        "CURVE": int(config.get("CURVE", False)),
        "HELP": int(config.get("TASKS") == 1 and worth_help(gemm, config["THREADS"], config.get("INNER"))),
        "BIAS": int(gemm.bias),
        "ACTIVATION": _ACTIVATION[gemm.activation],
    }


def _next_lines(gemm: Gemm, config: Mapping[str, Any], lanes: int) -> int:
    """Cache lines that an iteration of the innermost loop prefetches: everything needed next, no faster than
    necessary."""
    height, width = (gemm.n, gemm.m) if config.get("SWAP") else (gemm.m, gemm.n)
    if config["KIND"] != "tiles":
        return 1
    if config.get("NEXT_BLOCK"):  # the lines of a panel of B, spread over the tiles of all strips but the first
        in_an_iteration: int = config["UNROLL"] * config["NR"] * lanes * FLOAT // _LINE
        strips: int = height // config["MR"]
        return min(-(-in_an_iteration // max(strips - 1, 1)), _MOST_LINES)
    if config.get("NEXT", "none") == "none":
        return 1
    tiles = -(-height // config["MR"]) * -(-width // (config["NR"] * lanes))
    iterations: int = tiles * max(gemm.k // config["UNROLL"], 1)
    lines = (gemm.m + gemm.n) * gemm.k * FLOAT // _LINE  # of A and B; C is prefetched in the remaining time
    return min(-(-lines // iterations), _MOST_LINES)


def _workspace_bytes(gemm: Gemm, config: Mapping[str, Any], lanes: int) -> str | int:
    """The workspace that gemm_fma.c needs: a slot per thread, and the slices of K that are added up at the end."""
    kind, floats = config["KIND"], 0
    if kind == "thin":
        floats = 2 * config["MR"] * (config["NC"] + _A_ROW_PAD)
    elif kind == "dot":
        floats = 2 * config["MR"] * (config["KC"] + _A_ROW_PAD) if "KC" in config else 0
    else:
        columns = config["NR"] * lanes
        strips = config["MC"] // config["MR"] if config["PACK_A"] != "none" else 1
        whole = config["NC"] // columns
        panels = {"block": whole, "first": whole, "panel": 1}.get(config["PACK_B"], 0)
        floats = strips * config["MR"] * (config["KC"] + _A_ROW_PAD) + lanes + panels * columns * config["KC"]
    slots: int = config["THREADS"] * (-(-floats // 16) * 16) * FLOAT
    if config.get("HUGE_PAGES"):
        slots = -(-slots // HUGE_PAGE) * HUGE_PAGE + HUGE_PAGE
    if config.get("PARTITION") != "k":
        return slots
    slices = config["THREADS"] * config["TASKS"] - 1
    return f"{slots} + {slices * FLOAT} * M * N * batch"


def _arguments(gemm: Gemm, config: Mapping[str, Any], lanes: int) -> tuple[Arg, ...]:
    ahead = config.get("PACK_B") == "ahead"
    sizes = {name: name for name in ("M", "N", "K", "batch", "lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c")}
    if ahead:
        columns = config["NR"] * lanes
        sizes |= {"ldb": f"K * {columns}", "stride_b": f"ceil_div(N, {columns}) * {columns} * K"}
    return (
        TensorArg("A"),
        _packed(config, lanes) if ahead else TensorArg("B"),
        TensorArg("bias") if gemm.bias else ScalarArg("i64", 0),
        TensorArg("C"),
        WorkspaceArg("packed", _workspace_bytes(gemm, config, lanes)),
        *(ScalarArg("i64", value) for value in sizes.values()),
        *(ScalarArg("f32", name) for name in ("alpha", "beta")),
        ScalarArg("i32", config["THREADS"]),
    )


def _packed(config: Mapping[str, Any], lanes: int) -> WorkspaceArg:
    columns = config["NR"] * lanes
    return WorkspaceArg("packed_b", f"ceil_div(N, {columns}) * {columns * FLOAT} * K * batch")


def _preparation(config: Mapping[str, Any], lanes: int) -> tuple[Step, ...]:
    """The step that packs B ahead of time, if that is chosen."""
    if config.get("PACK_B") != "ahead":
        return ()
    sizes = (ScalarArg("i64", name) for name in ("N", "K", "batch", "ldb", "stride_b"))
    return (Step("deepgen_gemm_pack", (TensorArg("B"), _packed(config, lanes), *sizes)),)
