"""Functions as kernels in C: files, functions for the threads of a pool, vector extensions, instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TypeAlias

from deepgen.compiler.intrinsics.dots import DOTS, functions_with_excess, include
from deepgen.compiler.intrinsics.dots import function as dot_function
from deepgen.compiler.intrinsics.tiles import HEADERS as TILE_HEADERS
from deepgen.compiler.intrinsics.tiles import TILES
from deepgen.compiler.intrinsics.tiles import include as include_tiles
from deepgen.compiler.intrinsics.vectors import INTERLEAVE, Square, vector_types
from deepgen.compiler.passes.ir import (
    Alloc,
    Barrier,
    Buffer,
    Call,
    For,
    Function,
    Seq,
    Stmt,
    Store,
    children,
    walk,
)
from deepgen.compiler.passes.tensorize import operands, tile_operands
from deepgen.compiler.passes.vectorize import VectorScan, scan_of
from deepgen.compiler.schedule.steps import PARALLEL, SERIAL, VECTOR
from deepgen.compiler.text.c_patterns import Excess, Together, excess, together
from deepgen.compiler.text.dialect import C, Names, arithmetic, narrowed, stored
from deepgen.compiler.text.statements import Statements, result
from deepgen.compiler.text.values import Scope, Text, joined, nothing, scan_function, unrounded
from deepgen.kernels.shared import sources
from deepgen.operators.expr import nodes
from deepgen.operators.expr.nodes import Read, Select, substituted
from deepgen.vocabulary import BadInput, Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg, WorkspaceArg, dtype
from deepgen.vocabulary.dtypes import EIGHT_BITS

_Key: TypeAlias = "tuple[int, str, int]"  # the kind of a function, its name, its lanes
_DOT, _TILE, _SCAN, _SQUARE, _OVER, _BYTES = range(6)  # in the order of a file
_REDUCED = {"sum": "sum", "prod": "prod", "max": "most", "min": "least"}
_HEADERS = ("numbers.h", "vector_math.h")


def kernel(function: Function, threads: int = 1, name: str | None = None, ahead: Function | None = None) -> Kernel:
    """The kernel of a function on `threads` threads; `ahead` runs once, before the function is called."""
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
    """The call of a function; buffers computed ahead are separate workspaces."""
    needed = function.shared_bytes + threads * function.thread_bytes
    sizes = {buffer.name: buffer.elements * dtype(buffer.dtype).bytes for buffer in prepared}
    args = tuple(
        WorkspaceArg(b.name, sizes[b.name]) if b.name in sizes else TensorArg(b.name) for b in function.parameters
    )
    scratch = WorkspaceArg("scratch", needed) if needed else ScalarArg("i64", 0)
    return Step(entry, (*args, scratch, ScalarArg("i32", threads)))


def headers(function: Function) -> tuple[Source, ...]:
    """The headers that a function's code includes."""
    names = [*_HEADERS]
    if _parallel(function):
        names += ["cpu_pool.h", "x86_pool.h", "parts.h"]
    if any(isinstance(s, For) and s.kind in TILES for s in walk(function.body)):
        names += TILE_HEADERS
    return sources(__package__, names + (["eight_bits.h"] if _eight_bits(function) else []))


def emit(function: Function, entry: str) -> str:
    """A C file with the function `entry`, whose parameters are tensors, workspace and the number of threads."""
    return file_text([definitions(function, entry)], _parallel(function))


def _parallel(function: Function) -> bool:
    return any(isinstance(s, For) and s.kind == PARALLEL for s in walk(function.body))


def _eight_bits(function: Function) -> bool:
    """Whether any of its tensors, or of the numbers that it computes, are 8-bit floats."""
    statements = [*walk(function.body)]
    buffers = [*function.parameters, *(s.buffer for s in statements if isinstance(s, Alloc))]
    values = (value for s in statements if isinstance(s, Store) for value in nodes.walk(s.value))
    return any(one.dtype in EIGHT_BITS for one in chain(buffers, values))


def file_text(parts: Sequence[Definitions], parallel: bool) -> str:
    """A file with several definitions."""
    types = frozenset[tuple[str, int]]().union(*(part.vectors for part in parts))
    functions = {key: text for part in parts for key, text in part.functions.items()}
    included = sorted({one for part in parts for one in part.included.items()})
    kinds = (_DOT, _BYTES, _TILE)
    dots, small, tiles = (dict.fromkeys(text for key, text in included if key[0] == kind) for kind in kinds)
    lines = [*dots, '#include "numbers.h"', *small, *tiles]
    lines += ['#include "cpu_pool.h"', '#include "parts.h"'] if parallel else []
    called = [functions[key]() for key in sorted(functions)]
    return "\n".join([*lines, "", *vector_types(types), *called, *(part.text for part in parts)])


@dataclass(frozen=True)
class Definitions:
    """The functions of a file, without its includes: several may share a file."""

    text: str
    vectors: Set[tuple[str, int]]
    functions: Mapping[_Key, Callable[[], str]]  # the code of instructions, scans and squares
    included: Mapping[_Key, str]  # includes that instructions need


def definitions(function: Function, entry: str) -> Definitions:
    return _Emitter(function, entry).definitions()


def _tiled(statement: Stmt) -> Iterator[For]:
    """The tile block loops that one thread executes."""
    if isinstance(statement, For) and statement.kind in TILES:
        yield statement
    elif not isinstance(statement, For) or statement.kind != PARALLEL:
        for child in children(statement):
            yield from _tiled(child)


@dataclass
class _Emitter(Statements[Scope]):
    function: Function
    entry: str
    names: Names = field(default_factory=Names)
    parts: list[str] = field(default_factory=list)  # functions for parallel loops
    vectors: set[tuple[str, int]] = field(default_factory=set)
    functions: dict[_Key, Callable[[], str]] = field(default_factory=dict)
    included: dict[_Key, str] = field(default_factory=dict)
    excess: dict[str, Excess] = field(default_factory=dict)  # of the enclosing buffers
    in_thread: bool = False

    def definitions(self) -> Definitions:
        if _eight_bits(self.function):
            self.included[_BYTES, "", 0] = '#include "eight_bits.h"'
        parameters = {buffer.name: buffer for buffer in self.function.parameters}
        for buffer in parameters:
            self.names.of(buffer)
        body = self.statement(self.function.body, Scope(self.names, parameters, {}, used=self.vectors), 1)
        body = self.configured(self.function.body, body, "    ")
        declared = [self.pointer(buffer) for buffer in self.function.parameters]
        head = f"void {self.entry}({', '.join([*declared, 'void *workspace', 'i32 threads'])}) {{"
        unused = "    (void)workspace, (void)threads;"
        text = "\n".join([*self.parts, head, unused, *body, "}", ""])
        return Definitions(text, self.vectors, self.functions, self.included)

    def pointer(self, buffer: Buffer) -> str:
        const = "const " if buffer in self.function.inputs else ""
        return const + C.pointer.format(buffer.dtype, self.names.of(buffer.name))

    def own(self, statement: Stmt, scope: Scope, depth: int) -> list[str] | None:
        indent, lines = "    " * depth, list[str]()
        if isinstance(statement, Seq):
            groups = together(statement.body, scope.buffers)
            if groups is not None:
                return [indent + self.interleaved(group, scope) for group in groups]
            for s in statement.body:
                lines += self.statement(s, scope, depth)
                complete = [of for of in self.excess.values() if of.summed is s]
                lines += [indent + line for of in complete for line in self.without_excess(of, scope)]
            return lines
        if isinstance(statement, Call) and isinstance(statement.what, Square):
            self.functions[_SQUARE, statement.what.name, 0] = statement.what.function
        if not isinstance(statement, (For, Barrier)):
            return None
        if isinstance(statement, For) and statement.kind == VECTOR:
            assert isinstance(statement.body, Store), "vector loops hold one store"
            lines = self.vector_store(statement.body, scope.by_lanes(statement))
        elif isinstance(statement, For) and statement.kind in DOTS:
            lines = self.dot(statement, scope)
        elif isinstance(statement, For) and statement.kind in TILES:
            lines = [self.tiles(statement, scope)]
        elif isinstance(statement, For) and statement.kind == PARALLEL:
            lines = self.parallel(statement, scope)
        elif isinstance(statement, For) and statement.kind == SERIAL:
            return None
        else:
            raise BadInput(f"{statement} cannot be written in C", allowed="loops of processors")
        return [indent + line for line in lines]

    def argument(self, read: Read, scope: Scope) -> str:
        return f"&{scope.address(read.tensor, read.indices[0])}"

    def declared(self, alloc: Alloc, scope: Scope) -> str:
        buffer, name = alloc.buffer, scope.name(alloc.buffer.name)
        if buffer.lanes:
            kind = Text("", arithmetic(buffer.dtype), buffer.lanes)
            scope.need(kind.type, buffer.lanes)
            count = -(-buffer.elements // buffer.lanes)
            declared = f"{kind.name} {', '.join(scope.variable(buffer, n) for n in range(count))};"
        elif buffer.offset is None:
            declared = f"_Alignas(64) {buffer.dtype} {name}[{buffer.elements}];"
        else:
            start = "own" if self.in_thread else "(char *)workspace"
            declared = f"{C.pointer.format(buffer.dtype, name)} = ({buffer.dtype} *)({start} + {buffer.offset});"
        self.excess.pop(buffer.name, None)
        if (more := excess(alloc)) is not None:
            self.excess[buffer.name] = more
            self.functions[_OVER, more.dot.name, 0] = partial(functions_with_excess, more.dot)
            vectors = sorted(set(more.of_sums.values()))
            declared += "".join(f" {more.dot.vector} {self.excess_name(more, n)} = {{0}};" for n in vectors)
        return declared

    def excess_name(self, of: Excess, number: int) -> str:
        return self.names.of(f"{of.buffer.name} excess {number}")

    def without_excess(self, of: Excess, scope: Scope) -> list[str]:
        """Subtracts from sums the excess of their products."""
        names = {scope.variable(of.buffer, at): self.excess_name(of, n) for at, n in of.of_sums.items()}
        return [f"{sums} = sub_{of.dot.vector}({sums}, {taken});" for sums, taken in names.items()]

    def store(self, store: Store, scope: Scope) -> list[str]:
        buffer, (offset,), value = scope.buffers[store.buffer], store.indices, result(store)
        copied = scope.copied(value, buffer)
        text = copied or scope.value(unrounded(value, buffer)).text
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
        value = result(store)
        if along == 1 and not buffer.lanes:
            return [f"put_{scope.vector_at(buffer, offset)}, {scope.as_stored(value, buffer)});"]
        text = scope.whole(value)
        if along == 1:
            return [f"{scope.vector_at(buffer, offset)} = {text.text};"]
        elements = [scope.element(buffer, scope.lane(offset, n)) for n in range(text.lanes)]
        each = [f"{to} = {narrowed(buffer.dtype, f'lanes[{n}]')};" for n, to in enumerate(elements)]
        return ["{", f"    {text.name} lanes = {text.text};", *(f"    {line}" for line in each), "}"]

    def interleaved(self, group: Together, scope: Scope) -> str:
        """Stores several vectors with interleaved elements."""
        buffer, lanes = scope.buffers[group.stores[0].buffer], group.loops[0].extent
        scopes = [scope.by_lanes(loop) for loop in group.loops]
        values = [scope.as_stored(store.value, buffer) for scope, store in zip(scopes, group.stores, strict=True)]
        name = f"{INTERLEAVE}{len(values)}_{stored(buffer)}"
        scopes[0].vector_at(buffer, group.stores[0].indices[0])
        self.vectors.add((name, lanes))
        return f"{name}x{lanes}(&{scopes[0].address(buffer.name, group.start)}, {', '.join(values)});"

    def scanned(self, scan: VectorScan, store: Store, scope: Scope) -> str:
        """A vector of results: each lane combined with all lanes before it and with the element before the vector."""
        buffer, (offset,) = scope.buffers[store.buffer], store.indices
        assert scope.vector is not None
        whole = scope.whole(scan.value)
        function = partial(scan_function, scan.op, whole.type, whole.lanes)
        self.functions[_SCAN, f"{scan.op} {whole.type}", whole.lanes] = function
        start = {scope.vector.variable: 0}
        first, before = substituted(scan.first, start), substituted(scan.before, start)
        carried = scope.whole(Select(first, nothing(scan.op, scan.value.dtype), before))
        text = joined(scan.op, carried, replace(whole, text=f"scan_{scan.op}_{whole.name}({whole.text})"))
        return f"put_{scope.vector_at(buffer, offset)}, {narrowed(buffer.dtype, text, whole.lanes)});"

    def horizontal(self, store: Store, scope: Scope) -> list[str]:
        """A reduction over all lanes."""
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

    def dot(self, loop: For, scope: Scope) -> list[str]:
        """Loops that are replaced by one instruction."""
        assert isinstance(loop.body, For) and isinstance(loop.body.body, Store)
        dot, matched = DOTS[loop.kind], operands(loop)
        buffer = scope.buffers[loop.body.body.buffer]
        key = (_DOT, dot.name, 0)
        self.functions[key], self.included[key] = partial(dot_function, dot), include(dot)
        scope.need(dot.result, dot.lanes)
        factors = ", ".join(self.argument(read, scope) for read in (matched.left, matched.right))
        if buffer.lanes:
            sums = scope.variable(buffer, matched.sums.constant // dot.lanes)
            more = self.excess.get(buffer.name)
            if more is None:
                return [f"{sums} = {dot.name}({sums}, {factors});"]
            lines = [f"{sums} = {dot.name}_over({sums}, {factors});"]
            if loop in more.counted:
                taken, other = self.excess_name(more, more.counted[loop]), factors.partition(", ")[2]
                lines.append(f"{taken} = {dot.name}_excess({taken}, {other});")
            return lines
        at = f"&{scope.address(buffer.name, matched.sums)}"
        return [f"put_{dot.vector}({at}, {dot.name}(at_{dot.vector}({at}), {factors}));"]

    def tiles(self, loop: For, scope: Scope) -> str:
        """Loops that are replaced by a tile block; sizes are in bytes."""
        matched = tile_operands(loop)
        block, key = matched.block, (_TILE, matched.block.name, 0)
        self.functions[key], self.included[key] = block.functions, include_tiles(block.tile)
        left, right = (self.argument(read, scope) for read in (matched.left, matched.right))
        size = 4 // block.tile.depth
        row, below, following = (step * size for step in (matched.row, matched.below, matched.next))
        return f"{block.name}({left}, {row}, {below}, {right}, {following});"

    def configured(self, statement: Stmt, lines: Sequence[str], indent: str) -> list[str]:
        """The code of a thread, between the instructions that tiles need before and after it."""
        blocks = {tile_operands(loop).block for loop in _tiled(statement)}
        if len(blocks) > 1:
            raise BadInput(
                "sums in tiles of several shapes cannot share a loop", allowed="one shape in a parallel loop"
            )
        before = [f"{indent}{block.name}_begin();" for block in blocks]
        return [*before, *lines, *(f"{indent}tile_release();" for _ in blocks)]

    def parallel(self, loop: For, scope: Scope) -> list[str]:
        """A function for the threads of a loop, and the code that starts it."""
        number, name, counter = len(self.parts), f"{self.entry}_part{len(self.parts)}", scope.name(loop.variable)
        self.parts.append("")
        kept = [scope.name(variable) for variable in scope.ranges]
        self.in_thread = True
        body = self.statement(loop.body, scope.inside(loop), 4)
        self.in_thread = False
        pointers = {scope.name(b.name): self.pointer(b) for b in scope.buffers.values()}
        fields = [*(of.replace("restrict ", "") for of in pointers.values()), *(f"i64 {one}" for one in kept)]
        taken = [f"{of} = j->{one};" for one, of in pointers.items()] + [f"const i64 {one} = j->{one};" for one in kept]
        iterations = f"""\
    for (int nth = 0; nth < j->threads; nth++) {{
        loop_part *part = &j->parts[(thread + nth) % j->threads];
        for (i64 from; (from = atomic_fetch_add(&part->next, j->together)) < part->end;) {{
            const i64 to = least(part->end, from + j->together);
            for (i64 {counter} = from; {counter} < to; {counter}++) {{"""
        lines = [*iterations.splitlines(), *body, "            }", "        }", "    }"]
        self.parts[number] = "\n".join(
            [
                "typedef struct {",
                *(f"    {field};" for field in fields),
                f"    char *own;\n    loop_part *parts;\n    i64 threads, together;\n}} {name}_job;\n",
                f"static void {name}(void *given, int thread) {{\n    {name}_job *j = given;",
                *(f"    {one}" for one in taken),
                f"    char *own = j->own + thread * (i64){self.function.thread_bytes};\n    (void)own;",
                *self.configured(loop.body, lines, "    "),
                "}\n",
            ]
        )
        arguments = ", ".join(
            [
                *(f".{one} = {one}" for one in (*pointers, *kept)),
                f".own = (char *)workspace + {self.function.shared_bytes}",
                ".parts = parts, .threads = threads, .together = turns / (threads * 8) + (turns < threads * 8)",
            ]
        )
        return [
            "{",
            f"    const i64 turns = {self.end(loop, scope)};",
            "    loop_part parts[threads];",
            "    loop_parts(parts, threads, turns);",
            f"    {name}_job job = {{{arguments}}};",
            f"    pool_run(threads, {name}, &job);",
            "}",
        ]
