"""One launch of a program as a function in the dialect that CUDA, HIP and the emulation share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeAlias

from deepgen.compiler.passes.ir import Alloc, Barrier, Buffer, Call, For, If, Launch, Program, Seq, Stmt, Store, walk
from deepgen.compiler.passes.lower import copies_of_scratch, overlaps
from deepgen.compiler.passes.unroll import HELD
from deepgen.compiler.schedule.stages import combined
from deepgen.compiler.schedule.steps import BLOCKS, SERIAL, THREADS, UNROLL, VECTOR
from deepgen.compiler.text import gpu_values
from deepgen.compiler.text.c_values import Names, arithmetic, narrowed
from deepgen.compiler.text.gpu_values import WIDEST, GpuScope, moved_from
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import Binary, Read, Select, Value, children, reads
from deepgen.vocabulary import dtype

_Asked: TypeAlias = "tuple[tuple[Value, bool], ...]"  # conditions, and whether they must hold
_BLOCKS = 1  # of a multiprocessor: as many as there is room for


def entry(program: Program, n: int) -> str:
    return f"deepgen_{Names().of(program.name)}_{n}"


def used(program: Program, launch: Launch) -> list[Buffer]:
    """The buffers that a launch reads or writes: its parameters, in their order."""
    stores = [s for part in launch.parts for s in walk(part.body) if isinstance(s, Store)]
    names = {name for s in stores for name in (s.buffer, *(read.tensor for read in reads(s.value)))}
    return [buffer for buffer in program.buffers.values() if buffer.name in names]


@dataclass(frozen=True)
class _LaunchPlace:
    """Where in the text a statement stands."""

    buffers: Mapping[str, Buffer]
    ranges: Mapping[str, tuple[int, int]]  # of the loops around, and of the grid

    def inside(self, variable: str, extent: int) -> _LaunchPlace:
        return replace(self, ranges={**self.ranges, variable: (0, extent - 1)})


@dataclass
class LaunchEmitter:
    """Writes the launch with this number."""

    program: Program
    number: int
    names: Names = field(default_factory=Names)
    loaded_before: dict[str, str] = field(default_factory=dict)  # where runs to turn are, by the loop that stores them
    waits: bool = False  # for the launch before, which has not ended yet

    @property
    def launch(self) -> Launch:
        return self.program.launches[self.number]

    @property
    def written(self) -> set[str]:
        return {s.buffer for part in self.launch.parts for s in walk(part.body) if isinstance(s, Store)}

    def lines(self) -> list[str]:
        launch = self.launch
        parts = launch.parts
        scope = self.scope(_LaunchPlace(self.program.buffers, launch.ranges))
        parameters = ", ".join(
            f"{'' if b.name in self.written else 'const '}{b.dtype}* __restrict__ {scope.name(b.name)}"
            for b in used(self.program, launch)
        )
        self.waits = overlaps(self.program, self.number)
        lines = [
            f"DG_KERNEL({prod(launch.threads)}, {_BLOCKS})",
            f"{entry(self.program, self.number)}({parameters}) {{",
        ]
        if self.number + 1 < len(self.program.launches) and overlaps(self.program, self.number + 1):
            lines.append("    next_may_begin();")
        begin = f"aligned<{launch.align}>(shared_begin())" if launch.align > 1 else "shared_begin()"
        shared = [f"    const u32 shared = {begin};", "    (void)shared;"]
        if len(parts) == 1:
            lines += [*self.part(launch, "block_id()", shared, 1)]
        else:
            lines += shared
            first = 0
            for part in parts:
                end = first + prod(part.blocks)
                asked = f"if (block_id() < {end}) " if part != parts[-1] else ""
                lines.append(f"    {'} else ' if first else ''}{asked}{{")
                lines += self.part(part, f"block_id() - {first}" if first else "block_id()", [], 2)
                first = end
            lines.append("    }")
        return [*lines, "    block_ends();", "}"]

    def part(self, launch: Launch, block: str, shared: list[str], depth: int) -> list[str]:
        """What the blocks of one launch do, the number of the block being `block`."""
        place, indent = _LaunchPlace(self.program.buffers, launch.ranges), "    " * (depth - 1)
        lines = [*self.indices(self.scope(place), BLOCKS, launch.blocks, block)]
        lines += [*self.indices(self.scope(place), THREADS, launch.threads, "thread_id()"), *shared]
        return [*(indent + line for line in lines), *self.statement(launch.body, place, depth)]

    def indices(self, scope: GpuScope, tags: tuple[str, ...], extents: tuple[int, ...], whole: str) -> Iterator[str]:
        """An index of the grid for each direction, x the fastest."""
        step, outer = 1, 1
        for extent in extents:
            outer *= extent
        for tag, extent in zip(tags, extents, strict=True):
            text = whole if step == 1 else f"({whole}) / {step}" if " " in whole else f"{whole} / {step}"
            text = text if step * extent == outer else f"({text}) % {extent}"
            yield f"    const int {scope.name(tag)} = {text if extent > 1 else 0};"
            yield f"    (void){scope.name(tag)};"
            step *= extent

    def scope(self, place: _LaunchPlace, loaded: Mapping[Read, str] | None = None) -> GpuScope:
        return GpuScope(self.names, place.buffers, place.ranges, loaded=loaded or {})

    def statement(self, statement: Stmt, place: _LaunchPlace, depth: int) -> list[str]:
        indent = "    " * depth
        if self.waits and copies_of_scratch(self.program, statement):
            self.waits = False
            return [f"{indent}wait_for_launch_before();", *self.statement(statement, place, depth)]
        if isinstance(statement, Seq):
            return [line for s in statement.body for line in self.statement(s, place, depth)]
        if isinstance(statement, Alloc):
            return self.alloc(statement, place, depth)
        if isinstance(statement, Barrier):
            return [f"{indent}barrier();"]
        if isinstance(statement, Call):
            return [f"{indent}{self.call(statement, place)}"]
        if isinstance(statement, Store):
            return [indent + line for line in self.store(statement, place)]
        if isinstance(statement, If):
            lines = [f"{indent}if ({self.conditions(statement.conditions, place)}) {{"]
            lines += self.statement(statement.then, place, depth + 1)
            if statement.otherwise is not None:
                lines += [f"{indent}}} else {{", *self.statement(statement.otherwise, place, depth + 1)]
            return [*lines, f"{indent}}}"]
        assert isinstance(statement, For), "what keeps a compiler from moving loads is for processors"
        inner = place.inside(statement.variable, statement.extent)
        if gathered := gpu_values.gather(statement, place.buffers, self.scope(inner), self.written):
            return [indent + line for line in gathered.lines(self.loaded_before.get(statement.variable, ""))]
        if lines := self.all_loaded(statement, place, depth):
            return lines
        if statement.kind == VECTOR:
            return [indent + line for line in self.vector(statement, inner)]
        return [*self.head(statement, place, indent), *self.statement(statement.body, inner, depth + 1), f"{indent}}}"]

    def all_loaded(self, loop: For, place: _LaunchPlace, depth: int) -> list[str]:
        """Iterations before the first of a pipeline: what they transpose is all being loaded before one is stored."""
        inner, most = place.inside(loop.variable, loop.extent), gpu_values.at_once(prod(self.launch.threads))
        for asked, one in _done_in(loop.body):
            if loop.kind != UNROLL or loop.extent < 2 or not isinstance(one, For) or one.variable in self.loaded_before:
                continue
            scope = self.scope(inner.inside(one.variable, one.extent))
            gathered = gpu_values.gather(one, place.buffers, scope, self.written)
            if gathered is None or gathered.parts > 1 or loop.extent * gathered.each > most:
                continue
            iteration, name = scope.name(loop.variable), scope.name(f"{one.variable}.held")
            self.loaded_before[one.variable] = f"{name}[{iteration}]"
            real = f"if ({self.conditions(asked, inner)}) " if asked else ""
            loads = gathered.over(f"{real}{name}[{iteration}][part] = {gathered.load};")
            lines = [f"{gathered.kind} {name}[{loop.extent}][{gathered.each}];", *self.head(loop, place, ""),
                     *(f"    {line}" for line in loads), "}", "barrier();"]  # fmt: skip
            lines = [f"{'    ' * (depth + 1)}{line}" for line in lines]
            lines += self.statement(loop, place, depth + 1)
            del self.loaded_before[one.variable]
            return [f"{'    ' * depth}{{", *lines, f"{'    ' * depth}}}"]
        return []

    def head(self, loop: For, place: _LaunchPlace, indent: str) -> list[str]:
        meets = any(isinstance(s, (Barrier, Call)) for s in walk(loop.body))
        unroll = ("DG_NO_UNROLL " if meets else "") if loop.kind == SERIAL else "DG_UNROLL "
        scope = self.scope(place)
        name, end = scope.name(loop.variable), str(loop.extent)
        for limit in loop.limits:
            end = f"least({end}, {scope.index(limit)})"
        return [f"{indent}{unroll}for (int {name} = 0; {name} < {end}; ++{name}) {{"]

    def conditions(self, conditions: tuple[Index, ...], place: _LaunchPlace) -> str:
        return " && ".join(f"{self.scope(place).index(c)} >= 0" for c in conditions)

    def alloc(self, alloc: Alloc, place: _LaunchPlace, depth: int) -> list[str]:
        buffer, indent, name = alloc.buffer, "    " * depth, self.scope(place).name(alloc.buffer.name)
        if buffer.scope == "fragment":
            declared = f"DG_HELD(u32, {name}, {buffer.elements});"
        elif buffer.scope in HELD:
            declared = f"DG_HELD({arithmetic(buffer.dtype)}, {name}, {buffer.elements});"
        else:
            declared = f"const u32 {name} = shared + {buffer.offset};"
        inner = replace(place, buffers={**place.buffers, buffer.name: buffer})
        return [f"{indent}{{", f"{indent}    {declared}", *self.statement(alloc.body, inner, depth + 1), f"{indent}}}"]

    def call(self, call: Call, place: _LaunchPlace) -> str:
        scope, args = self.scope(place), []
        for read in call.places:
            buffer, offset = place.buffers[read.tensor], read.indices[0]
            shared = buffer.scope == "shared"
            args.append(
                scope.place(buffer, offset) if shared else f"{scope.name(buffer.name)} + ({scope.index(offset)})"
            )
        return f"{call.name}({', '.join(args)});"

    # Stores

    def store(self, store: Store, place: _LaunchPlace) -> list[str]:
        scope, buffer, (offset,) = self.scope(place), place.buffers[store.buffer], store.indices
        value = store.value
        if store.reduce:
            value = combined(store.reduce, Read(store.buffer, store.indices, value.dtype), value)
        text = scope.value(value).text
        if store.joined:
            kind, team = arithmetic(buffer.dtype), self.launch.threads[0]
            joined = combined(store.joined, Read("a", (), value.dtype), Read("b", (), value.dtype))
            assert isinstance(joined, Binary)
            text = f"over_threads<{team}, {kind}, {joined.op}_{kind}>({text}, shared)"
        if buffer.scope in HELD:
            return [f"{scope.element(buffer, offset)} = {text};"]
        stored = self.as_it_is(store, place, {}) or narrowed(buffer.dtype, text)
        if buffer.scope == "shared":
            return [f"store_shared<{buffer.dtype}>({scope.place(buffer, offset)}, {stored});"]
        return [f"store_global<{buffer.dtype}>({scope.pointer(buffer, offset)}, {stored});"]

    def vector(self, loop: For, place: _LaunchPlace) -> list[str]:
        """One store of neighbours: what is read is loaded before, as wide as it lies."""
        store = loop.body
        assert isinstance(store, Store)
        if store.ahead and (lines := self.copy_ahead(loop, store, place)):
            return lines
        scope = self.scope(place)
        lines, loaded = [], {}
        runs: dict[Value, str] = {}
        counter = scope.name(loop.variable)
        for n, (read, asked) in enumerate(dict.fromkeys(_reads_if(store.value, ()))):
            buffer = place.buffers[read.tensor]
            if buffer.scope in HELD or read in loaded:
                continue
            variable = f"part{n}"
            if sum(read == other for other, _ in dict.fromkeys(_reads_if(store.value, ()))) > 1:
                continue  # under several conditions: where it is used
            if all(wanted for _, wanted in asked):
                real = scope.all_hold(tuple(c for c, _ in asked))
            else:
                real = " && ".join(f"{'' if wanted else '!'}({scope.value(c).text})" for c, wanted in asked)
            along = read.indices[0] - iterator(loop.variable)
            if loop.variable not in read.indices[0].iterators:
                one = scope.element(buffer, read.indices[0])
                lines.append(
                    f"const {buffer.dtype} {variable} = {f'{real} ? {one} : {buffer.dtype}{{}}' if asked else one};"
                )
                loaded[read] = variable
            elif loop.variable not in along.iterators:
                width = scope.together(buffer, along, loop.extent)
                if buffer.swizzle and width < loop.extent:
                    continue  # its parts do not lie side by side
                shared = buffer.scope == "shared"
                kind = "shared" if shared else "input" if asked and buffer.name not in self.written else "plain"
                call = f"read_{kind}<{width}, {buffer.dtype}, {loop.extent}>"
                first = scope.place(buffer, along) if shared else scope.pointer(buffer, along)
                lines.append(f"const Vec<{buffer.dtype}, {loop.extent}> {variable} = {call}({first}, {real});")
                loaded[read] = f"{variable}.v[{counter}]"
                runs |= {read: variable} if loop.extent % 2 == 0 else {}
        to, start = place.buffers[store.buffer], store.indices[0] - iterator(loop.variable)
        value = store.value
        if (moved := moved_from(value)) and moved[0] in loaded:
            value = moved[0]  # zeros stand there already where it is not real
        if store.reduce:
            value = combined(store.reduce, Read(store.buffer, store.indices, value.dtype), value)
        text = self.scope(place, loaded).value(value).text
        unrolled = f"DG_UNROLL for (int {counter} = 0; {counter} < {loop.extent}; ++{counter})"
        width, shared = scope.together(to, start, loop.extent), to.scope == "shared"
        if to.scope in HELD and to.dtype == value.dtype == "f16" and value in runs:
            lines.append(f"widen_run({runs[value]}, {scope.name(to.name)} + ({scope.index(start)}));")
            return ["{", *(f"    {line}" for line in lines), "}"]
        if to.scope in HELD or (to.swizzle and width < loop.extent):
            one = self.stored(to, store.indices[0], text, place)
            return ["{", *(f"    {line}" for line in (*lines, f"{unrolled} {one}")), "}"]
        lines += [
            f"Vec<{to.dtype}, {loop.extent}> out;",
            f"{unrolled} out.v[{counter}] = {self.as_it_is(store, place, loaded) or narrowed(to.dtype, text)};",
            f"write_shared<{width}>({scope.place(to, start)}, out);"
            if shared
            else f"write_global<{width}>({scope.pointer(to, start)}, out);",
        ]
        return ["{", *(f"    {line}" for line in lines), "}"]

    def stored(self, buffer: Buffer, offset: Index, text: str, place: _LaunchPlace) -> str:
        scope = self.scope(place)
        if buffer.scope in HELD:
            return f"{scope.element(buffer, offset)} = {text};"
        return f"store_shared<{buffer.dtype}>({scope.place(buffer, offset)}, {narrowed(buffer.dtype, text)});"

    def as_it_is(self, store: Store, place: _LaunchPlace, loaded: Mapping[Read, str]) -> str:
        """What a store copies and does not compute, in its own format; nothing where it computes."""
        moved, scope = moved_from(store.value), self.scope(place)
        if store.reduce or store.joined or moved is None:
            return ""
        read, asked = moved
        source = place.buffers[read.tensor]
        if source.scope in HELD or source.dtype != place.buffers[store.buffer].dtype:
            return ""
        if read in loaded or not asked:
            return loaded.get(read) or scope.element(source, read.indices[0])
        return f"{scope.all_hold(asked)} ? {scope.element(source, read.indices[0])} : {source.dtype}{{}}"

    def copy_ahead(self, loop: For, store: Store, place: _LaunchPlace) -> list[str]:
        """A copy that the hardware does on its own; nothing where it cannot."""
        scope, to, moved = self.scope(place), place.buffers[store.buffer], moved_from(store.value)
        if moved is None or moved[0].dtype != to.dtype or moved[0].tensor not in self.program.buffers:
            return []
        value, asked = moved
        real = scope.all_hold(asked)
        source, zero = place.buffers[value.tensor], {loop.variable: 0}
        first, last = value.indices[0].substitute(zero), store.indices[0].substitute(zero)
        if value.indices[0] - first != iterator(loop.variable):
            return []
        width = min(scope.together(source, first, loop.extent), scope.together(to, last, loop.extent))
        size = width * dtype(to.dtype).bytes
        if size not in (4, 8, WIDEST):
            return []
        lines = []
        for n in range(0, loop.extent, width):
            start = f"{scope.place(to, last + n)}, {scope.pointer(source, first + n)}"
            lines.append(f"copy_async_or_zero<{size}>({start}, {real});")
        return lines


def _done_in(statement: Stmt) -> Iterator[tuple[tuple[Index, ...], Stmt]]:
    """What is done, after each other, and under which conditions."""
    if isinstance(statement, Seq):
        for one in statement.body:
            yield from _done_in(one)
    elif isinstance(statement, If) and statement.otherwise is None:
        for asked, one in _done_in(statement.then):
            yield (*statement.conditions, *asked), one
    else:
        yield (), statement


def _reads_if(value: Value, asked: _Asked) -> Iterator[tuple[Read, _Asked]]:
    """Reads, and the conditions under which they are done; a condition's own reads are left alone."""
    if isinstance(value, Read):
        yield value, asked
    elif isinstance(value, Select):
        yield from _reads_if(value.then, (*asked, (value.condition, True)))
        yield from _reads_if(value.otherwise, (*asked, (value.condition, False)))
    else:
        for child in children(value):
            yield from _reads_if(child, asked)
