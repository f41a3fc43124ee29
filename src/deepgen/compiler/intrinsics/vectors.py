"""Vector types in C, and functions on them for which compilers alone generate poor code.

Integer vectors are widened and narrowed. clang compiles __builtin_convertvector well. gcc emits several instructions
where the CPU has one, or goes lane by lane, so it gets intrinsics where these are known to be better. Vectors are
interleaved, and squares are transposed, by shuffles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

PRODUCTS = "products"  # name, beside the vector types, of the function that adds products to them
BYTES = "bytes"  # and of the functions of 8-bit floats
_MATH = '#define LANES {lanes}\n#include "vector_math.h"\n#undef LANES'
_MASKS = {"f32": "i32", "f64": "i64", "u8": "i8"}
_WRAPS = {"i8": "u8", "u8": "u8", "i16": "u16", "i32": "u32", "i64": "u64"}
_LETTERS = {"i8": "b", "u8": "b", "i16": "w", "u16": "w", "i32": "d"}
_BYTES = {"b": 1, "w": 2, "d": 4}
_PAIRS = (("i8", "i16"), ("u8", "i16"), ("i8", "i32"), ("u8", "i32"), ("i16", "i32"), ("u16", "i32"), ("i32", "u16"))
_KINDS = {f"{to}_of_{of}": (of, to) for of, to in _PAIRS}
_X86_BYTES = 64  # of the registers whose instructions are listed here


def conversion(of: str, to: str) -> str | None:
    """The name of a conversion as a kind of vectors, or None if there is no function for it."""
    return f"{to}_of_{of}" if (of, to) in _PAIRS else None


def formats(kind: str) -> tuple[str, str] | None:
    """The source and target formats of a kind of vectors; None if it is not a conversion."""
    return _KINDS.get(kind)


def conversion_function(kind: str, lanes: int) -> str:
    of, to = _KINDS[kind]
    x86 = _x86(of, to, lanes)
    by_x86 = f"#if defined(__AVX512BW__) && !defined(__clang__)\n    return {x86};\n#el" if x86 else "#"
    # In two steps: gcc widens to four times the size one lane at a time.
    halfway = f"__builtin_convertvector(x, i16x{lanes})" if (_LETTERS[of], to) == ("b", "i32") else "x"
    return f"""static inline {to}x{lanes} {kind}x{lanes}({of}x{lanes} x) {{
{by_x86}if defined(__aarch64__) && !defined(__clang__)
    {to}x{lanes} all;
    for (int n = 0; n < {lanes}; n++) all[n] = ({to})x[n];
    return all;
#else
    return __builtin_convertvector({halfway}, {to}x{lanes});
#endif
}}
"""


def _x86(of: str, to: str, lanes: int) -> str | None:
    """One instruction for a whole register."""
    letters = _LETTERS[of] + _LETTERS[to]
    if max(_BYTES[letter] for letter in letters) * lanes != _X86_BYTES:
        return None
    if to == "u16":
        return f"({to}x{lanes})__builtin_ia32_pmovdw512_mask(x, (i16x{lanes}){{0}}, -1)"
    sign = "z" if of.startswith("u") else "s"
    argument = {"b": f"(char __attribute__((vector_size({lanes}))))x", "w": f"(i16x{lanes})x"}[letters[0]]
    return f"__builtin_ia32_pmov{sign}x{letters}512_mask({argument}, ({to}x{lanes}){{0}}, -1)"


ALTERNATE, INTERLEAVE = "alternate_", "interleave"


def is_shuffle(name: str) -> bool:
    return name.startswith((ALTERNATE, INTERLEAVE))


def shuffle_function(name: str, lanes: int) -> str:
    called, _, kind = name.rpartition("_")
    vector = f"{kind}x{lanes}"
    if called == ALTERNATE.rstrip("_"):
        return _alternate(f"static inline {vector} {name}x{lanes}(const {kind} *from) {{", vector, lanes)
    count = int(called.removeprefix(INTERLEAVE))
    parameters = ", ".join(f"{vector} x{n}" for n in range(count))
    return _interleave(f"static inline void {name}x{lanes}({kind} *to, {parameters}) {{", vector, lanes, count)


def _alternate(head: str, vector: str, lanes: int) -> str:
    """Every other element. The second half is taken from a vector that ends with the last element: nothing beyond it is
    read."""
    chosen = ", ".join(str(2 * n + (n >= lanes // 2)) for n in range(lanes))
    each = ", ".join(f"from[{2 * n}]" for n in range(lanes))
    with_shuffles = f"    return __builtin_shufflevector(at_{vector}(from), at_{vector}(from + {lanes - 1}), {chosen});"
    return either(head, [with_shuffles], f"    return ({vector}){{{each}}};")


def _interleave(head: str, vector: str, lanes: int, count: int) -> str:
    """Interleaves halves of pairs, repeatedly: vectors keep their length, for which compilers know instructions."""
    lines: list[str] = []

    def interleaved(names: Sequence[str]) -> list[str]:
        if len(names) == 1:
            return list(names)
        out = []
        for first, second in zip(interleaved(names[::2]), interleaved(names[1::2]), strict=True):
            for half in (0, lanes // 2):
                places = chain.from_iterable((n, n + lanes) for n in range(half, half + lanes // 2))
                shuffled = f"__builtin_shufflevector({first}, {second}, {', '.join(map(str, places))})"
                out.append(f"y{len(lines)}")
                lines.append(f"    const {vector} {out[-1]} = {shuffled};")
        return out

    last = interleaved([f"x{n}" for n in range(count)])
    lines += [f"    put_{vector}(to + {n * lanes}, {name});" for n, name in enumerate(last)]
    each = ", ".join(f"to[{count} * n + {n}] = x{n}[n]" for n in range(count))
    return either(head, lines, f"    for (int n = 0; n < {lanes}; n++) {each};")


_SHUFFLES = "defined(__clang__) || __GNUC__ >= 12"


def either(head: str, with_shuffles: Sequence[str], without: str, end: str = "}\n", test: str = _SHUFFLES) -> str:
    """A function written both with the compiler's vector shuffles and without them."""
    return "\n".join([head, f"#if {test}", *with_shuffles, "#else", without, "#endif", end])


def vector_types(used: frozenset[tuple[str, int]]) -> list[str]:
    """The lines that define the vector types that a text uses, and functions on them."""
    small = sorted(lanes for kind, lanes in used if kind == BYTES)
    stored = sorted({lanes for kind, lanes in used if kind == "u16"}.union(small))
    products = sorted(lanes for kind, lanes in used if kind == PRODUCTS)
    called = {(kind, lanes) for lanes in stored for kind in ("i32_of_u16", "u16_of_i32")}
    called |= {("i16_of_u8", lanes) for lanes in small}
    called |= {("i32_of_i16", lanes) for lanes in products} | {one for one in used if formats(one[0]) is not None}
    conversions = sorted(called)
    shuffled = sorted(one for one in used if is_shuffle(one[0]))
    other = ("u16", PRODUCTS, BYTES)
    wanted = {one for one in used.difference(shuffled) if one[0] not in other and formats(one[0]) is None}
    wanted |= {("f32", lanes) for lanes in stored}
    for function, lanes in conversions:
        of, to = formats(function) or ("", "")
        wanted |= {(of, lanes), (to, lanes), ("i16", lanes)}
    lines = []
    for kind, lanes in sorted(wanted):
        if kind in ("f32", "f64"):
            lines.append(f"FLOAT_VECTOR({kind}, {_MASKS[kind]}, {lanes})")
            lines += [f"LANE_MATH(f64, {lanes})"] if kind == "f64" else _MATH.format(lanes=lanes).splitlines()
        elif kind == "u16":
            lines.append(f"U16_VECTOR({lanes})")
        else:
            lines.append(f"WHOLE_VECTOR({kind}, {_MASKS.get(kind, kind)}, {_WRAPS[kind]}, {lanes})")
    lines += [conversion_function(kind, lanes) for kind, lanes in conversions]
    lines += [f"STORED_VECTOR({lanes})" for lanes in stored]
    lines += [f"EIGHT_BITS_VECTOR({lanes})" for lanes in small]
    lines += [f"ADD_PRODUCTS({lanes})" for lanes in products]
    lines += [shuffle_function(name, lanes) for name, lanes in shuffled]
    return [*lines, ""] if lines else []


_NAME = "transpose"
_UNITS = {4: "u32", 8: "u64"}
_LANE = 16  # bytes: CPUs shuffle within this many, and move pieces of this size
_MOST = 64  # bytes of a row


@dataclass(frozen=True)
class Square:
    """A square of `side` rows of `side` units, each of `unit` bytes."""

    side: int
    unit: int

    @property
    def name(self) -> str:
        return f"{_NAME}{self.side}_{_UNITS[self.unit]}"

    @property
    def there(self) -> bool:
        """Whether there is a function for it: its rows must be whole vectors."""
        return self.unit in _UNITS and self.side * self.unit in (_LANE, 2 * _LANE, _MOST)

    def function(self) -> str:
        """The function takes two places, and the number of bytes between rows of each."""
        kind, side = _UNITS[self.unit], self.side
        parameters = "void *restrict to, const void *restrict from, i64 to_step, i64 from_step"
        row = f"{kind} row __attribute__((vector_size({side * self.unit}), aligned(1), may_alias))"
        rows = [f"x{n}" for n in range(side)]
        shuffles = _Shuffles(side, _LANE // self.unit, [])
        columns = shuffles.transposed(rows)
        lines = [f"    typedef {row};"]
        lines += [
            f"    const row {x} = *(const row *)((const char *)from + {n} * from_step);" for n, x in enumerate(rows)
        ]
        lines += shuffles.lines
        lines += [f"    *(row *)((char *)to + {n} * to_step) = {y};" for n, y in enumerate(columns)]
        without = f"""    for (int i = 0; i < {side}; i++)
        for (int j = 0; j < {side}; j++)
            memcpy((char *)to + i * to_step + j * {self.unit},
                   (const char *)from + j * from_step + i * {self.unit}, {self.unit});"""
        # On RISC-V each of these shuffles is a gather with indices from memory.
        test = f"({_SHUFFLES}) && !defined(__riscv)"
        return either(f"static inline void {self.name}({parameters}) {{", lines, without, test=test)


@dataclass(frozen=True)
class _Shuffles:
    """Lines of C that shuffle vectors of `side` units, `within` of which lie in each 16 bytes."""

    side: int
    within: int
    lines: list[str]

    def transposed(self, rows: Sequence[str]) -> list[str]:
        """Transposes first within 16 bytes, by interleaving pairs; then blocks of 16 bytes are exchanged between
        vectors."""
        blocks = [self.within_lanes(rows[start : start + self.within]) for start in range(0, self.side, self.within)]
        pieces = [self.between_lanes(vectors) for vectors in zip(*blocks, strict=True)]
        return [name for names in zip(*pieces, strict=True) for name in names]

    def within_lanes(self, rows: Sequence[str]) -> list[str]:
        """Vectors whose 16-byte blocks each hold a column of the rows' corresponding blocks."""
        if len(rows) == 1:
            return list(rows)
        run, half = self.within // len(rows), self.within // 2
        out = []
        for first in (0, half):
            starts = [lane + n for lane in range(0, self.side, self.within) for n in range(first, first + half, run)]
            places = [n + i + of for n in starts for of in (0, self.side) for i in range(run)]
            pairs = zip(rows[::2], rows[1::2], strict=True)
            out += self.within_lanes([self.shuffled(one, other, places) for one, other in pairs])
        return out

    def between_lanes(self, vectors: Sequence[str]) -> list[str]:
        """Vectors that hold the first 16 bytes of all of them, the second 16 bytes, and so on."""
        if len(vectors) == 1:
            return list(vectors)
        out = []
        for first in (0, self.within):
            starts = range(first, 2 * self.side, 2 * self.within)
            places = [start + n for start in starts for n in range(self.within)]
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            out.append(self.between_lanes([self.shuffled(one, other, places) for one, other in pairs]))
        return [name for names in zip(*out, strict=True) for name in names]

    def shuffled(self, one: str, other: str, places: Sequence[int]) -> str:
        name = f"y{len(self.lines)}"
        chosen = ", ".join(map(str, places))
        self.lines.append(f"    const row {name} = __builtin_shufflevector({one}, {other}, {chosen});")
        return name
