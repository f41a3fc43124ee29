"""GEMM in plain C, for any CPU; of 8-bit floats too, with scales of blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.kernels import Rank
from deepgen.kernels.shared import c_kernel, covering, epilogue, nearest, served, thread_counts
from deepgen.operators import Gemm, Operator
from deepgen.operators.gemm import ACTIVATIONS
from deepgen.operators.products import BLOCK
from deepgen.space import Expr, Space, where
from deepgen.targets import X86, Arm, Cpu, Riscv, Target
from deepgen.vocabulary import Kernel, LaunchPlan, ScalarArg, Step, TensorArg, WorkspaceArg, dtype

_TYPES = {"f32": "float", "f64": "double"}
_ACTIVATION = ("none", "relu", "gelu", "silu")
_PARTITION = ("m", "n")
_ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
_VECTORS = (1, 2, 3, 4, 6)
_DEPTHS = (64, 128, 256, 512, 1024)
_WIDTHS = (64, 128, 256, 512, 1024, 2048)
_FEW = 32  # rows of C up to which packing B would cost more than reading it in place
_THIN, _AT_ONCE = 16, 8  # rows of C up to which B is read only once; rows of A that share a pass over it
_LONG = 4096  # columns whose sums are kept in memory
_WORTH_A_THREAD = 4_000_000  # flops; waking another thread takes as long as computing about this many
_CLOCK, _WAKING_CLOCKS = 2.5e9, 2e4  # of a typical CPU; of a call that wakes other threads
_BYTES_A_CLOCK = 8  # read from memory by a core
_KIND, _ENOUGH = "KIND", "every thread has enough to do"
_SIZES = ("M", "N", "K", "batch", "lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c")


class CGemm:
    """Register tiles, cache blocks, packing of B, threads: any M, N, K, all layouts. The only explicit instructions are
    Arm's multiplications by a lane."""

    name = "c_gemm"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Cpu):
            return "it supports CPUs only"
        if not isinstance(operator, Gemm):
            return "it supports gemm only"
        if operator.a not in _TYPES or len({operator.a, operator.b, operator.c, operator.acc}) > 1:
            return "it computes in f32 or f64 only"
        if operator.scales != "none":
            return "it has no scales: f32 and f64 need none"
        return epilogue.refused(operator)

    def rank(self, operator: Operator, target: Target) -> Rank:
        """Kernels written with a CPU's own instructions are faster."""
        gemm, cpu = served(operator, target, Gemm, Cpu)
        return Rank.SURPASSED if isinstance(cpu, X86) and gemm.a == "f32" else Rank.SPECIALISED

    def space(self, operator: Operator, target: Target) -> Space:
        gemm, cpu = served(operator, target, Gemm, Cpu)
        tiles = _tile_space(self.name, gemm, cpu)
        if not _may_be_thin(gemm):
            return tiles
        return Space.union(self.name, {"tiles": tiles, "thin": _thin_space("thin", gemm, cpu)}, by=_KIND)

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        gemm, cpu = served(operator, target, Gemm, Cpu)
        lanes, rows, vectors, thin = _lanes(gemm, cpu), config["MR"], config["NR"], config.get(_KIND) == "thin"
        along_n, packed = gemm.layout[1] == "n", config.get("PACK_B") == "block"
        macros = {
            "REAL": _TYPES[gemm.a],
            "VECTOR_BYTES": cpu.vector_bytes,
            "A_T": int(gemm.layout[0] == "t"),
            "B_T": int(not along_n),
            **{name: config[name] for name in ("MR", "NR", "KC", "NC", "UNROLL", "PREFETCH") if name in config},
            "PACK_B": int(packed),
            "BY_LANE": int(isinstance(cpu, Arm) and along_n if thin else _by_lane(gemm, cpu, rows)),
            "THIN": int(thin),
            "PARTITION": _PARTITION.index(config.get("PARTITION", "m")),
            "TASKS": config.get("TASKS", 1),
            "BIAS": int(gemm.bias),
            "ACTIVATION": _ACTIVATION.index(gemm.activation),
            **epilogue.macros(gemm),
        }
        columns = vectors * lanes
        if thin:
            slot = rows * (2 * (config["NC"] + lanes) if along_n else vectors)
        else:
            slot = (rows + (config["NC"] // columns if packed else 1) * columns) * config["KC"]
        arguments = (
            TensorArg("A"),
            TensorArg("B"),
            TensorArg("bias") if gemm.bias else ScalarArg("i64", 0),
            TensorArg("C"),
            WorkspaceArg("packed", config["THREADS"] * slot * dtype(gemm.a).bytes),
            *(ScalarArg("i64", name) for name in _SIZES),
            *(ScalarArg(gemm.a, name) for name in ("alpha", "beta")),
            ScalarArg("i32", config["THREADS"]),
            *epilogue.arguments(gemm, "i64"),
        )
        return c_kernel(
            self.name,
            __name__,
            ("gemm.c", "thin.h" if thin else "blocks.h", "cpu_pool.h", "x86_pool.h"),
            macros,
            LaunchPlan((Step("deepgen_gemm", arguments),)),
            epilogue.row_sources(gemm, __name__),
        )

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        gemm, cpu = served(operator, target, Gemm, Cpu)
        if isinstance(cpu, Arm) and _may_be_thin(gemm):
            return _thin_default(gemm, cpu)
        lanes = _lanes(gemm, cpu)
        rows, vectors = min(_tiles(gemm, cpu), key=lambda tile: _cost(gemm, cpu, *tile))
        width = nearest([w for w in covering(_WIDTHS, gemm.n) if w >= vectors * lanes], 512)
        room = cpu.l1d_bytes // ((rows + vectors * lanes) * dtype(gemm.a).bytes)
        usual = 512 if _by_lane(gemm, cpu, rows) and room > 640 else 256
        depth = nearest([d for d in covering(_DEPTHS, gemm.k) if d <= max(room, _DEPTHS[0])], usual)
        packing = "block" if gemm.layout[1] == "t" or gemm.m > _FEW else "none"
        config: dict[str, Any] = {"MR": rows, "NR": vectors, "KC": depth, "NC": width, "PACK_B": packing, "UNROLL": 4}
        config |= {_KIND: "tiles"} if _may_be_thin(gemm) else {}
        if not _worth_threads(gemm, cpu):
            return {**config, "THREADS": 1}
        partition = "n" if gemm.n > gemm.m else "m"
        return {**config, "THREADS": cpu.cores, "PARTITION": partition, "TASKS": 2}

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        """Seconds of the busiest thread."""
        gemm, cpu = served(operator, target, Gemm, Cpu)
        rows, vectors, threads, lanes = config["MR"], config["NR"], config["THREADS"], _lanes(gemm, cpu)
        if config.get(_KIND) == "thin":
            work = gemm.batch * gemm.k * gemm.n
            clocks = work * (0.6 * gemm.m / lanes + dtype(gemm.b).bytes / _BYTES_A_CLOCK) / threads
            return float(clocks + _WAKING_CLOCKS * (threads > 1)) / _CLOCK
        units = -(-gemm.n // (vectors * lanes)) if config.get("PARTITION") == "n" else -(-gemm.m // rows)
        parts = threads * config.get("TASKS", 1)
        busiest = -(-parts * gemm.batch // threads) * -(-units // parts) / units
        clocks = _cost(gemm, cpu, rows, vectors) * gemm.k * busiest + _WAKING_CLOCKS * (threads > 1)
        whole: float = clocks / _CLOCK
        return whole


def _tile_space(name: str, gemm: Gemm, cpu: Cpu) -> Space:
    size, lanes, tiles = dtype(gemm.a).bytes, _lanes(gemm, cpu), _tiles(gemm, cpu)
    s = Space(name)
    rows = s.knob("MR", sorted({r for r, _ in tiles}))
    vectors = s.knob("NR", sorted({v for _, v in tiles}))
    depth = s.knob("KC", covering(_DEPTHS, gemm.k))
    width = s.knob("NC", covering(_WIDTHS, gemm.n))
    s.knob("PACK_B", _packings(gemm))
    s.knob("UNROLL", [1, 2, 4, 8])
    threads = s.knob("THREADS", thread_counts(cpu.cores))
    s.knob("PARTITION", list(_PARTITION), when=threads > 1)
    s.knob("TASKS", [1, 2, 4], when=threads > 1)
    numbers = where(rows % lanes == 0, rows // lanes, 1) if isinstance(cpu, Arm) else 1
    registers = rows * vectors + vectors + numbers
    s.require(registers <= cpu.vector_registers, "a tile, a row of B and numbers of A fit in registers")
    s.require(width >= vectors * lanes, "a block has at least one panel of B")
    s.require((rows + vectors * lanes) * depth * size <= cpu.l1d_bytes, "a strip and a panel fit in L1")
    s.require(width * depth * size <= max(cpu.l2_bytes, cpu.l3_bytes // cpu.cores), "a block of B fits in cache")
    s.require((threads == 1) | (threads * _WORTH_A_THREAD <= gemm.flops()), _ENOUGH)
    return s


def _may_be_thin(gemm: Gemm) -> bool:
    """Whether B can be read once. If it is contiguous along K, A must be too: sums are then vectors along K."""
    return gemm.m <= _THIN and gemm.layout != "tt"


def _thin_space(name: str, gemm: Gemm, cpu: Cpu) -> Space:
    lanes, along_n = _lanes(gemm, cpu), gemm.layout[1] == "n"
    s = Space(name)
    rows = s.knob("MR", range(1, min(gemm.m, _AT_ONCE) + 1))
    vectors = s.knob("NR", [1, 2, 3, 4])
    if along_n:
        s.knob("NC", covering((*_WIDTHS, _LONG), gemm.n))
    unroll = s.knob("UNROLL", [1, 2, 4, 8])
    s.knob("PREFETCH", [0, 64, 256])
    threads = s.knob("THREADS", thread_counts(cpu.cores))
    s.knob("TASKS", [1, 2, 4], when=threads > 1)
    numbers: Expr | int = 1
    if isinstance(cpu, Arm) and along_n:
        numbers = rows * unroll // lanes
        s.require(unroll % lanes == 0, "numbers of A fill vectors")
    registers = rows * vectors + vectors + numbers
    s.require(registers <= cpu.vector_registers, "sums, a row of B and numbers of A fit in registers")
    s.require((threads == 1) | (threads * _WORTH_A_THREAD <= gemm.flops()), _ENOUGH)
    return s


def _thin_default(gemm: Gemm, cpu: Cpu) -> dict[str, Any]:
    groups = -(-gemm.m // _AT_ONCE)
    rows, alone = -(-gemm.m // groups), gemm.m == 1
    config: dict[str, Any] = {_KIND: "thin", "MR": rows}
    if gemm.layout[1] == "n":
        unroll = 4 if alone or gemm.a == "f64" else 8
        width = covering((*_WIDTHS, _LONG), gemm.n)[-1] if alone else nearest(covering(_WIDTHS, gemm.n), 1024 // groups)
        config |= {"NR": 4 if alone else 2 if rows <= 6 else 1, "NC": width, "UNROLL": unroll, "PREFETCH": 64}
    else:
        config |= {"NR": 1 if alone else 4 if rows <= 6 else 3, "UNROLL": 2, "PREFETCH": 256 if alone else 64}
    return config | ({"THREADS": cpu.cores, "TASKS": 1} if _worth_threads(gemm, cpu) else {"THREADS": 1})


def _worth_threads(gemm: Gemm, cpu: Cpu) -> bool:
    return cpu.cores > 1 and gemm.flops() >= _WORTH_A_THREAD * cpu.cores


def _lanes(gemm: Gemm, cpu: Cpu) -> int:
    return cpu.vector_bytes // dtype(gemm.a).bytes


def _packings(gemm: Gemm) -> list[str]:
    return ["none", "block"] if gemm.layout[1] == "n" else ["block"]


def _tiles(gemm: Gemm, cpu: Cpu) -> list[tuple[int, int]]:
    """The register tiles, as rows and vectors, that the registers, the widest block and the matrix size allow."""
    lanes = _lanes(gemm, cpu)
    most = min(-(-gemm.n // lanes), covering(_WIDTHS, gemm.n)[-1] // lanes)
    rows, vectors = [r for r in _ROWS if r <= gemm.m], [v for v in _VECTORS if v <= most]
    return [
        (r, v) for r in rows for v in vectors if r * v + v + _loads(gemm, cpu, r, kept=True) <= cpu.vector_registers
    ]


def _by_lane(gemm: Gemm, cpu: Cpu, rows: int) -> bool:
    """Whether elements of A are lanes of whole vectors."""
    return isinstance(cpu, Arm) and rows % _lanes(gemm, cpu) == 0


def _loads(gemm: Gemm, cpu: Cpu, rows: int, *, kept: bool = False) -> int:
    """Loads of A per step of K; `kept`: how many of them are in registers at once."""
    return rows // _lanes(gemm, cpu) if _by_lane(gemm, cpu, rows) else 1 if kept else rows


def _cost(gemm: Gemm, cpu: Cpu, rows: int, vectors: int) -> float:
    """Cycles of one step of K over all of C: two multiply-adds or two loads per cycle; sums wait for the previous
    step."""
    tiles = -(-gemm.m // rows) * -(-gemm.n // (vectors * _lanes(gemm, cpu)))
    numbers = _loads(gemm, cpu, rows)
    return tiles * (max(rows * vectors / 2, (numbers + vectors) / 2, 4.0) + 0.1 * numbers + 0.12 * vectors)


_RESULTS = ("f32", "bf16", "f16")
_FRACTIONS = {"f8e4m3": 3, "f8e5m2": 2}  # bits
_WORTH_SCALED = 1_000_000  # flops; waking another thread takes as long as computing about this many
_SCALES = [f"scale_{letter}_{along}" for letter in "ab" for along in ("matrix", "row", "step")]


class CScaledGemm:
    """Blocks are widened to f32, times their factors; register tiles, threads; any M, N, K, all layouts."""

    name = "c_scaled_gemm"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Cpu):
            return "it supports CPUs only"
        if not isinstance(operator, Gemm) or operator.blocks is None:
            return "it supports gemm with scales of blocks only"
        if operator.epilogue:
            return epilogue.REFUSED
        if operator.c == "f16" and isinstance(target, Riscv) and not target.has("zvfh"):
            return "a result in f16 needs a target with zvfh"
        return None if operator.c in _RESULTS else "its results are f32, bf16 or f16"

    def space(self, operator: Operator, target: Target) -> Space:
        _, cpu = served(operator, target, Gemm, Cpu)
        s = Space(self.name)
        rows, vectors = s.knob("MR", [1, 2, 3, 4, 6, 8, 12]), s.knob("NR", [1, 2, 3, 4, 6])
        strips, panels = s.knob("STRIPS", [1, 2, 4, 8, 16, 32]), s.knob("PANELS", [1, 2, 4, 8])
        s.knob("THREADS", thread_counts(cpu.cores))
        s.require(rows * vectors + vectors + 1 <= cpu.vector_registers, "a tile and a row of B fit in registers")
        high, wide = rows * strips, panels * vectors * (cpu.vector_bytes // 4)
        s.require(4 * ((high + wide) * BLOCK + high * wide) <= cpu.l2_bytes, "widened blocks and sums fit in L2")
        return s

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        gemm, cpu = served(operator, target, Gemm, Cpu)
        assert gemm.blocks is not None, "ask refuses() first"
        high = config["MR"] * config["STRIPS"]
        wide = config["NR"] * config["PANELS"] * (cpu.vector_bytes // 4)
        macros = {
            **{name: config[name] for name in ("MR", "NR", "STRIPS", "PANELS")},
            "VECTOR_BYTES": cpu.vector_bytes,
            "A_T": int(gemm.layout[0] == "t"),
            "B_T": int(gemm.layout[1] == "t"),
            "BLOCK_A": gemm.blocks[0],
            "BLOCK_B": gemm.blocks[1],
            "FRACTIONS_A": _FRACTIONS[gemm.a],
            "FRACTIONS_B": _FRACTIONS[gemm.b],
            "C_TYPE": _RESULTS.index(gemm.c),
            "BIAS": int(gemm.bias),
            "ACTIVATION": ACTIVATIONS.index(gemm.activation),
        }
        arguments = (
            *(TensorArg(name) for name in ("A", "B", "scale_a", "scale_b")),
            TensorArg("bias") if gemm.bias else ScalarArg("i64", 0),
            TensorArg("C"),
            WorkspaceArg("widened", config["THREADS"] * 4 * ((high + wide) * BLOCK + high * wide)),
            *(ScalarArg("i64", name) for name in (*_SIZES, *_SCALES)),
            *(ScalarArg("f32", name) for name in ("alpha", "beta")),
            ScalarArg("i32", config["THREADS"]),
        )
        files = ("gemm_scaled.c", "cpu_pool.h", "x86_pool.h")
        return c_kernel(self.name, __name__, files, macros, LaunchPlan((Step("deepgen_gemm", arguments),)))

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        gemm, cpu = served(operator, target, Gemm, Cpu)
        rows = 6 if gemm.m > 4 else 4 if gemm.m > 2 else gemm.m
        strips = 8 if gemm.m > 4 * rows else 4 if gemm.m > rows else 1
        threads = cpu.cores if gemm.flops() >= _WORTH_SCALED * cpu.cores else 1
        return {"MR": rows, "NR": 2, "STRIPS": strips, "PANELS": 4, "THREADS": threads}
