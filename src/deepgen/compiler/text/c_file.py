"""A file of C around functions: what it includes, and the types and functions of vectors that they use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deepgen.compiler.intrinsics.dots import DOTS, functions_with_excess, include
from deepgen.compiler.intrinsics.dots import function as dot_function
from deepgen.compiler.intrinsics.squares import Square
from deepgen.compiler.intrinsics.tiles import Block
from deepgen.compiler.intrinsics.tiles import include as include_tiles
from deepgen.compiler.text import shuffles
from deepgen.compiler.text.c_values import PRODUCTS
from deepgen.compiler.text.conversions import formats
from deepgen.compiler.text.conversions import function as convert
from deepgen.compiler.text.scans import function as scan_function

_MATH = '#define LANES {lanes}\n#include "vector_math.h"\n#undef LANES'
_MASKS = {"f32": "i32", "f64": "i64", "u8": "i8"}
_WRAPS = {"i8": "u8", "u8": "u8", "i16": "u16", "i32": "u32", "i64": "u64"}


@dataclass(frozen=True)
class Definitions:
    text: str
    vectors: frozenset[tuple[str, int]]
    dots: frozenset[str]  # products that instructions do
    blocks: frozenset[Block]  # of tiles
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
    shuffled = sorted(one for one in used if shuffles.known(one[0]))
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
    lines += [convert(kind, lanes) for kind, lanes in conversions]
    lines += [f"STORED_VECTOR({lanes})" for lanes in stored]
    lines += [f"ADD_PRODUCTS({lanes})" for lanes in products]
    lines += [shuffles.function(name, lanes) for name, lanes in shuffled]
    return [*lines, ""] if lines else []
