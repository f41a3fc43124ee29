"""A partial sketch: the steps so far, and the loops, buffers, knobs and requirements that follow from them.

Rules add steps through a draft, so that the effects of steps on extents and memory are computed in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

from deepgen.compiler.intrinsics.tiles import Instruction
from deepgen.compiler.rules.template import Choose, Extent, Template, covered, least, plus, span, text, times
from deepgen.compiler.schedule import steps as s
from deepgen.compiler.schedule.apply import apply
from deepgen.operators.expr.nodes import Expression, Read, Stage, reads
from deepgen.space import Expr, Requirement, Value, implies, maximum, where
from deepgen.space.expr import all_of, knob_ref
from deepgen.targets import Cpu
from deepgen.vocabulary import dtype


@dataclass(frozen=True)
class AxisPart:
    """A loop's part along one axis: its iterations, and the distance between them."""

    axis: str
    extent: Extent
    stride: Extent


@dataclass(frozen=True)
class DraftLoop:
    name: str
    parts: tuple[AxisPart, ...]  # one, or several after fusion

    @property
    def extent(self) -> Extent:
        return times(part.extent for part in self.parts)


@dataclass(frozen=True)
class Tuned:
    """A knob of a sketch: its values, the default without a search, and the condition under which it exists."""

    name: str
    values: tuple[Value, ...]
    usual: Value
    when: Expr | None = None


def unused(name: str, numbered: str, taken: Sequence[str]) -> str:
    """A name that is not taken: if several parts of an expression are scheduled alike, later ones get a number."""
    tries = (name if n == 1 else numbered.format(name, n) for n in range(1, len(taken) + 2))
    return next(one for one in tries if one not in taken)


class Useless(Exception):
    """A sketch without any config."""


class Draft:
    """Mutable while a rule works on it; `branch` copies it to try another alternative."""

    def __init__(self, expression: Expression, target: Cpu, dot: Instruction | None = None) -> None:
        self.base, self.expression, self.target = expression, expression, target
        self.dot = dot  # the instruction that the expression was prepared for
        self.names: tuple[str, ...] = ()  # the alternatives taken; together they name the sketch
        self.template: Template = ()
        self.knobs: tuple[Tuned, ...] = ()
        self.derived: dict[str, Expr] = {}
        self.requirements: tuple[Requirement, ...] = ()
        self.loops: dict[str, tuple[DraftLoop, ...]] = {}
        self.scopes: Mapping[str, str] = {}
        self.panels: Mapping[str, tuple[str, Extent]] = {}  # stages stored in panels along an axis, and their width
        self.buffers: dict[str, Extent] = {}  # bytes of each stage that is kept in scratch memory
        self.extents: dict[str, dict[str, Extent]] = {}  # of each stage's axes, in the region computed at a time
        self.tasks: Extent | None = None  # that threads divide, in the last stage, which has the most work
        self.done: frozenset[str] = frozenset()
        self.by: tuple[tuple[str, str], ...] = ()  # which rule scheduled which stage
        self.useless = ""
        self._when: tuple[Expr, ...] = ()  # the choices under which steps are currently added
        for stage in expression.stages:
            self._start(stage.name)

    def branch(self, *names: str) -> Draft:
        other = copy(self)
        other.names = (*self.names, *names)
        other.derived, other.loops, other.buffers = dict(self.derived), dict(self.loops), dict(self.buffers)
        return other

    # The expression ---------------------------------------------------------------------------------------------------

    def stage(self, name: str) -> Stage:
        return self.expression.stage(name)

    @property
    def next(self) -> Stage | None:
        """The last stage that no rule has scheduled: consumers come before the stages that they read."""
        return next((stage for stage in reversed(self.expression.stages) if stage.name not in self.done), None)

    def finish(self, *names: str) -> None:
        self.done |= set(names)

    def lanes(self, name: str) -> int:
        """Elements of a vector register, in the format that a stage is computed in."""
        return self.target.vector_bytes // max(dtype(self.expression.dtype_of(name)).bytes, 1)

    # Knobs ------------------------------------------------------------------------------------------------------------

    def knob(self, name: str, values: Sequence[Value], usual: Value) -> Expr:
        """A knob; `usual` is its default without a search. A single value needs no knob."""
        when = all_of(*self._when) if self._when else None
        self.knobs = (*self.knobs, Tuned(name, tuple(values), usual, when))
        return knob_ref(name)

    def free_name(self, stage: str, name: str) -> str:
        """A name for a knob, prefixed with its stage if another stage has a knob of that name."""
        taken = {knob.name for knob in self.knobs} | set(self.derived)
        return f"{stage}_{name}" if name in taken else name

    def copy_of(self, tensor: str, sums: str) -> tuple[str, str]:
        """The knob that places a copy of what a reduction reads of a tensor, and the copy's name: other reductions may
        have their own."""
        knob = self.free_name(sums, f"at_{tensor}")
        return knob, f"{knob.removesuffix(f'at_{tensor}')}{tensor}_packed"

    def derive(self, name: str, value: Extent) -> None:
        """A named value to be displayed, if it depends on knobs."""
        if not isinstance(value, int):
            self.derived[name] = value

    def require(self, expr: Expr | bool, words: str) -> None:
        """Keeps only configs for which it holds; one that is already decided is not recorded."""
        if isinstance(expr, bool):
            return
        if self._when:
            expr = implies(all_of(*self._when), expr)
        words = unused(words, "{} ({})", [requirement.name for requirement in self.requirements])
        self.requirements = (*self.requirements, Requirement(words, expr))

    def choose(self, knob: str, usual: Value, ways: Mapping[Value, Callable[[Draft], None]]) -> None:
        """A knob that selects between alternatives; later steps must not depend on which was taken."""
        if len(ways) == 1:
            next(iter(ways.values()))(self)
            return
        chosen, before = self.knob(knob, list(ways), usual), self.buffers
        taken = []
        for value, go in ways.items():
            way = self.branch()
            way.template, way.buffers, way._when = (), {}, (*self._when, chosen == value)
            go(way)
            taken.append((value, way.template))
            self.knobs, self.requirements, self.derived = way.knobs, way.requirements, way.derived
            for name, size in way.buffers.items():
                before[name] = where(chosen == value, size, before.get(name, 0))
            self.done |= way.done
        self.template = (*self.template, Choose(knob, tuple(taken)))

    # Steps ------------------------------------------------------------------------------------------------------------

    def step(self, step: s.Step) -> None:
        self.template = (*self.template, step)

    def split(self, stage: str, loop: str, factors: Sequence[Extent]) -> list[str]:
        """The names of the loops, the outermost first."""
        if not factors:
            return [loop]
        place, old = self._find(stage, loop)
        (part,) = old.parts
        names = s.split_names(loop, len(factors) + 1)
        extents = [covered(part.extent, times(factors)), *factors]
        new = [
            DraftLoop(name, (AxisPart(part.axis, extent, times([part.stride, *factors[level:]])),))
            for level, (name, extent) in enumerate(zip(names, extents, strict=True))
        ]
        loops = self.loops[stage]
        self.loops[stage] = (*loops[:place], *new, *loops[place + 1 :])
        self.step(s.Split(stage, loop, tuple(text(factor) for factor in factors)))
        return names

    def reorder(self, stage: str, names: Sequence[str]) -> None:
        loops = {loop.name: loop for loop in self.loops[stage]}
        order = iter(names)
        wanted = tuple(loops[next(order)] if loop.name in names else loop for loop in self.loops[stage])
        if wanted != self.loops[stage]:
            self.loops[stage] = wanted
            self.step(s.Reorder(stage, tuple(names)))

    def fuse(self, stage: str, names: Sequence[str]) -> str:
        if len(names) == 1:
            return names[0]
        chosen = [self._find(stage, name) for name in names]
        joined = DraftLoop(s.fused_name(names), tuple(part for _, loop in chosen for part in loop.parts))
        loops = self.loops[stage]
        self.loops[stage] = (*loops[: chosen[0][0]], joined, *loops[chosen[-1][0] + 1 :])
        self.step(s.Fuse(stage, tuple(names)))
        return joined.name

    def annotate(self, stage: str, kind: str, *names: str) -> None:
        for name in names:
            self.step(s.Annotate(stage, name, kind))
            if kind == s.PARALLEL and self.tasks is None:
                self.tasks = self._find(stage, name)[1].extent

    def cache_write(self, stage: str, name: str, scope: s.MemoryScope) -> None:
        self._restructure(s.CacheWrite(stage, name, scope))
        self._start(stage)
        self._start(name)
        self.scopes = {**self.scopes, name: scope}

    def cache_read(self, tensor: str, name: str, readers: Sequence[str], dtype: str | None = None) -> None:
        self._restructure(s.CacheRead(tensor, name, "global", tuple(readers), dtype))
        self._start(name)

    def inline(self, stage: str) -> None:
        self._restructure(s.Inline(stage))
        self.finish(stage)

    def rfactor(self, stage: str, factor: Extent, usual: int, name: str, group: int = 1) -> str:
        """Partial results, `factor` of them, along the innermost reduced axis: returns the stage's name.

        Each of them covers every `factor`-th element, or groups of `group` elements.
        """
        loop, grouped = self.stage(stage).reduced[-1], (group,) if group > 1 else ()
        outer, inner, within = s.split_names(loop.name, 3)
        split, apart = s.Split(stage, loop.name, (usual, *grouped)), s.RFactor(stage, inner, name)
        self.expression = _restructured(self.expression, split, apart)
        self.step(s.Split(stage, loop.name, (text(factor), *grouped)))
        self.step(apart)
        whole = self.extents[stage][loop.name]
        for one in (stage, name):
            self._start(one, {inner: factor, outer: covered(whole, times([factor, group])), within: group})
        return inner

    def lay_out(
        self,
        stage: str,
        order: Sequence[int],
        panel: tuple[int, Extent] | None = None,
        group: tuple[int, int] | None = None,
        strip: tuple[Extent, int] | None = None,
    ) -> None:
        """Stores the dimensions in this order; `panel` divides one into panels: the panel is then the outermost index,
        the place within it the innermost.

        `group` divides another dimension into contiguous groups: the place within a group is then innermost. `strip` is
        the number of strips in a panel and their width, if each strip is to be contiguous.
        """
        grouped, group_of = group or (-1, 1)
        places = tuple(s.LayoutPlace[s.Number](place, group_of if place == grouped else 1) for place in order)
        if panel is not None:
            dimension, width = panel[0], panel[1]
            self.panels = {**self.panels, stage: (self.stage(stage).axes[dimension].name, width)}
            if strip is not None:
                count, width = strip
                places = (s.LayoutPlace(dimension, width, text(count)), *places)
            first, last = s.LayoutPlace(dimension, text(panel[1])), s.LayoutPlace[s.Number](dimension, 1, text(width))
            places = (first, *places, last)
        if group is not None:
            places = (*places, s.LayoutPlace(grouped, 1, group_of))
        self.step(s.Layout(stage, places))

    def compute_at(self, stage: str, consumer: str, loop: str, scope: s.MemoryScope = "global") -> None:
        """Computes it at a loop of its consumer: its loops then cover what one iteration of that loop reads."""
        self._start(stage, self.extents[stage] | self.region(stage, consumer, loop))
        self.step(s.ComputeAt(stage, consumer, loop))
        self.scoped(stage, scope)

    def scoped(self, stage: str, scope: s.MemoryScope) -> None:
        """Sets the memory scope of a stage that is not a result."""
        if scope != self.scopes.get(stage, "global"):
            self.step(s.SetScope(stage, scope))
            self.scopes = {**self.scopes, stage: scope}
        if scope == "global":
            self.buffers[stage] = self.bytes(stage)

    def bytes(self, stage: str) -> Extent:
        """Bytes of the part of a stage that is kept at a time."""
        of = self.stage(stage)
        sizes = {axis.name: self.extents[stage][axis.name] for axis in of.axes}
        if stage in self.panels:
            axis_name, width = self.panels[stage]
            sizes[axis_name] = times([covered(sizes[axis_name], width), width])
        return times([dtype(of.dtype).bytes, *sizes.values()])

    # What follows from steps ------------------------------------------------------------------------------------------

    def _restructure(self, step: s.Step) -> None:
        self.expression = _restructured(self.expression, step)
        self.step(step)

    def _start(self, name: str, known_extents: Mapping[str, Extent] | None = None) -> None:
        """A loop for each axis, with the known extent or else that of the axis."""
        stage = self.stage(name)
        axes = (*stage.axes, *stage.reduced)
        extents = {axis.name: (known_extents or {}).get(axis.name, axis.extent) for axis in axes}
        self.extents = {**self.extents, name: extents}
        self.loops[name] = tuple(DraftLoop(axis, (AxisPart(axis, extent, 1),)) for axis, extent in extents.items())

    def _find(self, stage: str, loop: str) -> tuple[int, DraftLoop]:
        return next((i, candidate) for i, candidate in enumerate(self.loops[stage]) if candidate.name == loop)

    def inside(self, stage: str, loop: str) -> dict[str, Extent]:
        """The extent of each axis of a stage within one iteration of a loop."""
        place, _ = self._find(stage, loop)
        extents: dict[str, list[Extent]] = {}
        for inner in self.loops[stage][place + 1 :]:
            for part in inner.parts:
                extents.setdefault(part.axis, []).append(times([part.stride, plus([part.extent, -1])]))
        return {axis: plus([1, *runs]) for axis, runs in extents.items()}

    def region(self, stage: str, consumer: str, loop: str) -> dict[str, Extent]:
        """The extent of each axis of a stage that one iteration of a consumer's loop needs, through all stages in
        between."""
        axes = self.stage(stage).axes
        runs = self._runs(stage, consumer, loop)
        return {axis.name: least(runs[axis.name], axis.extent) for axis in axes}

    def _runs(self, stage: str, consumer: str, loop: str) -> dict[str, Extent]:
        of = self.stage(stage)
        needed: dict[str, list[Extent]] = {axis.name: [] for axis in of.axes}
        for reader in self.expression.stages:
            matches = [read for read in reads(reader.value) if read.tensor == stage]
            if not matches:
                continue
            if reader.name == consumer:
                runs = self.inside(consumer, loop)
            else:
                runs = self.extents[reader.name] | self._runs(reader.name, consumer, loop)
            for place, axis in enumerate(of.axes):
                needed[axis.name].append(_reached(matches, place, runs, axis.extent))
        return {name: _most(extents) for name, extents in needed.items()}


def _restructured(expression: Expression, *changes: s.Step) -> Expression:
    """The expression with the stages that these steps create."""
    state = apply(expression, changes)
    return replace(expression, stages=tuple(planned.stage for planned in state.stages.values()))


def _reached(matches: Iterable[Read], place: int, runs: dict[str, Extent], whole: int) -> Extent:
    indices = [read.indices[place] for read in matches]
    offsets = [index.constant for index in indices]
    if len({index.terms for index in indices}) > 1:
        return whole
    return plus([max(offsets) - min(offsets), span(indices[0], runs)])


def _most(extents: Sequence[Extent]) -> Extent:
    distinct = list({str(extent): extent for extent in extents}.values())
    if len(distinct) == 1:
        return distinct[0]
    numbers = [extent for extent in distinct if isinstance(extent, int)]
    return max(numbers) if len(numbers) == len(distinct) else maximum(*distinct)
