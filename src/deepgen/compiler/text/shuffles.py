"""Functions of C that move elements between vectors, by their names and lanes; gcc has shuffles for them from 12 on.

`alternate_f32` loads every second element of a tensor. `interleave4_i8` stores the first elements of four vectors, then
their second ones, and so on. Compilers find neither in loops whose ends they do not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

ALTERNATE, INTERLEAVE = "alternate_", "interleave"


def known(name: str) -> bool:
    return name.startswith((ALTERNATE, INTERLEAVE))


def function(name: str, lanes: int) -> str:
    called, _, kind = name.rpartition("_")
    vector = f"{kind}x{lanes}"
    if called == ALTERNATE.rstrip("_"):
        return _alternate(f"static inline {vector} {name}x{lanes}(const {kind} *from) {{", vector, lanes)
    count = int(called.removeprefix(INTERLEAVE))
    given = ", ".join(f"{vector} x{n}" for n in range(count))
    return _interleave(f"static inline void {name}x{lanes}({kind} *to, {given}) {{", vector, lanes, count)


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
