"""Programs as kernels in CUDA and HIP, with the same source code, which is also emulated: a function for each
launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from deepgen.compiler.intrinsics.matrix import MatrixProduct, WideProduct
from deepgen.compiler.passes.ir import (
    Alloc,
    Barrier,
    Buffer,
    Call,
    For,
    Launch,
    Program,
    Stmt,
    Store,
    used,
    walk,
)
from deepgen.compiler.passes.launches import copies_of_scratch, overlaps, waits_late
from deepgen.compiler.passes.memory import joins_again
from deepgen.compiler.passes.simplify import HELD
from deepgen.compiler.schedule.stages import combined
from deepgen.compiler.schedule.steps import BLOCKS, SERIAL, THREADS, UNROLL, VECTOR
from deepgen.compiler.text import gpu_values
from deepgen.compiler.text.dialect import GPUS, Names, arithmetic, narrowed
from deepgen.compiler.text.gpu_values import WIDEST, GpuScope, moved_from
from deepgen.compiler.text.statements import Statements, result
from deepgen.kernels.shared import dialect_sources, sources
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import Binary, Expression, Read, Unary, Value
from deepgen.operators.expr.nodes import walk as walk_value
from deepgen.vocabulary import Kernel, LaunchPlan, Source, Step, TensorArg, WorkspaceArg, dtype
from deepgen.vocabulary.dtypes import STORED

_LANES = 32  # threads of a row, at most, that load numbers of a row early
_BLOCKS = 1  # per multiprocessor: as many as fit
_HEADER, _PRODUCTS, _CLUSTERS, _ROUNDED = "expressions.h", "matrices.h", "clusters.h", "rounded.h"
_LIBRARY = {"exp", "log", "sin", "cos", "tanh", "erf", "sigmoid"}


def kernel(program: Program, language: str, warp: int, name: str | None = None) -> Kernel:
    """The kernel of a program in CUDA or HIP."""
    text = emit(program)
    own = sources(__package__, (_HEADER, *(one for one in (_PRODUCTS, _CLUSTERS, _ROUNDED) if one in text)))
    dialect = GPUS[language]
    return Kernel(
        name=name or program.name,
        language=language,
        sources=(Source(dialect.file, text), *own, *dialect_sources(language)),
        flags=(*dialect.flags, f"-DWARP={warp}"),
        plan=LaunchPlan(tuple(_step(program, n) for n in range(len(program.launches)))),
    )


def emit(program: Program) -> str:
    """One file with a kernel for each launch."""
    parts = [part for launch in program.launches for part in launch.parts]
    called = {s.what.name: s.what for part in parts for s in walk(part.body) if isinstance(s, Call)}
    kernels = [line for n in range(len(program.launches)) for line in ("", *LaunchEmitter(program, n).lines())]
    products = [one for _, one in sorted(called.items()) if isinstance(one, (MatrixProduct, WideProduct))]
    clusters = any(launch.cluster > 1 for launch in program.launches)
    rounded = any(f"{name}_f32(" in line for line in kernels for name in (gpu_values.ONE_PLUS_ERF, gpu_values.ROUNDED))
    used_headers = {_PRODUCTS: products, _CLUSTERS: clusters, _ROUNDED: rounded}
    headers = [one for one, there in used_headers.items() if there] or [_HEADER]
    include = "\n".join(f'#include "{one}"' for one in headers)
    return "\n".join([include, "", *(product.text for product in products), *kernels]) + "\n"


def missing_functions(expression: Expression) -> list[str]:
    """The functions of an expression that HIP's compiler provides only with a vendor's library."""
    values = [v for stage in expression.stages for v in walk_value(stage.value)]
    wide = {v.op for v in values if isinstance(v, Unary) and v.dtype == "f64"} & _LIBRARY
    return sorted({f"{op} of f64" for op in wide} | {"pow" for v in values if isinstance(v, Binary) and v.op == "pow"})


def _step(program: Program, n: int) -> Step:
    launch, scratch = program.launches[n], {buffer.name for buffer in program.scratch}
    args = tuple(
        WorkspaceArg(b.name, b.elements * dtype(b.dtype).bytes) if b.name in scratch else TensorArg(b.name)
        for b in _parameters(program, launch)
    )
    blocks, shared = sum(prod(p.blocks) for p in launch.parts), max(p.shared_bytes for p in launch.parts)
    grid, threads, cluster = (blocks * launch.cluster, 1, 1), (_threads(launch), 1, 1), (launch.cluster, 1, 1)
    return Step(entry(program, n), args, grid, threads, cluster, shared, overlaps=overlaps(program, n))


def _threads(launch: Launch) -> int:
    """Of one block of the device."""
    return prod(launch.threads) // launch.cluster


def entry(program: Program, n: int) -> str:
    return f"deepgen_{Names().of(program.name)}_{n}"


def _parameters(program: Program, launch: Launch) -> list[Buffer]:
    """The buffers that a launch reads or writes, in order."""
    names = {name for part in launch.parts for name in used(part.body)}
    return [buffer for buffer in program.buffers.values() if buffer.name in names]


@dataclass
class LaunchEmitter(Statements[GpuScope]):
    """Emits the launch with this number."""

    program: Program
    number: int
    names: Names = field(default_factory=Names)
    loaded_before: dict[str, str] = field(default_factory=dict)  # transposing loop -> variable with its loaded runs
    joins: int = 0  # reductions over the threads of a cluster so far
    waits: bool = False  # for the previous launch, which may still be running

    @property
    def launch(self) -> Launch:
        return self.program.launches[self.number]

    @cached_property
    def written(self) -> set[str]:
        return _stored(self.launch) | self.awaited

    @cached_property
    def awaited(self) -> set[str]:
        """What the launch waits for with its first instruction: to the compiler, nothing that may be loaded before."""
        first = overlaps(self.program, self.number) and not waits_late(self.program, self.number)
        return {name for launch in self.program.launches[: self.number] for name in _stored(launch)} if first else set()

    def lines(self) -> list[str]:
        launch = self.launch
        parts = launch.parts
        scope = self.scope(launch)
        parameters = ", ".join(
            f"{b.dtype}* {scope.name(b.name)}"
            if b.name in self.awaited
            else ("" if b.name in self.written else "const ")
            + scope.dialect.pointer.format(b.dtype, scope.name(b.name))
            for b in _parameters(self.program, launch)
        )
        self.waits = waits_late(self.program, self.number)
        lines = [
            f"DG_KERNEL({_threads(launch)}, {_BLOCKS})",
            f"{entry(self.program, self.number)}({parameters}) {{",
        ]
        if self.number + 1 < len(self.program.launches) and overlaps(self.program, self.number + 1):
            lines.append("    next_may_begin();")
        if self.awaited:
            lines.append("    wait_for_launch_before();")
        begin = f"aligned<{launch.align}>(shared_begin())" if launch.align > 1 else "shared_begin()"
        shared = [f"    const u32 shared = {begin};", "    (void)shared;"]
        if launch.cluster > 1:
            if any(isinstance(s, Store) and s.joined for s in walk(launch.body)):
                lines.append("    cluster_arrive();")
            lines += self.part(launch, f"cluster_id<{launch.cluster}>()", shared, 1)
        elif len(parts) == 1:
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
        """The code of one launch's blocks; `block` is the block's number."""
        scope, indent = self.scope(launch), "    " * (depth - 1)
        lines = [*self.indices(scope, BLOCKS, launch.blocks, block)]
        thread = f"thread_of_cluster<{launch.cluster}, {_threads(launch)}>()" if launch.cluster > 1 else "thread_id()"
        lines += [*self.indices(scope, THREADS, launch.threads, thread), *shared]
        return [*(indent + line for line in lines), *self.statement(launch.body, scope, depth)]

    def scope(self, launch: Launch) -> GpuScope:
        return GpuScope(self.names, self.program.buffers, launch.ranges)

    def indices(self, scope: GpuScope, tags: tuple[str, ...], extents: tuple[int, ...], whole: str) -> Iterator[str]:
        """A grid index for each dimension, x the fastest."""
        step, outer = 1, prod(extents)
        for tag, extent in zip(tags, extents, strict=True):
            text = whole if step == 1 else f"({whole}) / {step}" if " " in whole else f"{whole} / {step}"
            text = text if step * extent == outer else f"({text}) % {extent}"
            yield f"    const int {scope.name(tag)} = {text if extent > 1 else 0};"
            yield f"    (void){scope.name(tag)};"
            step *= extent

    def own(self, statement: Stmt, scope: GpuScope, depth: int) -> list[str] | None:
        indent = "    " * depth
        if self.waits and copies_of_scratch(self.program, statement):
            self.waits = False
            return [f"{indent}wait_for_launch_before();", *self.statement(statement, scope, depth)]
        if not isinstance(statement, For):
            return None
        if gathered := gpu_values.gather(statement, scope.inside(statement), self.written):
            return [indent + line for line in gathered.lines(self.loaded_before.get(statement.variable, ""))]
        if lines := self.all_loaded(statement, scope, depth):
            return lines
        return [indent + line for line in self.vector(statement, scope)] if statement.kind == VECTOR else None

    def all_loaded(self, loop: For, scope: GpuScope, depth: int) -> list[str]:
        """The iterations before the first of a pipeline: all loads for transposing are issued before the first
        store."""
        inner, most = scope.inside(loop), gpu_values.at_once(prod(self.launch.threads))
        for asked, one in gpu_values.done_in(loop.body):
            if loop.kind != UNROLL or loop.extent < 2 or not isinstance(one, For) or one.variable in self.loaded_before:
                continue
            gathered = gpu_values.gather(one, inner.inside(one), self.written)
            if gathered is None or gathered.parts > 1 or loop.extent * gathered.each > most:
                continue
            iteration, name = scope.name(loop.variable), scope.name(f"{one.variable}.held")
            self.loaded_before[one.variable] = f"{name}[{iteration}]"
            real = f"if ({inner.all_there(asked)}) " if asked else ""
            loads = gathered.over(f"{real}{name}[{iteration}][part] = {gathered.load};")
            lines = [f"{gathered.kind} {name}[{loop.extent}][{gathered.each}];", self.head(loop, scope),
                     *(f"    {line}" for line in loads), "}", "barrier();"]  # fmt: skip
            lines = [f"{'    ' * (depth + 1)}{line}" for line in lines]
            lines += self.statement(loop, scope, depth + 1)
            del self.loaded_before[one.variable]
            return [f"{'    ' * depth}{{", *lines, f"{'    ' * depth}}}"]
        return []

    def head(self, loop: For, scope: GpuScope) -> str:
        meets = any(isinstance(s, (Barrier, Call)) for s in walk(loop.body))
        unroll = ("DG_NO_UNROLL " if meets else "") if loop.kind == SERIAL else "DG_UNROLL "
        return unroll + super().head(loop, scope)

    def declared(self, alloc: Alloc, scope: GpuScope) -> str:
        buffer, name = alloc.buffer, scope.name(alloc.buffer.name)
        if buffer.scope not in HELD:
            return f"const u32 {name} = shared + {buffer.offset};"
        kind = "u32" if buffer.scope == "fragment" else arithmetic(buffer.dtype)
        return f"DG_HELD({kind}, {name}, {buffer.elements});"

    def argument(self, read: Read, scope: GpuScope) -> str:
        return scope.at(scope.buffers[read.tensor], read.indices[0])

    # Stores

    def store(self, store: Store, scope: GpuScope) -> list[str]:
        buffer, (offset,), value = scope.buffers[store.buffer], store.indices, result(store)
        scope = replace(scope, rounded=self.rounded(buffer, store), alike=self.rounds, early=self.early(buffer, value))
        text = scope.value(value).text
        if store.joined:
            kind, team = arithmetic(buffer.dtype), self.launch.threads[0]
            joined = combined(store.joined, Read("a", (), value.dtype), Read("b", (), value.dtype))
            assert isinstance(joined, Binary)
            joining = f"{kind}, {joined.op}_{kind}"
            if self.launch.cluster > 1:
                text = self.over_cluster(text, joining)
            else:
                again = joins_again(self.launch)
                text = f"over_threads<{team}, {str(again).lower()}, {joining}>({text}, {self.meeting(again)})"
        return [self.stored(buffer, offset, text, scope, self.as_it_is(store, scope))]

    @cached_property
    def rounds(self) -> bool:
        """Whether all results of the launch have 16 bits."""
        return all(self.program.buffers[b].dtype in STORED for b in _stored(self.launch) & {*self.program.buffers})

    def rounded(self, buffer: Buffer, store: Store) -> bool:
        """Whether it stores 16 bits, or exponentials or their sum for such results: none of these cancel."""
        positive = isinstance(store.value, Unary) and store.value.op == "exp" and store.reduce in (None, "sum")
        return buffer.dtype in STORED or (self.rounds and positive)

    def meeting(self, again: bool) -> str:
        """Where the warps of a block or of a cluster meet: each time in another place, if that is not `again`."""
        number, self.joins = self.joins, self.joins + 1
        return f"shared + {number} * ({prod(self.launch.threads)} / WARP * 8)" if number and not again else "shared"

    def early(self, buffer: Buffer, value: Value) -> bool:
        """Whether it loads a single number for later, before threads join what they reduce."""
        # Of longer rows all warps would wait for the same number, past the caches.
        joins = self.launch.threads[0] <= _LANES and any(
            isinstance(s, Store) and s.joined for s in walk(self.launch.body)
        )
        single = buffer.scope in HELD and buffer.elements == 1
        return joins and single and isinstance(value, Read) and value.tensor not in self.written

    def over_cluster(self, value: str, joining: str) -> str:
        """Each reduction has its own part of shared memory, so that it takes one barrier."""
        cluster, first = self.launch.cluster, str(not self.joins).lower()
        at = self.meeting(again=False)
        return f"over_cluster<{cluster}, {_threads(self.launch)}, {first}, {joining}>({value}, {at})"

    def vector(self, loop: For, scope: GpuScope) -> list[str]:
        """One store of contiguous elements: the reads are loaded before it, as wide as they are contiguous."""
        store, scope = loop.body, scope.inside(loop)
        assert isinstance(store, Store)
        if store.ahead and (lines := self.copy_ahead(loop, store, scope)):
            return lines
        lines, loaded = [], dict[Read, str]()
        runs: dict[Value, str] = {}
        counter = scope.name(loop.variable)
        for n, (read, asked) in enumerate(dict.fromkeys(gpu_values.reads_if(store.value, ()))):
            buffer = scope.buffers[read.tensor]
            if buffer.scope in HELD or read in loaded:
                continue
            variable = f"part{n}"
            if sum(read == other for other, _ in dict.fromkeys(gpu_values.reads_if(store.value, ()))) > 1:
                continue  # read under several conditions: loaded where it is used
            if all(wanted for _, wanted in asked):
                real = scope.all_hold(tuple(c for c, _ in asked))
            else:
                real = " && ".join(f"{'' if wanted else '!'}({scope.value(c).text})" for c, wanted in asked)
            along = read.indices[0] - iterator(loop.variable)
            if loop.variable not in read.indices[0].iterators:
                one = scope.element(buffer, read.indices[0])
                one = f"{real} ? {one} : {buffer.dtype}{{}}" if asked else one
                lines.append(f"const {buffer.dtype} {variable} = {one};")
                loaded[read] = variable
            elif loop.variable not in along.iterators:
                width = scope.together(buffer, along, loop.extent)
                if buffer.swizzle and width < loop.extent:
                    continue  # its parts are not contiguous
                call = f"read_{self.way(buffer, asked)}<{width}, {buffer.dtype}, {loop.extent}>"
                read_run = f"{call}({scope.at(buffer, along)}, {real})"
                lines.append(f"const Vec<{buffer.dtype}, {loop.extent}> {variable} = {read_run};")
                loaded[read] = f"{variable}.v[{counter}]"
                runs |= {read: variable} if loop.extent % 2 == 0 else {}
        to, start = scope.buffers[store.buffer], store.indices[0] - iterator(loop.variable)
        value = store.value
        if (moved := moved_from(value)) and moved[0] in loaded:
            value = moved[0]  # the loaded values are already zero where the condition is false
        scope = replace(scope, loaded=loaded, rounded=self.rounded(to, store), alike=self.rounds)
        text = scope.value(result(replace(store, value=value))).text
        unrolled = f"DG_UNROLL for (int {counter} = 0; {counter} < {loop.extent}; ++{counter})"
        width = scope.together(to, start, loop.extent)
        copies = not (store.reduce or store.joined)
        if copies and to.scope in HELD and to.dtype == value.dtype == "f16" and value in runs:
            lines.append(f"widen_run({runs[value]}, {scope.at(to, start)});")
        elif to.scope in HELD or (to.swizzle and width < loop.extent):
            lines.append(f"{unrolled} {self.stored(to, store.indices[0], text, scope)}")
        else:
            one = self.as_it_is(store, scope) or narrowed(to.dtype, text)
            lines += [f"Vec<{to.dtype}, {loop.extent}> out;", f"{unrolled} out.v[{counter}] = {one};"]
            lines.append(f"write_{_memory(to)}<{width}>({scope.at(to, start)}, out);")
        return ["{", *(f"    {line}" for line in lines), "}"]

    def way(self, buffer: Buffer, asked: gpu_values.Asked) -> str:
        """How to read a run of a buffer, which depends on what the compiler may assume of it."""
        if buffer.scope == "shared" or not asked or buffer.name in _stored(self.launch):
            return "shared" if buffer.scope == "shared" else "plain"
        return "awaited" if buffer.name in self.awaited else "input"

    def stored(self, buffer: Buffer, offset: Index, text: str, scope: GpuScope, as_it_is: str = "") -> str:
        if buffer.scope in HELD:
            return f"{scope.element(buffer, offset)} = {text};"
        one = as_it_is or narrowed(buffer.dtype, text)
        return f"store_{_memory(buffer)}<{buffer.dtype}>({scope.at(buffer, offset)}, {one});"

    def as_it_is(self, store: Store, scope: GpuScope) -> str:
        """The source of a store that only copies, in its storage format; empty if the store computes."""
        moved = moved_from(store.value)
        if store.reduce or store.joined or moved is None:
            return ""
        read, asked = moved
        source = scope.buffers[read.tensor]
        if source.scope in HELD or source.dtype != scope.buffers[store.buffer].dtype:
            return ""
        if read in scope.loaded or not asked:
            return scope.loaded.get(read) or scope.element(source, read.indices[0])
        return f"{scope.all_hold(asked)} ? {scope.element(source, read.indices[0])} : {source.dtype}{{}}"

    def copy_ahead(self, loop: For, store: Store, scope: GpuScope) -> list[str]:
        """An asynchronous hardware copy; empty if not possible."""
        to, moved = scope.buffers[store.buffer], moved_from(store.value)
        if moved is None or moved[0].dtype != to.dtype or moved[0].tensor not in self.program.buffers:
            return []
        value, asked = moved
        real = scope.all_hold(asked)
        source, zero = scope.buffers[value.tensor], {loop.variable: 0}
        first, last = value.indices[0].substitute(zero), store.indices[0].substitute(zero)
        if value.indices[0].step(loop.variable) != 1:
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


def _stored(launch: Launch) -> set[str]:
    return {s.buffer for part in launch.parts for s in walk(part.body) if isinstance(s, Store)}


def _memory(buffer: Buffer) -> str:
    return "shared" if buffer.scope == "shared" else "global"
