"""The space of the f32 GEMM on x86: its knobs and their constraints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deepgen.kernels.shared import covering, thread_counts
from deepgen.operators import Gemm
from deepgen.space import Expr, Space, implies, maximum, minimum, where
from deepgen.targets import X86

_FEW_STRIPS = 4  # of A, each of which traverses B once more


@dataclass(frozen=True)
class _RegisterTile:
    """The register tile, and the product that it covers: transposed by SWAP, or not."""

    kind: Expr
    swap: Expr
    rows: Expr
    vectors: Expr
    columns: Expr
    height: Expr
    width: Expr

    @property
    def tiled(self) -> Expr:
        return self.kind == "tiles"

    @property
    def thin(self) -> Expr:
        return self.kind == "thin"


def gemm_space(name: str, gemm: Gemm, cpu: X86, *, constant_b: bool) -> Space:
    s = Space(name)
    tile = _tile(s, gemm, cpu, constant_b)
    _blocks(s, gemm, cpu, tile, constant_b)
    _sharing(s, gemm, cpu, tile)
    return s


def _tile(s: Space, gemm: Gemm, cpu: X86, constant_b: bool) -> _RegisterTile:
    lanes = cpu.vector_bytes // FLOAT
    kinds = [] if constant_b else [kind for kind in ("dot", "thin") if may_be(kind, gemm)]
    kind = s.knob("KIND", ["tiles", *kinds])
    tiled, thin = kind == "tiles", kind == "thin"
    swap = s.knob("SWAP", [False] if constant_b else [False, True])
    heights = {*up_to(ROWS, min(max(gemm.m, gemm.n), lanes)), *(size for size in (gemm.m, gemm.n) if size <= lanes)}
    rows = s.knob("MR", sorted(heights))
    vectors = s.knob("NR", VECTORS)
    height = s.derive("height", where(swap, gemm.n, gemm.m))
    width = s.derive("width", where(swap, gemm.m, gemm.n))
    dot = kind == "dot"
    columns = s.derive("tile_columns", where(dot, vectors, vectors * lanes))
    s.require(
        rows * vectors + vectors + 1 <= cpu.vector_registers,
        "the tile, a row of B and a number of A fit in the vector registers",
    )
    s.require(rows <= height, "a tile is not higher than C")
    s.require(columns < width + where(dot, 1, lanes), "a tile is not wider than C")
    full = where(swap, *(max(r * v for r, v in tiles(cpu, *size)) for size in ((gemm.n, gemm.m), (gemm.m, gemm.n))))
    whole = height % rows == 0
    s.require(
        implies(tiled, rows * vectors * where(whole, 3, 2) >= full),
        "the tile is at least half of the largest that the registers and the matrix allow, or a third in whole strips",
    )
    s.require(implies(dot, ~where(swap, *along_n(gemm))), "sums along K need a B that runs along K")
    s.require(implies(thin, where(swap, *along_n(gemm))), "rows of B from end to end need a B that runs along N")
    s.require(implies(dot, height <= rows * _FEW_STRIPS), "sums along K are for few rows of C")
    s.require(implies(thin, (height <= 2 * rows) & (height <= THIN)), "few rows of C pass over B together")
    return _RegisterTile(kind, swap, rows, vectors, columns, height, width)


def _blocks(s: Space, gemm: Gemm, cpu: X86, tile: _RegisterTile, constant_b: bool) -> None:
    tiled, swap = tile.tiled, tile.swap
    lanes, longest = cpu.vector_bytes // FLOAT, max(gemm.m, gemm.n)
    mc = s.knob("MC", covering(BLOCK_M, longest), when=tiled)
    nc = s.knob("NC", covering(BLOCK_N, longest), when=tiled | tile.thin)
    # If A has few rows and is not contiguous along K, they are transposed first.
    kc = s.knob("KC", depths(gemm), when=tiled | ((tile.kind == "dot") & ~where(swap, *along_k(gemm))))
    pack_a = s.knob("PACK_A", ["none", "rows", "panels"], when=tiled)
    pack_b = s.knob("PACK_B", ["ahead", "none"] if constant_b else ["none", "first", "block", "panel"], when=tiled)
    outer = s.knob("OUTER", ["a", "b"], when=tiled)
    inner = s.knob("INNER", ["a", "b"], when=tiled)
    unroll = s.knob("UNROLL", [1, 2, 4, 8, *([16] if lanes == 16 else [])], when=tiled | tile.thin)
    s.knob("PREFETCH", [0, 8, 16, 32])
    fetch_a = s.knob("PREFETCH_A", [0, 32, 64, 128], when=tiled)
    next_strip = s.knob("NEXT_STRIP", [False, True], when=tiled)
    next_block = s.knob("NEXT_BLOCK", [False, True], when=tiled | tile.thin)
    fetch_b = s.knob("PACK_FETCH", [False, True], when=tiled)
    s.knob("AHEAD", [False, True] if small(gemm) else [False], when=tiled)
    following = s.knob("NEXT", NEXT if gemm.batch > 1 else ["none"], when=tiled)
    next_c = s.knob("NEXT_C", [False, True] if gemm.k <= SHORT else [False], when=tiled)
    stream = s.knob("STREAM_C", [False, True] if gemm.beta == 0 and gemm.n % lanes == 0 else [False], when=tiled)
    s.knob("HUGE_PAGES", [False] if small(gemm) else [False, True], when=tiled)

    strip = s.derive("a_strip_bytes", tile.rows * kc * FLOAT)
    panel = s.derive("b_panel_bytes", tile.columns * kc * FLOAT)
    block_a = s.derive("a_block_bytes", mc * kc * FLOAT)
    block_b = s.derive("b_block_bytes", where(pack_b == "panel", tile.columns, nc) * kc * FLOAT)
    s.require(mc >= tile.rows, "a block has at least one strip of A")
    s.require(nc >= tile.columns, "a block has at least one panel of B")
    s.require(
        (mc <= where(swap, covering(BLOCK_M, gemm.n)[-1], covering(BLOCK_M, gemm.m)[-1]))
        & (nc <= where(swap, covering(BLOCK_N, gemm.m)[-1], covering(BLOCK_N, gemm.n)[-1])),
        "a block is not larger than what covers the matrix",
    )
    s.require(implies(tiled, (unroll <= 8) & (kc >= unroll)), "the unrolled loop fits in a block of K")
    s.require(implies(tile.thin, unroll >= 4), "sums stay in registers for some rows of B")
    s.require(where(inner == "a", panel, strip) <= cpu.l1d_bytes, "what stays through the inner loop fits in L1")
    s.require(minimum(block_a, block_b) <= cpu.l2_bytes, "the smaller block fits in L2")
    s.require(maximum(block_a, block_b) <= most_block_bytes(cpu), "blocks fit in L3")
    s.require((pack_a != "rows") | where(swap, *along_k(gemm)), "rows of A can be copied where they run along K")
    s.require(
        ((pack_b != "none") & (pack_b != "first")) | where(swap, *along_n(gemm)),
        "B is read in place where it runs along N",
    )
    s.require(implies(pack_b == "panel", inner == "a"), "a panel is packed for all the strips of A that pass")
    s.require(
        (fetch_a == 0) | ((pack_a == "none") & where(swap, *along_k(gemm))),
        "A is prefetched where it is read in place, along K",
    )
    s.require(
        implies(next_strip, (inner == "b") & (pack_a == "none") & where(swap, *along_k(gemm))),
        "the next strip of A is asked for while one stays, in place, in rows that run along K",
    )
    s.require(
        implies(next_block, (outer == "b") & (pack_b != "panel")), "the next block of B is asked for where one stays"
    )
    s.require(
        implies(next_strip | next_block, following == "none"),
        "either what a matrix needs next is asked for, or the next matrix",
    )
    s.require(
        implies(fetch_b, (pack_b != "none") & (pack_b != "ahead")), "rows of B are asked for while they are packed"
    )
    s.require(implies(next_c, ~swap & ~stream), "C is asked for where its rows are written, through the caches")
    s.require(implies(stream, (kc >= gemm.k) & ~swap), "C is streamed only where one block of K gives whole rows")


def _sharing(s: Space, gemm: Gemm, cpu: X86, tile: _RegisterTile) -> None:
    threads = s.knob("THREADS", thread_counts(cpu.cores))
    partition = s.knob("PARTITION", partitions(gemm), when=threads > 1)
    tasks = s.knob("TASKS", [1, 2, 4, 8], when=threads > 1)
    s.knob("CURVE", [False, True], when=partition == "mn")
    s.require((threads == 1) | (threads * WORTH_A_THREAD <= _work(gemm)), "every thread has enough to do")
    s.require(
        implies(partition == "k", threads * tasks * LEAST_SLICE <= gemm.k),
        f"a slice of K has at least {LEAST_SLICE} steps",
    )
    s.require(
        implies(partition == "m", threads * tasks * tile.rows < tile.height + tile.rows),
        "every task has a strip of A when M is divided",
    )
    s.require(
        implies(partition == "n", threads * tasks * tile.columns < tile.width + tile.columns),
        "every task has a panel of B when N is divided",
    )
    s.require(
        implies(partition == "batch", threads * tasks <= gemm.batch),
        "every task has a matrix when the batch is divided",
    )


FLOAT = 4  # bytes
ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16)
VECTORS = (1, 2, 3, 4, 6, 8)
THIN = 16  # rows of C up to which B is read once, at memory speed
BLOCK_M = (32, 64, 128, 256, 512, 1024, 2048, 4096)
BLOCK_N = (64, 128, 192, 256, 384, 512, 1024, 2048, 4096)
_BLOCK_K = (8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 2048)
NEXT = ("none", "l2", "l1")  # cache into which the next matrix of a batch is prefetched; the index is the macro's value
WORTH_A_THREAD = 1_000_000  # flops; waking another thread takes as long as computing about this many
_WORTH_HELP = 32 * WORTH_A_THREAD  # flops of a thread's part; with fewer none falls behind so far that help pays off
LEAST_SLICE = 256  # steps of K; with fewer, adding up slices costs more than it gains
SHORT = 64  # steps of K; with fewer, a tile's part of C is not prefetched in time
_LOW = 64  # rows of C up to which a block of K may be short: the few additional passes over C are cheap
_AHEAD_BYTES = 256 << 10  # of A and B in a task that gemm_fma.c still prefetches all at once


def along_k(gemm: Gemm) -> tuple[bool, bool]:
    """Whether the left operand is contiguous along K: with SWAP, and without."""
    return gemm.layout[1] == "t", gemm.layout[0] == "n"


def along_n(gemm: Gemm) -> tuple[bool, bool]:
    """Whether the right operand is contiguous along the columns of C: with SWAP, and without."""
    return gemm.layout[0] == "t", gemm.layout[1] == "n"


def may_be(kind: str, gemm: Gemm) -> bool:
    """Whether C has few enough rows, or columns, and the other operand can be read in place by such a kernel."""
    most, read = (THIN, along_n(gemm)) if kind == "thin" else (_FEW_STRIPS * ROWS[-1], [not n for n in along_n(gemm)])
    return any(fits and height <= most for fits, height in zip(read, (gemm.n, gemm.m), strict=True))


def small(gemm: Gemm) -> bool:
    return (gemm.m + gemm.n) * gemm.k * FLOAT <= _AHEAD_BYTES


def up_to(values: Sequence[int], most: int) -> list[int]:
    """The values up to the size that they divide."""
    return [v for v in values if v <= most]


def depths(gemm: Gemm) -> list[int]:
    """Sizes of blocks of K: short ones only if C has few rows."""
    return covering([v for v in _BLOCK_K if v >= 128 or gemm.m <= _LOW], gemm.k)


def tiles(cpu: X86, height: int, width: int) -> list[tuple[int, int]]:
    """The register tiles that the registers and a matrix of this size allow: rows and vectors."""
    lanes = cpu.vector_bytes // FLOAT
    rows, vectors = up_to(ROWS, min(height, lanes)), up_to(VECTORS, -(-width // lanes))
    return [(r, v) for r in rows for v in vectors if r * v + v + 1 <= cpu.vector_registers]


def large_tiles(cpu: X86, height: int, width: int) -> list[tuple[int, int]]:
    """Tiles of at least half the largest size, or a third if no strip with fewer rows remains."""
    allowed = tiles(cpu, height, width)
    full = max(r * v for r, v in allowed)
    return [(r, v) for r, v in allowed if (2 if height % r else 3) * r * v >= full]


def most_block_bytes(cpu: X86) -> int:
    """The bytes of a thread's share of L3."""
    return max(cpu.l3_bytes // cpu.cores, cpu.l2_bytes)


def partitions(gemm: Gemm) -> list[str]:
    both = ["mn"] if min(gemm.m, gemm.n) > 1 else []
    by_matrices = ["batch"] if gemm.batch > 1 else []
    return ["m", *both, "n", "k", *by_matrices]


def _work(gemm: Gemm) -> int:
    """Flops, plus the flops that could be done while each byte is loaded."""
    return int(gemm.flops()) + 6 * gemm.least_bytes()


def may_share(gemm: Gemm, threads: int) -> bool:
    """Whether every thread has enough work."""
    return threads * WORTH_A_THREAD <= _work(gemm)


def worth_help(gemm: Gemm, threads: int, inner: str | None) -> bool:
    """Whether a thread that has finished should help the others with strips of A that pass over their blocks of B."""
    return inner == "b" and gemm.batch < threads and gemm.flops() >= _WORTH_HELP * threads > _WORTH_HELP
