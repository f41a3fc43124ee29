"""Loops of reference kernels: places along axes, sums side by side in C, threads that share an element on GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

THREADS = 256  # of a block, on GPUs
_LANES = 8  # sums that are added up side by side, in C
_ENOUGH_THREADS, _LONG, _MANY, _WARP = 1 << 18, 1 << 10, 1 << 20, 32  # on GPUs


@dataclass(frozen=True)
class Reduced:
    """Something that is added up, or otherwise joined, over the points of a reduction."""

    kind: str  # f64 or i64
    start: str
    term: str  # what each point gives
    join: Callable[[str, str], str]


def added(term: str) -> Reduced:
    return Reduced("f64", "0", term, lambda a, b: f"{a} + {b}")


def decomposed(of: str, extents: Sequence[str], start: int, names: Sequence[str] = ()) -> list[str]:
    """A flat place as the places along axes, of which all but the first are remainders."""
    names = names or [f"i{start + n}" for n in range(len(extents))]
    lines = [f"i64 rest_{of} = {of};"] if extents else []
    for name, extent in reversed([*zip(names[1:], extents[1:], strict=True)]):
        lines += [f"const i64 {name} = rest_{of} % {extent};", f"rest_{of} /= {extent};"]
    return [*lines, *(f"const i64 {name} = rest_{of};" for name in names[:1] if extents)]


def lanes(sums: Sequence[Reduced], point: Sequence[str], reduced: Sequence[str], start: int) -> list[str]:
    """A reduction in C: along its last axis several sums side by side, which a compiler puts into vectors."""
    last = f"i{start + len(reduced) - 1}"
    joined = [f"lane{n}[l] = {one.join(f'lane{n}[l]', one.term)};" for n, one in enumerate(sums)]
    inner = [f"const i64 {last} = base + l;", *point, *joined, "}"]
    lines = [f"{one.kind} lane{n}[{_LANES}];" for n, one in enumerate(sums)]
    lines += [f"for (int l = 0; l < {_LANES}; ++l) lane{n}[l] = {one.start};" for n, one in enumerate(sums)]
    outer = [f"i{start + n}" for n in range(len(reduced) - 1)]
    lines += [f"for (i64 {i} = 0; {i} < {n}; ++{i}) {{" for i, n in zip(outer, reduced, strict=False)]
    lines += [
        f"for (i64 base = 0; base < {reduced[-1]}; base += {_LANES}) {{",
        f"if ({reduced[-1]} - base >= {_LANES}) for (int l = 0; l < {_LANES}; ++l) {{",
        *inner,
        f"else for (int l = 0; l < (int)({reduced[-1]} - base); ++l) {{",
        *inner,
        "}",
        *("}" for _ in outer),
    ]
    for n, one in enumerate(sums):
        lines += [
            f"{one.kind} s{n} = lane{n}[0];",
            f"for (int l = 1; l < {_LANES}; ++l) s{n} = {one.join(f's{n}', f'lane{n}[l]')};",
        ]
    return lines


def group_size(elements: int, points: int, last: int) -> int:
    """How many threads of a GPU share an element: as many as fill it, and for long rows whole warps.

    `points` are reduced, `last` of them along the axis that is shared.
    """
    group = 1
    rows = points >= _LONG and elements < _MANY
    while group < THREADS and (elements * group < _ENOUGH_THREADS or (rows and group < _WARP)):
        group *= 2
    while group > last:
        group //= 2
    return group if points >= _WARP or elements * points < _ENOUGH_THREADS else 1
