"""Matrix instructions of a warp, as data: dtypes, sizes, and the instruction's name.

To add one, add an entry to the table; the table's tests cover it. Instructions differ in how lanes hold
sums (`Fragment`), and in how they load operands:

- NVIDIA's matrices are 16 rows of 32 bytes of the first operand and 8 rows of 32 bytes of the second one, along the
  reduced dimension, and a warp loads them together. Four warps may multiply larger ones at once: each has its own 16
  rows, and all share the same columns, up to 256, which the matrix units read directly from shared memory; they read
  rows from there too, if these are stored in lines.
- Elsewhere a lane loads its own elements: those of one row (or column), `run` of them along the reduced dimension.

An entry describes one instruction completely: `text` is how CUDA and HIP call it (with `matrices.h`). How products of
four warps are waited for and fenced is in `WARPGROUP`. Passes and rules use these properties, never the name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from deepgen.operators.expr.index import Index
from deepgen.targets import Cuda, Gpu
from deepgen.vocabulary import dtype

LINE_BYTES = 128  # of shared memory, as read by products of four warps


@dataclass(frozen=True)
class Signal:
    """Synchronization of asynchronous copies and products; a wait has the number of groups that may still be
    running."""

    start: str
    pending: int | None = None

    @property
    def name(self) -> str:
        return self.start if self.pending is None else f"{self.start}<{self.pending}>"


@dataclass(frozen=True)
class Alone:
    """Asynchronous products, which read operands directly from shared memory: the calls around them, and how operands
    are laid out. Chips with such products let a launch begin while the one before still runs."""

    begin: Signal = Signal("products_begin")  # earlier writes to registers become visible
    commit: Signal = Signal("products_commit")  # products since the last commit become a group
    wait: str = "products_wait"  # until no more than this many groups run
    ready: Signal = Signal("writes_ready")  # threads' writes to shared memory become visible
    align: int = 1024  # bytes: eight lines, which are swizzled by their number
    lines: int = 8
    swizzle: int = 3

    def waits(self, pending: int = 0) -> Signal:
        return Signal(self.wait, pending)


@dataclass(frozen=True)
class MatrixLoad:
    """A load by several lanes together. `source` gives where a byte of a lane comes from: the index of the place, the
    lane whose address is used, and the byte there."""

    name: str
    lanes: int
    words: int
    source: Callable[[int, int], tuple[int, int, int]] = field(compare=False)


# Loads by a warp.
LOAD = MatrixLoad("load_matrices", 32, 4, lambda lane, byte: (0, byte // 4 * 8 + lane // 4, lane % 4 * 4 + byte % 4))
LOAD_TRANSPOSED = MatrixLoad(
    "load_matrices_turned",
    32,
    4,
    lambda lane, byte: (0, byte // 4 * 8 + lane % 4 * 2 + byte % 4 // 2, lane // 4 * 2 + byte % 2),
)


def load_own(words: int) -> MatrixLoad:
    """A load by each lane, from one place."""
    return MatrixLoad(f"load_own<{words}>", 1, words, lambda lane, byte: (0, lane, byte))


def load_each(of: str, places: int) -> MatrixLoad:
    """A load by each lane, of one element from each of this many places."""
    size = dtype(of).bytes
    return MatrixLoad(f"load_each<{of}>", 1, places * size // 4, lambda lane, byte: (byte // size, lane, byte % size))


@dataclass(frozen=True)
class Fragment:
    """Which sums of a product a lane holds: rows are `halves` times `rows`, columns `groups` times `quads` times `run`.

    A lane holds one of `rows` and one of `quads`; if `across`, neighbouring lanes differ in the former.
    """

    halves: int
    rows: int
    groups: int
    quads: int
    run: int
    across: bool = False

    @property
    def lanes(self) -> int:
        return self.rows * self.quads

    @property
    def sums(self) -> int:
        """The number of sums that a lane holds."""
        return self.halves * self.groups * self.run

    @property
    def splits(self) -> tuple[int, ...]:
        """Factors by which columns are split: into neighbours in a lane and, if a lane has several groups of these,
        across lanes."""
        return (self.quads, self.run) if self.groups > 1 else (self.run,)

    def held(self, flat: Index) -> tuple[Index, Index]:
        """The index in its lane of an element of a matrix, and the lane. `flat` is row-major."""
        columns = self.groups * self.quads * self.run
        half = self.rows * columns
        number = flat // half * (self.groups * self.run)
        if not self.across:
            assert self.groups == 1, "lanes of a row follow each other"
            return number + flat % self.run, flat % half // self.run
        column = flat % columns
        number = number + column // (self.quads * self.run) * self.run + column % self.run
        return number, column // self.run % self.quads * self.rows + flat // columns % self.rows


@dataclass(frozen=True)
class MatrixProduct:
    """`instruction` is its name in PTX or in the compiler for AMD's chips; if `warps` execute it together, `{n}` in it
    stands for their columns. `sm` is the least compute capability that has it, `arches` are the AMD chips that have
    it."""

    name: str
    operand: str
    sum: str
    m: int
    n: int
    k: int
    instruction: str
    fragment: Fragment
    sm: int = 0
    arches: tuple[str, ...] = ()
    warps: int = 1
    share: tuple[float, float] = (1.0, 1.0)  # of Hopper's peak; the second if it is waited for one iteration late

    @property
    def lanes(self) -> int:
        return self.fragment.lanes

    @property
    def own(self) -> bool:
        """Whether each lane loads its own elements."""
        return bool(self.arches)

    @property
    def run(self) -> int:
        """Elements along the reduced dimension that are loaded at once: 16 bytes, or a lane's part of a row."""
        return self.k * self.m // self.lanes if self.own else self.k // 2

    @property
    def step_bytes(self) -> int:
        return self.k * dtype(self.operand).bytes

    @property
    def line(self) -> int:
        """Elements per line of shared memory."""
        return LINE_BYTES // dtype(self.operand).bytes

    def words(self, rows: int) -> int:
        """Words that a lane holds of an operand with this many rows or columns."""
        return rows * self.step_bytes // self.lanes // 4

    @property
    def transposes(self) -> bool:
        """Whether operands may be contiguous along rows or columns: elements are then transposed while they are
        loaded."""
        return dtype(self.operand).bytes == 2 or self.run == 1

    def operand_at(self, row: int, step: int, *, is_first: bool) -> tuple[int, int]:
        """The lane that holds an element of an operand, and the element's index in that lane."""
        if self.own:
            return step // self.run * (self.m if is_first else self.n) + row, step % self.run
        each = 4 // dtype(self.operand).bytes
        word = step // each
        number = row // 8 + word // 4 * 2 if is_first else word // 4
        return row % 8 * 4 + word % 4, number * each + step % each

    def sum_at(self, row: int, column: int) -> tuple[int, int]:
        """The same for sums."""
        number, lane = self.fragment.held(Index((), row * self.n + column))
        return lane.constant, number.constant

    def share_of_peak(self, arch: str, late: bool) -> float:
        """The share of the matrix units' peak that it reaches."""
        return self.share[late] if arch.startswith("sm_90") else 1.0

    def on(self, gpu: Gpu) -> bool:
        """Whether a chip has it. Only Hopper has products of four warps: later chips dropped them."""
        if not isinstance(gpu, Cuda):
            return gpu.arch in self.arches and gpu.warp % self.lanes == 0
        return not self.own and gpu.sm >= self.sm and (self.warps == 1 or gpu.arch == "sm_90a")

    @property
    def text(self) -> str:
        """The definition of the function that kernels call: `name(sums, rows, columns)`."""
        formats = f"{self.name}, {self.sum}, {self.operand}"
        if not self.own:
            return f'DG_PRODUCT({formats}, {self.k}, "{self.instruction}")'
        if self.lanes == 1:
            return f"DG_DOT({formats}, {self.k})"
        return f"DG_MFMA({formats}, {self.m}, {self.k}, {self.instruction})"


WARPGROUP = Alone()
_PAIRS = Fragment(halves=2, rows=8, groups=1, quads=4, run=2)
_FOURS = Fragment(halves=1, rows=16, groups=1, quads=4, run=4, across=True)
_ONE = Fragment(halves=1, rows=1, groups=1, quads=1, run=1)
_CDNA = ("gfx908", "gfx90a", "gfx942")
_WITHOUT = ("gfx906", "gfx1030", "gfx1100")  # supported chips without matrix units


def _nvidia(name: str, operand: str, sums: str, k: int, instruction: str) -> MatrixProduct:
    return MatrixProduct(name, operand, sums, 16, 8, k, instruction, _PAIRS, sm=80, share=(0.45, 0.45))


def _hopper(name: str, operand: str, sums: str, k: int, instruction: str) -> MatrixProduct:
    one = _nvidia(name, operand, sums, k, f"wgmma.mma_async.sync.aligned.{instruction}")
    return replace(one, sm=90, warps=4, share=(0.62, 1.0))


def _amd(name: str, operand: str, sums: str, k: int, instruction: str, arches: tuple[str, ...]) -> MatrixProduct:
    return MatrixProduct(name, operand, sums, 16, 16, k, instruction, _FOURS, arches=arches)


_ALL = (
    _nvidia("mma_f16", "f16", "f32", 16, "m16n8k16.row.col.f32.f16.f16.f32"),
    _nvidia("mma_bf16", "bf16", "f32", 16, "m16n8k16.row.col.f32.bf16.bf16.f32"),
    _nvidia("mma_i8", "i8", "i32", 32, "m16n8k32.row.col.s32.s8.s8.s32"),
    _hopper("wgmma_f16", "f16", "f32", 16, "m64n{n}k16.f32.f16.f16"),
    _hopper("wgmma_bf16", "bf16", "f32", 16, "m64n{n}k16.f32.bf16.bf16"),
    _hopper("wgmma_i8", "i8", "i32", 32, "m64n{n}k32.s32.s8.s8"),
    _amd("mfma_f16", "f16", "f32", 16, "mfma_f32_16x16x16f16", _CDNA),
    _amd("mfma_bf16", "bf16", "f32", 16, "mfma_f32_16x16x16bf16_1k", _CDNA[1:]),
    _amd("mfma_bf16_short", "bf16", "f32", 8, "mfma_f32_16x16x8bf16", _CDNA[:1]),
    _amd("mfma_i8", "i8", "i32", 16, "mfma_i32_16x16x16i8", _CDNA[:2]),
    _amd("mfma_i8_long", "i8", "i32", 32, "mfma_i32_16x16x32_i8", _CDNA[2:]),
    _amd("mfma_f32", "f32", "f32", 4, "mfma_f32_16x16x4f32", _CDNA),
    # A lane's own sum: dot products on chips without matrix units.
    MatrixProduct("dot_f16", "f16", "f32", 1, 1, 2, "fdot2", _ONE, arches=_WITHOUT),
    MatrixProduct("dot_i8", "i8", "i32", 1, 1, 4, "sdot4", _ONE, arches=_WITHOUT),
)  # fmt: skip
PRODUCTS = {one.name: one for one in _ALL}


@dataclass(frozen=True)
class WideProduct:
    """A product of four warps: its columns; `leading`, the bytes between blocks of 64 columns if columns are contiguous
    in shared memory, or 0 if the reduced dimension is; and `apart`, the bytes between groups of eight rows if these are
    read from shared memory too, or 0 if they are in registers."""

    intrinsic: MatrixProduct
    columns: int
    leading: int
    apart: int = 0

    def row_place(self, row: int, k: int) -> int:
        """The offset of an element of the first operand from its first one, in elements."""
        return row // 8 * (self.apart // self._bytes) + row % 8 * self.intrinsic.line + k

    def column_place(self, column: int, k: int) -> int:
        """The same for the second operand."""
        if not self.leading:
            return column * self.intrinsic.line + k
        block, inside = divmod(column, self.intrinsic.line)
        return block * (self.leading // self._bytes) + k * self.intrinsic.line + inside

    @property
    def _bytes(self) -> int:
        return dtype(self.intrinsic.operand).bytes

    @property
    def name(self) -> str:
        rows = f"_{self.apart}" if self.apart else ""
        return f"{self.intrinsic.name}_{self.columns}_{self.leading}{rows}"

    @property
    def text(self) -> str:
        """The definition, as for other products: columns are a place in shared memory; rows are one too, or are in
        registers."""
        count, kind, sum_ = self.columns // 2, self.intrinsic.operand, self.intrinsic.sum
        whole = sum_ == "i32"
        sums = ", ".join(f"%{n}" for n in range(count))
        outputs = ", ".join(f'"+{"r" if whole else "f"}"(d[{n}])' for n in range(count))
        instruction = self.intrinsic.instruction.format(n=self.columns)
        sizes = f"{kind}, {self.columns}, {self.leading}"
        if self.apart:
            rows, second, transposed = f"%{count}", count + 1, "0, "
            inputs = f'"l"(in_lines(a, 16, {self.apart}))'
            head, emulated = "u32 a", f"multiply_lines<{sizes}, {self.apart}>"
        else:
            rows, second, transposed = f"{{{', '.join(f'%{count + n}' for n in range(4))}}}", count + 4, ""
            inputs = ", ".join(f'"r"(a[{n}])' for n in range(4))
            head, emulated = "const u32* a", f"multiply_wide<{sizes}>"
        # Integer operands can be neither negated nor transposed.
        modes = "add" if whole else f"add, 1, 1, {transposed}{int(self.leading > 0)}"
        head = f"DG_DEVICE void {self.name}({sum_}* d, {head}, u32 b) {{"
        lines = [
            "#if defined(DG_EMULATE)",
            f"{head} emulate::{emulated}(d, a, b); }}",
            "#else",
            head,
            '    asm volatile("{\\n.reg .pred add;\\nsetp.ne.b32 add, 1, 0;\\n"',
            f'                 "{instruction} {{{sums}}}, {rows}, %{second}, {modes};\\n}}"',
            f"                 : {outputs}",
            f'                 : {inputs}, "l"(in_lines(b, {self.leading or 16}, {WARPGROUP.align})));',
            "}",
            "#endif",
        ]
        return "\n".join(lines)
