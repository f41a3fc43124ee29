"""Dot products: instructions that add several products of small numbers to each lane of a vector.

To add one, add an entry to this table; the table's tests cover it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

# With this macro defined, an instruction is emulated one product at a time, for machines that lack it.
EMULATED = "DEEPGEN_EMULATED"
_HALF = 128  # offset that makes signed bytes unsigned


@dataclass(frozen=True)
class Dot:
    """sums[j] += the sum of left[k] * right[j * depth + k] over k < depth, for j < lanes; or, with `each`, of left[j *
    depth + k] * right[j * depth + k].

    So left is contiguous along k, and right along k, then along j; with `each` both are. `text` is the result as a C
    expression over the vectors `sums`, `left` and `right`. `loaded` is how left and right are read from a pointer, and
    `spread` is a left vector that repeats `group`, an i32 that holds all of left.

    If an instruction adds too much, `excess` is what it adds to `sums` beyond the products, which depends on right
    only, and `over` is the result that still includes it.
    """

    name: str
    features: tuple[str, ...]  # of a target, all of which are needed
    left: str
    right: str
    result: str
    lanes: int
    depth: int
    header: str
    spread: str
    loaded: tuple[str, str]
    text: str
    over: str = ""
    excess: str = ""
    each: bool = False

    @property
    def whole(self) -> int:
        """How many steps along the reduced dimension it takes at once."""
        return self.depth * self.lanes if self.each else self.depth

    @property
    def vector(self) -> str:
        return f"{self.result}x{self.lanes}"


def _arm(name: str, feature: str, left: str, right: str, result: str, text: str) -> Dot:
    of = {"i8": ("int8x16_t", "vld1q_s8({})"), "u8": ("uint8x16_t", "vld1q_u8({})")}
    of["bf16"] = ("bfloat16x8_t", "(bfloat16x8_t)vld1q_u16({})")
    spread = f"({of[left][0]})vdupq_n_s32(group)"
    depth = 2 if left == "bf16" else 4
    loaded = (of[left][1], of[right][1])
    return Dot(name, (feature,), left, right, result, 4, depth, "arm_neon.h", spread, loaded, text)


def _x86(name: str, feature: str, left: str, right: str, result: str, bits: int, text: str) -> Dot:
    load, spread = f"_mm{bits}_loadu_si{bits}((const void *){{}})", f"_mm{bits}_set1_epi32(group)"
    depth = 2 if left == "bf16" else 4
    both = (load, load)
    return Dot(name, (feature,), left, right, result, bits // 32, depth, "immintrin.h", spread, both, text)


def _signed(name: str, feature: str, bits: int, dp: str) -> Dot:
    """Left is made unsigned by adding 128; what that adds to the sums is subtracted again."""
    half = f"_mm{bits}_set1_epi32((i32)0x80808080u)"
    over = f"_mm{bits}_{dp}((__m{bits}i)sums, _mm{bits}_xor_si{bits}(left, {half}), right)"
    text = f"_mm{bits}_sub_epi32({over}, _mm{bits}_{dp}(_mm{bits}_setzero_si{bits}(), {half}, right))"
    excess = f"_mm{bits}_{dp}((__m{bits}i)sums, {half}, right)"
    return replace(_x86(name, feature, "i8", "i8", "i32", bits, text), over=over, excess=excess)


def _unsigned(bits: int, dp: str) -> str:
    return f"_mm{bits}_{dp}((__m{bits}i)sums, left, right)"


_GROUPED = (
    _arm("arm_sdot", "asimddp", "i8", "i8", "i32", "vdotq_s32((int32x4_t)sums, left, right)"),
    _arm("arm_udot", "asimddp", "u8", "u8", "i32", "vdotq_u32((uint32x4_t)sums, left, right)"),
    _arm("arm_usdot", "i8mm", "u8", "i8", "i32", "vusdotq_s32((int32x4_t)sums, left, right)"),
    _arm("arm_bfdot", "bf16", "bf16", "bf16", "f32", "vbfdotq_f32((float32x4_t)sums, left, right)"),
    _x86("x86_dpbusd_512", "avx512_vnni", "u8", "i8", "i32", 512, _unsigned(512, "dpbusd_epi32")),
    _signed("x86_dpbssd_512", "avx512_vnni", 512, "dpbusd_epi32"),
    _x86("x86_dpbusd_256", "avx_vnni", "u8", "i8", "i32", 256, _unsigned(256, "dpbusd_avx_epi32")),
    _signed("x86_dpbssd_256", "avx_vnni", 256, "dpbusd_avx_epi32"),
    _x86("x86_dpbf16_512", "avx512_bf16", "bf16", "bf16", "f32", 512,
         "_mm512_dpbf16_ps((__m512)sums, (__m512bh)left, (__m512bh)right)"),
)  # fmt: skip
_EACH = tuple(replace(dot, name=f"{dot.name}_each", over="", excess="", each=True) for dot in _GROUPED)
DOTS: Mapping[str, Dot] = {dot.name: dot for dot in (*_GROUPED, *_EACH)}


def function(dot: Dot) -> str:
    """The C function of a dot product: by the instruction or, with the macro, emulated."""
    wide = {"bf16": "widen_bf16"}
    place = f"j * {dot.depth} + k"
    product = " * ".join(
        f"{wide.get(kind, f'({dot.result})')}({at})"
        for kind, at in ((dot.left, f"factors[{place if dot.each else 'k'}]"), (dot.right, f"others[{place}]"))
    )
    left = dot.loaded[0].format("factors") if dot.each else dot.spread
    group = "" if dot.each else "    i32 group;\n    memcpy(&group, factors, sizeof group);\n"
    parameters = f"{dot.vector} sums, const {dot.left} *factors, const {dot.right} *others"
    return f"""static inline {dot.vector} {dot.name}({parameters}) {{
#ifdef {EMULATED}
    for (int j = 0; j < {dot.lanes}; j++)
        for (int k = 0; k < {dot.depth}; k++) sums[j] += {product};
    return sums;
#else
{group}    __auto_type left = {left};
    __auto_type right = {dot.loaded[1].format("others")};
    return ({dot.vector}){dot.text};
#endif
}}
"""


def functions_with_excess(dot: Dot) -> str:
    """The function of a dot product that leaves its excess in the sums, and one that sums up the excess alone."""
    factor = f"({dot.result})(factors[k] + {_HALF})"
    over = replace(dot, name=f"{dot.name}_over", text=dot.over)
    text = function(over).replace(f"({dot.result})(factors[k])", factor)
    return f"""{text}
static inline {dot.vector} {dot.name}_excess({dot.vector} sums, const {dot.right} *others) {{
#ifdef {EMULATED}
    for (int j = 0; j < {dot.lanes}; j++)
        for (int k = 0; k < {dot.depth}; k++) sums[j] += {_HALF} * others[j * {dot.depth} + k];
    return sums;
#else
    __auto_type right = {dot.loaded[1].format("others")};
    return ({dot.vector}){dot.excess};
#endif
}}
"""


def include(dot: Dot) -> str:
    return f"#ifndef {EMULATED}\n#include <{dot.header}>\n#endif"
