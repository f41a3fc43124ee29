"""GEMM by dot products of vectors on x86: 8-bit integers, bf16 and f16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deepgen.kernels.shared import c_kernel, covering, epilogue, nearest, served, thread_counts
from deepgen.kernels.shared.x86 import (
    C_TYPES,
    PARTITION,
    TileCost,
    all_cores,
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
from deepgen.space import Space, implies
from deepgen.targets import X86, Target
from deepgen.vocabulary import Arg, Kernel, LaunchPlan, ScalarArg, Step, TensorArg, WorkspaceArg

_INPUTS = {("bf16", "bf16"), ("f16", "f16"), ("i8", "i8"), ("u8", "i8"), ("i8", "u8"), ("u8", "u8")}
_OWN = (
    "gemm_dot.c",
    "dot_knobs.h",
    "finish.h",
    "lines.h",
    "dot_lines.h",
    "dot_pack.h",
    "vector_product.h",
    "dot_finish.h",
    "dot_blocks.h",
    "dot_rows.h",
    "tasks.h",
)
_SHARED = ("x86_call.h", "x86_pool.h", "x86_seldom.h", "x86_vector.h")
_HEIGHTS, _WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 14), (1, 2, 3, 4, 6)
_BLOCK_ROWS = (64, 128, 256, 512, 1024, 2048, 4096)
_BLOCK_COLUMNS = (64, 128, 256, 512, 1024, 2048, 4096)
_BLOCK_K = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_FEW = 32  # rows or columns up to which the other operand is used too little to keep it after packing
_FEW_TO_SHUFFLE = 12  # the same if reading it unpacked takes shuffles for each panel of the other,
_FEW_TO_CONVERT = 8  # or conversions of both operands
_FEW_TO_ADD = 8  # or additions of the lanes of each sum of 8-bit products, which are done sooner than others
_GROUPS = (4, 2, 1, 1)  # elements along K that one instruction adds up, by the macro INPUT
_WORTH_A_THREAD = 16_000_000  # operations; waking another thread takes as long as computing about this many
_BYTES_WORTH_A_THREAD = 4 << 20  # read from memory: one core alone does not use all of its bandwidth


class DotGemm:
    """8-bit integers by VNNI, bf16 by AVX512-BF16 or widened to f32, f16 widened to f32."""

    name = "x86_vector_dot_gemm"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, X86):
            return "it supports x86 targets only"
        if not isinstance(operator, Gemm):
            return "it supports gemm only"
        if (operator.a, operator.b) not in _INPUTS:
            return "it multiplies bf16 by bf16, f16 by f16, or 8-bit integers"
        if (missing := _missing(operator, target)) is not None:
            return missing
        return unfit_result(operator)

    def space(self, operator: Operator, target: Target) -> Space:
        gemm, cpu = served(operator, target, Gemm, X86)
        s = Space(self.name)
        swap = s.knob("SWAP", swaps(gemm))
        widen = s.knob("WIDEN", _widenings(gemm))
        kind = s.knob("KIND", _kinds(gemm, cpu))
        panels, blocks = kind == "panels", kind != "rows"
        rows, columns = s.knob("MR", _HEIGHTS), s.knob("NR", _WIDTHS)
        mc, nc = s.knob("MC", _BLOCK_ROWS, when=blocks), s.knob("NC", _BLOCK_COLUMNS, when=blocks)
        kc = s.knob("KC", covering(_BLOCK_K, gemm.k), when=blocks)
        s.knob("PACK_LEFT", [False, True], when=blocks & ~widen)
        s.knob("INNER", ["left", "right"], when=blocks)
        s.knob("PREFETCH", [0, 4, 8, 16, 32], when=panels)
        s.knob("PREFETCH_C", [False, True], when=blocks)
        s.knob("PACK_AHEAD", [0, 2, 4, 8, 16, 32])
        threads = s.knob("THREADS", thread_counts(cpu.cores))
        partition = s.knob("PARTITION", partitions(gemm), when=threads > 1)
        tasks = s.knob("TASKS", [1, 2, 4], when=threads > 1)

        panel = s.derive("columns", columns * 16)
        pieces = 64 // cpu.vector_bytes
        s.require(
            (rows + 1) * columns * pieces + 1 <= cpu.vector_registers,
            "the sums, a row of the right operand and a group of the left one fit in the vector registers",
        )
        s.require(implies(blocks, nc >= panel), "a block has at least one panel of columns")
        s.require(implies(~panels, ~swap), "only what is packed can be swapped")
        for widened in _widenings(gemm):
            packed = 4 if widened else gemm.dtypes[0].bytes  # bytes of an element
            wider = panels & (widen == widened) & (nc > _BLOCK_COLUMNS[0])  # for any K, the narrowest is allowed
            s.require(
                implies(wider, nc * gemm.k * packed <= 8 * cpu.l2_bytes),
                f"the right operand's block is the narrowest or at most eight times L2, widened: {widened}",
            )
            s.require(
                implies(blocks & (widen == widened), mc * kc * packed <= 8 * cpu.l2_bytes),
                f"the left operand's block is at most eight times L2, widened: {widened}",
            )
        s.require(
            implies(blocks & (kc < gemm.k), mc * nc * 4 <= 4 * cpu.l2_bytes),
            "sums that wait for the next block of K are at most four times L2",
        )
        worth = max(gemm.flops() * 4 // _WORTH_A_THREAD, gemm.least_bytes() // _BYTES_WORTH_A_THREAD)
        s.require((threads == 1) | (threads <= worth), "every thread has enough to do")
        every_task_works(s, gemm, swap, threads, partition, tasks, rows, panel)
        return s

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        gemm, _ = served(operator, target, Gemm, X86)
        knobs = {
            "INPUT": _input(gemm, config),
            **operand_macros(gemm, config["SWAP"]),
            "C_TYPE": C_TYPES[gemm.c],
            "F16_RESULT": int(gemm.c == "f16"),
            **finish_macros(gemm),
            "SWAP": int(config["SWAP"]),
            "ALONG": int(config["KIND"] == "rows"),
            "DIRECT": int(config["KIND"] == "direct"),
            **{name: config[name] for name in ("MR", "NR", "PACK_AHEAD")},
            **{name: config[name] for name in ("MC", "NC", "KC", "PREFETCH") if name in config},
            "PREFETCH_C": int(config.get("PREFETCH_C", False)),
            "PACK_LEFT": int(config.get("PACK_LEFT", True)),
            "INNER_LEFT": int(config.get("INNER") == "left"),
            "PARTITION": PARTITION[config.get("PARTITION", "left")],
            "TASKS": config.get("TASKS", 1),
        }
        step = Step("deepgen_gemm", _arguments(gemm, config, _workspace(gemm, config)))
        return c_kernel(
            self.name, __name__, (*_OWN, *_SHARED), knobs, LaunchPlan((step,)), epilogue.row_sources(gemm, __name__)
        )

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        gemm, cpu = served(operator, target, Gemm, X86)
        widen = _widenings(gemm)[-1]
        transposed = _is_quicker_transposed(gemm, cpu)
        swap = transposed or swaps(gemm)[0]
        left, right = sides(gemm, swap)
        kinds = _kinds(gemm, cpu)
        rows, columns = _default_panel(left, right, cpu)
        config: dict[str, Any] = {"SWAP": swap, "WIDEN": widen, "MR": rows, "NR": columns}
        if transposed:
            config |= _default_transposed(gemm, cpu)
        elif "rows" in kinds and _are_few_rows(gemm, left):
            config |= {"WIDEN": _widenings(gemm)[0], **_default_rows(left)}
        elif "direct" in kinds and left <= (_FEW if widen else _FEW_TO_SHUFFLE):
            config |= _default_direct(gemm, left, right, widen)
        else:
            config |= _default_blocks(gemm, cpu, left, right, widen)
        return {**config, **_default_threads(gemm, cpu, left, right, config["MR"], config["NR"] * 16)}

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        gemm, cpu = served(operator, target, Gemm, X86)
        rows, columns, group = config["MR"], config["NR"], _GROUPS[_input(gemm, config)]
        pieces = 64 // cpu.vector_bytes  # vectors per 16 sums
        clocks = max(rows * columns * pieces / 2, (rows + columns * pieces) / 2, 4.0)
        if config["KIND"] == "rows":
            return seconds(gemm, {**config, "PACK_B": "none"}, TileCost(rows, columns, 16 * group, clocks))
        packing = "none" if config["KIND"] == "direct" else "block"
        return seconds(gemm, {**config, "PACK_B": packing}, TileCost(rows, columns * 16, group, clocks))


def _input(gemm: Gemm, config: Mapping[str, Any]) -> int:
    """The value of the macro INPUT."""
    if gemm.a == "f16":
        return 3
    return (2 if config["WIDEN"] else 1) if gemm.a == "bf16" else 0


def _widenings(gemm: Gemm) -> list[bool]:
    """Whether elements are widened to f32 while they are packed; dot products of bf16 are slow on some CPUs."""
    return {"f16": [True], "bf16": [False, True]}.get(gemm.a, [False])


def _kinds(gemm: Gemm, cpu: X86) -> list[str]:
    """With few rows of A packing B does not pay: it is read in place, with sums along K if both operands are contiguous
    along K."""
    if gemm.m > 4 * _FEW or cpu.vector_bytes != 64:
        return ["panels"]
    return ["panels", *{"nt": ["rows"], "nn": ["direct"], "tn": ["direct"]}.get(gemm.layout, [])]


def _workspace(gemm: Gemm, config: Mapping[str, Any]) -> str:
    """The workspace that gemm_dot.c needs, thread by thread."""
    config = {"MC": 256, "NC": 512, "KC": 512, **config}  # the defaults of dot_knobs.h, if nothing is packed
    rows, columns = config["MR"], config["NR"] * 16
    tall = -(-rows // 16) * 16
    group = _GROUPS[_input(gemm, config)]
    panels, nc = -(-config["MC"] // rows), config["NC"] // columns * columns
    depth = -(-config["KC"] // (16 * group)) * 64 + 64
    fixed = tall * columns * 4 * 2 + panels * tall * depth + -(-panels * rows // 16) * 64
    block = f"{nc * 4 * 16} * ceil_div(K, {16 * group})" if config["KIND"] != "direct" else "0"
    return f"{config['THREADS']} * ({fixed + panels * rows * nc * 4} + {block})"


def _missing(gemm: Gemm, cpu: X86) -> str | None:
    """What the CPU lacks, as text."""
    if gemm.a == "f16":
        return None if cpu.has("avx512_fp16", "avx512bw") else "it multiplies f16 on processors with avx512_fp16 only"
    if gemm.a == "bf16":
        return None if cpu.has("avx512_bf16", "avx512bw") else "it needs avx512_bf16"
    if (gemm.a, gemm.b) == ("u8", "u8"):
        return "vectors multiply unsigned by signed, or signed by signed"
    if not (cpu.has("avx512_vnni", "avx512bw") or (cpu.has("avx_vnni") and not cpu.has("avx512f"))):
        return "it needs avx512_vnni or avx_vnni"
    return None


def _default_panel(left: int, right: int, cpu: X86) -> tuple[int, int]:
    wide = 4 if cpu.vector_bytes == 64 else 1
    return min(left, 6), min(wide, -(-right // 16))


def _default_rows(left: int) -> Mapping[str, Any]:
    rows = min(left, 8)
    return {"KIND": "rows", "MR": rows, "NR": 3 if rows > 4 else 4 if rows > 1 else 6, "PACK_AHEAD": 16}


def _default_direct(gemm: Gemm, left: int, right: int, widen: bool) -> Mapping[str, Any]:
    # 8 x 3 if a group is one element, so that any width fits; otherwise panels of equal height.
    rows, columns = (8, 3) if widen and left > 6 else (-(-left // -(-left // 6)), 4)
    # Rows of the right operand that are read at a time: few, so that what several panels read stays in L2.
    depth = min(128 if left > 8 else 32, max(16, (1 << 17) // right)) if widen else 64
    return {
        "KIND": "direct",
        "MR": rows,
        "NR": columns,
        "MC": 64,
        "NC": 4096,
        "KC": nearest(covering(_BLOCK_K, gemm.k), depth),
        "INNER": "right",
        # Rows are long, and hardware prefetches them; but too late if each line keeps the core busy for many products.
        "PACK_AHEAD": 8 if widen and left > 1 else 0,
        "PREFETCH_C": False,
        **({} if widen else {"PACK_LEFT": False}),
    }


def _is_quicker_transposed(gemm: Gemm, cpu: X86) -> bool:
    """Whether both operands are contiguous along K, and transposing A and C is faster than transposing the much larger
    B."""
    fewest, most = {"f16": (_FEW_TO_CONVERT, 2 * _FEW), "bf16": (0, 0)}.get(gemm.a, (_FEW_TO_ADD, 4 * _FEW))
    fits = cpu.vector_bytes == 64 and gemm.layout == "nt" and gemm.n >= 4 * gemm.m
    # Transposing C has a cost too, and its elements have 4 bytes: B must be four times as large as it.
    return fits and fewest < gemm.m <= most and (gemm.dtypes[0].bytes > 1 or gemm.k >= 4 * 4 * gemm.m)


def _are_few_rows(gemm: Gemm, left: int) -> bool:
    """Whether sums along K pay: the lanes of each are added at the end, which takes as long as some of its products."""
    if gemm.dtypes[0].bytes > 1:
        return left <= (_FEW_TO_CONVERT if gemm.a == "f16" else _FEW)
    return left <= _FEW_TO_ADD and gemm.k >= _FEW * left


def _default_transposed(gemm: Gemm, cpu: X86) -> Mapping[str, Any]:
    # C is transposed 16 rows at a time, of which 12 are used; all of K at once, if half of L2 holds A. When widened
    # copies are made, they take half of L1.
    widen = gemm.a == "f16"
    depth = nearest(covering(_BLOCK_K, gemm.k), 512 if widen else min(gemm.k, cpu.l2_bytes // 2 // gemm.m))
    return {
        "KIND": "panels",
        **({} if widen else {"PACK_LEFT": False}),
        "MR": 12,
        "NR": 2,
        "MC": 64,
        "NC": covering(_fitting_columns(gemm, cpu, widen), gemm.m)[-1],
        "KC": depth,
        "INNER": "right",
        "PACK_AHEAD": 0 if widen else 32,
        "PREFETCH": 0,
        "PREFETCH_C": False,
    }


def _fitting_columns(gemm: Gemm, cpu: X86, widen: bool) -> Sequence[int]:
    """Widths of a packed block of the right operand."""
    element = 4 if widen else gemm.dtypes[0].bytes
    return [c for c in _BLOCK_COLUMNS if c * gemm.k * element <= 8 * cpu.l2_bytes] or _BLOCK_COLUMNS[:1]


def _default_blocks(gemm: Gemm, cpu: X86, left: int, right: int, widen: bool) -> Mapping[str, Any]:
    element = 4 if widen else gemm.dtypes[0].bytes
    depths = covering(_BLOCK_K, gemm.k)
    fitting = _fitting_columns(gemm, cpu, widen)
    config: dict[str, Any] = {"KIND": "panels"} if widen else {"KIND": "panels", "PACK_LEFT": False}
    if left <= _FEW and (element > 1 or gemm.layout != "nt"):
        # The right operand comes from memory: a block of it is packed into L1 and used there.
        config |= {
            "MC": 64,
            "NC": nearest(fitting, 512),
            "KC": nearest(depths, max(64, 128 // element)),
            "INNER": "left",
        }
        return {**config, "PACK_AHEAD": 16, "PREFETCH": 0, "PREFETCH_C": False}
    few = left <= 256  # then each block of the right operand is packed, used and discarded, along K
    depth = nearest(depths, (1024 if few else 2048) // element)
    wide = cpu.l2_bytes // 2 // ((min(depth, gemm.k) if few else gemm.k) * element)  # columns that fill half of L2
    # If contiguous runs are long, the CPU itself prefetches.
    short = (gemm.k if gemm.layout == "nt" else min(right, wide)) < 1024
    near = widen and left <= 2 * _FEW  # a panel of the right operand, doubled in size by widening, is kept in L1
    return {
        **config,
        "MC": 256 if few else 64,
        "NC": covering(fitting, right)[-1] if right <= wide else nearest(fitting, max(wide, 256)),
        "KC": nearest(depths, 128) if near else depth,
        "INNER": "left" if near else "right",
        "PACK_AHEAD": 8 if few and short else 0,
        "PREFETCH": 0 if few else 8,
        "PREFETCH_C": not few,
    }


def _default_threads(gemm: Gemm, cpu: X86, left: int, right: int, rows: int, columns: int) -> Mapping[str, Any]:
    """All cores if there is enough work."""
    little = gemm.flops() < _WORTH_A_THREAD * cpu.cores and gemm.least_bytes() < _BYTES_WORTH_A_THREAD * cpu.cores
    return {"THREADS": 1} if little else all_cores(gemm, cpu, left, right, rows, columns)


def _arguments(gemm: Gemm, config: Mapping[str, Any], workspace: str) -> tuple[Arg, ...]:
    sizes = ("M", "N", "K", "batch", "lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c")
    none = ScalarArg("i64", 0)
    return (
        *(TensorArg(name) for name in ("A", "B", "C")),
        TensorArg("bias") if gemm.bias else none,
        TensorArg("scale") if gemm.scales != "none" else none,
        WorkspaceArg("packed", workspace),
        *(ScalarArg("i64", name) for name in sizes),
        *(ScalarArg("f32", name) for name in ("alpha", "beta")),
        ScalarArg("i32", config["THREADS"]),
        *epilogue.arguments(gemm, "i64"),
    )
