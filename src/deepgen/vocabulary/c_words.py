"""Names reserved in C, C++, CUDA or HIP, or taken by their headers: tensors in sources get other names."""

from __future__ import annotations

import re

# Keywords, macros predefined by compilers, and functions that are called by unqualified names.
_WORDS = frozenset(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const const_cast
    consteval constexpr constinit continue decltype default delete do double dynamic_cast else enum explicit export
    extern false float for friend fortran goto if inline int long mutable namespace new noexcept not not_eq nullptr
    operator or or_eq private protected public register reinterpret_cast requires restrict return short signed sizeof
    static static_assert static_cast struct switch template this thread_local throw true try typedef typeid typename
    typeof union unsigned using virtual void volatile wchar_t while xor xor_eq
    arm far hypot i386 linux mips near pascal sparc sun unix vax errno stdin stdout stderr environ assert complex
    imaginary alloca malloc calloc realloc free memcpy memmove memset memcmp abort exit printf
    blockDim blockIdx gridDim threadIdx warpSize clock half nv_bfloat16 dim3
    """.split()  # noqa: SIM905
)
# Macros by their form; types; Arm intrinsics; the f32 functions of <math.h>.
_FORMS = re.compile(
    r"[A-Z][A-Z0-9_]*[A-Z0-9]|(u?int(ptr|max)?|s?size|ptrdiff)_t|(u?int|b?float|poly|u?char|u?short|u?long|double|half)\d\w*"
    r"|(sv|v)[a-z0-9]+_\w*[fsup]\d+\w*"
    r"|(a?(sin|cos|tan)h?|atan2|exp2?|expm1|log(2|10|1p|b)?|erfc?|[lt]gamma|pow|fm(a|ax|in|od)|fabs|fdim|floor|ceil"
    r"|round|rint|nearbyint|trunc|(r|cb)?sqrt|copysign|ldexp|frexp|modf|hypot|isnan|isinf|isfinite|signbit)[fl]?"
)


def is_reserved(name: str) -> bool:
    return name in _WORDS or _FORMS.fullmatch(name) is not None
