"""The tile functions of the RVV GEMM: one variable for each register group, with all loops over them unrolled.

The loop over K is in assembly. Compilers cannot keep 28 of 32 vector registers in place over an unrolled loop: they
hoist loads and spill accumulators.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_SMALLER = (8, 4, 2, 1)  # rows of the tiles for the remainder


@dataclass(frozen=True)
class Format:
    """The instructions of a dtype. Sums have 32 bits."""

    bytes: int  # of an element of A or B
    load: tuple[str, ...]  # loads a group of B, {y}, from address {b}; {z} is a group of half the size
    number: str  # loads an element of A, {x}
    add: str  # adds the product to the sums {s}
    float: bool
    width: int  # of the elements while products are added


FORMATS = {
    "f32": Format(4, ("vle32.v {y}, ({b})",), "flw", "vfmacc.vf", True, 32),
    "f16": Format(2, ("vle16.v {y}, ({b})",), "flh", "vfwmacc.vf", True, 16),
    "i8": Format(1, ("vle8.v {z}, ({b})", "vsext.vf2 {y}, {z}"), "lb", "vwmacc.vx", False, 16),
}


@dataclass(frozen=True)
class Tiles:
    """The parameters of the functions."""

    format: Format
    sums: str  # the register group for sums, such as m4
    operands: str  # the register group for elements of B
    rows: int
    groups: int  # of vector registers per row
    unroll: int  # steps of K in one iteration of the loop
    by_rows: bool  # whether the elements of A for a step are in different rows, rather than contiguous
    prefetch: int  # steps ahead; 0: none

    def heights(self) -> tuple[int, ...]:
        return (self.rows, *(rows for rows in _SMALLER if rows < self.rows))

    def widths(self) -> tuple[int, ...]:
        return (self.groups, 1) if self.groups > 1 else (1,)


_PARAMETERS = "const IN *a, long lda, const IN *b, long ldb, OUT *c, long ldc, long kc, size_t vl, const finish *f"
_PASSED = "a, lda, b, ldb, c, ldc, kc, vl, f"


def text(tiles: Tiles) -> str:
    """The file tile.h."""
    functions = [_function(tiles, rows, groups) for rows in tiles.heights() for groups in tiles.widths()]
    head = "// Generated. A tile of ROWS rows and GROUPS groups is tile_ROWS_GROUPS."
    return "\n".join((head, *functions, _choice(tiles)))


def _function(tiles: Tiles, rows: int, groups: int) -> str:
    sums = [f"s{i}_{j}" for i in range(rows) for j in range(groups)]
    numbers = [f"x{i}" for i in range(rows)]
    pointers = [f"a{i}" for i in range(rows)] if tiles.by_rows else ["a"]
    kind, constraint = ("float", "f") if tiles.format.float else ("long", "r")
    extra = ["STORED_LINE z;"] if len(tiles.format.load) > 1 else []
    outputs = [f'[{s}] "=&vr"({s})' for s in sums]
    outputs += [
        '[y] "=&vr"(y)',
        *(['[z] "=&vr"(z)'] if extra else []),
        *(f'[{x}] "=&{constraint}"({x})' for x in numbers),
    ]
    outputs += [f'[{name}] "+&r"({name})' for name in ("b", *pointers, "turns", "rest")]
    inputs = ['[vl] "r"(vl)', '[step] "r"(step)', '[stride] "r"(stride)']
    inputs += ['[group] "r"(group)'] if groups > 1 else []
    outputs += ['[ahead] "=&r"(ahead)'] if tiles.prefetch else []
    inputs += ['[distance] "r"(distance)'] if tiles.prefetch else []
    lines = [
        f"static __attribute__((noinline)) void tile_{rows}_{groups}({_PARAMETERS}) {{",
        f"    SUMS {', '.join(sums)};",
        "    LINE y;",
        *(f"    {line}" for line in extra),
        f"    {kind} {', '.join(numbers)};",
        *(f"    const IN *a{i} = a + {i} * lda;" for i in range(rows) if tiles.by_rows),
        f"    long turns = kc / {tiles.unroll}, rest = kc % {tiles.unroll};",
        f"    long stride = lda * (long)sizeof(IN), group = (long)(vl * sizeof(IN)), step = ldb * (long)sizeof(IN) "
        f"- {groups - 1} * group;",
        *([f"    long ahead, distance = {tiles.prefetch} * ldb * (long)sizeof(IN);"] if tiles.prefetch else []),
        "    __asm__ volatile(",
        *(f'        "{line}\\n"' for line in _loops(tiles, rows, groups, sums, pointers)),
        f"        : {', '.join(outputs)}",
        f"        : {', '.join(inputs)}",
        '        : "memory", "vl", "vtype");',
        *(f"    put(c + {i} * ldc + {j} * (long)vl, s{i}_{j}, f, {j} * (long)vl, vl);"
          for i in range(rows) for j in range(groups)),
        "}",
    ]  # fmt: skip
    return "\n".join(lines)


def _loops(tiles: Tiles, rows: int, groups: int, sums: list[str], pointers: list[str]) -> Iterator[str]:
    yield f"vsetvli zero, %[vl], e32, {tiles.sums}, ta, ma"
    yield from (f"vmv.v.i %[{s}], 0" for s in sums)
    if tiles.format.width != 32:
        yield f"vsetvli zero, %[vl], e{tiles.format.width}, {tiles.operands}, ta, ma"
    for counter, steps, labels in (("turns", tiles.unroll, ("1", "2")), ("rest", 1, ("3", "4"))):
        yield f"beqz %[{counter}], {labels[1]}f"
        yield f"{labels[0]}:"
        for step in range(steps):
            yield from _step(tiles, rows, groups, step)
        yield from (f"addi %[{p}], %[{p}], {steps * tiles.format.bytes}" for p in pointers if tiles.by_rows)
        yield f"addi %[{counter}], %[{counter}], -1"
        yield f"bnez %[{counter}], {labels[0]}b"
        yield f"{labels[1]}:"


def _step(tiles: Tiles, rows: int, groups: int, step: int) -> Iterator[str]:
    """One step of K."""
    form = tiles.format
    if tiles.prefetch:  # the prefetch.r hint of Zicbop, which does nothing on CPUs without it
        yield "add %[ahead], %[b], %[distance]"
        yield ".insn s 0x13, 6, x1, 0(%[ahead])"
    for j in range(groups):
        yield from (load.format(y="%[y]", z="%[z]", b="%[b]") for load in form.load)
        yield f"add %[b], %[b], %[{'step' if j == groups - 1 else 'group'}]"
        for i in range(rows if j == 0 else 0):
            place = f"{step * form.bytes}(%[a{i}])" if tiles.by_rows else f"{i * form.bytes}(%[a])"
            yield f"{form.number} %[x{i}], {place}"
        if j == 0 and not tiles.by_rows:
            yield "add %[a], %[a], %[stride]"
        yield from (f"{form.add} %[s{i}_{j}], %[x{i}], %[y]" for i in range(rows))


def _choice(tiles: Tiles) -> str:
    """Selects the function for a tile."""
    cases = [
        f"    if (rows == {rows} && groups == {groups}) {{ tile_{rows}_{groups}({_PASSED}); return; }}"
        for rows in tiles.heights()
        for groups in tiles.widths()
    ]
    taken = " : ".join(f"left >= {rows} ? {rows}" for rows in tiles.heights())
    return "\n".join(
        (
            f"static inline long rows_of_tile(long left) {{ return {taken} : 1; }}",
            f"static inline void tile(long rows, long groups, {_PARAMETERS}) {{",
            *cases,
            "}",
            "",
        )
    )
