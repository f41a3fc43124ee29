"""Flags that came out of a file: which of them a compiler is given.

Compilers have flags that run programs (`-wrapper`, `-B`), load plug-ins, and read or write other files. A kernel that a
generator emits here may have any flag; one that was read from somebody's folder may have those that deepgen's own
generators use and plain ones for optimisation, and no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from deepgen.vocabulary import BadInput, Kernel

_DEFINE = r"-D[A-Za-z_]\w*(=[^\x00-\x1f]*)?"
_MATHS = (
    r"-f(no-)?(fast-math|finite-math-only|math-errno|trapping-math|associative-math|signed-zeros|reciprocal-math"
    r"|rounding-math|unsafe-math-optimizations|strict-aliasing|omit-frame-pointer|unroll-loops|unroll-all-loops"
    r"|peel-loops|vectorize|tree-vectorize|tree-loop-vectorize|slp-vectorize|tree-slp-vectorize|inline-functions"
    r"|inline|schedule-insns2?|prefetch-loop-arrays|ivopts|gcse|openmp-simd|PIC)|-ffp-contract=(fast|on|off)"
)
# Not -mllvm, whose next word is for the optimiser: it loads plug-ins.
_MACHINE = r"-m(?!llvm)(no-)?[a-z0-9][a-z0-9.-]*|-m(arch|cpu|tune|fpu|abi|prefer-vector-width|cmodel)=[\w.+-]+"
_OPTIMISE = r"-O([0-3sgz]|fast)?"
_C = (
    _DEFINE,
    _OPTIMISE,
    _MACHINE,
    _MATHS,
    r"-std=(c|gnu)(\+\+)?[0-9a-z]+",
    "-pthread",
    "-lm",
    "-w",
    "-g0",
    "-fopenmp",
    r"-lstdc\+\+",
)
_HIP = (_DEFINE, _OPTIMISE, _MACHINE, _MATHS, r"-std=(c|gnu)\+\+[0-9a-z]+", r"--gpu-max-threads-per-block=\d+", "-w")
_CUDA = (
    _DEFINE,
    r"--?std=c\+\+[0-9a-z]+",
    r"--?(use_fast_math|extra-device-vectorization|restrict|lineinfo|disable-warnings|default-device)",
    r"--?(fmad|ftz|prec-div|prec-sqrt)=(true|false)",
    r"--?maxrregcount=\d+",
)
_PLAIN: Mapping[str, re.Pattern[str]] = {
    language: re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
    for language, patterns in {"c": _C, "cuda": _CUDA, "hip": _HIP}.items()
}


ALLOWED = "plain flags such as -O3, -mavx2, -ffast-math, -DNAME=1; anything else only from a generator"


def strange_flag(language: str, flags: Iterable[str]) -> str | None:
    """The first flag that is not on the list for the language, if there is one."""
    plain = _PLAIN.get({"c++": "c"}.get(language, language))
    return next((flag for flag in flags if plain is None or not plain.fullmatch(flag)), None)


def require_plain(kernel: Kernel, where: str) -> None:
    """Raises BadInput for a flag that a kernel out of a file may not have."""
    if kernel.language == "triton":
        what = f"its kernel {kernel.name[:60]!r} is in Triton: a program that building it would run"
        raise BadInput(what, where=where, allowed="a kernel that is built already, or one that is tuned here")
    strange = strange_flag(kernel.language, kernel.flags)
    if strange is not None:
        what = f"its kernel {kernel.name[:60]!r} asks the compiler for {strange[:80]!r}"
        raise BadInput(what, where=where, allowed=ALLOWED)
