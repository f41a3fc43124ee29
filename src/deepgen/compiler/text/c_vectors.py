"""Vectors of whole numbers as vectors of wider or narrower ones: functions of C, by their formats and lanes.

clang makes the best of __builtin_convertvector. gcc makes several instructions of it where a processor has one, or goes
lane by lane, so that it is told otherwise where that is known to serve it better.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

_LETTERS = {"i8": "b", "u8": "b", "i16": "w", "u16": "w", "i32": "d"}
_BYTES = {"b": 1, "w": 2, "d": 4}
_PAIRS = (("i8", "i16"), ("u8", "i16"), ("i8", "i32"), ("u8", "i32"), ("i16", "i32"), ("u16", "i32"), ("i32", "u16"))
_KINDS = {f"{to}_of_{of}": (of, to) for of, to in _PAIRS}
_X86_BYTES = 64  # of the registers whose instructions are known here


def conversion(of: str, to: str) -> str | None:
    """The name of a conversion as a kind of vectors, where there is a function for it."""
    return f"{to}_of_{of}" if (of, to) in _PAIRS else None


def formats(kind: str) -> tuple[str, str] | None:
    """What a kind of vectors converts, and what to; None if it is no conversion."""
    return _KINDS.get(kind)


def conversion_function(kind: str, lanes: int) -> str:
    of, to = _KINDS[kind]
    x86 = _x86(of, to, lanes)
    by_x86 = f"#if defined(__AVX512BW__) && !defined(__clang__)\n    return {x86};\n#el" if x86 else "#"
    # In two steps: gcc makes numbers four times as large one by one.
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
    """By the one instruction for a whole register."""
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
    """The second half is taken from a vector that ends with the last element: nothing beyond that one is read."""
    chosen = ", ".join(str(2 * n + (n >= lanes // 2)) for n in range(lanes))
    each = ", ".join(f"from[{2 * n}]" for n in range(lanes))
    with_shuffles = f"    return __builtin_shufflevector(at_{vector}(from), at_{vector}(from + {lanes - 1}), {chosen});"
    return _either(head, [with_shuffles], f"    return ({vector}){{{each}}};")


def _interleave(head: str, vector: str, lanes: int, count: int) -> str:
    """Halves of pairs again and again: vectors stay as long as they are, which compilers know instructions for."""
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
    return _either(head, lines, f"    for (int n = 0; n < {lanes}; n++) {each};")


def _either(head: str, with_shuffles: Sequence[str], without: str) -> str:
    test = "#if defined(__clang__) || __GNUC__ >= 12"
    return "\n".join([head, test, *with_shuffles, "#else", without, "#endif", "}", ""])
