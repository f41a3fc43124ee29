"""Sketches: the schedule templates that rules derived from an expression on a target, and their combined space."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from deepgen.compiler.costs import Counts
from deepgen.compiler.intrinsics.dots import DOTS
from deepgen.compiler.intrinsics.tiles import TILES, Instruction
from deepgen.compiler.passes.ir import Lowered, Machine
from deepgen.compiler.passes.lower import passes
from deepgen.compiler.rules.draft import Draft, Tuned
from deepgen.compiler.rules.packing import BLOCK, IN_PLACE, ONCE
from deepgen.compiler.rules.padding import with_padding
from deepgen.compiler.rules.residues import with_residues
from deepgen.compiler.rules.rewrites import with_joined, with_kept, with_steps
from deepgen.compiler.rules.rule import Log, Rule, drafts, rules_for
from deepgen.compiler.rules.template import Template, chosen, plus
from deepgen.compiler.rules.tensorize import prepared
from deepgen.compiler.rules.values import thread_counts, usual_threads
from deepgen.compiler.schedule.steps import Schedule, concrete
from deepgen.operators.expr.nodes import Expression
from deepgen.space import Expr, Requirement, Space, Value
from deepgen.space.expr import knob_ref
from deepgen.targets import Cpu
from deepgen.vocabulary import dtype

SKETCH, THREADS = "sketch", "THREADS"
_MOST_SCRATCH = 1 << 30  # bytes of copies and intermediate results
_FITS, _PARTS = "copies and results in between fit in memory", "every thread has a part of the last stage"


@dataclass(frozen=True)
class Sketch:
    """A template, and the knobs and requirements of its configs."""

    name: str
    expression: Expression  # the one that its steps apply to
    template: Template
    knobs: tuple[Tuned, ...]
    derived: tuple[tuple[str, Expr], ...]
    requirements: tuple[Requirement, ...]
    counts: Counts | None = None  # the work of its configs, if known
    by: tuple[tuple[str, str], ...] = ()  # which rule scheduled which stage

    def schedule(self, config: Mapping[str, Any]) -> Schedule:
        return concrete(chosen(self.template, config), config)

    def lowered(self, config: Mapping[str, Any], machine: Machine) -> Iterator[tuple[str, Lowered]]:
        """The lowered form of a config after each pass, with the pass's name."""
        return passes(self.expression, self.schedule(config), machine)

    @cached_property
    def space(self) -> Space:
        """The space of its configs alone, compiled once for all callers."""
        return _space(self.name, self)

    def usual(self) -> dict[str, Value]:
        """The default config without a search; knobs that do not exist in it are omitted."""
        config: dict[str, Value] = {}
        for knob in self.knobs:
            if knob.when is None or knob.when.evaluate(config):
                config[knob.name] = knob.usual
        return self.made_fit(config)

    def made_fit(self, config: dict[str, Value]) -> dict[str, Value]:
        """The config with no more threads than parts, and with copies that need more memory than allowed made per
        block, or not at all.
        """
        for way in (BLOCK, IN_PLACE):
            for knob in self.knobs:
                copied = config.get(knob.name) in (ONCE, BLOCK) and way in knob.values
                if copied and self._breaks(_FITS, config):
                    config = {**config, knob.name: way}
        if self._breaks(_PARTS, config):
            [counts] = [knob.values for knob in self.knobs if knob.name == THREADS]
            fewer = (c for c in reversed(counts) if not self._breaks(_PARTS, {**config, THREADS: c}))
            config = {**config, THREADS: next(fewer, 1)}
        return config

    def _breaks(self, name: str, config: Mapping[str, Value]) -> bool:
        return any(broken.name == name for broken in self.space.explain(config))


def sketch_of(draft: Draft) -> Sketch:
    """The resulting sketch of a draft, with the threads that run it and the additional memory that it needs."""
    operations = sum(prod((*s.shape, *(axis.extent for axis in s.reduced))) for s in draft.expression.stages)
    counts = thread_counts(draft.target.cores)
    draft.knob(THREADS, counts, usual_threads(draft.target, operations))
    if draft.tasks is not None:
        threads = knob_ref(THREADS)
        draft.require((threads == 1) | (threads <= draft.tasks), _PARTS)
    for stage, size in draft.buffers.items():
        draft.derive(f"bytes_{stage}", size)
    scratch = plus(draft.buffers.values())
    draft.require(scratch <= _MOST_SCRATCH, _FITS)
    name = "_".join(draft.names) or "plain"
    derived = tuple(draft.derived.items())
    return Sketch(name, draft.base, draft.template, draft.knobs, derived, draft.requirements, by=draft.by)


def space_of(name: str, sketches: Sequence[Sketch]) -> Space:
    """The configs of all sketches. If there are several, the knob `sketch` distinguishes them."""
    if len(sketches) == 1:
        return _space(name, sketches[0])
    return Space.union(name, {sketch.name: sketch.space for sketch in sketches}, by=SKETCH)


def _space(name: str, sketch: Sketch) -> Space:
    space = Space(name)
    for knob in sketch.knobs:
        space.knob(knob.name, knob.values, knob.when)
    for derived, value in sketch.derived:
        space.derive(derived, value)
    for requirement in sketch.requirements:
        space.add(requirement)
    return space


def sketches(expression: Expression, target: Cpu, own: Sequence[Rule] = (), log: Log | None = None) -> list[Sketch]:
    """The sketches of an expression on a target, the better ones first.

    Vectors multiply integers so much slower than dot-product and tile instructions that they are not tried beside them.
    """
    rules, candidates, whole = rules_for(target, own), [], False
    expression = with_kept(with_residues(with_joined(expression)))
    for dot in instructions_of(target):
        ready = prepared(expression, dot)
        written = drafts(ready, target, rules, dot, log) if ready is not None else []
        used = [draft for draft in written if dot.name in draft.names]
        candidates += used
        whole |= bool(used) and dtype(dot.result).integer
    if not whole:
        candidates += drafts(with_padding(with_steps(expression)), target, rules, log=log)
    return [sketch_of(draft) for draft in candidates]


def instructions_of(target: Cpu) -> list[Instruction]:
    """The dot-product and tile instructions of a target, the faster ones first; only those that fill its vectors."""
    candidates: list[Instruction] = [*TILES.values(), *DOTS.values()]
    return [one for one in candidates if target.has(*one.features) and one.lanes * 4 == target.vector_bytes]
