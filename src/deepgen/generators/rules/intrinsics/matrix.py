"""Products of small matrices by a warp, as data: formats, sizes, and the instruction's own name.

All of them have NVIDIA's fragments: 16 rows of 32 bytes of the first matrix, 8 rows of 32 bytes of the second, along
what is summed over. A lane holds four sums, of rows `lane / 4` and 8 below it, of columns `lane % 4 * 2` and the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepgen.vocabulary import BadInput

LANES = 32
SUMS = 4  # that a lane holds of one product


@dataclass(frozen=True)
class MatrixProduct:
    """`instruction` is what PTX calls it."""

    name: str
    operand: str
    sum: str
    m: int
    n: int
    k: int
    instruction: str
    sm: int  # the least compute capability that has it

    @property
    def run(self) -> int:
        """Elements of 16 bytes: a row of the matrices that are loaded at once."""
        return self.k // 2

    def share_of_peak(self, arch: str) -> float:
        """What it comes to of the matrix units' rate: Hopper's are only full with products of four warps."""
        return 0.62 if arch.startswith("sm_90") else 1.0


_ALL = (
    MatrixProduct("mma_f16", "f16", "f32", 16, 8, 16, "m16n8k16.row.col.f32.f16.f16.f32", 80),
    MatrixProduct("mma_bf16", "bf16", "f32", 16, 8, 16, "m16n8k16.row.col.f32.bf16.bf16.f32", 80),
    MatrixProduct("mma_i8", "i8", "i32", 16, 8, 32, "m16n8k32.row.col.s32.s8.s8.s32", 80),
)
PRODUCTS = {one.name: one for one in _ALL}


def matrix_product(name: str) -> MatrixProduct:
    if name not in PRODUCTS:
        raise BadInput(f"there is no intrinsic {name!r}", allowed=", ".join(PRODUCTS))
    return PRODUCTS[name]
