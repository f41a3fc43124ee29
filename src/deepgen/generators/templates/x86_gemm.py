"""f32 GEMM on x86 with AVX2 or AVX-512: the space, the launch and the defaults of the family in `x86_gemm.c`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from deepgen.operators import Gemm, Operator
from deepgen.space import Space, implies, maximum, minimum, where
from deepgen.targets import X86, Target
from deepgen.vocabulary import Arg, Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg, WorkspaceArg

_FLOAT = 4
_A_ROW_PAD = 16  # floats that x86_gemm.c adds to each packed row of A

_SOURCES = ("x86_gemm.c", "x86_vector.h", "x86_pool.h")
_PACK_A = {"none": 0, "rows": 1, "panels": 2}
_PACK_B = {"none": 0, "panels": 1}
_PARTITION = {"m": 0, "n": 1, "mn": 2, "k": 3, "batch": 4}

_ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16)
_VECTORS = (1, 2, 3, 4, 6, 8)
_BLOCK_M = (32, 64, 128, 256, 512, 1024, 2048)
_BLOCK_N = (64, 128, 192, 256, 384, 512, 1024, 2048, 4096)
_BLOCK_K = (8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 2048)
_THIN = 16  # rows of C up to which B is read once, as fast as memory gives it, and packing it would only cost
_LOW = 64  # rows of C up to which a block of K may be short: the few passes over C that it takes are cheap
_WORTH_A_THREAD = 1_000_000  # flops; waking another thread takes as long as computing these
_AHEAD_BYTES = 256 << 10  # of A and B in a task that x86_gemm.c still asks for all at once
_LEAST_SLICE = 256  # steps of K; below it adding the slices up costs more than it gains


class X86Gemm:
    """Register tiles, cache blocks, packing, loop order, unrolling, prefetch, threads: any M, N, K, all layouts."""

    name = "x86_gemm"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, X86):
            return "it serves x86 targets only"
        if not target.has("avx2", "fma"):
            return "it needs AVX2 and FMA"
        if not isinstance(operator, Gemm):
            return "it serves gemm only"
        if {operator.a, operator.b, operator.c, operator.acc} != {"f32"}:
            return "it computes in f32 only"
        if operator.bias or operator.activation != "none" or operator.scales != "none":
            return "it has no bias, activation or scales yet"
        return None

    def space(self, operator: Operator, target: Target) -> Space:
        gemm, cpu = _served(operator, target)
        lanes = cpu.vector_bytes // _FLOAT
        s = Space(self.name)
        rows = s.knob("MR", _up_to(_ROWS, min(gemm.m, lanes)))
        vectors = s.knob("NR", _up_to(_VECTORS, -(-gemm.n // lanes)))
        mc = s.knob("MC", _covering(_BLOCK_M, gemm.m))
        nc = s.knob("NC", _covering(_BLOCK_N, gemm.n))
        kc = s.knob("KC", _depths(gemm))
        # Rows of A lie in one piece only when A is M x K; B can be read in place only when its vectors run along N.
        s.knob("PACK_A", ["none", "rows", "panels"] if gemm.layout[0] == "n" else ["none", "panels"])
        s.knob("PACK_B", ["none", "panels"] if gemm.layout[1] == "n" else ["panels"])
        s.knob("OUTER", ["a", "b"])
        inner = s.knob("INNER", ["a", "b"])
        unroll = s.knob("UNROLL", [1, 2, 4, 8])
        s.knob("PREFETCH", [0, 8, 16, 32])
        s.knob("AHEAD", [False, True] if _small(gemm) else [False])
        stream = s.knob("STREAM_C", [False, True] if gemm.beta == 0 and gemm.n % lanes == 0 else [False])
        threads = s.knob("THREADS", _thread_counts(cpu.cores))
        partition = s.knob("PARTITION", _partitions(gemm), when=threads > 1)
        tasks = s.knob("TASKS", [1, 2, 4, 8], when=threads > 1)

        columns = s.derive("tile_columns", vectors * lanes)
        strip = s.derive("a_strip_bytes", rows * kc * _FLOAT)
        panel = s.derive("b_panel_bytes", columns * kc * _FLOAT)
        block_a = s.derive("a_block_bytes", mc * kc * _FLOAT)
        block_b = s.derive("b_block_bytes", nc * kc * _FLOAT)

        s.require(
            rows * vectors + vectors + 1 <= cpu.vector_registers,
            "the tile, a row of B and a number of A fit in the vector registers",
        )
        s.require(
            rows * vectors * 2 >= max(r * v for r, v in _tiles(gemm, cpu)),
            "the tile is at least half of the largest that the registers and the matrix allow",
        )
        s.require(mc >= rows, "a block has at least one strip of A")
        s.require(nc >= columns, "a block has at least one panel of B")
        s.require(kc >= unroll, "the unrolled loop fits in a block of K")
        s.require(where(inner == "a", panel, strip) <= cpu.l1d_bytes, "what stays through the inner loop fits in L1")
        s.require(minimum(block_a, block_b) <= cpu.l2_bytes, "the smaller block fits in L2")
        s.require(maximum(block_a, block_b) <= max(cpu.l3_bytes // cpu.cores, cpu.l2_bytes), "blocks fit in L3")
        s.require((threads == 1) | (threads * _WORTH_A_THREAD <= gemm.flops()), "every thread has enough to do")
        s.require(implies(stream, kc >= gemm.k), "C is streamed only where one block of K gives the result")
        s.require(
            implies((threads > 1) & (partition == "k"), threads * tasks * _LEAST_SLICE <= gemm.k),
            f"a slice of K has at least {_LEAST_SLICE} steps",
        )
        s.require(
            implies((threads > 1) & (partition == "m"), threads * tasks * rows < gemm.m + rows),
            "every task has a strip of A when M is divided",
        )
        s.require(
            implies((threads > 1) & (partition == "n"), threads * tasks * columns < gemm.n + columns),
            "every task has a panel of B when N is divided",
        )
        s.require(
            implies((threads > 1) & (partition == "batch"), threads * tasks <= gemm.batch),
            "every task has a matrix when the batch is divided",
        )
        return s

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        gemm, cpu = _served(operator, target)
        knobs = {
            "A_T": int(gemm.layout[0] == "t"),
            "B_T": int(gemm.layout[1] == "t"),
            **{name: config[name] for name in ("MR", "NR", "MC", "NC", "KC", "UNROLL", "PREFETCH")},
            "PACK_A": _PACK_A[config["PACK_A"]],
            "PACK_B": _PACK_B[config["PACK_B"]],
            "OUTER_A": int(config["OUTER"] == "a"),
            "INNER_A": int(config["INNER"] == "a"),
            "AHEAD": int(config["AHEAD"]),
            "STREAM_C": int(config["STREAM_C"]),
            "PARTITION": _PARTITION[config.get("PARTITION", "m")],
            "TASKS": config.get("TASKS", 1),
        }
        step = Step("deepgen_gemm", _arguments(config, _workspace_bytes(config, cpu.vector_bytes // _FLOAT)))
        return Kernel(
            name=self.name,
            language="c",
            sources=tuple(Source(name, _source(name)) for name in _SOURCES),
            flags=("-std=gnu11", "-pthread", *(f"-D{name}={value}" for name, value in knobs.items())),
            plan=LaunchPlan(steps=(step,)),
        )

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        gemm, cpu = _served(operator, target)
        lanes = cpu.vector_bytes // _FLOAT
        thin = gemm.m <= _THIN
        small = gemm.n * gemm.k * _FLOAT <= cpu.l2_bytes // 4
        in_place = (thin or small) and gemm.layout[1] == "n"
        # In place under a thin C, B comes straight from memory, and few long rows of it at a time come fastest.
        streamed = thin and in_place and not small
        tiles = [(r, v) for r, v in _tiles(gemm, cpu) if not streamed or v <= (2 if gemm.m > 4 else 4)]
        rows, vectors = min(tiles, key=lambda tile: _tile_cost(gemm, lanes, *tile))
        low = gemm.m <= _LOW
        depth = (32 if gemm.m > 4 else 16) if streamed else 256 if low or lanes == 8 else 512
        config: dict[str, Any] = {
            "MR": rows,
            "NR": vectors,
            "MC": _nearest(_covering(_BLOCK_M, gemm.m), 256),
            "NC": _nearest(_covering(_BLOCK_N, gemm.n), 4096 if in_place else 1024 if low else 512),
            "KC": _nearest(_depths(gemm), depth),
            "PACK_A": "none" if gemm.layout[0] == "n" else "panels",
            "PACK_B": "none" if in_place else "panels",
            "OUTER": "b",
            "INNER": "b",
            "UNROLL": 4,
            "PREFETCH": 0,
            "AHEAD": _small(gemm),
            "STREAM_C": False,
        }
        return {**config, **_default_threads(gemm, cpu, rows, vectors * lanes)}


def _default_threads(gemm: Gemm, cpu: X86, rows: int, columns: int) -> Mapping[str, Any]:
    """All cores when there is enough to do, dividing what gives each of them most tiles."""
    threads = cpu.cores
    if gemm.flops() < 4 * _WORTH_A_THREAD * threads:
        return {"THREADS": 1}
    if gemm.batch >= threads:
        return {"THREADS": threads, "PARTITION": "batch", "TASKS": 1}
    if gemm.n > columns * (threads - 1) and gemm.n >= gemm.m:
        return {"THREADS": threads, "PARTITION": "n", "TASKS": 1}
    if gemm.m > rows * (threads - 1):
        return {"THREADS": threads, "PARTITION": "m", "TASKS": 1}
    return {"THREADS": 1}


def _served(operator: Operator, target: Target) -> tuple[Gemm, X86]:
    assert isinstance(operator, Gemm) and isinstance(target, X86), "ask refuses() first"
    return operator, target


def _small(gemm: Gemm) -> bool:
    return (gemm.m + gemm.n) * gemm.k * _FLOAT <= _AHEAD_BYTES


def _up_to(values: Sequence[int], most: int) -> list[int]:
    """The values that are not above the size they divide."""
    return [v for v in values if v <= most]


def _covering(values: Sequence[int], size: int) -> list[int]:
    """The values below a size and the first that covers it: larger ones would give the same kernel."""
    below = [v for v in values if v < size]
    return [*below, *[v for v in values if v >= size][:1]]


def _nearest(values: Sequence[int], wanted: int) -> int:
    return min(values, key=lambda v: abs(v - wanted))


def _depths(gemm: Gemm) -> list[int]:
    """Blocks of K: short ones only where C is low."""
    return _covering([v for v in _BLOCK_K if v >= 128 or gemm.m <= _LOW], gemm.k)


def _tiles(gemm: Gemm, cpu: X86) -> list[tuple[int, int]]:
    """The register tiles that the registers and the matrix allow: rows and vectors."""
    lanes = cpu.vector_bytes // _FLOAT
    rows, vectors = _up_to(_ROWS, min(gemm.m, lanes)), _up_to(_VECTORS, -(-gemm.n // lanes))
    return [(r, v) for r in rows for v in vectors if r * v + v + 1 <= cpu.vector_registers]


def _tile_cost(gemm: Gemm, lanes: int, rows: int, vectors: int) -> float:
    """Cycles of one K step over all of C, as if everything lay in L1: what a tile wastes at the edges counts.

    Two multiply-adds a cycle, of latency four; a load costs little beside them, but not nothing, and one of B more
    than one of A because it brings a whole vector.
    """

    def tile(width: int) -> float:
        return max(rows * width / 2, 4.0) + 0.1 * rows + 0.2 * width

    panels, rest = divmod(-(-gemm.n // lanes), vectors)
    return -(-gemm.m // rows) * (panels * tile(vectors) + (tile(rest) if rest else 0.0))


def _thread_counts(cores: int) -> list[int]:
    doubled = [1 << i for i in range(cores.bit_length()) if 1 << i < cores]
    return [*doubled, cores]


def _partitions(gemm: Gemm) -> list[str]:
    by_rows = ["m", "mn"] if gemm.m > 1 else []
    by_matrices = ["batch"] if gemm.batch > 1 else []
    return [*by_rows, "n", "k", *by_matrices]


def _workspace_bytes(config: Mapping[str, Any], lanes: int) -> str | int:
    """What x86_gemm.c asks for: a slot a thread, and the slices of K that are added up at the end."""
    columns = config["NR"] * lanes
    strips = config["MC"] // config["MR"] if config["PACK_A"] != "none" else 1
    a = strips * config["MR"] * (config["KC"] + _A_ROW_PAD) + lanes
    b = config["NC"] // columns * columns * config["KC"] if config["PACK_B"] != "none" else 0
    slots: int = config["THREADS"] * (-(-(a + b) // 16) * 16) * _FLOAT
    if config.get("PARTITION") != "k":
        return slots
    slices = config["THREADS"] * config["TASKS"] - 1
    return f"{slots} + {slices * _FLOAT} * M * N * batch"


def _arguments(config: Mapping[str, Any], workspace: str | int) -> tuple[Arg, ...]:
    sizes = ("M", "N", "K", "batch", "lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c")
    return (
        *(TensorArg(name) for name in ("A", "B", "C")),
        WorkspaceArg("packed", workspace),
        *(ScalarArg("i64", name) for name in sizes),
        *(ScalarArg("f32", name) for name in ("alpha", "beta")),
        ScalarArg("i32", config["THREADS"]),
    )


def _source(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text()
