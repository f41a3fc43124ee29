"""Products of small matrices by a warp, as data: formats, sizes, and the instruction's own name.

All of them have NVIDIA's fragments: 16 rows of 32 bytes of the first matrix, 8 rows of 32 bytes of the second, along
what is summed over. A lane holds four sums, of rows `lane / 4` and 8 below it, of columns `lane % 4 * 2` and the next.
Four warps may do more at once: each has its own 16 rows, and all have the same columns, up to 256, which the matrix
units read from shared memory themselves; rows too, where they lie there in lines.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepgen.vocabulary import BadInput

LANES = 32
SUMS = 4  # that a lane holds of one product


@dataclass(frozen=True)
class MatrixProduct:
    """`instruction` is what PTX calls it; where `warps` do it together, `{n}` in it are their columns."""

    name: str
    operand: str
    sum: str
    m: int
    n: int
    k: int
    instruction: str
    sm: int  # the least compute capability that has it
    warps: int = 1

    @property
    def run(self) -> int:
        """Elements of 16 bytes: a row of the matrices that are loaded at once."""
        return self.k // 2

    def share_of_peak(self, arch: str, late: bool) -> float:
        """What it comes to of the matrix units' rate: Hopper's are only full with products of four warps, and where
        these are `late` to be waited for."""
        if not arch.startswith("sm_90"):
            return 1.0
        return 0.45 if self.warps == 1 else 1.0 if late else 0.62

    def on(self, arch: str, sm: int) -> bool:
        """Whether a chip has it. Products of four warps are Hopper's own: other chips dropped them."""
        return sm >= self.sm and (self.warps == 1 or arch == "sm_90a")


_ALL = (
    MatrixProduct("mma_f16", "f16", "f32", 16, 8, 16, "m16n8k16.row.col.f32.f16.f16.f32", 80),
    MatrixProduct("mma_bf16", "bf16", "f32", 16, 8, 16, "m16n8k16.row.col.f32.bf16.bf16.f32", 80),
    MatrixProduct("wgmma_f16", "f16", "f32", 16, 8, 16, "m64n{n}k16.f32.f16.f16", 90, warps=4),
    MatrixProduct("wgmma_bf16", "bf16", "f32", 16, 8, 16, "m64n{n}k16.f32.bf16.bf16", 90, warps=4),
    MatrixProduct("mma_i8", "i8", "i32", 16, 8, 32, "m16n8k32.row.col.s32.s8.s8.s32", 80),
)
PRODUCTS = {one.name: one for one in _ALL}


def matrix_product(name: str) -> MatrixProduct:
    if name not in PRODUCTS:
        raise BadInput(f"there is no intrinsic {name!r}", allowed=", ".join(PRODUCTS))
    return PRODUCTS[name]


@dataclass(frozen=True)
class WideProduct:
    """A product of four warps: its columns, and `leading`, the bytes between blocks of 64 of them where columns are
    neighbours in shared memory; 0 where what is summed over is. `apart` are the bytes between groups of eight rows,
    where these are read from shared memory too; 0 where they are in registers."""

    intrinsic: MatrixProduct
    columns: int
    leading: int
    apart: int = 0

    @property
    def name(self) -> str:
        rows = f"_{self.apart}" if self.apart else ""
        return f"{self.intrinsic.name}_{self.columns}_{self.leading}{rows}"


def wide_product(name: str) -> WideProduct | None:
    """The product that a call of that name is."""
    start, _, rest = name.partition("mma_")
    parts = rest.split("_")
    if start != "wg" or len(parts) not in (3, 4):
        return None
    return WideProduct(matrix_product(f"wgmma_{parts[0]}"), *map(int, parts[1:]))
