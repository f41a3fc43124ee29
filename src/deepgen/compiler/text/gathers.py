"""Copies to shared memory that turn what they copy: neighbours there lie apart where they are read.

No instruction does that on its own. A thread loads several runs into registers before it stores the first of them, so
that it waits for memory once.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from deepgen.compiler.passes.ir import Buffer, For, If, Stmt, Store
from deepgen.compiler.schedule.steps import VECTOR
from deepgen.compiler.text.gpu_values import GpuScope, moved_from
from deepgen.operators.expr.index import Index, Iter, iterator
from deepgen.vocabulary.dtypes import dtype

CALL = "gathered<"
_HELD = 8  # runs that a thread loads before it stores them
_REGISTERS, _MOST = 65536, 255  # of a block, of a thread
_BYTES = 2  # of elements that are worth it


def at_once(threads: int) -> int:
    """How many runs a thread may load before it stores the first: they take most of its registers."""
    return min(_MOST, _REGISTERS // threads) * 3 // 4 // 8


@dataclass(frozen=True)
class Gather:
    """A copy as text: each of so many `parts` loads `each` runs, which `load` and `store` do one at a time."""

    kind: str  # of a run
    name: str  # the variable of its loop, empty where it has one run
    parts: int
    each: int
    load: str
    store: str

    def lines(self, held: str = "") -> list[str]:
        """All of it; with `held`, what was loaded before is stored from there."""
        if held:
            return self.over(f"{self.store.format(held=held)};")
        body = [f"{self.kind} held[{self.each}];", *self.over(f"held[part] = {self.load};")]
        body += self.over(f"{self.store.format(held='held')};")
        head = f"DG_NO_UNROLL for (int turn = 0; turn < {self.parts}; ++turn) {{" if self.parts > 1 else "{"
        return [head, *(f"    {line}" for line in body), "}"]

    def over(self, line: str) -> list[str]:
        """The loop over runs."""
        place = f"    const int {self.name} = {f'turn * {self.each} + ' if self.parts > 1 else ''}part;"
        head = f"DG_UNROLL for (int part = 0; part < {self.each}; ++part) {{"
        return [head, *([place] if self.name else []), f"    {line}", "}"]


def gather(loop: For, buffers: Mapping[str, Buffer], scope: GpuScope, written: Set[str]) -> Gather | None:
    """The loop, where it is such a copy."""
    asked, run = _inside(loop.body) if loop.kind != VECTOR else ((), loop)
    if run is None or not isinstance(run.body, Store) or not run.body.ahead:
        return None
    store, variable = run.body, run.variable
    to, moved = buffers.get(store.buffer), moved_from(store.value)
    if to is None or moved is None or moved[0].tensor in written or moved[0].tensor not in buffers:
        return None
    read, conditions = moved
    source, zero = buffers[read.tensor], {variable: 0}
    apart = dict(read.indices[0].terms).get(Iter(variable), 0)
    first, last = read.indices[0].substitute(zero), store.indices[0].substitute(zero)
    if apart < 2 or read.indices[0] - first != iterator(variable) * apart or source.scope != "parameter":
        return None
    if source.dtype != to.dtype or dtype(to.dtype).bytes != _BYTES or to.scope != "shared":
        return None
    if scope.together(to, last, run.extent) < run.extent:
        return None
    name, turns = (scope.name(loop.variable), loop.extent) if run is not loop else ("", 1)
    parts = -(-turns // _HELD)
    each = -(-turns // parts)
    there = [f"({scope.index(condition)} >= 0)" for condition in asked]
    there += [f"({name} < {scope.index(limit)})" for limit in loop.limits]
    there += [f"({name} < {turns})"] if each * parts > turns else []
    real = " & ".join([*there, *([scope.all_hold(conditions)] if conditions else [])]) or "true"
    load = f"{CALL}{to.dtype}, {run.extent}>({scope.pointer(source, first)}, {apart}, {real})"
    guard = f"if ({' & '.join(there)}) " if there else ""
    stored = f"{guard}write_shared<{run.extent}>({scope.place(to, last)}, {{held}}[part])"
    return Gather(f"Vec<{to.dtype}, {run.extent}>", name, parts, each, load, stored)


def _inside(body: Stmt) -> tuple[tuple[Index, ...], For | None]:
    """The loop over a run, and the conditions under which it is done."""
    asked: tuple[Index, ...] = ()
    if isinstance(body, If) and body.otherwise is None:
        asked, body = body.conditions, body.then
    return asked, body if isinstance(body, For) and body.kind == VECTOR else None
