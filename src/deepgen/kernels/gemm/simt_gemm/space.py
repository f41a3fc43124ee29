"""The space of the SIMT GEMM family: its knobs, and the constraints between them and from the chip."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from deepgen.kernels.gemm import least_area, share_of_blocks
from deepgen.operators import Gemm, Operator
from deepgen.operators.expr.contraction import band_product
from deepgen.operators.expr.operator import ExpressionOperator
from deepgen.space import Expr, Space, divides, implies, minimum, where
from deepgen.targets import Gpu
from deepgen.vocabulary import dtype

WIDEST = 16  # bytes of one load or store
_RESERVED = 40  # registers for addresses, counters and loads in flight
_LEAST_RESERVED = 16  # approximately the least that any measured winner needs
_MOST_UNROLLED = 2048  # multiply-adds of 16 bytes: longer loops take seconds to build and were never the fastest
_MOST_LOADS = 16  # of a thread for one tile: they are unrolled, once for each stage
_LEAST_SLICE = 32  # steps of K; with fewer, adding up parts costs more than it gains


@dataclass(frozen=True)
class GatheredGemm(Gemm):
    """A product with B gathered from a smaller tensor, in runs of neighbours."""

    gathered_bytes: int = 0
    gathered_run: int = 1
    apart: int = 1  # neighbours of a row of C, in memory
    channels: int = 1  # lines of K that belong to one tap
    guarded: int = 0  # dimensions in which a tap may fall outside the image


@dataclass(frozen=True)
class BandedGemm(Gemm):
    """A product of which only the elements with a row less the column from `least` to `most` are computed; the others
    are zero. `names` are those of A, B and C in the operator."""

    least: int = 0
    most: int = 0
    names: tuple[str, str, str] = ("A", "B", "C")

    def computed(self, bm: int, bn: int) -> int:
        """Tiles that meet the band."""
        met = 0
        for row in range(0, self.m, bm):
            first = max(0, row - self.most) // bn
            last = min(self.n - 1, min(row + bm, self.m) - 1 - self.least) // bn
            met += max(0, last - first + 1)
        return met * self.batch


def product_of(operator: Operator) -> Gemm | None:
    """The product that an operator is: a GEMM, or one in an expression that keeps a band of diagonals."""
    if isinstance(operator, Gemm):
        return operator
    if not isinstance(operator, ExpressionOperator) or (band := band_product(operator.definition)) is None:
        return None
    sums, of = band.sums, band.sums.dtype
    if of not in ("f32", "f64"):
        return None
    m, n = sums.shape[-2:]
    return BandedGemm(
        m, n, sums.reduced[0].extent, prod(sums.shape[:-2]), of, of, of, of, band.layout, least=band.least,
        most=band.most, names=(band.left.tensor, band.right.tensor, operator.definition.outputs[0]),
    )  # fmt: skip


def simt_space(name: str, gemm: Gemm, gpu: Gpu) -> Space:
    s = Space(name)
    bm, bn = s.knob("BM", tile_sizes(gemm.m)), s.knob("BN", tile_sizes(gemm.n))
    bk = s.knob("BK", [8, 16, 32, 64])
    tm, tn = s.knob("TM", [2, 4, 8, 12, 16]), s.knob("TN", [2, 4, 8, 12, 16])
    lanes_m = s.knob("LANES_M", [n for n in (1, 2, 4, 8, 16) if gpu.warp // n <= 32])
    order = s.knob("LANE_ORDER", [0, 1])
    split_u = s.knob("SPLIT_U", [1, 2, 4, 8])
    min_blocks = s.knob("MIN_BLOCKS", [1, 2, 3, 4, 6, 8])

    s.require(divides(lanes_m * tm, bm), "warps cover the block's rows")
    s.require(divides(gpu.warp // lanes_m * tn, bn), "warps cover the block's columns")
    s.require(order * lanes_m != 1, "pairs of rows need an even number of them")
    threads = s.derive("threads", (bm // tm) * (bn // tn) * split_u)
    s.require(threads * min_blocks <= gpu.threads_per_sm, "so many blocks' threads fit in a multiprocessor")
    s.require(threads <= gpu.threads_per_block, "a block has no more threads than the chip allows")
    if gemm.m * gemm.n * gemm.batch > 1 << 20:
        s.require(bm * bn >= least_tile(gemm), "tiles are not tiny where the result is large")
    a, _, _, acc = gemm.dtypes
    sums = tm * tn * (acc.bytes // 4)
    registers = s.derive("registers", sums + 3 * (tm + tn) * max(1, a.bytes // 4) + _RESERVED)
    s.require(registers <= gpu.registers_per_thread, "sums and fragments fit in a thread's registers")
    # The compiler manages with one set of fragments if it must; one measured winner needs exactly that.
    least = s.derive("least_registers", sums + (tm + tn) * max(1, a.bytes // 4) + _LEAST_RESERVED)
    s.require(least * threads * min_blocks <= gpu.registers_per_sm, "so many blocks' registers fit")

    group, copy = _inner_loop(s, gemm, gpu, bk, split_u)
    unrolled = Expr("knob", (), "UNROLL") * group * tm * tn
    s.require(unrolled <= _MOST_UNROLLED, "the unrolled loop fits in the instruction cache")
    held = (bm + bn) * bk * a.bytes <= 4 * threads * (gpu.registers_per_thread - least)
    s.require(implies(copy == "registers", held), "a thread's share of the next tiles fits in registers")
    stages = s.knob("STAGES", [1, 2, 3, 4, 5])
    s.require(implies(copy == "async", stages >= 2), "copies need a buffer to fly to")
    s.require(implies(copy == "registers", stages <= 2), "loads through registers run one step ahead")
    pad = s.knob("PAD", [0, WIDEST // a.bytes])
    # An upper bound for tiles with K innermost or outermost.
    shared = s.derive("shared_bytes", ((bm + bn) * (bk + pad) + 2 * pad * bk) * a.bytes * stages)
    s.require(shared <= gpu.shared_per_block, "tiles fit in shared memory")
    for side, rows, tile in (("A", bm, tm), ("B", bn, tn)):
        _operand(s, gemm, side, rows, tile, bk, group, copy, pad)
        loads = rows * bk <= _MOST_LOADS * Expr("knob", (), f"LOAD_{side}") * threads
        s.require(loads, f"a thread's share of a tile of {side} is a few loads")
    _result(s, gemm, gpu, bm, bn, tm, split_u)
    share_of_blocks(s, gemm, gpu, bk, min_blocks, _fixups(gemm, gpu), splits_of_k(gemm, gpu))
    return s


def _inner_loop(s: Space, gemm: Gemm, gpu: Gpu, bk: Expr, split_u: Expr) -> tuple[Expr, Expr]:
    """How a thread traverses a tile, and how tiles are loaded."""
    inner_a, inner_b = s.knob("INNER_A", ["k", "row"]), s.knob("INNER_B", ["k", "row"])
    copy = s.knob("COPY", ["async", "registers"] if gpu.has("cp_async") else ["registers"])
    prefetch = s.knob("REG_PREFETCH", [False, True])
    unroll = s.knob("UNROLL", [1, 2, 4, 8, 16])
    any_inner = (inner_a == "k") | (inner_b == "k")
    widest = WIDEST // dtype(gemm.a).bytes
    group = s.derive("group_k", where(any_inner, minimum(widest, bk // split_u), 1))
    s.require(divides(split_u * group, bk), "the groups of steps divide BK")
    s.require(unroll * group * split_u <= bk, "the unrolled loop is no longer than the tile")
    s.require(implies(prefetch, unroll > 1), "fragments alternate in an unrolled loop")
    s.knob("LOAD_CONTINUOUS", [True, False])
    return group, copy


def _operand(
    s: Space, gemm: Gemm, side: str, rows: Expr, tile: Expr, bk: Expr, group: Expr, copy: Expr, pad: Expr
) -> None:
    """How A or B is loaded, and which of its rows a thread owns."""
    size = dtype(gemm.a).bytes
    inner = Expr("knob", (), f"INNER_{side}")
    widths = load_widths(gemm, side)
    load = s.knob(f"LOAD_{side}", widths)
    run = s.knob(f"THREAD_SCATTER_{side}", [1, 2, 4])
    spread = s.knob(f"WARP_SCATTER_{side}", ["thread", "tile"])
    s.require(divides(run, tile), f"scatter widths of {side} divide the thread's tile")
    s.require(implies(run == tile, spread == "thread"), f"a run of {side} that is the whole tile is told one way")
    along_k = gemm.layout[0] == "n" if side == "A" else gemm.layout[1] == "t"
    s.require(divides(load, bk if along_k else rows), f"loads divide a line of the tile of {side}")
    transposed = inner != ("k" if along_k else "row")
    s.require(implies((copy == "async") & transposed, (load == 1) & (size >= 4)), f"copies cannot turn {side}")
    s.require(implies(copy == "async", load * size >= 4), f"copies of {side} move at least 4 bytes")
    s.require(implies(copy == "registers", load * 2 >= widths[-1]), f"loads of {side} are not narrow without need")
    s.require(implies(inner == "row", run * size <= WIDEST), f"a fragment of {side} is one load wide")
    s.require(implies(inner == "k", divides(group, pad)), f"lines of {side} are aligned")


def _result(s: Space, gemm: Gemm, gpu: Gpu, bm: Expr, bn: Expr, tm: Expr, split_u: Expr) -> None:
    """How sums are moved from registers to memory."""
    run = Expr("knob", (), "THREAD_SCATTER_B")
    stage_rows = s.knob("STAGE_ROWS", [0, 1, 2, 4, 8, 16])
    continuous = s.knob("REDUCE_CONTINUOUS", [True, False])
    store = s.knob("STORE", store_widths(gemm))
    s.require(implies(split_u > 1, stage_rows > 0), "groups are added up through shared memory")
    s.require(implies(stage_rows > 0, divides(stage_rows, tm)), "passes divide the thread's rows")
    s.require(implies(stage_rows == 0, continuous), "the order of the sums matters only in shared memory")
    s.require(implies(stage_rows == 0, divides(store, run)), "a store takes neighbours of one thread")
    if gemm.dtypes[3].bytes > 4:
        wide = implies(stage_rows > 0, run * gemm.dtypes[3].bytes <= WIDEST)
        s.require(wide, "a thread's neighbours go to shared memory in one store")
    passes = split_u * (bm // tm) * stage_rows * (bn + gpu.warp) * gemm.dtypes[3].bytes
    s.require(passes <= gpu.shared_per_block, "sums on their way fit in shared memory")


def tile_sizes(size: int) -> list[int]:
    """Sizes below twice the extent: in larger tiles most of the tile would be idle."""
    small = [8] if size <= 16 else []
    return small + [t for t in (16, 32, 48, 64, 96, 128, 192, 256) if t < 2 * size or t == 16]


def least_tile(gemm: Gemm) -> int:
    """Elements of a tile where there are many."""
    return least_area(1024, tile_sizes(gemm.m), tile_sizes(gemm.n))


@lru_cache(8)
def load_widths(gemm: Gemm, side: str) -> list[int]:
    """A load must not cross the end of a line in memory, and lines must start aligned."""
    if side == "B" and isinstance(gemm, GatheredGemm):
        return [w for w in (1, 2, 4) if gemm.gathered_run % w == 0]
    scalars = gemm.scalars()
    line = int(scalars["lda" if side == "A" else "ldb"])
    stride = int(scalars["stride_a" if side == "A" else "stride_b"]) if gemm.batch > 1 else line
    most = WIDEST // dtype(gemm.a).bytes
    return [w for w in (1, 2, 4, 8, 16) if w <= most and line % w == 0 and stride % w == 0]


@lru_cache(8)
def store_widths(gemm: Gemm) -> list[int]:
    most = WIDEST // max(dtype(gemm.c).bytes, dtype(gemm.acc).bytes)
    return [w for w in (1, 2, 4) if w <= most and gemm.n % w == 0]


def _fixups(gemm: Gemm, gpu: Gpu) -> list[str]:
    """K is divided if the tiles alone would not fill the chip several times."""
    if isinstance(gemm, BandedGemm):  # only what is stored by itself knows its place
        return ["none"]
    few = ceil(gemm.m / 64) * ceil(gemm.n / 64) * gemm.batch < 16 * gpu.multiprocessors
    deep = gemm.k >= 2 * _LEAST_SLICE
    return ["none", *(["stream"] if deep else []), *(["step", "last"] if few and deep else [])]


@lru_cache(8)
def splits_of_k(gemm: Gemm, gpu: Gpu) -> list[int]:
    most = max(2, min(gemm.k // _LEAST_SLICE, 2 * gpu.multiprocessors))
    return [n for n in (2, 3, 4, 5, 6, 7, 8, 11, 14, 16, 22, 29, 32, 33, 44, 66, 88, 132) if n <= most]
