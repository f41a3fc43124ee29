"""GEMM in bf16 and 8-bit integers on AMX tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from deepgen.kernels import Rank
from deepgen.kernels.gemm.x86_amx_gemm.defaults import BYTES_WORTH_A_THREAD, default_config
from deepgen.kernels.shared import c_kernel, covering, epilogue, served, thread_counts
from deepgen.kernels.shared.x86 import (
    C_TYPES,
    HUGE_PAGE,
    PARTITION,
    TileCost,
    every_task_works,
    finish_macros,
    operand_macros,
    partitions,
    seconds,
    sides,
    swaps,
    unfit_result,
)
from deepgen.operators import Gemm, Operator
from deepgen.space import Space, implies, minimum, where
from deepgen.targets import X86, Target
from deepgen.vocabulary import Arg, Kernel, LaunchPlan, ScalarArg, Step, TensorArg, WorkspaceArg

_PASSING = {"none": 0, "left": 1, "right": 2}
_AHEAD = {"none": 0, "panel": 1, "item": 2}
_STORES = {"direct": 0, "buffer": 1, "stream": 2}
_INPUTS = {("bf16", "bf16"), ("i8", "i8"), ("u8", "i8"), ("i8", "u8"), ("u8", "u8")}
_TILES = (1, 2, 3, 4, 6)
_COLUMNS = (64, 128, 256, 512, 1024, 2048, 4096)
_DEPTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
_WORTH_A_THREAD = 5_000_000  # operations; waking another thread takes longer than computing this many
_SQUARE = 1024  # bytes of 16 groups of 4 bytes by 16 columns
_OWN = ("gemm_amx.c", "knobs.h", "operands.h", "aside.h", "tile_product.h", "tiles.h", "pack.h")
_COMMON = tuple(f"x86_{part}.h" for part in ("call", "curve", "pages", "pool", "seldom", "vector"))
_SOURCES = (*_OWN, "lines.h", "finish.h", "tasks.h", *_COMMON)
_SWITCHES = ("SWAP", "K_OUTSIDE", "PACK_LEFT", "SNAKE", "ASIDE", "AHEAD_RESULT", "HUGE_PAGES")
_PARTITION = {**PARTITION, "k": 4}
_FEW_ROWS = 4
_LITTLE = 80_000  # flops that vectors have finished before tiles are configured
_LEAST_SLICE = 256  # elements along K; for shorter slices, adding up sums costs more than it gains
_WHILE_PACKING = {"GATHER": 8, "PACK_AHEAD": 0}  # knobs that matter only if B is packed in every run


class AmxGemm:
    """Tiles of sums, cache blocks, packing, prefetch between products, threads; any M, N, K, all layouts."""

    name = "x86_amx_gemm"
    _constant_b = False

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, X86):
            return "it supports x86 targets only"
        if not isinstance(operator, Gemm):
            return "it supports gemm only"
        if (operator.a, operator.b) not in _INPUTS:
            return "it multiplies bf16 by bf16, or 8-bit integers"
        needs = ("amx_tile", "amx_bf16" if operator.a == "bf16" else "amx_int8")
        if not target.has(*needs):
            return "it needs " + " and ".join(needs)
        return unfit_result(operator)

    def rank(self, operator: Operator, target: Target) -> Rank:
        """It yields to vectors if these need less setup, and if packing B for tiles takes longer than computing few
        rows."""
        gemm, _ = served(operator, target, Gemm, X86)
        few = gemm.m <= _FEW_ROWS and gemm.layout[1] == "n"
        return Rank.YIELDS if few or (gemm.batch == 1 and gemm.flops() < _LITTLE) else Rank.SPECIALISED

    def space(self, operator: Operator, target: Target) -> Space:
        gemm, cpu = served(operator, target, Gemm, X86)
        s = Space(self.name)
        element = gemm.dtypes[0].bytes
        if self._constant_b:
            gemm = replace(gemm, layout="nn")  # B is the right operand, and its original layout no longer matters
        swap = s.knob("SWAP", swaps(gemm))
        rows, columns = s.knob("MR", _TILES), s.knob("NR", _TILES)
        nc, kc = s.knob("NC", _COLUMNS), s.knob("KC", covering(_DEPTHS, gemm.k))
        outside = s.knob("K_OUTSIDE", [False, True])
        s.knob("PACK_LEFT", [False, True])
        s.knob("PASSING", list(_PASSING))
        s.knob("SNAKE", [False, True])
        s.knob("ASIDE", [False, True])
        s.knob("AHEAD", ["none", "panel", *(["item"] if gemm.batch > 1 else [])])
        s.knob("AHEAD_RESULT", [False, True])
        if not self._constant_b:
            s.knob("GATHER", [1, 2, 4, 8, 16, 128])
            s.knob("PACK_AHEAD", [0, 4, 8, 16])
        s.knob("STORE", ["direct", "buffer", "stream"] if _same_size(gemm) else ["buffer", "stream"])
        s.knob("HUGE_PAGES", [False, True])
        threads = s.knob("THREADS", thread_counts(cpu.cores))
        partition = s.knob("PARTITION", [*partitions(gemm), "k"], when=threads > 1)
        tasks = s.knob("TASKS", [1, 2, 4], when=threads > 1)
        s.knob("CURVE", [False, True], when=partition == "both")

        panel_rows, panel_columns = s.derive("rows", rows * 16), s.derive("columns", columns * 16)
        s.require(
            rows * columns + minimum(rows, columns) + 1 <= 8, "the sums and the operands fit in the tile registers"
        )
        s.require(nc >= panel_columns, "a block has at least one panel of columns")
        s.require(nc * kc * element <= 4 * cpu.l2_bytes, "the right operand's block is at most four times L2")
        busy = max(gemm.flops() // _WORTH_A_THREAD, gemm.least_bytes() // BYTES_WORTH_A_THREAD)
        s.require((threads == 1) | (threads <= busy), "every thread has enough to do")
        waiting = kc < gemm.k
        if gemm.k > _DEPTHS[-1]:  # then sums wait in any case, so only the narrowest and deepest block is excepted
            waiting &= outside | (nc > _COLUMNS[0]) | (kc < _DEPTHS[-1])
        for swapped in swaps(gemm):
            left, right = sides(gemm, swapped)
            s.require(
                implies(
                    waiting & (swap == swapped),
                    where(outside, right, minimum(nc, right)) * left * 4 <= 2 * cpu.l2_bytes,
                ),
                f"sums that wait for the next block of K are at most twice L2, swapped: {swapped}",
            )
        s.require(
            implies(partition == "k", threads * tasks * _LEAST_SLICE <= gemm.k),
            f"a slice of K has at least {_LEAST_SLICE} numbers",
        )
        s.require(
            implies(partition == "k", threads * tasks * gemm.m * gemm.n * gemm.batch * 4 <= 2 * cpu.l2_bytes),
            "the sums of all slices of K are at most twice L2",
        )
        every_task_works(s, gemm, swap, threads, partition, tasks, panel_rows, panel_columns)
        return s

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        gemm, _ = served(operator, target, Gemm, X86)
        packed = _packed_b(gemm, config) if self._constant_b else None
        step = Step("deepgen_gemm", _arguments(gemm, config, packed))
        macros = {**_macros(gemm, config), "PACKED": int(self._constant_b)}
        return c_kernel(
            self.name,
            __name__,
            _SOURCES,
            macros,
            LaunchPlan((step,), _preparation(packed)),
            epilogue.row_sources(gemm, __name__),
        )

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return default_config(*served(operator, target, Gemm, X86), constant_b=self._constant_b)

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        gemm, _ = served(operator, target, Gemm, X86)
        rows, columns = config["MR"], config["NR"]
        clocks = max(16.0 * rows * columns, 8.0 * (rows + columns))  # 16 per product of tiles, 8 per tile load
        packing = "ahead" if self._constant_b else "block"
        tile = TileCost(rows * 16, columns * 16, 64 // gemm.dtypes[0].bytes, clocks)
        return seconds(gemm, {**config, "PACK_B": packing}, tile)


class AmxGemmConstant(AmxGemm):
    """The same family for constant B: it is packed once, ahead of time, and this adds nothing to a run."""

    name = "x86_amx_gemm_constant_b"
    _constant_b = True

    def rank(self, operator: Operator, target: Target) -> Rank:
        return Rank.BY_NAME


def _macros(gemm: Gemm, config: Mapping[str, Any]) -> dict[str, int]:
    """The knobs under the names of knobs.h."""
    return {
        "BF16": int(gemm.a == "bf16"),
        **operand_macros(gemm, config["SWAP"]),
        "C_TYPE": C_TYPES[gemm.c],
        **finish_macros(gemm),
        **{name: config[name] for name in ("MR", "NR", "NC", "KC")},
        **{name: config.get(name, unused) for name, unused in _WHILE_PACKING.items()},
        **{name: int(config[name]) for name in _SWITCHES},
        "AHEAD": _AHEAD[config["AHEAD"]],
        "PASSING": _PASSING[config["PASSING"]],
        "STORE": _STORES[config["STORE"]],
        "PARTITION": _PARTITION[config.get("PARTITION", "left")],
        "TASKS": config.get("TASKS", 1),
        "CURVE": int(config.get("CURVE", False)),
    }


def _slot(gemm: Gemm, config: Mapping[str, Any], constant_b: bool) -> str:
    """Bytes of scratch per thread, which gemm_amx.c divides in draw_tasks."""
    depth = 64 // gemm.dtypes[0].bytes
    rows, columns = config["MR"] * 16, config["NR"] * 16
    sums, panels = rows * columns * 4, config["NC"] // columns
    squares = f"ceil_div(min({config['KC']}, K), {depth})"
    left, right = ("N", "M") if config["SWAP"] else ("M", "N")
    waiting = f"ceil_div({right}, {columns})" if config["K_OUTSIDE"] else panels
    partial = f"(K > {config['KC']}) * ceil_div({left}, {rows}) * {waiting} * {sums}"
    if config.get("PARTITION") == "k":
        partial = "0"  # they are kept among the slices' sums
    packed = config["MR"] + (0 if constant_b else panels * config["NR"])
    return f"{3 * sums} + {packed * _SQUARE} * {squares} + {partial}"


def _slices(config: Mapping[str, Any]) -> str:
    """Additional bytes for the sums of each slice of K, if that is divided."""
    if config.get("PARTITION") != "k":
        return ""
    rows, columns = config["MR"] * 16, config["NR"] * 16
    left, right = ("N", "M") if config["SWAP"] else ("M", "N")
    each = config["THREADS"] * config["TASKS"] * rows * columns * 4
    return f" + {each} * ceil_div({left}, {rows}) * ceil_div({right}, {columns}) * batch"


def _pages(config: Mapping[str, Any], size: str) -> str:
    """Whole huge pages, if these are chosen, plus one for alignment."""
    return f"ceil_div({size}, {HUGE_PAGE}) * {HUGE_PAGE} + {HUGE_PAGE}" if config["HUGE_PAGES"] else size


def _arguments(gemm: Gemm, config: Mapping[str, Any], packed: _PackedB | None) -> tuple[Arg, ...]:
    slot = _slot(gemm, config, constant_b=packed is not None)
    ldb, stride_b = (packed.panel, packed.matrix) if packed else ("ldb", "stride_b")
    sizes = (slot, "M", "N", "K", "batch", "lda", ldb, "ldc", "stride_a", stride_b, "stride_c")
    extra = (("bias",) if gemm.bias else ()) + (("scale",) if gemm.scales != "none" else ())
    return (
        TensorArg("A"),
        packed.memory if packed else TensorArg("B"),
        *(TensorArg(name) for name in ("C", *extra)),
        WorkspaceArg("packed", _pages(config, f"{config['THREADS']} * ({slot}){_slices(config)}")),
        *(ScalarArg("i64", size) for size in sizes),
        *(ScalarArg("f32", name) for name in ("alpha", "beta")),
        ScalarArg("i32", config["THREADS"]),
        *epilogue.arguments(gemm, "i64"),
    )


@dataclass(frozen=True)
class _PackedB:
    """A constant B as packed by deepgen_gemm_pack, with the strides of its panels and matrices in elements."""

    memory: WorkspaceArg
    panel: str
    matrix: str


def _packed_b(gemm: Gemm, config: Mapping[str, Any]) -> _PackedB:
    element, columns = gemm.dtypes[0].bytes, config["NR"] * 16
    panel = f"ceil_div(K, {64 // element}) * {64 // element * columns}"
    matrix = f"ceil_div(N, {columns}) * {panel}"
    return _PackedB(WorkspaceArg("packed_b", _pages(config, f"{element} * {matrix} * batch")), panel, matrix)


def _preparation(packed: _PackedB | None) -> tuple[Step, ...]:
    if packed is None:
        return ()
    sizes = (ScalarArg("i64", name) for name in ("N", "K", "batch", "ldb", "stride_b"))
    return (Step("deepgen_gemm_pack", (TensorArg("B"), packed.memory, *sizes)),)


def _same_size(gemm: Gemm) -> bool:
    """Whether sums can be stored from tiles without conversion."""
    return gemm.c == gemm.acc
