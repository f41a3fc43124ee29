"""The statements of a function as C: threads of the pool, the compiler's own vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from deepgen.compiler.intrinsics.dots import DOTS
from deepgen.compiler.intrinsics.tiles import TILES, TileBlock
from deepgen.compiler.intrinsics.vectors import INTERLEAVE, Square, square_of
from deepgen.compiler.passes.ir import Alloc, Buffer, Call, Fence, For, Function, If, Seq, Stmt, Store, children, walk
from deepgen.compiler.passes.tensorize import operands, tile_operands
from deepgen.compiler.passes.vectorize import VectorScan, scan_of
from deepgen.compiler.schedule.stages import combined
from deepgen.compiler.schedule.steps import PARALLEL, SERIAL, VECTOR
from deepgen.compiler.text.c_patterns import Excess, Together, excess, together
from deepgen.compiler.text.c_values import Names, Scope, arithmetic, joined, narrowed, nothing, stored
from deepgen.operators.expr.nodes import Read, Select, substituted
from deepgen.vocabulary import BadInput

_REDUCED = {"sum": "sum", "prod": "prod", "max": "most", "min": "least"}


@dataclass(frozen=True)
class Definitions:
    text: str
    vectors: frozenset[tuple[str, int]]
    dots: frozenset[str]  # products that instructions do
    blocks: frozenset[TileBlock]  # of tiles
    scans: frozenset[tuple[str, str, int]]  # of vectors: the operation, the format, how many lanes
    squares: frozenset[Square]  # that are copied as columns
    over: frozenset[str]  # products that leave their excess in the sums


def definitions(function: Function, entry: str) -> Definitions:
    """The functions of a file, without what it includes: several may share a file."""
    return _Emitter(function, entry).definitions()


def _tiled(statement: Stmt) -> Iterator[For]:
    """The loops that blocks of tiles do in one thread."""
    if isinstance(statement, For) and statement.kind in TILES:
        yield statement
    elif not isinstance(statement, For) or statement.kind != PARALLEL:
        for child in children(statement):
            yield from _tiled(child)


@dataclass(frozen=True)
class _StatementPlace:
    """Where in the text a statement stands."""

    buffers: Mapping[str, Buffer]
    ranges: Mapping[str, tuple[int, int]]  # of the loops around
    in_thread: bool = False
    excess: tuple[Excess, ...] = ()  # of the sums around

    def inside(self, variable: str, extent: int) -> _StatementPlace:
        return replace(self, ranges={**self.ranges, variable: (0, extent - 1)})

    def having(self, buffer: Buffer) -> _StatementPlace:
        return replace(self, buffers={**self.buffers, buffer.name: buffer})


@dataclass
class _Emitter:
    function: Function
    entry: str
    names: Names = field(default_factory=Names)
    parts: list[str] = field(default_factory=list)  # functions for parallel loops
    vectors: set[tuple[str, int]] = field(default_factory=set)
    dots: set[str] = field(default_factory=set)
    blocks: set[TileBlock] = field(default_factory=set)
    scans: set[tuple[str, str, int]] = field(default_factory=set)
    over: set[str] = field(default_factory=set)

    def definitions(self) -> Definitions:
        parameters = {buffer.name: buffer for buffer in self.function.parameters}
        for buffer in parameters:
            self.names.of(buffer)
        body = self.statement(self.function.body, _StatementPlace(parameters, {}), 1)
        body = self.configured(self.function.body, body, "    ")
        declared = [f"{self.pointer(buffer)}" for buffer in self.function.parameters]
        head = f"void {self.entry}({', '.join([*declared, 'void *workspace', 'i32 threads'])}) {{"
        unused = "    (void)workspace, (void)threads;"
        text = "\n".join([*self.parts, head, unused, *body, "}", ""])
        used = (frozenset(self.vectors), frozenset(self.dots), frozenset(self.blocks), frozenset(self.scans))
        calls = (square_of(s.name) for s in walk(self.function.body) if isinstance(s, Call))
        squares = frozenset(square for square in calls if square is not None)
        return Definitions(text, *used, squares, frozenset(self.over))

    def pointer(self, buffer: Buffer) -> str:
        const = "const " if buffer in self.function.inputs else ""
        return f"{const}{buffer.dtype} *restrict {self.names.of(buffer.name)}"

    def scope(self, place: _StatementPlace, vector: For | None = None) -> Scope:
        ranges = {**place.ranges, **({vector.variable: (0, vector.extent - 1)} if vector else {})}
        return Scope(self.names, place.buffers, ranges, vector, self.vectors)

    def statement(self, statement: Stmt, place: _StatementPlace, depth: int) -> list[str]:
        indent = "    " * depth
        if isinstance(statement, Seq):
            groups = together(statement.body, place.buffers)
            if groups is not None:
                return [indent + self.interleaved(group, place) for group in groups]
            lines = []
            for s in statement.body:
                lines += self.statement(s, place, depth)
                complete = [of for of in place.excess if of.summed is s]
                lines += [indent + line for of in complete for line in self.without_excess(of, place)]
            return lines
        if isinstance(statement, Alloc):
            return self.alloc(statement, place, depth)
        if isinstance(statement, If):
            scope = self.scope(place)
            asked = " && ".join(f"{scope.index(c)} >= 0" for c in statement.conditions)
            lines = [f"{indent}if ({asked}) {{", *self.statement(statement.then, place, depth + 1)]
            if statement.otherwise is not None:
                lines += [f"{indent}}} else {{", *self.statement(statement.otherwise, place, depth + 1)]
            return [*lines, f"{indent}}}"]
        if isinstance(statement, Fence):
            return [f'{indent}__asm__ volatile("" ::: "memory");']
        if isinstance(statement, Store):
            return [indent + line for line in self.store(statement, self.scope(place))]
        if isinstance(statement, For) and statement.kind == VECTOR:
            assert isinstance(statement.body, Store), "vector loops hold one store"
            return [indent + line for line in self.vector_store(statement.body, self.scope(place, statement))]
        if isinstance(statement, For) and statement.kind in DOTS:
            return [indent + line for line in self.dot(statement, place)]
        if isinstance(statement, For) and statement.kind in TILES:
            return [indent + self.tiles(statement, place)]
        if isinstance(statement, Call):
            at = [f"&{self.scope(place).address(r.tensor, r.indices[0])}" for r in statement.places]
            return [f"{indent}{statement.name}({', '.join([*at, *map(str, statement.numbers)])});"]
        if isinstance(statement, For) and statement.kind == PARALLEL:
            return self.parallel(statement, place, depth)
        if isinstance(statement, For) and statement.kind == SERIAL:
            name = self.names.of(statement.variable)
            head = f"{indent}for (i64 {name} = 0; {name} < {self.end(statement, place)}; {name}++) {{"
            inner = place.inside(statement.variable, statement.extent)
            return [head, *self.statement(statement.body, inner, depth + 1), f"{indent}}}"]
        raise BadInput(f"{statement} cannot be written in C", allowed="loops of processors")

    def end(self, loop: For, place: _StatementPlace) -> str:
        text = str(loop.extent)
        for limit in loop.limits:
            text = f"least({text}, {self.scope(place).index(limit)})"
        return text

    def alloc(self, alloc: Alloc, place: _StatementPlace, depth: int) -> list[str]:
        buffer, indent = alloc.buffer, "    " * depth
        name = self.names.of(buffer.name)
        if buffer.lanes:
            kind = arithmetic(buffer.dtype) + (f"x{buffer.lanes}" if buffer.lanes > 1 else "")
            self.scope(place).need(arithmetic(buffer.dtype), buffer.lanes)
            count = -(-buffer.elements // buffer.lanes)
            variables = ", ".join(self.scope(place).variable(buffer, n) for n in range(count))
            declared = f"{kind} {variables};"
        elif buffer.offset is None:
            declared = f"_Alignas(64) {buffer.dtype} {name}[{buffer.elements}];"
        else:
            start = "own" if place.in_thread else "(char *)workspace"
            declared = f"{buffer.dtype} *restrict {name} = ({buffer.dtype} *)({start} + {buffer.offset});"
        more = excess(alloc)
        if more is not None:
            self.over.add(more.dot.name)
            vectors = sorted(set(more.of_sums.values()))
            declared += "".join(f" {more.dot.vector} {self.excess_name(more, n)} = {{0}};" for n in vectors)
        inner = replace(place.having(buffer), excess=(*place.excess, *([more] if more is not None else ())))
        body = self.statement(alloc.body, inner, depth + 1)
        return [f"{indent}{{", f"{indent}    {declared}", *body, f"{indent}}}"]

    def excess_name(self, of: Excess, number: int) -> str:
        return self.names.of(f"{of.buffer.name} excess {number}")

    def without_excess(self, of: Excess, place: _StatementPlace) -> list[str]:
        """Sums as they are without what their products added too much."""
        names = {self.scope(place).variable(of.buffer, at): self.excess_name(of, n) for at, n in of.of_sums.items()}
        return [f"{sums} = sub_{of.dot.vector}({sums}, {taken});" for sums, taken in names.items()]

    def store(self, store: Store, scope: Scope) -> list[str]:
        buffer, (offset,) = scope.buffers[store.buffer], store.indices
        value = store.value
        if store.reduce:
            value = combined(store.reduce, Read(store.buffer, store.indices, value.dtype), value)
        copied = scope.copied(value, buffer)
        text = copied or scope.value(value).text
        stored = text if buffer.lanes or copied else narrowed(buffer.dtype, text)
        return [f"{scope.element(buffer, offset)} = {stored};"]

    def vector_store(self, store: Store, scope: Scope) -> list[str]:
        buffer, (offset,) = scope.buffers[store.buffer], store.indices
        along = scope.along(offset)
        if along == 0:
            return self.horizontal(store, scope)
        assert scope.vector is not None
        scan = scan_of(scope.vector.variable, store)
        if scan is not None:
            return [self.scanned(scan, store, scope)]
        value = store.value
        if store.reduce:
            value = combined(store.reduce, Read(store.buffer, store.indices, value.dtype), value)
        if along == 1 and not buffer.lanes:
            return [f"put_{scope.vector_at(buffer, offset)}, {scope.as_stored(value, buffer)});"]
        text = scope.whole(value)
        if along == 1:
            return [f"{scope.vector_at(buffer, offset)} = {text.text};"]
        elements = [scope.element(buffer, scope.lane(offset, n)) for n in range(text.lanes)]
        each = [f"{to} = {narrowed(buffer.dtype, f'lanes[{n}]')};" for n, to in enumerate(elements)]
        return ["{", f"    {text.name} lanes = {text.text};", *(f"    {line}" for line in each), "}"]

    def interleaved(self, group: Together, place: _StatementPlace) -> str:
        """Stores of several vectors whose elements lie between each other."""
        buffer, lanes = place.buffers[group.stores[0].buffer], group.loops[0].extent
        scopes = [self.scope(place, loop) for loop in group.loops]
        values = [scope.as_stored(store.value, buffer) for scope, store in zip(scopes, group.stores, strict=True)]
        name = f"{INTERLEAVE}{len(values)}_{stored(buffer)}"
        scopes[0].vector_at(buffer, group.stores[0].indices[0])
        self.vectors.add((name, lanes))
        return f"{name}x{lanes}(&{scopes[0].address(buffer.name, group.start)}, {', '.join(values)});"

    def scanned(self, scan: VectorScan, store: Store, scope: Scope) -> str:
        """A vector of results: each lane with all before it, and with the element before the first."""
        buffer, (offset,) = scope.buffers[store.buffer], store.indices
        assert scope.vector is not None
        whole = scope.whole(scan.value)
        self.scans.add((scan.op, whole.type, whole.lanes))
        start = {scope.vector.variable: 0}
        first, before = substituted(scan.first, start), substituted(scan.before, start)
        carried = scope.whole(Select(first, nothing(scan.op, scan.value.dtype), before))
        text = joined(scan.op, carried, replace(whole, text=f"scan_{scan.op}_{whole.name}({whole.text})"))
        return f"put_{scope.vector_at(buffer, offset)}, {narrowed(buffer.dtype, text, whole.lanes)});"

    def horizontal(self, store: Store, scope: Scope) -> list[str]:
        """A reduction of all lanes."""
        assert store.reduce, "an element is written once"
        buffer, (offset,) = scope.buffers[store.buffer], store.indices
        whole = scope.whole(store.value)
        alone = replace(scope, vector=None)
        before = alone.value(Read(store.buffer, store.indices, store.value.dtype)).text
        lanes = f"{_REDUCED[store.reduce]}_{whole.name}({whole.text})"
        kind = whole.type
        if store.reduce in ("max", "min"):
            text = f"{store.reduce}_{kind}({before}, {lanes})"
        else:
            text = f"({kind})({before} {'+' if store.reduce == 'sum' else '*'} {lanes})"
        stored = text if buffer.lanes else narrowed(buffer.dtype, text)
        return [f"{alone.element(buffer, offset)} = {stored};"]

    def dot(self, loop: For, place: _StatementPlace) -> list[str]:
        """Loops that one instruction does."""
        assert isinstance(loop.body, For) and isinstance(loop.body.body, Store)
        dot, matched, scope = DOTS[loop.kind], operands(loop), self.scope(place)
        buffer = place.buffers[loop.body.body.buffer]
        self.dots.add(dot.name)
        scope.need(dot.result, dot.lanes)
        factors = ", ".join(f"&{scope.address(r.tensor, r.indices[0])}" for r in (matched.left, matched.right))
        if buffer.lanes:
            sums = scope.variable(buffer, matched.sums.constant // dot.lanes)
            more = next((of for of in place.excess if of.buffer == buffer), None)
            if more is None:
                return [f"{sums} = {dot.name}({sums}, {factors});"]
            lines = [f"{sums} = {dot.name}_over({sums}, {factors});"]
            if loop in more.counted:
                taken, other = self.excess_name(more, more.counted[loop]), factors.partition(", ")[2]
                lines.append(f"{taken} = {dot.name}_excess({taken}, {other});")
            return lines
        at = f"&{scope.address(buffer.name, matched.sums)}"
        return [f"put_{dot.vector}({at}, {dot.name}(at_{dot.vector}({at}), {factors}));"]

    def tiles(self, loop: For, place: _StatementPlace) -> str:
        """Loops that a block of tiles does, in bytes."""
        matched, scope = tile_operands(loop), self.scope(place)
        self.blocks.add(matched.block)
        left, right = (f"&{scope.address(r.tensor, r.indices[0])}" for r in (matched.left, matched.right))
        size = 4 // matched.block.tile.depth
        row, below, following = (step * size for step in (matched.row, matched.below, matched.next))
        return f"{matched.block.name}({left}, {row}, {below}, {right}, {following});"

    def configured(self, statement: Stmt, lines: Sequence[str], indent: str) -> list[str]:
        """The lines of a thread, between the instructions that tiles need before and after."""
        blocks = {tile_operands(loop).block for loop in _tiled(statement)}
        if len(blocks) > 1:
            raise BadInput(
                "sums in tiles of several shapes cannot share a loop", allowed="one shape in a parallel loop"
            )
        before = [f"{indent}{block.name}_begin();" for block in blocks]
        return [*before, *lines, *(f"{indent}tile_release();" for _ in blocks)]

    def parallel(self, loop: For, place: _StatementPlace, depth: int) -> list[str]:
        """A function for the threads of a loop, and what starts it."""
        indent = "    " * depth
        name = f"{self.entry}_part{len(self.parts)}"
        self.parts.append("")
        counter = self.names.of(loop.variable)
        kept = {variable: self.names.of(variable) for variable in place.ranges}
        captured = [*(self.names.of(b) for b in place.buffers), *kept.values()]
        fields = [f"    {self.plain_pointer(b)};" for b in place.buffers.values()]
        fields += [f"    i64 {name};" for name in kept.values()]
        inner = replace(place.inside(loop.variable, loop.extent), in_thread=True)
        body = self.statement(loop.body, inner, 4)
        iterations = [
            "    for (int nth = 0; nth < j->threads; nth++) {",
            "        loop_part *part = &j->parts[(thread + nth) % j->threads];",
            "        for (i64 from; (from = atomic_fetch_add(&part->next, j->together)) < part->end;) {",
            "            const i64 to = least(part->end, from + j->together);",
            f"            for (i64 {counter} = from; {counter} < to; {counter}++) {{",
            *body,
            "            }",
            "        }",
            "    }",
        ]
        taken = [f"    {self.pointer(b)} = j->{self.names.of(b.name)};" for b in place.buffers.values()]
        taken += [f"    const i64 {name} = j->{name};" for name in kept.values()]
        self.parts[int(name.rpartition("part")[2])] = "\n".join(
            [
                "typedef struct {",
                *fields,
                "    char *own;",
                "    loop_part *parts;",
                "    i64 threads, together;",
                f"}} {name}_job;",
                "",
                f"static void {name}(void *given, int thread) {{",
                f"    {name}_job *j = given;",
                *taken,
                f"    char *own = j->own + thread * (i64){self.function.thread_bytes};",
                "    (void)own;",
                *self.configured(loop.body, iterations, "    "),
                "}",
                "",
            ]
        )
        arguments = ", ".join(
            [
                *(f".{name} = {name}" for name in captured),
                f".own = (char *)workspace + {self.function.shared_bytes}",
                ".parts = parts, .threads = threads",
                ".together = turns / (threads * 8) + (turns < threads * 8)",
            ]
        )
        return [
            f"{indent}{{",
            f"{indent}    const i64 turns = {self.end(loop, place)};",
            f"{indent}    loop_part parts[threads];",
            f"{indent}    loop_parts(parts, threads, turns);",
            f"{indent}    {name}_job job = {{{arguments}}};",
            f"{indent}    pool_run(threads, {name}, &job);",
            f"{indent}}}",
        ]

    def plain_pointer(self, buffer: Buffer) -> str:
        return self.pointer(buffer).replace("restrict ", "")
