"""Loops that a warp's products of matrices do: sums in fragments, operands loaded from shared memory as matrices.

The tensorized loops are three, the innermost ones: rows, columns, and what is summed over. Rows and columns may be
several axes in one (a convolution's rows are places of its image): a lane asks for a row of a matrix by the general
index of the operand, so that an operand is read where it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from deepgen.compiler.intrinsics.matrix import (
    LOAD,
    LOAD_EACH,
    LOAD_OWN,
    LOAD_TRANSPOSED,
    WARPGROUP,
    MatrixProduct,
    WideProduct,
    matrix_product,
)
from deepgen.compiler.passes.bounds import IndexBounds
from deepgen.compiler.passes.build import buffer_of, stored
from deepgen.compiler.passes.ir import Alloc, Buffer, Call, For, Stmt, Store, sequence
from deepgen.compiler.schedule.state import Loop, Planned, State
from deepgen.compiler.schedule.steps import BOUND, LANES, THREADS, UNROLL
from deepgen.operators.expr.index import Index, Iter, iterator
from deepgen.operators.expr.nodes import Binary, Cast, Const, Read, Value, substituted
from deepgen.vocabulary import BadInput, dtype


def in_fragment(planned: Planned, indices: Sequence[Index]) -> tuple[Index, Index]:
    """Where an element of a stage in fragments is: which of a lane's numbers, and which lane."""
    intrinsic = _intrinsic(planned)
    flat, size = _flat(buffer_of(planned), indices), intrinsic.m * intrinsic.n
    number, lane = intrinsic.fragment.held(flat % size)
    return flat // size * intrinsic.fragment.sums + number, lane


def fragments_of(planned: Planned) -> Buffer:
    """The numbers of a lane."""
    elements = buffer_of(planned).elements
    intrinsic = _intrinsic(planned)
    if elements % (intrinsic.m * intrinsic.n):
        what = f"stage {planned.stage.name} has {elements} elements, which do not fill whole fragments"
        raise BadInput(what, allowed=f"a layout with tiles of {intrinsic.m} by {intrinsic.n} innermost")
    return Buffer(
        planned.stage.name, planned.stage.dtype, (elements // intrinsic.lanes, intrinsic.lanes), (1, 0), "warp"
    )


def zeroed(planned: Planned) -> Stmt:
    variable, count = f"{planned.stage.name}.start", fragments_of(planned).sizes[0]
    zero = Store(planned.stage.name, (iterator(variable), iterator(LANES)), Const(0, planned.stage.dtype))
    return For(variable, count, UNROLL, zero)


def is_tile(state: State, planned: Planned, loops: Sequence[Loop]) -> bool:
    """Whether these are the tensorized loops, with those around them that only choose a tile."""
    assert planned.tensorized
    inner = [loop.name for loop in loops]
    if planned.tensorized[0] not in inner:
        raise BadInput(f"loops of stage {planned.stage.name} inside of its tensorized ones run over tiles")
    tiles = loops[: inner.index(planned.tensorized[0])]
    return all(
        not loop.reduced and loop.kind not in BOUND and not state.computed_at(planned.stage.name, loop.name)
        for loop in tiles
    )


def tile(state: State, planned: Planned, loops: Sequence[Loop], buffers: Callable[[Value], Value]) -> Stmt:
    """All products of a warp for one step along what is summed over."""
    assert planned.tensorized
    at = [loop.name for loop in loops].index(planned.tensorized[0])
    tiles, inner = loops[:at], loops[at:]
    intrinsic = _intrinsic(planned)
    wanted = [(intrinsic.m, False), (intrinsic.n, False), (intrinsic.k, True)]
    if [(loop.extent, loop.reduced) for loop in inner] != wanted or planned.scope != "warp":
        there = ", ".join(f"{loop.name} of {loop.extent}" for loop in inner)
        raise BadInput(
            f"loops {there} of stage {planned.stage.name} cannot be done by {intrinsic.name}",
            allowed=f"rows {intrinsic.m}, columns {intrinsic.n} and a reduced loop of {intrinsic.k}, in scope warp",
        )
    rows, columns, summed = (loop.variable for loop in inner)
    a, b = _operands(planned, intrinsic, rows, columns)
    first, second = buffers(substituted(a, planned.absolute())), buffers(substituted(b, planned.absolute()))
    assert isinstance(first, Read) and isinstance(second, Read)
    left = _Side(state, planned, intrinsic, first, tiles, rows, summed, is_first=True)
    if intrinsic.warps > 1:
        return _wide(state, planned, left, second, columns, tiles)
    right = _Side(state, planned, intrinsic, second, tiles, columns, summed, is_first=False)
    sums = _sums(planned, (rows, columns, summed))
    product: Stmt = Call(intrinsic.name, (sums, left.fragment(), right.fragment()))
    for loop in reversed(tiles):
        product = For(loop.variable, loop.extent, UNROLL, product)
    body = sequence(left.load(), right.load(), product)
    return Alloc(left.buffer, Alloc(right.buffer, body))


def _sums(planned: Planned, inner: Sequence[str]) -> Read:
    """The sums of a product."""
    nothing: Mapping[str, Index | int] = dict.fromkeys(inner, 0)
    places = stored(planned, [planned.places[axis.name].substitute(nothing) for axis in planned.stage.axes])
    return Read(planned.stage.name, in_fragment(planned, places), planned.stage.dtype)


def is_wide(planned: Planned) -> bool:
    """Whether several warps do its products together."""
    return planned.tensorized is not None and _intrinsic(planned).warps > 1


def _wide(state: State, planned: Planned, left: _Side, second: Read, columns: str, tiles: Sequence[Loop]) -> Stmt:
    """The same by four warps: one instruction has all columns, and reads them where they lie."""
    own = {loop.variable for loop in left.own}
    across = [loop for loop in tiles if loop.variable not in own and loop.extent > 1]
    nothing: Mapping[str, Index | int] = dict.fromkeys((columns, left.summed, *(loop.variable for loop in tiles)), 0)
    product = WideProduct(left.intrinsic, left.intrinsic.n * prod(loop.extent for loop in across), 0)
    product = replace(product, leading=_leading(state, second, columns, left.summed, across, product))
    first: Mapping[str, Index | int] = {loop.variable: 0 for loop in tiles if loop.variable not in own}
    sums = _sums(planned, (left.along, columns, left.summed))
    sums = replace(sums, indices=tuple(i.substitute(first) for i in sums.indices))
    place = replace(second, indices=tuple(i.substitute(nothing) for i in second.indices))
    lines = _first_lines(state, left, product)
    product = replace(product, apart=lines[1] if lines else 0)
    product_call: Stmt = Call(product.name, (sums, lines[0] if lines else left.fragment(), place))
    for loop in reversed(left.own):
        product_call = For(loop.variable, loop.extent, UNROLL, product_call)
    product_call = sequence(Call(WARPGROUP.begin), product_call, Call(WARPGROUP.commit))
    return product_call if lines else Alloc(left.buffer, sequence(left.load(), product_call))


def _first_lines(state: State, left: _Side, product: WideProduct) -> tuple[Read, int] | None:
    """Where the rows of four warps begin, and the bytes between groups of eight, if they lie as matrix units read them:
    each in a line of its own, groups equally far apart. None where they have to be loaded."""
    source = state.stages[left.read.tensor]
    buffer = buffer_of(source)
    bounds = IndexBounds(_ranges(state))
    flat = bounds.simple(_flat(buffer, left.read.indices))
    teams = {loop.variable: loop.extent for p in state.stages.values() for loop in p.loops if loop.kind == THREADS[1]}
    warps = [variable for variable in teams if variable in flat.iterators]
    if left._transposed() or source.swizzle != WARPGROUP.swizzle or len(warps) != 1 or teams[warps[0]] % 4:
        return None
    (warp,) = warps
    zeros: dict[str, Index | int] = dict.fromkeys(flat.iterators, 0)
    line, last = left.intrinsic.line, left.intrinsic.k - 1
    group = line * WARPGROUP.lines

    def at(team: int, row: int, k: int) -> int:
        return flat.substitute({**zeros, warp: team, left.along: row, left.summed: k}).constant

    apart = at(0, 8, 0) - at(0, 0, 0)
    product = replace(product, apart=apart * dtype(left.read.dtype).bytes)
    for team in range(teams[warp]):
        start, down = at(team // 4 * 4, 0, 0), team % 4 * 16
        places = ((row, k) for row in range(16) for k in (0, 1, last))
        if start % group or any(at(team, row, k) - start != product.row_place(down + row, k) for row, k in places):
            return None
    inside = {warp, left.along, left.summed}
    others = [(atom, times) for atom, times in flat.terms if not Index(((atom, 1),)).iterators & inside]
    moved = [(Index(((atom, times),)).bounds(bounds.ranges)[1], times) for atom, times in others if times % group]
    # Of what is left, only steps along what is summed over stay within a line.
    if any(times % left.intrinsic.k for _, times in moved) or sum(most for most, _ in moved) >= line:
        return None
    if apart <= 0 or apart % group or flat.constant % group or buffer.elements % group:
        return None
    first: dict[str, Index | int] = {warp: iterator(warp) // 4 * 4, left.along: 0, left.summed: 0}
    first |= {loop.variable: 0 for loop in left.tiles if loop.extent == 1}
    return replace(left.read, indices=tuple(i.substitute(first) for i in left.read.indices)), product.apart


def _leading(
    state: State, second: Read, columns: str, summed: str, across: Sequence[Loop], product: WideProduct
) -> int:
    """The distance between blocks of 64 columns in bytes, 0 where what is summed over lies along lines."""
    source = state.stages.get(second.tensor)
    what = f"operand {second.tensor} does not lie as products of four warps read it"
    allowed = "a copy in shared memory of lines of 128 bytes, swizzled by 3 bits, along columns or what is summed over"
    if source is None or source.scope != "shared" or source.swizzle != WARPGROUP.swizzle or len(across) > 1:
        raise BadInput(what, allowed=allowed)
    # Without loops of one iteration, as those over the taps of a filter of 1 x 1.
    flat = IndexBounds(_ranges(state)).simple(_flat(buffer_of(source), second.indices))
    place: dict[str, Index | int] = dict.fromkeys(flat.iterators, 0)
    count, run, step, line = product.columns, product.intrinsic.run, product.intrinsic.k, product.intrinsic.line

    def at(column: int, k: int) -> int:
        by = {**place, columns: column % 8, summed: k}
        by |= {loop.variable: column // 8 for loop in across}
        return flat.substitute(by).constant

    start, pairs = at(0, 0), [(column, k) for column in range(count) for k in (0, 1, run - 1, run, step - 1)]

    def lies(leading: int) -> bool:
        placed = replace(product, leading=leading)
        return all(at(c, k) - start == placed.column_place(c, k) for c, k in pairs)

    leading = (at(line, 0) - start) * 2 if count > line else 16 * WARPGROUP.lines * line
    # Matrix units transpose elements of two bytes only.
    along_columns = dtype(second.dtype).bytes == 2 and count % line == 0 and leading != 0 and lies(leading)
    inside = {columns, summed, *(loop.variable for loop in across)}
    rest = [times for atom, times in flat.terms if not Index(((atom, 1),)).iterators & inside]
    if not (along_columns or lies(0)) or any(times % step for times in rest):
        raise BadInput(what, allowed=allowed)
    return leading if along_columns else 0


@dataclass(frozen=True)
class _Side:
    """One operand of the products."""

    state: State
    planned: Planned
    intrinsic: MatrixProduct
    read: Read
    tiles: Sequence[Loop]
    along: str  # the variable of its rows
    summed: str
    is_first: bool

    @property
    def own(self) -> list[Loop]:
        """The loops over tiles that choose its fragment."""
        chosen = {name for i in self.read.indices for name in i.iterators}
        return [loop for loop in self.tiles if loop.variable in chosen and loop.extent > 1]

    @property
    def words(self) -> int:
        """That a lane has of one fragment."""
        return self.intrinsic.words(self.intrinsic.m if self.is_first else self.intrinsic.n)

    @property
    def buffer(self) -> Buffer:
        count = prod(loop.extent for loop in self.own) * self.words
        return Buffer(self._name, "i32", (count,), (1,), "fragment")

    @property
    def _name(self) -> str:
        return f"{self.planned.stage.name}.{'rows' if self.is_first else 'columns'}"

    def fragment(self) -> Read:
        place = Index()
        for loop in self.own:
            place = place * loop.extent + iterator(loop.variable)
        return Read(self._name, (place * self.words,), "i32")

    def load(self) -> Stmt:
        """Four matrices at once: a fragment of the first operand, or two of the second."""
        transposed = self._transposed()
        if self.intrinsic.own:
            return self._own_load(transposed)
        lane, run = iterator(LANES), self.intrinsic.run
        by: dict[str, Index | int] = {loop.variable: 0 for loop in self.tiles if loop.extent == 1}
        own = self.own
        if self.is_first:
            by[self.along] = lane // 8 % 2 * 8 if transposed else lane % 16
            by[self.summed] = lane % 8 + lane // 16 * 8 if transposed else lane // 16 * run
        else:
            if not own or own[-1].extent % 2:
                what = f"operand {self.read.tensor} has an odd number of fragments"
                raise BadInput(what, allowed="an even one: two are loaded at once")
            by[self.along] = Index() if transposed else lane % 8
            by[self.summed] = lane % 16 if transposed else lane // 8 % 2 * run
            by[own[-1].variable] = iterator(own[-1].variable) * 2 + lane // 16
        to = self.fragment()
        if not self.is_first:
            pair: Mapping[str, Index | int] = {own[-1].variable: iterator(own[-1].variable) * 2}
            to = Read(to.tensor, tuple(i.substitute(pair) for i in to.indices), to.dtype)
        rows = Read(self.read.tensor, tuple(i.substitute(by) for i in self.read.indices), self.read.dtype)
        body: Stmt = Call(LOAD_TRANSPOSED if transposed else LOAD, (to, rows))
        for n, loop in enumerate(reversed(own)):
            extent = loop.extent // 2 if n == 0 and not self.is_first else loop.extent
            body = For(loop.variable, extent, UNROLL, body)
        return body

    def _own_load(self, transposed: bool) -> Stmt:
        """What a lane has of its row: at once, or element by element where they do not lie side by side."""
        lane, run, rows = iterator(LANES), self.intrinsic.run, self.intrinsic.m if self.is_first else self.intrinsic.n
        by: dict[str, Index | int] = {loop.variable: 0 for loop in self.tiles if loop.extent == 1}
        by[self.along] = lane % rows

        def at(n: int) -> Read:
            place: dict[str, Index | int] = {**by, self.summed: lane // rows * run + n}
            return replace(self.read, indices=tuple(i.substitute(place) for i in self.read.indices))

        body: Stmt = Call(f"{LOAD_OWN}<{self.words}>", (self.fragment(), at(0)))
        if transposed:
            body = Call(f"{LOAD_EACH}<{self.read.dtype}>", (self.fragment(), *map(at, range(run))))
        for loop in reversed(self.own):
            body = For(loop.variable, loop.extent, UNROLL, body)
        return body

    def _transposed(self) -> bool:
        """Whether neighbours in memory are neighbours along its rows, not along what is summed over."""
        source = self.state.stages.get(self.read.tensor)
        if source is None or source.scope != "shared":
            raise BadInput(f"operand {self.read.tensor} is not in shared memory", allowed="a copy of it there")
        for i, size in zip(self.read.indices, buffer_of(source).sizes, strict=True):
            low, high = IndexBounds(self._ranges).simple(i).bounds(self._ranges)
            if low < 0 or high >= size:
                what = f"tiles reach beyond operand {self.read.tensor}"
                raise BadInput(what, allowed="tiles and steps that its dimensions have room for")
        flat = _flat(buffer_of(source), self.read.indices)
        size = self.intrinsic.run
        if self._in_runs(flat, self.summed, size):
            return False
        if self.intrinsic.transposes and (self.intrinsic.own or self._in_runs(flat, self.along, 8)):
            return True
        what = f"operand {self.read.tensor} has no 16 aligned bytes in a row"
        raise BadInput(what, allowed="such rows along what is summed over, or along rows of 16-bit elements")

    @property
    def _ranges(self) -> dict[str, tuple[int, int]]:
        return _ranges(self.state)

    def _in_runs(self, flat: Index, variable: str, run: int) -> bool:
        ranges = self._ranges
        part, inside = "run", "run.inside"
        extent = ranges[variable][1] + 1
        bounds = IndexBounds({**ranges, part: (0, extent // run - 1), inside: (0, run - 1)})
        moved = bounds.simple(flat.substitute({variable: iterator(part) * run + iterator(inside)}))
        rest = moved - iterator(inside)
        steps = gcd(rest.constant, *(times for _, times in rest.terms))
        return dict(moved.terms).get(Iter(inside)) == 1 and inside not in rest.iterators and steps % run == 0


def _ranges(state: State) -> dict[str, tuple[int, int]]:
    return {loop.variable: (0, loop.extent - 1) for p in state.stages.values() for loop in p.loops}


def _operands(planned: Planned, intrinsic: MatrixProduct, rows: str, columns: str) -> tuple[Read, Read]:
    """What the rows and the columns of the product are read from."""
    stage = planned.stage
    value, operands = stage.value, []
    if isinstance(value, Binary) and value.op == "mul" and stage.reduce == "sum":
        for side in (value.left, value.right):
            inner = side.value if isinstance(side, Cast) else side
            if isinstance(inner, Read) and inner.dtype == intrinsic.operand and side.dtype == intrinsic.sum:
                operands.append(inner)
    if len(operands) < 2:
        what = f"stage {stage.name} is not a sum of products of {intrinsic.operand} in {intrinsic.sum}"
        raise BadInput(what, where=intrinsic.name)
    places = planned.absolute()
    depends = [{v for i in read.indices for v in i.substitute(places).iterators} & {rows, columns} for read in operands]
    if depends == [{rows}, {columns}]:
        return operands[0], operands[1]
    if depends == [{columns}, {rows}]:
        return operands[1], operands[0]
    raise BadInput(f"the rows and columns of stage {stage.name} are not those of its operands", where=intrinsic.name)


def _intrinsic(planned: Planned) -> MatrixProduct:
    if planned.tensorized is None:
        what = f"stage {planned.stage.name} is in the scope warp, and no intrinsic computes it"
        raise BadInput(what, allowed="tensorize its inner loops")
    return matrix_product(planned.tensorized[1])


def _flat(buffer: Buffer, indices: Sequence[Index]) -> Index:
    total = Index()
    for i, stride in zip(indices, buffer.strides, strict=True):
        total = total + i * stride
    return total
