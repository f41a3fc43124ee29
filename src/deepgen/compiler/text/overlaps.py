"""Which launches overlap: one lets the next begin at once, and that waits before it reads what the first one writes."""

from __future__ import annotations

from deepgen.compiler.intrinsics.matrix import wide_product
from deepgen.compiler.passes.gpu.launches import Program
from deepgen.compiler.passes.ir import Alloc, Barrier, Call, For, If, Seq, Stmt, Store, walk
from deepgen.operators.expr.nodes import reads


def overlaps(program: Program, n: int) -> bool:
    """Whether a launch may begin while the one before still runs: on chips with products of four warps, if it copies
    what the other one leaves for it."""
    launch = program.launches[n]
    inside = list(walk(launch.body)) if n and not launch.beside else []
    wide = any(isinstance(s, Call) and wide_product(s.name) for s in inside)
    return wide and any(copies_of_scratch(program, s) for s in inside)


def copies_of_scratch(program: Program, statement: Stmt) -> bool:
    """Whether these are loops that copy what another launch leaves, and nothing beside that."""
    scratch, inside = {buffer.name for buffer in program.scratch}, list(walk(statement))
    if not isinstance(statement, (For, If)) or any(isinstance(s, (Seq, Alloc, Barrier, Call)) for s in inside):
        return False
    return any(isinstance(s, Store) and scratch & {read.tensor for read in reads(s.value)} for s in inside)
