"""Functions as kernels in C: files with what they include, and the types and functions of vectors that they use."""

from __future__ import annotations

from collections.abc import Sequence

from deepgen.compiler.intrinsics import vectors
from deepgen.compiler.intrinsics.dots import DOTS, functions_with_excess, include
from deepgen.compiler.intrinsics.dots import function as dot_function
from deepgen.compiler.intrinsics.tiles import HEADERS as TILE_HEADERS
from deepgen.compiler.intrinsics.tiles import TILES
from deepgen.compiler.intrinsics.tiles import include as include_tiles
from deepgen.compiler.intrinsics.vectors import conversion_function, formats
from deepgen.compiler.passes.ir import Buffer, For, Function, walk
from deepgen.compiler.schedule.steps import PARALLEL
from deepgen.compiler.text.c_statements import Definitions, definitions
from deepgen.compiler.text.c_values import PRODUCTS, Names, Text, constant, joined, nothing
from deepgen.kernels.shared import sources
from deepgen.vocabulary import Arg, Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg, WorkspaceArg, dtype

_MATH = '#define LANES {lanes}\n#include "vector_math.h"\n#undef LANES'
_MASKS = {"f32": "i32", "f64": "i64", "u8": "i8"}
_WRAPS = {"i8": "u8", "u8": "u8", "i16": "u16", "i32": "u32", "i64": "u64"}
_HEADERS = ("numbers.h", "vector_math.h")


def kernel(function: Function, threads: int = 1, name: str | None = None, ahead: Function | None = None) -> Kernel:
    """The kernel of a function on so many threads; `ahead` is what is done once, before it is called."""
    entry = f"deepgen_{Names().of(name or function.name)}"
    prepared = ahead.outputs if ahead is not None else ()
    parts = [definitions(function, entry)]
    prepare: tuple[Step, ...] = ()
    if ahead is not None:
        parts.append(definitions(ahead, f"{entry}_ahead"))
        prepare = (_step(ahead, f"{entry}_ahead", threads, prepared),)
    both = (function,) if ahead is None else (function, ahead)
    files = dict.fromkeys(one for of in both for one in headers(of))
    return Kernel(
        name=name or function.name,
        language="c",
        sources=(Source("kernel.c", file_text(parts, any(map(_parallel, both)))), *files),
        flags=("-std=gnu11", "-pthread"),
        plan=LaunchPlan((_step(function, entry, threads, prepared),), prepare),
    )


def _step(function: Function, entry: str, threads: int, prepared: Sequence[Buffer]) -> Step:
    """The call of a function; buffers that were made ahead are workspaces of their own."""
    bytes_needed = function.shared_bytes + threads * function.thread_bytes
    scratch: Arg = WorkspaceArg("scratch", bytes_needed) if bytes_needed else ScalarArg("i64", 0)
    args: list[Arg] = []
    for buffer in function.parameters:
        size = buffer.elements * dtype(buffer.dtype).bytes
        args.append(WorkspaceArg(buffer.name, size) if buffer in prepared else TensorArg(buffer.name))
    return Step(entry, (*args, scratch, ScalarArg("i32", threads)))


def headers(function: Function) -> tuple[Source, ...]:
    """The files that a function's text includes."""
    names = [*_HEADERS]
    if _parallel(function):
        names += ["cpu_pool.h", "x86_pool.h", "parts.h"]
    if any(isinstance(s, For) and s.kind in TILES for s in walk(function.body)):
        names += TILE_HEADERS
    return sources(__package__, names)


def emit(function: Function, entry: str) -> str:
    """One file of C with the function `entry`: its tensors, its workspace, how many threads."""
    return file_text([definitions(function, entry)], _parallel(function))


def _parallel(function: Function) -> bool:
    return any(isinstance(s, For) and s.kind == PARALLEL for s in walk(function.body))


def file_text(parts: Sequence[Definitions], parallel: bool) -> str:
    """One file with several definitions."""
    types = frozenset().union(*(part.vectors for part in parts))
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
    return "\n".join([*lines, "", *vector_types(types), *called, *(part.text for part in parts)])


def vector_types(used: frozenset[tuple[str, int]]) -> list[str]:
    """The lines that define the vector types which a text uses, and functions of them."""
    stored = sorted(lanes for kind, lanes in used if kind == "u16")
    products = sorted(lanes for kind, lanes in used if kind == PRODUCTS)
    called = {(kind, lanes) for lanes in stored for kind in ("i32_of_u16", "u16_of_i32")}
    called |= {("i32_of_i16", lanes) for lanes in products} | {one for one in used if formats(one[0]) is not None}
    conversions = sorted(called)
    shuffled = sorted(one for one in used if vectors.is_shuffle(one[0]))
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
    lines += [vectors.shuffle_function(name, lanes) for name, lanes in shuffled]
    return [*lines, ""] if lines else []


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
