"""bf16 and 8-bit GEMM on AMX tiles: the space, the launch and the defaults of the family in `gemm_amx.c`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from deepgen.operators import Gemm, Operator
from deepgen.space import Space, implies, minimum
from deepgen.targets import X86, Target
from deepgen.vocabulary import Arg, Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg, WorkspaceArg

_PARTITION = {"left": 0, "right": 1, "both": 2, "batch": 3}
_PASSING = {"none": 0, "left": 1, "right": 2}
_C_TYPES = {"f32": 0, "bf16": 1, "i32": 2}
_SCALES = {"none": 0, "tensor": 1, "row": 2, "column": 3}
_ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2, "silu": 3}
_INPUTS = {("bf16", "bf16"), ("i8", "i8"), ("u8", "i8"), ("i8", "u8"), ("u8", "u8")}

_BLOCK_ROWS = (64, 128, 256, 512, 1024, 2048, 4096)
_BLOCK_COLUMNS = (64, 128, 256, 512, 1024, 2048, 4096)
_BLOCK_K = (128, 256, 512, 1024, 2048, 4096, 8192)
_FEW = 32  # rows or columns up to which the other operand is used once, so that packing it apart would only cost
_SMALL = 256**3  # products up to which the packing and the results take longer than the dot products
_WORTH_A_THREAD = 20_000_000  # operations; waking another thread takes as long as computing these
_TILES = (1, 2, 3, 4, 6)
_SOURCES = ("gemm_amx.c", "pack.h", "finish.h", "tile_product.h", "tiles.h", "x86_pool.h", "x86_vector.h")
_SQUARE = 1024  # bytes of 16 groups of 4 bytes by 16 columns


class AmxGemm:
    """AMX tiles: cache blocks, packing, loop order, threads; any M, N, K, all layouts."""

    name = "x86_amx_gemm"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, X86):
            return "it serves x86 targets only"
        if not isinstance(operator, Gemm):
            return "it serves gemm only"
        if (operator.a, operator.b) not in _INPUTS:
            return "it multiplies bf16 by bf16, or 8-bit integers"
        if (missing := self._missing(operator, target)) is not None:
            return missing
        return _unfit_result(operator)

    def _missing(self, gemm: Gemm, cpu: X86) -> str | None:
        needs = ("amx_tile", "amx_bf16" if gemm.a == "bf16" else "amx_int8")
        return None if cpu.has(*needs) else "it needs " + " and ".join(needs)

    def space(self, operator: Operator, target: Target) -> Space:
        gemm, cpu = _served(operator, target)
        s = Space(self.name)
        swap = s.knob("SWAP", _swaps(gemm))
        rows, columns = s.knob("MR", _TILES), s.knob("NR", _TILES)
        mc, nc = s.knob("MC", _BLOCK_ROWS), s.knob("NC", _BLOCK_COLUMNS)
        kc = s.knob("KC", _covering(_BLOCK_K, gemm.k))
        s.knob("PACK_LEFT", [False, True])
        fuse = s.knob("FUSE", [False, True] if min(gemm.m, gemm.n) <= 4 * _FEW else [False])
        inner = s.knob("INNER", ["left", "right"], when=~fuse)
        s.knob("ASIDE", [False, True], when=inner == "left")
        s.knob("GATHER", [1, 2, 4, 8], when=~fuse)
        s.knob("PASSING", list(_PASSING))
        s.knob("PREFETCH", [0, 2, 4, 8])
        s.knob("PACK_AHEAD", [0, 4, 8, 16])
        threads = s.knob("THREADS", _thread_counts(cpu.cores))
        partition = s.knob("PARTITION", _partitions(gemm), when=threads > 1)
        tasks = s.knob("TASKS", [1, 2, 4], when=threads > 1)

        panel_rows, panel_columns = s.derive("rows", rows * 16), s.derive("columns", columns * 16)
        element = gemm.dtypes[0].bytes
        s.require(
            rows * columns + minimum(rows, columns) + 1 <= 8, "the sums and the operands fit in the tile registers"
        )
        s.require(mc >= panel_rows, "a block has at least one panel of rows")
        s.require(nc >= panel_columns, "a block has at least one panel of columns")
        s.require(
            implies(~fuse, nc * gemm.k * element <= 4 * cpu.l2_bytes),
            "the right operand's block is at most four times L2",
        )
        s.require(
            implies(~fuse & (kc < gemm.k), mc * nc * 4 <= 2 * cpu.l2_bytes),
            "sums that wait for the next block of K are at most twice L2",
        )
        s.require(mc * kc * element <= 8 * cpu.l2_bytes, "the left operand's block is at most eight times L2")
        s.require((threads == 1) | (threads * _WORTH_A_THREAD <= gemm.flops() * 4), "every thread has enough to do")
        for swapped in _swaps(gemm):
            left, right = (gemm.n, gemm.m) if swapped else (gemm.m, gemm.n)
            for word, size, unit in (("left", left, panel_rows), ("right", right, panel_columns)):
                s.require(
                    implies(
                        (threads > 1) & (swap == swapped) & (partition == word), threads * tasks * unit < size + unit
                    ),
                    f"every task has a panel when the {word} operand is divided, swapped: {swapped}",
                )
        s.require(
            implies((threads > 1) & (partition == "batch"), threads * tasks <= gemm.batch),
            "every task has a matrix when the batch is divided",
        )
        return s

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        gemm, _ = _served(operator, target)
        swap = config["SWAP"]
        signed = [x == "i8" for x in ((gemm.b, gemm.a) if swap else (gemm.a, gemm.b))]
        knobs = {
            "BF16": int(gemm.a == "bf16"),
            "LEFT_SIGNED": int(signed[0]),
            "RIGHT_SIGNED": int(signed[1]),
            "A_T": int(gemm.layout[0] == "t"),
            "B_T": int(gemm.layout[1] == "t"),
            "C_TYPE": _C_TYPES[gemm.c],
            "BIAS": int(gemm.bias),
            "SCALES": _SCALES[gemm.scales],
            "ACTIVATION": _ACTIVATIONS[gemm.activation],
            "SWAP": int(swap),
            **{name: config[name] for name in ("MR", "NR", "MC", "NC", "KC", "PACK_AHEAD")},
            "PACK_LEFT": int(config["PACK_LEFT"]),
            "FUSE": int(config["FUSE"]),
            "INNER_LEFT": int(config.get("INNER") == "left"),
            "ASIDE": int(config.get("ASIDE", False)),
            "GATHER": config.get("GATHER", 1),
            "PASSING": _PASSING[config.get("PASSING", "none")],
            "PREFETCH": config.get("PREFETCH", 0),
            "PARTITION": _PARTITION[config.get("PARTITION", "left")],
            "TASKS": config.get("TASKS", 1),
        }
        step = Step("deepgen_gemm", _arguments(gemm, config, self._workspace(gemm, config)))
        return Kernel(
            name=self.name,
            language="c",
            sources=tuple(Source(name, _source(name)) for name in _SOURCES),
            flags=("-std=gnu11", "-pthread", *(f"-D{name}={value}" for name, value in knobs.items())),
            plan=LaunchPlan(steps=(step,)),
        )

    def _workspace(self, gemm: Gemm, config: Mapping[str, Any]) -> str:
        """What gemm_dot.c asks for, thread by thread."""
        depth = 64 // gemm.dtypes[0].bytes
        rows, columns = config["MR"] * 16, config["NR"] * 16
        mc, nc = config["MC"] // rows * rows, config["NC"] // columns * columns
        squares = config["KC"] // depth
        left = -(-rows // 16) * _SQUARE * squares * (1 if config["FUSE"] else mc // rows)
        fixed = 2 * rows * columns * 4 + columns * -(-rows // 16) * 64 + left + -(-config["MC"] // 16) * 64
        threads = config["THREADS"]
        if config["FUSE"]:
            return str(threads * (fixed + config["NR"] * _SQUARE * squares + rows * columns * 4))
        partial = mc * nc * 4
        block = f"{nc // 16 * _SQUARE} * ceil_div(K, {depth})"
        return f"{threads} * ({fixed + partial} + {block})"

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        gemm, cpu = _served(operator, target)
        element = gemm.dtypes[0].bytes
        swap = _default_swap(gemm)
        left, right = (gemm.n, gemm.m) if swap else (gemm.m, gemm.n)
        rows, columns = _default_panel(left, right)
        panel = rows * 16
        fuse = left <= panel and min(gemm.m, gemm.n) <= 4 * _FEW
        small = gemm.m * gemm.n * gemm.k <= _SMALL
        depths = _covering(_BLOCK_K, gemm.k)
        wide = cpu.l2_bytes // 2 // (gemm.k * element)  # columns whose block takes half of L2
        config: dict[str, Any] = {
            "SWAP": swap,
            "MR": rows,
            "NR": columns,
            "MC": 256,
            "NC": _nearest(_BLOCK_COLUMNS, min(right, max(wide, 256))),
            "KC": depths[-1] if small and not fuse else _nearest(depths, 1024 // element),
            "PACK_LEFT": not small and not fuse,
            "FUSE": fuse,
        }
        if not fuse:
            # Little work: the right operand is packed between dot products. Much: panels of the left one stay in L1.
            config |= {"INNER": "left", "ASIDE": True} if small else {"INNER": "right"}
            config["GATHER"] = 1 if small else 8
        streamed = right <= 16 and left > 512  # the left operand comes from memory, once
        passing = "none" if fuse else "left" if small else "right"
        config |= {"PASSING": passing, "PREFETCH": 8 if streamed else 0}
        config["PACK_AHEAD"] = 8 if small or fuse else 0
        return {**config, **_default_threads(gemm, cpu, left, right, panel, columns * 16)}


def _default_panel(left: int, right: int) -> tuple[int, int]:
    if left <= 16:
        return 1, _nearest(_TILES, min(4, -(-right // 16)))
    if right <= 16:
        return 4, 1
    return 2, 2


def _unfit_result(gemm: Gemm) -> str | None:
    integer = gemm.a != "bf16"
    if gemm.acc != ("i32" if integer else "f32"):
        return f"it adds {gemm.a} up in {'i32' if integer else 'f32'} only"
    if gemm.c not in _C_TYPES or (gemm.c == "i32" and not integer):
        return f"it gives no {gemm.c} from {gemm.a}"
    if gemm.c == "i32" and (gemm.alpha != int(gemm.alpha) or gemm.beta != int(gemm.beta)):
        return "with a result in i32, alpha and beta must be whole numbers"
    if gemm.c == "i32" and (gemm.scales != "none" or gemm.activation not in ("none", "relu")):
        return "scales, gelu and silu need a floating result"
    return None


def _served(operator: Operator, target: Target) -> tuple[Gemm, X86]:
    assert isinstance(operator, Gemm) and isinstance(target, X86), "ask refuses() first"
    return operator, target


def _swaps(gemm: Gemm) -> list[bool]:
    """Which operand may be the left one: rows of A (M x K) and columns of B (N x K) can be read where they lie."""
    return {"nn": [False], "nt": [False, True], "tn": [False, True], "tt": [True]}[gemm.layout]


def _default_swap(gemm: Gemm) -> bool:
    choices = _swaps(gemm)
    return choices[0] if len(choices) == 1 else gemm.n > gemm.m


def _covering(values: Sequence[int], size: int) -> list[int]:
    """The values below a size and the first that covers it: larger ones would give the same kernel."""
    below = [v for v in values if v < size]
    return [*below, *[v for v in values if v >= size][:1]]


def _nearest(values: Sequence[int], wanted: int) -> int:
    return min(values, key=lambda v: abs(v - wanted))


def _thread_counts(cores: int) -> list[int]:
    doubled = [1 << i for i in range(cores.bit_length()) if 1 << i < cores]
    return [*doubled, cores]


def _partitions(gemm: Gemm) -> list[str]:
    return ["left", "right", "both", *(["batch"] if gemm.batch > 1 else [])]


def _default_threads(gemm: Gemm, cpu: X86, left: int, right: int, rows: int, columns: int) -> Mapping[str, Any]:
    """All cores when there is enough to do, dividing what gives each of them most panels."""
    threads = cpu.cores
    if gemm.flops() < _WORTH_A_THREAD * threads:
        return {"THREADS": 1}
    if gemm.batch >= threads:
        return {"THREADS": threads, "PARTITION": "batch", "TASKS": 1}
    if right > columns * (threads - 1) and right >= left:
        return {"THREADS": threads, "PARTITION": "right", "TASKS": 1}
    if left > rows * (threads - 1):
        return {"THREADS": threads, "PARTITION": "left", "TASKS": 1}
    if right > columns * (threads - 1):
        return {"THREADS": threads, "PARTITION": "right", "TASKS": 1}
    return {"THREADS": 1}


def _arguments(gemm: Gemm, config: Mapping[str, Any], workspace: str) -> tuple[Arg, ...]:
    sizes = ("M", "N", "K", "batch", "lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c")
    extra = (("bias",) if gemm.bias else ()) + (("scale",) if gemm.scales != "none" else ())
    return (
        *(TensorArg(name) for name in ("A", "B", "C", *extra)),
        WorkspaceArg("packed", workspace),
        *(ScalarArg("i64", name) for name in sizes),
        *(ScalarArg("f32", name) for name in ("alpha", "beta")),
        ScalarArg("i32", config["THREADS"]),
    )


def _source(name: str) -> str:
    """A file of this family, or one that it shares with others."""
    templates = resources.files("deepgen.generators.templates")
    places = (templates.joinpath(folder).joinpath(name) for folder in ("x86_amx", "x86_dot", "."))
    return next(place for place in places if place.is_file()).read_text()
