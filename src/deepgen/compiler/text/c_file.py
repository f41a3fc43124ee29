"""A file of C around functions: what it includes, and the types and functions of vectors that they use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deepgen.compiler.intrinsics.dots import DOTS, functions_with_excess, include
from deepgen.compiler.intrinsics.dots import function as dot_function
from deepgen.compiler.intrinsics.squares import Square
from deepgen.compiler.intrinsics.tiles import TileBlock
from deepgen.compiler.intrinsics.tiles import include as include_tiles
from deepgen.compiler.schedule.stages import identity
from deepgen.compiler.text import c_vectors
from deepgen.compiler.text.c_values import PRODUCTS, Text, constant
from deepgen.compiler.text.c_vectors import conversion_function, formats
from deepgen.operators.expr.nodes import Const
from deepgen.vocabulary import dtype

_MATH = '#define LANES {lanes}\n#include "vector_math.h"\n#undef LANES'
_MASKS = {"f32": "i32", "f64": "i64", "u8": "i8"}
_WRAPS = {"i8": "u8", "u8": "u8", "i16": "u16", "i32": "u32", "i64": "u64"}


@dataclass(frozen=True)
class Definitions:
    text: str
    vectors: frozenset[tuple[str, int]]
    dots: frozenset[str]  # products that instructions do
    blocks: frozenset[TileBlock]  # of tiles
    scans: frozenset[tuple[str, str, int]]  # of vectors: the operation, the format, how many lanes
    squares: frozenset[Square]  # that are copied as columns
    over: frozenset[str]  # products that leave their excess in the sums


def file_text(parts: Sequence[Definitions], parallel: bool) -> str:
    """One file with several definitions."""
    vectors = frozenset().union(*(part.vectors for part in parts))
    dots = [DOTS[name] for name in sorted(frozenset().union(*(part.dots for part in parts)))]
    blocks = sorted(frozenset().union(*(part.blocks for part in parts)), key=lambda block: block.name)
    lines = [*dict.fromkeys(include(dot) for dot in dots), '#include "numbers.h"']
    lines += [include_tiles(tile) for tile in dict.fromkeys(block.tile for block in blocks)]
    lines += ['#include "cpu_pool.h"', '#include "parts.h"'] if parallel else []
    scans = sorted(frozenset().union(*(part.scans for part in parts)))
    called = [*map(dot_function, dots), *(block.functions() for block in blocks), *(scan_function(*s) for s in scans)]
    squares = sorted(frozenset().union(*(part.squares for part in parts)), key=lambda square: square.name)
    called += [square.function() for square in squares]
    called += [functions_with_excess(DOTS[name]) for name in sorted(frozenset().union(*(p.over for p in parts)))]
    return "\n".join([*lines, "", *vector_types(vectors), *called, *(part.text for part in parts)])


def vector_types(used: frozenset[tuple[str, int]]) -> list[str]:
    """The lines that define the vector types which a text uses, and functions of them."""
    stored = sorted(lanes for kind, lanes in used if kind == "u16")
    products = sorted(lanes for kind, lanes in used if kind == PRODUCTS)
    called = {(kind, lanes) for lanes in stored for kind in ("i32_of_u16", "u16_of_i32")}
    called |= {("i32_of_i16", lanes) for lanes in products} | {one for one in used if formats(one[0]) is not None}
    conversions = sorted(called)
    shuffled = sorted(one for one in used if c_vectors.is_shuffle(one[0]))
    wanted = {one for one in used.difference(shuffled) if one[0] not in ("u16", PRODUCTS) and formats(one[0]) is None}
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
    lines += [f"ADD_PRODUCTS({lanes})" for lanes in products]
    lines += [c_vectors.shuffle_function(name, lanes) for name, lanes in shuffled]
    return [*lines, ""] if lines else []


_REDUCES = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}
_INFIX = {"add": "+", "mul": "*"}


def nothing(op: str, kind: str) -> Const:
    """What an operation leaves any number as it is with."""
    return identity(_REDUCES[op], kind)


def joined(op: str, left: Text, right: Text) -> str:
    """Two numbers or vectors as one."""
    if op in _INFIX and not dtype(left.type).integer:
        return f"({left.text} {_INFIX[op]} {right.text})"
    return f"{op}_{left.name}({left.text}, {right.text})"


def scan_function(op: str, kind: str, lanes: int) -> str:
    """The C function for vectors of so many numbers; gcc has shuffles of this form from 12 on."""
    name = f"{kind}x{lanes}"
    steps = []
    for bit in range(lanes.bit_length() - 1):
        moved = ", ".join(str(lanes - (1 << bit) + n) for n in range(lanes))
        before = Text(f"__builtin_shufflevector(none, x, {moved})", kind, lanes)
        steps.append(f"    x = {joined(op, before, Text('x', kind, lanes))};")
    one = joined(op, Text("x[n - 1]", kind), Text("x[n]", kind))
    return "\n".join(
        [
            f"static inline {name} scan_{op}_{name}({name} x) {{",
            "#if defined(__clang__) || __GNUC__ >= 12",
            f"    const {name} none = all_{name}({constant(nothing(op, kind))});",
            *steps,
            "#else",
            f"    for (int n = 1; n < {lanes}; n++) x[n] = {one};",
            "#endif",
            "    return x;",
            "}",
            "",
        ]
    )
