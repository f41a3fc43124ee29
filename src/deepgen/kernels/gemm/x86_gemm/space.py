"""The space of the f32 GEMM on x86: knobs, and what they require of each other."""

from __future__ import annotations

from dataclasses import dataclass

from deepgen.kernels.gemm.x86_gemm.sizes import (
    BLOCK_M,
    BLOCK_N,
    FLOAT,
    LEAST_SLICE,
    NEXT,
    ROWS,
    VECTORS,
    WORTH_A_THREAD,
    all_at_once,
    along_k,
    along_n,
    depths,
    most_block_bytes,
    partitions,
    small,
    tiles,
    up_to,
)
from deepgen.kernels.shared.x86_common import covering, thread_counts
from deepgen.operators import Gemm
from deepgen.space import Expr, Space, implies, maximum, minimum, where
from deepgen.targets import X86

_FEW_STRIPS = 4  # of A, each of which passes over B once more


@dataclass(frozen=True)
class _Tile:
    """The register tile, and the product that it runs over: turned by SWAP, or as it is."""

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


def gemm_space(name: str, gemm: Gemm, cpu: X86, *, constant_b: bool) -> Space:
    s = Space(name)
    tile = _tile(s, gemm, cpu, constant_b)
    _blocks(s, gemm, cpu, tile, constant_b)
    _sharing(s, gemm, cpu, tile)
    return s


def _tile(s: Space, gemm: Gemm, cpu: X86, constant_b: bool) -> _Tile:
    lanes = cpu.vector_bytes // FLOAT
    kind = s.knob("KIND", ["tiles", "dot"] if gemm.layout == "nt" and not constant_b else ["tiles"])
    tiled = kind == "tiles"
    swap = s.knob("SWAP", [False] if constant_b else [False, True], when=tiled)
    heights = {*up_to(ROWS, min(max(gemm.m, gemm.n), lanes)), *all_at_once(gemm)}
    rows = s.knob("MR", sorted(heights))
    vectors = s.knob("NR", VECTORS)
    turned = tiled & swap
    height = s.derive("height", where(turned, gemm.n, gemm.m))
    width = s.derive("width", where(turned, gemm.m, gemm.n))
    columns = s.derive("tile_columns", where(tiled, vectors * lanes, vectors))
    s.require(
        rows * vectors + vectors + 1 <= cpu.vector_registers,
        "the tile, a row of B and a number of A fit in the vector registers",
    )
    s.require(rows <= height, "a tile is not higher than C")
    s.require(columns < width + where(tiled, lanes, 1), "a tile is not wider than C")
    full = where(turned, *(max(r * v for r, v in tiles(cpu, *size)) for size in ((gemm.n, gemm.m), (gemm.m, gemm.n))))
    whole = height % rows == 0
    s.require(
        implies(tiled, rows * vectors * where(whole, 3, 2) >= full),
        "the tile is at least half of the largest that the registers and the matrix allow, or a third in whole strips",
    )
    s.require(implies(kind == "dot", gemm.m <= rows * _FEW_STRIPS), "sums along K are for few rows of C")
    return _Tile(kind, swap, rows, vectors, columns, height, width)


def _blocks(s: Space, gemm: Gemm, cpu: X86, tile: _Tile, constant_b: bool) -> None:
    tiled, swap = tile.tiled, tile.swap
    lanes, longest = cpu.vector_bytes // FLOAT, max(gemm.m, gemm.n)
    mc = s.knob("MC", covering(BLOCK_M, longest), when=tiled)
    nc = s.knob("NC", covering(BLOCK_N, longest), when=tiled)
    kc = s.knob("KC", depths(gemm), when=tiled)
    pack_a = s.knob("PACK_A", ["none", "rows", "panels"], when=tiled)
    pack_b = s.knob("PACK_B", ["ahead", "none"] if constant_b else ["none", "first", "block", "panel"], when=tiled)
    outer = s.knob("OUTER", ["a", "b"], when=tiled)
    inner = s.knob("INNER", ["a", "b"], when=tiled)
    unroll = s.knob("UNROLL", [1, 2, 4, 8], when=tiled)
    s.knob("PREFETCH", [0, 8, 16, 32])
    fetch_a = s.knob("PREFETCH_A", [0, 32, 64, 128], when=tiled)
    next_strip = s.knob("NEXT_STRIP", [False, True], when=tiled)
    next_block = s.knob("NEXT_BLOCK", [False, True], when=tiled)
    fetch_b = s.knob("PACK_FETCH", [False, True], when=tiled)
    s.knob("AHEAD", [False, True] if small(gemm) else [False], when=tiled)
    following = s.knob("NEXT", NEXT if gemm.batch > 1 else ["none"], when=tiled)
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
    s.require(kc >= unroll, "the unrolled loop fits in a block of K")
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
        implies(next_block, (outer == "b") & (pack_b != "panel")),
        "the next block of B is asked for where one stays",
    )
    s.require(
        implies(next_strip | next_block, following == "none"),
        "either what a matrix needs next is asked for, or the next matrix",
    )
    s.require(
        implies(fetch_b, (pack_b != "none") & (pack_b != "ahead")), "rows of B are asked for while they are packed"
    )
    s.require(implies(stream, (kc >= gemm.k) & ~swap), "C is streamed only where one block of K gives whole rows")


def _sharing(s: Space, gemm: Gemm, cpu: X86, tile: _Tile) -> None:
    threads = s.knob("THREADS", thread_counts(cpu.cores))
    partition = s.knob("PARTITION", partitions(gemm), when=threads > 1)
    tasks = s.knob("TASKS", [1, 2, 4, 8], when=threads > 1)
    s.knob("CURVE", [False, True], when=partition == "mn")
    s.require((threads == 1) | (threads * WORTH_A_THREAD <= gemm.flops()), "every thread has enough to do")
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
