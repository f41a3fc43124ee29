"""Launches that need nothing of each other, as one: a launch costs as much time as a small one computes."""

from __future__ import annotations

from dataclasses import replace

from deepgen.compiler.passes.gpu.launches import Launch, Program
from deepgen.compiler.passes.ir import Alloc, Call, Store, walk
from deepgen.operators.expr.nodes import reads


def together(program: Program) -> Program:
    """Neighbours with blocks of the same threads are done by one grid: the blocks of one, then those of the next."""
    made: list[Launch] = []
    for launch in program.launches:
        if made and all(_apart(one, launch) for one in made[-1].parts):
            made[-1] = replace(made[-1], beside=(*made[-1].beside, launch))
        else:
            made.append(launch)
    return replace(program, launches=tuple(made))


def _apart(one: Launch, other: Launch) -> bool:
    """Whether neither uses what the other writes, and both may be branches of one kernel."""
    (first, writes), (second, written) = _used(one), _used(other)
    plain = not any(
        isinstance(s, Call) or (isinstance(s, Store) and s.joined) for p in (one, other) for s in walk(p.body)
    )
    return one.threads == other.threads and plain and not (writes & second) and not (written & first)


def _used(launch: Launch) -> tuple[set[str], set[str]]:
    """The buffers that other launches know too: all that are used, and those that are written."""
    inside = list(walk(launch.body))
    own = {s.buffer.name for s in inside if isinstance(s, Alloc)}
    written = {s.buffer for s in inside if isinstance(s, Store)} - own
    return written | {r.tensor for s in inside if isinstance(s, Store) for r in reads(s.value)} - own, written
