"""Tensorizes loops for a warp's matrix instructions: accumulators in fragments, operands loaded from shared memory.

The three innermost loops are tensorized: rows, columns, and the reduced dimension. Rows and columns may be several
fused axes (a convolution's rows are positions in its image): a lane addresses a row of a matrix by the operand's
general index, so that an operand is read in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, prod

from deepgen.compiler.intrinsics.matrix import (
    LOAD,
    LOAD_TRANSPOSED,
    PRODUCTS,
    WARPGROUP,
    MatrixProduct,
    WideProduct,
    load_each,
    load_own,
)
from deepgen.compiler.passes.build import started
from deepgen.compiler.passes.ir import (
    Alloc,
    Around,
    Buffer,
    Call,
    For,
    If,
    Seq,
    Stmt,
    Store,
    at,
    calls,
    offset,
    over,
    sequence,
    used,
    walk,
    with_accesses,
    with_children,
)
from deepgen.compiler.schedule.bounds import IndexBounds
from deepgen.compiler.schedule.steps import BOUND, LANES, THREADS, UNROLL
from deepgen.operators.expr.contraction import factors
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import Cast, Const, Read
from deepgen.vocabulary import BadInput, dtype


def matrices(body: Stmt, _: Around) -> Stmt:
    return _Matrices().of(body)


@dataclass(frozen=True)
class _Matrices:
    """The loops and buffers around a statement."""

    loops: tuple[For, ...] = ()
    buffers: Mapping[str, Buffer] = field(default_factory=dict)

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        return {loop.variable: (0, loop.extent - 1) for loop in self.loops}

    def of(self, statement: Stmt) -> Stmt:
        if isinstance(statement, Alloc):
            inside = replace(self, buffers={**self.buffers, statement.buffer.name: statement.buffer})
            name = _intrinsic(statement)
            body = inside.of(statement.body)
            return replace(statement, body=body) if name is None else _in_fragments(statement.buffer, name, body)
        if not isinstance(statement, For):
            return with_children(statement, self.of)
        nest = _nest(statement)
        inside = replace(self, loops=(*self.loops, statement))
        if nest is None or statement.starts:
            return _waited_for(replace(statement, body=inside.of(statement.body)))
        return replace(self, loops=(*self.loops, *nest.loops)).tile(nest)

    def tile(self, nest: _TileNest) -> Stmt:
        """All products of a warp for one step along the reduced dimension."""
        intrinsic, inner, stage = nest.intrinsic, nest.inner, nest.store.buffer
        wanted = [(intrinsic.m, False), (intrinsic.n, False), (intrinsic.k, True)]
        if [(loop.extent, nest.sums(loop)) for loop in inner] != wanted or self.buffers[stage].scope != "warp":
            there = ", ".join(f"{loop.variable} of {loop.extent}" for loop in inner)
            raise BadInput(
                f"loops {there} of stage {stage} cannot be done by {intrinsic.name}",
                allowed=f"rows {intrinsic.m}, columns {intrinsic.n} and a reduced loop of {intrinsic.k}, in scope warp",
            )
        rows, columns, summed = (loop.variable for loop in inner)
        first, second = _operands(nest.store, intrinsic, rows, columns)
        left = _Side(self, nest, first, rows, summed, is_first=True)
        if intrinsic.warps > 1:
            return self.wide(left, second, columns)
        right = _Side(self, nest, second, columns, summed, is_first=False)
        product = over(nest.tiles, Call(intrinsic, (nest.first_sums(), left.fragment(), right.fragment())))
        return Alloc(left.buffer, Alloc(right.buffer, sequence(left.load(), right.load(), product)))

    def wide(self, left: _Side, second: Read, columns: str) -> Stmt:
        """The same by four warps: one instruction covers all columns, and reads them directly from shared memory."""
        tiles, own = left.nest.tiles, {loop.variable for loop in left.own}
        across = [loop for loop in tiles if loop.variable not in own and loop.extent > 1]
        nothing = dict.fromkeys((columns, left.summed, *(loop.variable for loop in tiles)), 0)
        product = WideProduct(left.intrinsic, left.intrinsic.n * prod(loop.extent for loop in across), 0)
        product = replace(product, leading=_leading(self, second, columns, left.summed, across, product))
        sums = at(left.nest.first_sums(), {loop.variable: 0 for loop in tiles if loop.variable not in own})
        lines = _first_lines(self, left, product)
        product = replace(product, apart=lines[1] if lines else 0)
        call = Call(product, (sums, lines[0] if lines else left.fragment(), at(second, nothing)))
        calls = sequence(Call(WARPGROUP.begin), over(left.own, call), Call(WARPGROUP.commit))
        return calls if lines else Alloc(left.buffer, sequence(left.load(), calls))


@dataclass(frozen=True)
class _TileNest:
    """The loops that an intrinsic executes, after the outer ones that select a tile, and the sum that they compute."""

    loops: tuple[For, ...]
    intrinsic: MatrixProduct
    store: Store

    @property
    def tiles(self) -> tuple[For, ...]:
        return tuple(loop for loop in self.loops if loop.kind not in PRODUCTS)

    @property
    def inner(self) -> tuple[For, ...]:
        return self.loops[len(self.tiles) :]

    def sums(self, loop: For) -> bool:
        return all(loop.variable not in i.iterators for i in self.store.indices)

    def first_sums(self) -> Read:
        """The sums of a product, starting at the first."""
        sums = Read(self.store.buffer, self.store.indices, self.store.value.dtype)
        return at(sums, {loop.variable: 0 for loop in self.inner})


def _nest(loop: For) -> _TileNest | None:
    """The loops of one tile, from this one inwards; None if it is not the outermost of such loops."""
    loops: list[For] = []
    statement: Stmt = loop
    while isinstance(statement, For):
        loops.append(statement)
        statement = statement.body
    store = statement.then if isinstance(statement, If) else statement
    if loops[-1].kind not in PRODUCTS or not isinstance(store, Store) or store.reduce is None:
        if loop.kind in PRODUCTS and not loop.starts:
            raise BadInput(f"loops inside of {loop.variable}, which is tensorized, run over tiles")
        return None
    nest = _TileNest(tuple(loops), PRODUCTS[loops[-1].kind], store)
    return None if any(nest.sums(tile) or tile.kind in BOUND for tile in nest.tiles) else nest


def _intrinsic(alloc: Alloc) -> str | None:
    """The name of the intrinsic that computes a buffer's sums."""
    nests = (nest for s in walk(alloc.body) if isinstance(s, For) and s.kind in PRODUCTS and (nest := _nest(s)))
    return next((nest.intrinsic.name for nest in nests if nest.store.buffer == alloc.buffer.name), None)


def _in_fragments(buffer: Buffer, name: str, body: Stmt) -> Stmt:
    """A buffer of sums as registers of lanes: each access is by the index within a lane, and the lane."""
    intrinsic = PRODUCTS[name]
    size = intrinsic.m * intrinsic.n
    if buffer.elements % size:
        what = f"stage {buffer.name} has {buffer.elements} elements, which do not fill whole fragments"
        raise BadInput(what, allowed=f"a layout with tiles of {intrinsic.m} by {intrinsic.n} innermost")
    count = buffer.elements // intrinsic.lanes

    def held(tensor: str, indices: tuple[Index, ...]) -> tuple[Index, ...]:
        if tensor != buffer.name:
            return indices
        flat = offset(buffer, indices)
        number, lane = intrinsic.fragment.held(flat % size)
        return flat // size * intrinsic.fragment.sums + number, lane

    def of(statement: Stmt) -> Stmt:
        if isinstance(statement, For) and statement.starts and buffer.name in used(statement):
            zero = Store(buffer.name, (iterator(start), iterator(LANES)), Const(0, buffer.dtype))
            return For(start, count, UNROLL, zero)
        return with_accesses(with_children(statement, of), held)

    start = started(buffer.name)
    return Alloc(replace(buffer, sizes=(count, intrinsic.lanes), strides=(1, 0)), of(body))


def _waited_for(loop: For) -> Stmt:
    """A loop around products of four warps, which are waited for after the outermost unrolled loop: none of their
    registers is used again before that."""
    wait, last = Call(WARPGROUP.waits()), loop.body
    sums = [places[0] for _, places in calls(loop.body, WideProduct)]
    if not sums or any(loop.variable in i.iterators for read in sums for i in read.indices):
        return loop
    while isinstance(last, (Alloc, Seq)):
        last = last.body if isinstance(last, Alloc) else last.body[-1]
    if last == Call(WARPGROUP.commit):
        return sequence(loop, wait)
    if loop.kind == UNROLL and isinstance(loop.body, Seq) and last == wait:
        return sequence(replace(loop, body=sequence(*loop.body.body[:-1])), wait)
    return loop


def _first_lines(around: _Matrices, left: _Side, product: WideProduct) -> tuple[Read, int] | None:
    """Where the rows of four warps begin, and the bytes between groups of eight, if they are stored as matrix units
    read them: each in its own line, with groups equally spaced. None if they have to be loaded."""
    buffer, bounds = around.buffers[left.read.tensor], IndexBounds(around.ranges)
    flat = bounds.simple(offset(buffer, left.read.indices))
    teams = {loop.variable: loop.extent for loop in around.loops if loop.kind == THREADS[1]}
    warps = [variable for variable in teams if variable in flat.iterators]
    if left._transposed() or buffer.swizzle != WARPGROUP.swizzle or len(warps) != 1 or teams[warps[0]] % 4:
        return None
    (warp,) = warps
    zeros: dict[str, Index | int] = dict.fromkeys(flat.iterators, 0)
    line, last = left.intrinsic.line, left.intrinsic.k - 1
    group = line * WARPGROUP.lines

    def place(team: int, row: int, k: int) -> int:
        return flat.substitute({**zeros, warp: team, left.along: row, left.summed: k}).constant

    apart = place(0, 8, 0) - place(0, 0, 0)
    product = replace(product, apart=apart * dtype(left.read.dtype).bytes)
    for team in range(teams[warp]):
        start, down = place(team // 4 * 4, 0, 0), team % 4 * 16
        places = ((row, k) for row in range(16) for k in (0, 1, last))
        if start % group or any(place(team, row, k) - start != product.row_place(down + row, k) for row, k in places):
            return None
    inside = {warp, left.along, left.summed}
    others = [(atom, times) for atom, times in flat.terms if not Index(((atom, 1),)).iterators & inside]
    moved = [(Index(((atom, times),)).bounds(bounds.ranges)[1], times) for atom, times in others if times % group]
    # Of the other loops, only steps along the reduced dimension stay within a line.
    if any(times % left.intrinsic.k for _, times in moved) or sum(most for most, _ in moved) >= line:
        return None
    if apart <= 0 or apart % group or flat.constant % group or buffer.elements % group:
        return None
    first: dict[str, Index | int] = {warp: iterator(warp) // 4 * 4, left.along: 0, left.summed: 0}
    return at(left.read, first | left.single), product.apart


def _leading(
    around: _Matrices, second: Read, columns: str, summed: str, across: Sequence[For], product: WideProduct
) -> int:
    """The distance between blocks of 64 columns in bytes, 0 if the reduced dimension is contiguous in lines."""
    source = around.buffers.get(second.tensor)
    what = f"operand {second.tensor} does not have the layout that four-warp products read"
    allowed = "a copy in shared memory of lines of 128 bytes, swizzled by 3 bits, along columns or what is summed over"
    if source is None or source.scope != "shared" or source.swizzle != WARPGROUP.swizzle or len(across) > 1:
        raise BadInput(what, allowed=allowed)
    # Without loops of one iteration, such as those over the taps of a 1 x 1 filter.
    flat = IndexBounds(around.ranges).simple(offset(source, second.indices))
    place: dict[str, Index | int] = dict.fromkeys(flat.iterators, 0)
    count, run, step, line = product.columns, product.intrinsic.run, product.intrinsic.k, product.intrinsic.line

    def at_column(column: int, k: int) -> int:
        by = {**place, columns: column % 8, summed: k}
        by |= {loop.variable: column // 8 for loop in across}
        return flat.substitute(by).constant

    start = at_column(0, 0)
    pairs = [(column, k) for column in range(count) for k in (0, 1, run - 1, run, step - 1)]

    def lies(leading: int) -> bool:
        placed = replace(product, leading=leading)
        return all(at_column(c, k) - start == placed.column_place(c, k) for c, k in pairs)

    leading = (at_column(line, 0) - start) * 2 if count > line else 16 * WARPGROUP.lines * line
    # Matrix units can only transpose two-byte elements.
    along_columns = dtype(second.dtype).bytes == 2 and count % line == 0 and leading != 0 and lies(leading)
    inside = {columns, summed, *(loop.variable for loop in across)}
    rest = [times for atom, times in flat.terms if not Index(((atom, 1),)).iterators & inside]
    if not (along_columns or lies(0)) or any(times % step for times in rest):
        raise BadInput(what, allowed=allowed)
    return leading if along_columns else 0


@dataclass(frozen=True)
class _Side:
    """One operand of the product."""

    around: _Matrices
    nest: _TileNest
    read: Read
    along: str  # the variable of its rows
    summed: str
    is_first: bool

    @property
    def intrinsic(self) -> MatrixProduct:
        return self.nest.intrinsic

    @property
    def own(self) -> list[For]:
        """The loops over tiles that select its fragment."""
        chosen = {name for i in self.read.indices for name in i.iterators}
        return [loop for loop in self.nest.tiles if loop.variable in chosen and loop.extent > 1]

    @property
    def single(self) -> dict[str, Index | int]:
        """The only value of loops over tiles that have one iteration."""
        return {loop.variable: 0 for loop in self.nest.tiles if loop.extent == 1}

    @property
    def words(self) -> int:
        """Words of one fragment that a lane holds."""
        return self.intrinsic.words(self.intrinsic.m if self.is_first else self.intrinsic.n)

    @property
    def buffer(self) -> Buffer:
        count = prod(loop.extent for loop in self.own) * self.words
        return Buffer(self._name, "i32", (count,), (1,), "fragment")

    @property
    def _name(self) -> str:
        return f"{self.nest.store.buffer}.{'rows' if self.is_first else 'columns'}"

    def fragment(self) -> Read:
        place = Index()
        for loop in self.own:
            place = place * loop.extent + iterator(loop.variable)
        return Read(self._name, (place * self.words,), "i32")

    def load(self) -> Stmt:
        """Loads four matrices at once: a fragment of the first operand, or two of the second."""
        transposed = self._transposed()
        if self.intrinsic.own:
            return self._own_load(transposed)
        lane, run, own = iterator(LANES), self.intrinsic.run, self.own
        by, to = self.single, self.fragment()
        if self.is_first:
            by[self.along] = lane // 8 % 2 * 8 if transposed else lane % 16
            by[self.summed] = lane % 8 + lane // 16 * 8 if transposed else lane // 16 * run
        else:
            if not own or own[-1].extent % 2:
                what = f"operand {self.read.tensor} has an odd number of fragments"
                raise BadInput(what, allowed="an even one: two are loaded at once")
            pair = iterator(own[-1].variable) * 2
            by[self.along] = Index() if transposed else lane % 8
            by[self.summed] = lane % 16 if transposed else lane // 8 % 2 * run
            by[own[-1].variable] = pair + lane // 16
            to = at(to, {own[-1].variable: pair})
            own[-1] = replace(own[-1], extent=own[-1].extent // 2)
        return over(own, Call(LOAD_TRANSPOSED if transposed else LOAD, (to, at(self.read, by))))

    def _own_load(self, transposed: bool) -> Stmt:
        """Loads a lane's part of its row: at once, or element by element if these are not contiguous."""
        lane, run, rows = iterator(LANES), self.intrinsic.run, self.intrinsic.m if self.is_first else self.intrinsic.n

        def element(n: int) -> Read:
            return at(self.read, self.single | {self.along: lane % rows, self.summed: lane // rows * run + n})

        load, count = (load_each(self.read.dtype, run), run) if transposed else (load_own(self.words), 1)
        return over(self.own, Call(load, (self.fragment(), *map(element, range(count)))))

    def _transposed(self) -> bool:
        """Whether it is contiguous along its rows, not along the reduced dimension."""
        source, ranges = self.around.buffers.get(self.read.tensor), self.around.ranges
        if source is None or source.scope != "shared":
            raise BadInput(f"operand {self.read.tensor} is not in shared memory", allowed="a copy of it there")
        for i, size in zip(self.read.indices, source.sizes, strict=True):
            low, high = IndexBounds(ranges).simple(i).bounds(ranges)
            if low < 0 or high >= size:
                what = f"tiles reach beyond operand {self.read.tensor}"
                raise BadInput(what, allowed="tiles and steps that its dimensions have room for")
        flat = offset(source, self.read.indices)
        if self._in_runs(flat, self.summed, self.intrinsic.run):
            return False
        if self.intrinsic.transposes and (self.intrinsic.own or self._in_runs(flat, self.along, 8)):
            return True
        what = f"operand {self.read.tensor} has no 16 aligned contiguous bytes"
        raise BadInput(what, allowed="such rows along what is summed over, or along rows of 16-bit elements")

    def _in_runs(self, flat: Index, variable: str, run: int) -> bool:
        ranges = self.around.ranges
        part, inside = "run", "run.inside"
        extent = ranges[variable][1] + 1
        bounds = IndexBounds({**ranges, part: (0, extent // run - 1), inside: (0, run - 1)})
        moved = bounds.simple(flat.substitute({variable: iterator(part) * run + iterator(inside)}))
        rest = moved - iterator(inside)
        steps = gcd(rest.constant, *(times for _, times in rest.terms))
        return moved.step(inside) == 1 and steps % run == 0


def _operands(store: Store, intrinsic: MatrixProduct, rows: str, columns: str) -> tuple[Read, Read]:
    """The reads that give the rows and the columns of the product."""
    operands = []
    for side in factors(store) or ():
        inner = side.value if isinstance(side, Cast) else side
        if isinstance(inner, Read) and inner.dtype == intrinsic.operand and side.dtype == intrinsic.sum:
            operands.append(inner)
    if len(operands) < 2:
        what = f"stage {store.buffer} is not a sum of products of {intrinsic.operand} in {intrinsic.sum}"
        raise BadInput(what, where=intrinsic.name)
    depends = [{v for i in read.indices for v in i.iterators} & {rows, columns} for read in operands]
    if depends == [{rows}, {columns}]:
        return operands[0], operands[1]
    if depends == [{columns}, {rows}]:
        return operands[1], operands[0]
    raise BadInput(f"the rows and columns of stage {store.buffer} are not those of its operands", where=intrinsic.name)
