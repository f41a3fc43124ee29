"""Dot products: instructions that add several products of small numbers to each lane of a vector.

A new one is an entry of this table, and the test of the table covers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# With this macro an instruction is done one product after the other: for machines that lack it.
EMULATED = "DEEPGEN_EMULATED"


@dataclass(frozen=True)
class Dot:
    """sums[j] += the sum of left[k] * right[j * depth + k] over k < depth, for j < lanes.

    So left lies along k, and right lies along k, then along j. `text` is the result as an expression of C over `sums`,
    a vector; `left`, an i32 with all of left; and `right`, a pointer.
    """

    name: str
    features: tuple[str, ...]  # of a target, all of which are needed
    left: str
    right: str
    result: str
    lanes: int
    depth: int
    header: str
    text: str

    @property
    def whole(self) -> int:
        """How many steps along what is summed over it takes at once."""
        return self.depth

    @property
    def vector(self) -> str:
        return f"{self.result}x{self.lanes}"


_ARM = "arm_neon.h"
_X86 = "immintrin.h"


def _signed(bits: int, dp: str) -> str:
    """Left is made unsigned by adding 128 to it; what that adds to the sums is taken off again."""
    half = f"_mm{bits}_set1_epi32((i32)0x80808080u)"
    load = f"_mm{bits}_loadu_si{bits}((const void *)right)"
    whole = f"_mm{bits}_{dp}((__m{bits}i)sums, _mm{bits}_xor_si{bits}(_mm{bits}_set1_epi32(left), {half}), {load})"
    return f"_mm{bits}_sub_epi32({whole}, _mm{bits}_{dp}(_mm{bits}_setzero_si{bits}(), {half}, {load}))"


def _unsigned(bits: int, dp: str) -> str:
    load = f"_mm{bits}_loadu_si{bits}((const void *)right)"
    return f"_mm{bits}_{dp}((__m{bits}i)sums, _mm{bits}_set1_epi32(left), {load})"


_ALL = (
    Dot("arm_sdot", ("asimddp",), "i8", "i8", "i32", 4, 4, _ARM,
        "vdotq_s32((int32x4_t)sums, vld1q_s8(right), vreinterpretq_s8_s32(vdupq_n_s32(left)))"),
    Dot("arm_udot", ("asimddp",), "u8", "u8", "i32", 4, 4, _ARM,
        "vdotq_u32((uint32x4_t)sums, vld1q_u8(right), vreinterpretq_u8_s32(vdupq_n_s32(left)))"),
    Dot("arm_usdot", ("i8mm",), "u8", "i8", "i32", 4, 4, _ARM,
        "vusdotq_s32((int32x4_t)sums, vreinterpretq_u8_s32(vdupq_n_s32(left)), vld1q_s8(right))"),
    Dot("arm_bfdot", ("bf16",), "bf16", "bf16", "f32", 4, 2, _ARM,
        "vbfdotq_f32((float32x4_t)sums, (bfloat16x8_t)vld1q_u16(right), (bfloat16x8_t)vdupq_n_s32(left))"),
    Dot("x86_dpbusd_512", ("avx512_vnni",), "u8", "i8", "i32", 16, 4, _X86, _unsigned(512, "dpbusd_epi32")),
    Dot("x86_dpbssd_512", ("avx512_vnni",), "i8", "i8", "i32", 16, 4, _X86, _signed(512, "dpbusd_epi32")),
    Dot("x86_dpbusd_256", ("avx_vnni",), "u8", "i8", "i32", 8, 4, _X86, _unsigned(256, "dpbusd_avx_epi32")),
    Dot("x86_dpbssd_256", ("avx_vnni",), "i8", "i8", "i32", 8, 4, _X86, _signed(256, "dpbusd_avx_epi32")),
    Dot("x86_dpbf16_512", ("avx512_bf16",), "bf16", "bf16", "f32", 16, 2, _X86,
        "_mm512_dpbf16_ps((__m512)sums, (__m512bh)_mm512_set1_epi32(left), "
        "(__m512bh)_mm512_loadu_si512((const void *)right))"),
)  # fmt: skip
DOTS: Mapping[str, Dot] = {dot.name: dot for dot in _ALL}


def function(dot: Dot) -> str:
    """The C function of a dot product, by the instruction or, where that is asked for, without it."""
    wide = {"bf16": "widen_bf16"}
    product = " * ".join(
        f"{wide.get(kind, f'({dot.result})')}({place})"
        for kind, place in ((dot.left, "factors[k]"), (dot.right, f"right[j * {dot.depth} + k]"))
    )
    parameters = f"{dot.vector} sums, const {dot.left} *factors, const {dot.right} *right"
    return f"""static inline {dot.vector} {dot.name}({parameters}) {{
#ifdef {EMULATED}
    for (int j = 0; j < {dot.lanes}; j++)
        for (int k = 0; k < {dot.depth}; k++) sums[j] += {product};
    return sums;
#else
    i32 left;
    memcpy(&left, factors, sizeof left);
    return ({dot.vector}){dot.text};
#endif
}}
"""


def include(dot: Dot) -> str:
    return f"#ifndef {EMULATED}\n#include <{dot.header}>\n#endif"
