"""A rough cost model that ranks configs, as a `Cost` on every kind of target.

`Counts` are the work of a launch of matrix products as functions of knobs, so that many configs are compared before any
is built. For other operators the built loops are counted. It is good enough for a start; the search measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from math import prod
from typing import Any

from deepgen.compiler.intrinsics.dots import DOTS
from deepgen.compiler.intrinsics.matrix import PRODUCTS
from deepgen.compiler.intrinsics.tiles import MOST_ROWS, TILES
from deepgen.compiler.passes.ir import (
    Alloc,
    Buffer,
    For,
    Function,
    Launch,
    Lowered,
    Program,
    Seq,
    Stmt,
    Store,
    accesses,
    children,
    offset,
    walk,
)
from deepgen.compiler.rules.facts import costly_value
from deepgen.compiler.rules.template import Extent
from deepgen.compiler.schedule.bounds import conditions, joined, low_and_span
from deepgen.compiler.schedule.steps import BLOCKS, PARALLEL, THREADS, UNROLL, VECTOR
from deepgen.kernels import Cost, CostPart, CostPhase, overlapped
from deepgen.operators.expr.nodes import Binary, Cast, Compare, Const, Logic, Place, Read, Select, Unary, reads
from deepgen.operators.expr.nodes import Value as Operand
from deepgen.operators.expr.nodes import children as operands
from deepgen.space import Value
from deepgen.space.evaluate import together
from deepgen.space.expr import lift
from deepgen.targets import Cpu, Gpu
from deepgen.vocabulary import dtype

_CLOCK = 1.7e9
_BANKS = 128 * _CLOCK  # bytes per second from a multiprocessor's shared memory
_MATRICES = 512  # bytes of the four matrices that a warp loads at once
_L2 = 6.5e10  # bytes per second for each multiprocessor
_LATENCY = 0.9e-6  # latency of a load from memory
_ITERATION = 0.08e-6  # barrier and waits of one iteration
_ENDS = 0.9e-6  # start of a block until its first copies are issued, and its epilogue
_ALONE = 0.5  # share of the full rate that one warp on each part of a multiprocessor reaches
_ALONE_LATE = 0.8  # the same if it does not wait for products
_FULL = 16  # warps that reach the full rate
_LAUNCH = 2.5e-6  # a launch before this one
_PACKED = 0.9e12  # bytes per second that such a launch reorders
_TRANSPOSED = 25  # elements per cycle that a multiprocessor transposes on their way to shared memory


@dataclass(frozen=True)
class Counts:
    blocks: Extent
    threads: Extent
    registers: Extent
    shared_bytes: Extent
    operations: Extent  # of a block, including those beyond the edges of the result
    loads: Extent  # of a block, in quarters of a load of four matrices from shared memory
    iterations: Extent  # of the loop that copies operands
    copied: Extent  # bytes per iteration
    depth: Extent
    late: Extent  # 1 if products of one iteration may overlap with the next one
    stored: Extent  # bytes, including those written beside them because sectors are larger
    packed: Extent  # bytes that a launch before this one reorders
    transposed: Extent  # elements per iteration that are transposed on their way to shared memory
    rate: float  # operations per second that the matrix units of the whole GPU reach with these instructions
    rate_late: float  # the same if products of one iteration overlap with the next one

    def at(self, config: Mapping[str, Value]) -> dict[str, int]:
        return dict(zip(self._numbers, self._computed(config), strict=True))

    @cached_property
    def _computed(self) -> Callable[[Mapping[str, Value]], list[Any]]:
        return together([lift(n) for n in self._numbers.values()])

    @property
    def knobs(self) -> frozenset[str]:
        """The knobs that the estimate depends on."""
        return frozenset(name for n in self._numbers.values() if not isinstance(n, int) for name in n.knobs())

    @cached_property
    def _numbers(self) -> dict[str, Extent]:
        return {one.name: getattr(self, one.name) for one in fields(self) if not one.name.startswith("rate")}

    def seconds(self, config: Mapping[str, Value], gpu: Gpu) -> float:
        """The seconds of `cost`, computed faster, for use on hundreds of configs."""
        return self._times(self.at(config), gpu)[0]

    def cost(self, config: Mapping[str, Value], gpu: Gpu) -> Cost:
        c = self.at(config)
        _, packed, rounds, each = self._times(c, gpu)
        times = (*(rounds * time for time in each), packed)
        amounts = (
            ("matrix units", c["blocks"] * c["operations"], "operations"),
            ("shared memory", c["blocks"] * c["loads"] / 4 * _MATRICES, "bytes"),
            ("L2", c["blocks"] * c["iterations"] * c["copied"], "bytes"),
            ("waits", c["iterations"], "iterations"),
            ("results", c["blocks"] * c["stored"], "bytes"),
            ("waves", rounds, "waves"),
            ("packing", c["packed"], "bytes"),
        )
        parts = [CostPart(name, took, much, unit) for took, (name, much, unit) in zip(times, amounts, strict=True)]
        return Cost((CostPhase("products", tuple(parts[:3]), tuple(part for part in parts[3:] if part.seconds)),))

    def _times(self, c: Mapping[str, int], gpu: Gpu) -> tuple[float, float, int, tuple[float, ...]]:
        """Times of the busiest multiprocessor, in rounds of the blocks that are resident together: the total, the time
        of a launch before it, the number of rounds, and the parts of one round, first those that overlap, then those
        that nothing hides."""
        iterations, own = c["iterations"], -(-c["blocks"] // gpu.multiprocessors)
        beside = min(_resident(gpu, c["threads"], c["registers"], c["shared_bytes"]), own)
        rounds, warps = -(-own // beside), beside * c["threads"] // gpu.warp
        late = c["late"] == 1 and c["depth"] > 2
        alone = _ALONE_LATE if late else _ALONE
        reached = min(1.0, alone + (1 - alone) * max(0, warps - 4) / (_FULL - 4)) * min(1.0, warps / 4)
        rate = self.rate_late if late else self.rate
        arithmetic = beside * c["operations"] / (rate / gpu.multiprocessors * reached)
        transposed = iterations * c["transposed"] / _TRANSPOSED / _CLOCK
        shared = beside * (c["loads"] / 4 * _MATRICES / _BANKS + transposed)
        copies = beside * iterations * c["copied"] / _L2
        together = overlapped((arithmetic, shared, copies))
        # The time of copies that is not hidden by the iterations they run ahead is waited for.
        ahead = (1 if c["transposed"] else c["depth"] - (2.5 if late else 1)) * together / iterations
        latency = _LATENCY if c["depth"] > 1 else 2 * _LATENCY  # no copies are in flight while products are computed
        waits = iterations * ((0.0 if late else _ITERATION) + max(0.0, latency - ahead))
        more = max(0.0, together / beside + waits - together)
        packed = _LAUNCH + c["packed"] / _PACKED if c["packed"] else 0.0
        stored = beside * c["stored"] / _L2
        whole = packed + rounds * (together + more + stored + _ENDS)
        return whole, packed, rounds, (arithmetic, shared, copies, more, stored, _ENDS)


def _resident(gpu: Gpu, threads: int, registers: int, shared: int) -> int:
    """The number of blocks that are resident on a multiprocessor at the same time."""
    by_registers = gpu.registers_per_sm // (threads * registers)
    by_shared = gpu.shared_per_sm // max(1, shared + gpu.shared_reserved)
    return max(1, min(by_registers, by_shared, gpu.threads_per_sm // threads, gpu.blocks_per_sm))


# Constants for built loops: of a CPU's core, and of a multiprocessor.
_CORE_CLOCK = 3e9
_PORTS = 2  # vectors that are computed with, or loaded, per cycle
_CHAIN = 4  # latency in cycles of an addition to a sum
_CORE_RATES = (60e9, 20e9, 10e9)  # bytes per second from L2, L3 and memory
_WAKING = 3e-6  # until all threads of a CPU have started, and until they have finished
_TILE_CYCLES = 16  # of a product of whole tiles
_COSTLY, _COSTLY_GPU, _DIVIDED = 45, 12, 4  # instructions of a function such as exp, and of a division
_LINE, _SECTOR = 64, 32  # bytes that a CPU and a GPU move at once
_BANK = 4  # bytes of shared memory that a lane accesses per cycle
_MATRIX_UNITS = 16  # times as fast as plain arithmetic
_NEAR = 64 << 10  # bytes of a multiprocessor's L1 cache, in which a block finds again what it has read
_REGISTERS = 32  # of a thread, assumed
_BLOCK = 0.6e-9  # until the next block starts, over the whole GPU
_AHEAD = 4  # reads of a loop that are in flight at a time
_IN_MEMORY = ("parameter", "global")
_WRITTEN_OUT = (UNROLL, VECTOR)


def cost(lowered: Lowered, target: Cpu | Gpu, threads: int = 1) -> Cost:
    """The cost of loops as first built, before any other pass, when indices still have all dimensions. `threads` are a
    CPU's."""
    if isinstance(lowered, Program):
        assert isinstance(target, Gpu)
        return Cost(tuple(_launch_cost(lowered, launch, target) for launch in lowered.launches))
    assert isinstance(target, Cpu)
    return Cost(tuple(_region_cost(lowered, part, target, threads) for part in _regions(lowered.body)))


def _regions(statement: Stmt) -> Iterator[Stmt]:
    """Parts that run one after the other, each with threads of its own."""
    for child in children(statement) if isinstance(statement, (Seq, Alloc)) else ():
        yield from _regions(child)
    if not isinstance(statement, (Seq, Alloc)):
        yield statement


def _region_cost(function: Function, region: Stmt, cpu: Cpu, threads: int) -> CostPhase:
    shared = [s for s in walk(region) if isinstance(s, For) and s.kind == PARALLEL]
    loops = _Loops(_all_buffers(function.body, function.buffers), _LINE, cpu.vector_bytes)
    done = loops.counted(region)
    tasks = min((loop.extent for loop in shared), default=1)
    taking = min(threads, tasks)
    slowest = -(-tasks // taking) / tasks  # the busiest thread's share of all tasks
    sizes = (cpu.l1d_bytes, cpu.l2_bytes, cpu.l3_bytes)
    moved = [loops.traffic(region, size) for size in sizes]
    names = ("from L2", "from L3", "from memory")
    busy = (
        CostPart("arithmetic", done.computed / _PORTS / _CORE_CLOCK * slowest, done.computed, "instructions"),
        CostPart("loads and stores", done.loaded / _PORTS / _CORE_CLOCK * slowest, done.loaded, "instructions"),
        CostPart("loops", done.steps / _CORE_CLOCK * slowest, done.steps, "cycles"),
        *(
            CostPart(name, size / rate * slowest, size, "bytes")
            for name, size, rate in zip(names, moved, _CORE_RATES, strict=True)
        ),
    )
    waking = (CostPart("threads", _WAKING, taking, "threads"),) if taking > 1 else ()
    return CostPhase(_name(region), busy, waking)


def _launch_cost(program: Program, launch: Launch, gpu: Gpu) -> CostPhase:
    threads, blocks = prod(launch.threads) // launch.cluster, prod(launch.blocks) * launch.cluster
    inside = {s.variable: s.extent for s in walk(launch.body) if isinstance(s, For) and s.kind in THREADS}
    buffers = _all_buffers(launch.body, program.buffers)
    loops = _Loops(buffers, _SECTOR, _BANK, inside)
    done = loops.counted(launch.body)
    shared = sum(b.elements * dtype(b.dtype).bytes * b.ahead for b in buffers.values() if b.scope == "shared")
    own = -(-blocks // gpu.multiprocessors)
    beside = min(own, _resident(gpu, threads, _REGISTERS, shared))
    rounds = -(-own // beside)
    slowest = own / blocks
    lanes = (gpu.vector_peak("f32") or 1e4) * 1e9 / 2 / gpu.multiprocessors  # thread instructions per second
    reached = min(1.0, beside * threads / gpu.warp / _FULL)
    moved, unique = loops.traffic(launch.body, _NEAR), sum(loops.touched(launch.body).values())
    waits = max(1.0, done.waits / (threads * blocks))
    busy = (
        CostPart("arithmetic", done.computed / lanes / reached * slowest, done.computed, "instructions"),
        CostPart("loads and stores", done.loaded * _BANK / _BANKS * slowest, done.loaded * _BANK, "bytes"),
        CostPart("L2", moved / _L2 * slowest, moved, "bytes"),
        CostPart("memory", unique / (gpu.bandwidth_gbs * 1e9), unique, "bytes"),
        CostPart("waits", (1 + (waits - 1) / _AHEAD) * _LATENCY * rounds, rounds, "waves"),
        CostPart("blocks", blocks * _BLOCK, blocks, "blocks"),
    )
    return CostPhase(launch.name, busy, (CostPart("launch", gpu.launch_seconds, 1, "launches"),))


def _name(statement: Stmt) -> str:
    return next((s.buffer for s in walk(statement) if isinstance(s, Store)), "")


def _all_buffers(body: Stmt, parameters: Mapping[str, Buffer]) -> dict[str, Buffer]:
    return {**parameters, **{s.buffer.name: s.buffer for s in walk(body) if isinstance(s, Alloc)}}


@dataclass
class _Done:
    """Vector instructions (on a GPU: thread instructions), least cycles of loops, and dependent reads of memory."""

    computed: float = 0.0
    loaded: float = 0.0
    steps: float = 0.0
    waits: float = 0.0


class _Loops:
    """Loops with the buffers that they use. `threads`: loops whose iterations all run at the same time."""

    def __init__(self, buffers: Mapping[str, Buffer], line: int, vector: int, threads: Mapping[str, int] | None = None):
        self.buffers, self.line, self.vector, self.threads = buffers, line, vector, threads or {}
        self._touched: dict[int, dict[str, float]] = {}

    def touched(self, statement: Stmt) -> dict[str, float]:
        """Bytes of each buffer in memory that a statement uses, in whole lines."""
        if (kept := self._touched.get(id(statement))) is not None:
            return kept
        inner = {**self.threads, **{s.variable: s.extent for s in walk(statement) if isinstance(s, For)}}
        most: dict[str, float] = {}
        for read in {read for s in walk(statement) for read in accesses(s)}:
            buffer = self.buffers[read.tensor]
            if buffer.scope in _IN_MEMORY:
                most[read.tensor] = max(most.get(read.tensor, 0.0), self._bytes(buffer, read, inner))
        self._touched[id(statement)] = most
        return most

    def _bytes(self, buffer: Buffer, read: Read, inner: Mapping[str, int]) -> float:
        """In whole lines: the lines of all rows or, if that is less, everything from the first element to the last, as
        for loops that were fused and split without regard to rows; at most one line per element."""
        size = dtype(buffer.dtype).bytes
        spans = [min(low_and_span(i, inner)[1], n) for i, n in zip(read.indices, buffer.sizes, strict=True)] or [1]
        rows = prod(spans[:-1]) * -(-spans[-1] * size // self.line) * self.line
        together = low_and_span(joined(offset(buffer, read.indices)), inner)[1]
        elements = prod(inner.get(v, 1) for v in frozenset().union(*(i.iterators for i in read.indices)))
        return min(rows, -(-together * size // self.line) * self.line, elements * self.line)

    def traffic(self, statement: Stmt, room: int) -> float:
        """Bytes that come from beyond a memory of this size: what one iteration used is still there for the next, if it
        fits."""
        if isinstance(statement, For) and statement.kind not in BLOCKS:
            if statement.variable in self.threads:
                return self.traffic(statement.body, room)
            if statement.kind in _WRITTEN_OUT or sum(self.touched(statement.body).values()) <= room:
                return self._from_outside(statement)
        elif sum(self.touched(statement).values()) <= room:
            return self._from_outside(statement)
        times = statement.extent if isinstance(statement, For) else 1
        inner = [self.traffic(child, room) for child in children(statement)]
        return times * sum(inner) if inner else self._from_outside(statement)

    def _from_outside(self, statement: Stmt) -> float:
        own = {s.buffer.name for s in walk(statement) if isinstance(s, Alloc)}
        return sum(size for name, size in self.touched(statement).items() if name not in own)

    def counted(self, body: Stmt) -> _Done:
        done = _Done()
        self._count(body, {}, 1.0, {}, done)
        return done

    def _count(self, s: Stmt, near: Mapping[str, For], times: float, bound: Mapping[str, int], done: _Done) -> None:
        """`near`: unrolled loops, in which loaded values stay in registers."""
        if isinstance(s, Store):
            self._count_store(s, near, times, done)
        elif not isinstance(s, For):
            for child in children(s):
                self._count(child, near, times, bound, done)
        elif s.kind in _WRITTEN_OUT or s.kind in DOTS or s.kind in TILES or s.kind in PRODUCTS:
            self._count(s.body, {**near, s.variable: s}, times, bound, done)
        else:
            # The threads of a stage inside another one are the same threads.
            times *= s.extent / bound.get(s.kind, 1) * prod(loop.extent for loop in near.values())
            bound = {**bound, s.kind: s.extent} if s.variable in self.threads else bound
            self._count(s.body, {}, times, bound, done)

    def _count_store(self, store: Store, near: Mapping[str, For], times: float, done: _Done) -> None:
        trips = times * prod(loop.extent for loop in near.values())
        lanes = max(1, self.vector // dtype(store.value.dtype).bytes)
        for kind in dict.fromkeys(loop.kind for loop in near.values()):
            if kind == VECTOR and not self.threads:
                trips /= prod(loop.extent / -(-loop.extent // lanes) for loop in near.values() if loop.kind == kind)
            elif kind in DOTS:
                trips /= DOTS[kind].lanes * DOTS[kind].depth
            elif kind in TILES:
                trips /= MOST_ROWS * TILES[kind].lanes * TILES[kind].whole / _TILE_CYCLES / _PORTS
            elif kind in PRODUCTS:
                trips /= _MATRIX_UNITS
        done.computed += trips * max(1.0, instructions(store, _COSTLY_GPU if self.threads else _COSTLY))
        done.steps += times * (_CHAIN if store.reduce else 1)
        inner, vectors = {v: loop.extent for v, loop in near.items()}, {v for v in near if near[v].kind != UNROLL}
        for read in set(accesses(store)):
            if self.buffers[read.tensor].scope in ("register", "warp"):
                continue
            spans = [low_and_span(i, inner)[1] for i in read.indices]
            size = dtype(read.dtype).bytes
            along = bool(vectors & read.indices[-1].iterators) if read.indices else False
            done.loaded += times * prod(spans) * (size / self.vector if along or self.threads else 1)
        done.waits += times * any(self.buffers[r.tensor].scope in _IN_MEMORY for r in reads(store.value))


def instructions(store: Store, costly: int) -> float:
    """Instructions for one element: an added product is one. Conditions over indices alone are tested outside loops."""
    value = store.value
    fused = store.reduce == "sum" and isinstance(value, Binary) and value.op == "mul"
    return bool(store.reduce) - fused + _weight(value, costly)


def _weight(value: Operand, costly: int) -> float:
    if isinstance(value, (Const, Place, Read)) or (isinstance(value, (Compare, Logic)) and conditions(value)):
        return 0.0
    own = (
        0.0 if isinstance(value, Cast) or (isinstance(value, Select) and not _weight(value.condition, costly)) else 1.0
    )
    divided = (isinstance(value, Binary) and value.op == "div") or (isinstance(value, Unary) and "sqrt" in value.op)
    own = costly if costly_value(value) else _DIVIDED if divided else own
    return own + sum(_weight(operand, costly) for operand in operands(value))
