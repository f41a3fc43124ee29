"""Spelling of the common parts of C, CUDA and HIP: numbers and their types, identifiers, loops."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from math import isinf, isnan

from deepgen.compiler.passes.ir import Buffer
from deepgen.operators.expr.nodes import BOOL, Const
from deepgen.vocabulary import BadInput, dtype
from deepgen.vocabulary.dtypes import EIGHT_BITS, OF_C, STORED
from deepgen.vocabulary.kernel import is_reserved


@dataclass(frozen=True)
class Dialect:
    """What differs between the languages."""

    language: str
    file: str  # the name of a kernel's source
    flags: tuple[str, ...]
    loop: str  # a loop of a variable up to an end
    quotient: str  # a quotient or remainder of non-negative numbers
    pointer: str  # a pointer without aliases, of a type and with a name
    minus: bool = True  # whether a negative multiple is subtracted, which changes what GPU compilers generate
    own: str = ""  # suffix of a kernel's own names, which no name of the language has
    barrier: str = ""
    fence: str = ""  # that loads do not move across
    zero: str = "0"  # in conditions on indices


C = Dialect(
    "c",
    "kernel.c",
    ("-std=gnu11", "-pthread"),
    loop="for (i64 {0} = 0; {0} < {1}; {0}++) {{",
    quotient="(({}) {} {})",
    pointer="{} *restrict {}",
    fence='__asm__ volatile("" ::: "memory");',
    zero="NOUGHT",
)
CUDA = Dialect(
    "cuda",
    "kernel.cu",
    ("-std=c++17",),
    loop="for (int {0} = 0; {0} < {1}; ++{0}) {{",
    quotient="(int)((u32)({}) {} {}u)",
    pointer="{}* __restrict__ {}",
    own="_",
    minus=False,
    barrier="barrier();",
)
HIP = replace(CUDA, language="hip", file="kernel.hip")
GPUS = {dialect.language: dialect for dialect in (CUDA, HIP)}


def arithmetic(name: str) -> str:
    """The type in which numbers of a format are computed."""
    kind = "f32" if name in STORED else name
    if kind not in OF_C and kind != BOOL:
        raise BadInput(f"C kernels made by rules do not support {name}", allowed=", ".join((*OF_C, *STORED)))
    return kind


def stored(buffer: Buffer) -> str:
    """The type of a buffer's elements in memory."""
    return "u8" if buffer.dtype in EIGHT_BITS else "u16" if buffer.dtype in STORED else buffer.dtype


def narrowed(name: str, text: str, lanes: int = 1) -> str:
    """A value converted to its storage format."""
    return f"narrow_{name}{_by(lanes)}({text})" if name in STORED else text


def widened(name: str, text: str, lanes: int = 1) -> str:
    return f"widen_{name}{_by(lanes)}({text})" if name in STORED else text


def _by(lanes: int) -> str:
    return f"x{lanes}" if lanes > 1 else ""


def constant(const: Const) -> str:
    """A number as a C constant."""
    kind, value = arithmetic(const.dtype), const.value
    if kind == BOOL:
        return str(int(value))
    if dtype(kind).integer:
        number = int(value)
        if number == -(1 << 63):
            return "INT64_MIN"
        text = str(number) if -(1 << 31) < number < 1 << 31 else f"INT64_C({number})"
        return text if number >= 0 else f"({text})"
    real = float(value)
    if isinf(real) or isnan(real):
        return f"(({kind}){'-' if real < 0 else ''}{'INFINITY' if isinf(real) else 'NAN'})"
    text = f"{real!r}{'f' if kind == 'f32' else ''}"
    return f"({text})" if text.startswith("-") else text


# Names that our own code defines, and functions of the C library.
_TAKEN = frozenset(
    """
    f8e4m3 f8e5m2
    f16 bf16 f32 f64 u8 i8 u16 i16 u32 i32 u64 i64 least quotient job pool workspace own threads thread given slot lanes
    parts part turns together nth loop_part to y0 y1 yn j0 j1 jn j from gamma signgam main div abs
    """.split()  # noqa: SIM905
)


# Those of headers that kernels include.
_INCLUDED = re.compile(
    r"pool_(range|part|work|wait|run)|(widen|narrow)_\w+|(load|store)_parts?|loop_parts|(f32|float)_of_bits|bits_of_f32"
)


@dataclass
class Names:
    """One identifier for each name, always the same."""

    taken: dict[str, str] = field(default_factory=dict)

    def of(self, name: str) -> str:
        if name not in self.taken:
            plain = re.sub(r"\W", "_", name)
            taken = plain in _TAKEN or is_reserved(plain) or _INCLUDED.fullmatch(plain)
            plain = plain if plain[:1].isalpha() and not taken else f"v_{plain}"
            used = set(self.taken.values())
            tries = (plain if n == 0 else f"{plain}_{n}" for n in range(len(used) + 1))
            self.taken[name] = next(t for t in tries if t not in used)
        return self.taken[name]
