"""Functions as kernels in C: files with what they include, and the types and functions of vectors that they use."""

from __future__ import annotations

from collections.abc import Sequence

from deepgen.compiler.intrinsics import vectors
from deepgen.compiler.intrinsics.tiles import HEADERS as TILE_HEADERS
from deepgen.compiler.intrinsics.tiles import TILES
from deepgen.compiler.intrinsics.vectors import conversion_function, formats
from deepgen.compiler.passes.ir import Buffer, For, Function, walk
from deepgen.compiler.schedule.steps import PARALLEL
from deepgen.compiler.text.c_statements import DOT, TILE, Definitions, definitions
from deepgen.compiler.text.dialect import C, Names
from deepgen.compiler.text.values import PRODUCTS
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
        language=C.language,
        sources=(Source(C.file, file_text(parts, any(map(_parallel, both)))), *files),
        flags=C.flags,
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
    types = frozenset[tuple[str, int]]().union(*(part.vectors for part in parts))
    functions = {key: text for part in parts for key, text in part.functions.items()}
    included = sorted({one for part in parts for one in part.included.items()})
    dots, tiles = (dict.fromkeys(text for key, text in included if key[0] == kind) for kind in (DOT, TILE))
    lines = [*dots, '#include "numbers.h"', *tiles]
    lines += ['#include "cpu_pool.h"', '#include "parts.h"'] if parallel else []
    called = [functions[key]() for key in sorted(functions)]
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
