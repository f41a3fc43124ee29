"""Functions as kernels in C."""

from __future__ import annotations

from collections.abc import Sequence

from deepgen.compiler.intrinsics.tiles import HEADERS as TILE_HEADERS
from deepgen.compiler.intrinsics.tiles import TILES
from deepgen.compiler.passes.ir import Buffer, For, Function, walk
from deepgen.compiler.schedule.steps import PARALLEL
from deepgen.compiler.text.c_file import file_text
from deepgen.compiler.text.c_statements import definitions
from deepgen.compiler.text.c_values import Names
from deepgen.kernels.shared import sources
from deepgen.vocabulary import Arg, Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg, WorkspaceArg, dtype

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
