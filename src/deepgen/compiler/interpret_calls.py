"""Interprets calls of instructions and functions, by the tables that describe them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from deepgen.compiler.interpret_memory import (
    JOINS,
    READ,
    Array,
    Cells,
    Finding,
    LaneNumbers,
    Lanes,
    Memories,
    Memory,
    loaded,
    room,
)
from deepgen.compiler.intrinsics.matrix import LINE_BYTES, WARPGROUP, MatrixLoad, MatrixProduct, Signal, WideProduct
from deepgen.compiler.intrinsics.tiles import ZERO, TileCall
from deepgen.compiler.intrinsics.vectors import Square
from deepgen.compiler.passes.ir import Buffer, Call
from deepgen.compiler.passes.memory import LaneScan
from deepgen.compiler.passes.pipeline import COMMIT, WAIT
from deepgen.operators.expr.nodes import PLACE_OF, Read
from deepgen.operators.expr.rounding import FUNCTIONS, WHOLE
from deepgen.vocabulary import dtype

_WARP = 32
OPERATIONS = {**WHOLE, **JOINS, "pow": np.power}


def called(machine: Memories, call: Call, lanes: Lanes) -> None:
    """A call for all lanes."""
    what, places = call.what, [_Place(machine, read, lanes) for read in call.places]
    if isinstance(what, Signal):
        _signal(machine, what, lanes)
    elif isinstance(what, MatrixProduct):
        _multiply(machine, what, places, lanes)
    elif isinstance(what, WideProduct):
        group = machine.groups.get(WARPGROUP.commit.name, 0)
        machine.products.append((group, lambda: _multiply_wide(machine, what, places, lanes)))
    elif isinstance(what, MatrixLoad):
        teams = machine.teams(lanes, what.lanes, f"reach {what.name}")
        _load(places, what.lanes, *_sources(what), teams)
    elif isinstance(what, LaneScan):
        _scan(machine, places, what, lanes)
    elif isinstance(what, Square):
        side, each = what.side, what.unit // places[0].size
        row, column, unit = np.ogrid[:side, :side, :each]
        to_step, from_step = (step // places[0].size for step in call.numbers)
        moved = places[1].loaded((column * from_step + row * each + unit).reshape(-1))
        places[0].stored((row * to_step + column * each + unit).reshape(-1), moved)
    else:
        assert isinstance(what, TileCall), f"the effect of {what.name} is unknown"
        _tiles(machine, what, places, call, lanes)


def _signal(machine: Memories, signal: Signal, lanes: Lanes) -> None:
    if signal in (COMMIT, WARPGROUP.commit):
        _by_all(machine, lanes, signal.name)
        machine.groups[signal.name] = machine.groups.get(signal.name, 0) + 1
    elif signal.start == WAIT:
        _by_all(machine, lanes, signal.start)
        machine.land(machine.groups.get(COMMIT.name, 0) - (signal.pending or 0))
    elif signal.start == WARPGROUP.wait:
        newest = machine.groups.get(WARPGROUP.commit.name, 0) - (signal.pending or 0)
        for _, product in (one for one in machine.products if one[0] < newest):
            product()
        machine.products = [one for one in machine.products if one[0] >= newest]


def _by_all(machine: Memories, lanes: Lanes, name: str) -> None:
    if lanes.count != machine.levels[0].count:
        raise Finding(f"some threads do not reach {name}")


class _Place:
    """A place in a buffer for each lane, and the elements that follow it."""

    def __init__(self, machine: Memories, read: Read, lanes: Lanes) -> None:
        self.machine, self.lanes = machine, lanes
        self.memory, at = machine.places(read, lanes, "used")
        self.at = np.broadcast_to(np.asarray(at), lanes.count)

    @property
    def size(self) -> int:
        return self.memory.data.dtype.itemsize

    def elements(self, offsets: Array) -> Array:
        """The places of these elements for each lane. Raises Finding if one is outside the buffer."""
        places = self.at[:, None] + offsets
        low = np.asarray(self.memory.row_of(self.lanes)).reshape(-1, 1)
        if ((places < low) | (places >= low + room(self.memory.buffer))).any():
            raise Finding(f"{self.memory.buffer.name} is accessed outside its {self.memory.buffer.elements} elements")
        return places

    def loaded(self, offsets: Array) -> LaneNumbers:
        places = self.elements(offsets)
        self.machine.note(self.memory, READ, places, self.lanes)
        return LaneNumbers(self.memory.data[places], self.memory.unwritten(places))

    def stored(self, offsets: Array, numbers: LaneNumbers) -> None:
        self.machine.write(self.memory, self.elements(offsets), numbers, self.lanes)

    def bytes(self, at: Array) -> LaneNumbers:
        """The bytes at these places in memory, counted from its beginning, for each lane."""
        places = at // self.size
        self.machine.note(self.memory, READ, places, self.lanes)
        return LaneNumbers(self.memory.data.view(np.uint8)[at], self.memory.unwritten(places))


@lru_cache(maxsize=64)
def _sources(load: MatrixLoad) -> tuple[Array, Array, Array]:
    """For each byte that each lane loads: the index of the place, the lane whose address is used, and the byte
    there."""
    table = [[load.source(lane, byte) for byte in range(load.words * 4)] for lane in range(load.lanes)]
    place, lane, byte = np.moveaxis(np.array(table), -1, 0)
    return place, lane, byte


def _load(places: list[_Place], team: int, place: Array, lane: Array, byte: Array, teams: int) -> None:
    to, *asked = places
    starts = np.stack([one.at for one in asked]).reshape(len(asked), teams, team) * asked[0].size
    at = starts[place, :, lane] + byte[..., None]  # lanes of a team, bytes, teams
    got = asked[0].bytes(np.moveaxis(at, -1, 0).reshape(teams * team, -1))
    words = np.ascontiguousarray(got.values).view(np.int32)
    bad = np.asarray(np.broadcast_to(got.bad, got.values.shape).reshape(*words.shape, 4).any(axis=-1))
    to.stored(np.arange(words.shape[1]), LaneNumbers(words, bad))


@lru_cache(maxsize=64)
def _held(product: MatrixProduct, kind: str) -> tuple[Array, Array]:
    """For each row and column of an operand, or of the sums: the lane that holds the element, and its index in that
    lane."""
    rows = product.n if kind == "columns" else product.m
    if kind == "sums":
        table = np.array([[product.sum_at(r, c) for c in range(product.n)] for r in range(rows)])
    else:
        first = kind == "rows"
        table = np.array([[product.operand_at(r, k, is_first=first) for k in range(product.k)] for r in range(rows)])
    return table[..., 0], table[..., 1]


@lru_cache(maxsize=64)
def _line_places(wide: WideProduct, kind: str) -> Array:
    """Offsets of the elements of rows or columns from the first one."""
    at, count = (wide.row_place, 4 * wide.intrinsic.m) if kind == "rows" else (wide.column_place, wide.columns)
    return np.array([[at(row, step) for step in range(wide.intrinsic.k)] for row in range(count)])


def _operands(product: MatrixProduct, words: LaneNumbers, teams: int, *, is_first: bool) -> LaneNumbers:
    """Rows along the reduced dimension, from the words that lanes hold."""
    lane, number = _held(product, "rows" if is_first else "columns")
    of = dtype(product.operand)
    values = np.ascontiguousarray(words.values).view(of.numpy()).reshape(teams, product.lanes, -1)
    each = values.shape[2] // words.values.shape[1]
    bad = np.repeat(np.broadcast_to(words.bad, words.values.shape), each, axis=1).reshape(values.shape)
    return LaneNumbers(loaded(values[:, lane, number], of.name), bad[:, lane, number])


def _product(left: LaneNumbers, right: LaneNumbers, kind: np.dtype[Any]) -> LaneNumbers:
    """Sums over the last axis of both."""
    wide = np.float64 if kind.kind == "f" else np.int64
    sums = np.matmul(left.values.astype(wide), np.swapaxes(right.values.astype(wide), 1, 2))
    rows, columns = (np.asarray(np.any(one.bad, axis=-1)) for one in (left, right))
    return LaneNumbers(sums, rows[..., None] | columns[:, None])


def _add(product: MatrixProduct, place: _Place, sums: LaneNumbers, teams: int) -> None:
    """Adds sums of rows and columns to those that lanes hold, tile by tile of columns."""
    lane, own = _held(product, "sums")
    tiles = sums.values.shape[2] // product.n
    number = np.arange(tiles) * product.fragment.sums + own[..., None]  # rows, columns, tiles
    before = place.loaded(np.arange(tiles * product.fragment.sums))
    values = before.values.reshape(teams, product.lanes, -1).astype(sums.values.dtype)
    bad = np.array(np.broadcast_to(before.bad, before.values.shape)).reshape(values.shape)
    shape = (teams, product.m, tiles, product.n)
    lane = np.broadcast_to(lane[..., None], number.shape)
    values[:, lane, number] += np.swapaxes(sums.values.reshape(shape), 2, 3)
    bad[:, lane, number] |= np.swapaxes(np.broadcast_to(sums.bad, sums.values.shape).reshape(shape), 2, 3)
    whole = values.reshape(before.values.shape).astype(place.memory.data.dtype)
    place.stored(np.arange(tiles * product.fragment.sums), LaneNumbers(whole, bad.reshape(whole.shape)))


def _multiply(machine: Memories, product: MatrixProduct, places: list[_Place], lanes: Lanes) -> None:
    teams = machine.teams(lanes, product.lanes, f"reach {product.name}")
    sums, *operands = places
    both = []
    for place, rows, is_first in zip(operands, (product.m, product.n), (True, False), strict=True):
        words = place.loaded(np.arange(max(1, product.words(rows))))
        both.append(_operands(product, words, teams, is_first=is_first))
    _add(product, sums, _product(both[0], both[1], sums.memory.data.dtype), teams)


def _multiply_wide(machine: Memories, wide: WideProduct, places: list[_Place], lanes: Lanes) -> None:
    product, warps = wide.intrinsic, lanes.count // _WARP
    machine.teams(lanes, _WARP * product.warps, f"reach {wide.name}")
    sums, first, second = places
    columns = _lines(second, _line_places(wide, "columns")[None], product)
    if wide.apart:
        own = np.arange(warps)[:, None] % product.warps * product.m + np.arange(product.m)
        rows = _lines(first, _line_places(wide, "rows")[own], product)
    else:
        rows = _operands(product, first.loaded(np.arange(product.words(product.m))), warps, is_first=True)
    _add(product, sums, _product(rows, columns, sums.memory.data.dtype), warps)


def _lines(place: _Place, table: Array, product: MatrixProduct) -> LaneNumbers:
    """Elements in swizzled lines of shared memory, for each warp; the place is the start of the first line."""
    name, size, warps = place.memory.buffer.name, place.size, len(place.at) // _WARP
    lanes = place.lanes.where(np.arange(place.lanes.count) % _WARP == 0)
    start = np.broadcast_to(np.asarray(place.memory.row_of(lanes)), warps)[:, None]
    first = (place.at[::_WARP, None] - start) * size
    if (first % WARPGROUP.align >= LINE_BYTES).any():
        raise Finding(f"{name} does not begin with a line of its first rows")
    at = first + table.reshape(len(table), -1) * size
    elements = (at ^ ((at >> 7 & 7) << 4)) // size
    if (elements >= room(place.memory.buffer)).any():
        raise Finding(f"{name} is accessed outside its {place.memory.buffer.elements} elements")
    place.machine.note(place.memory, READ, elements + start, lanes)
    bad = np.broadcast_to(place.memory.unwritten(elements + start), elements.shape)
    shape = (warps, *table.shape[1:])
    return LaneNumbers(loaded(place.memory.data[elements + start], product.operand).reshape(shape), bad.reshape(shape))


def _scan(machine: Memories, places: list[_Place], scan: LaneScan, lanes: Lanes) -> None:
    """Scans the numbers of neighbouring lanes as one row, which continues from the carried value."""
    team, count = scan.team, scan.each
    teams, join = machine.teams(lanes, team, f"reach {scan.name}"), JOINS[scan.op]
    own, carry = places[0].loaded(np.arange(count)), places[1].loaded(np.arange(1))
    rows = own.values.reshape(teams, team * count)
    first = carry.values.reshape(teams, team)[:, :1]
    bad = np.logical_or.accumulate(np.broadcast_to(own.bad, own.values.shape).reshape(rows.shape), axis=1)
    bad = bad | np.asarray(np.broadcast_to(carry.bad, carry.values.shape).reshape(teams, team).any(axis=1))[:, None]
    whole = join(first, join.accumulate(rows, axis=1)).astype(rows.dtype)
    places[0].stored(np.arange(count), LaneNumbers(whole.reshape(own.values.shape), bad.reshape(own.values.shape)))
    last = np.repeat(whole[:, -1:], team, axis=1).reshape(-1, 1)
    places[1].stored(np.arange(1), LaneNumbers(last, np.repeat(bad[:, -1:], team, axis=1).reshape(-1, 1)))


def _tiles(machine: Memories, what: TileCall, places: list[_Place], call: Call, lanes: Lanes) -> None:
    """Sets tiles to zero, or stores them row by row."""
    block = what.block
    rows, columns = block.down * block.rows, block.across * block.tile.lanes
    if what.does == ZERO:
        level = machine.levels[-1]
        buffer = Buffer(block.name, block.tile.result, (rows, columns), (columns, 1), "register")
        data = np.zeros(level.count * rows * columns, dtype(block.tile.result).numpy())
        machine.tiles[block.name] = Memory(
            buffer, data, Cells(np.zeros(len(data), bool)), level.name, len(machine.levels) - 1, rows * columns
        )
        return
    memory = machine.tiles[block.name]
    own = np.broadcast_to(np.asarray(memory.row_of(lanes)), lanes.count)[:, None] + np.arange(rows * columns)
    machine.note(memory, READ, own, lanes)
    step = call.numbers[0] // places[0].size
    offsets = (np.arange(rows)[:, None] * step + np.arange(columns)).reshape(-1)
    places[0].stored(offsets, LaneNumbers(memory.data[own], memory.unwritten(own)))


def unary(op: str, values: Array) -> Array:
    if op == PLACE_OF:
        return np.asarray(values & 0xFFFFFFFF)
    if op in ("neg", "abs"):
        return np.asarray(-values if op == "neg" else np.abs(values))
    if op == "floor":
        return np.asarray(np.floor(values).astype(values.dtype))
    return np.asarray(FUNCTIONS[op](values.astype(np.float64))).astype(values.dtype)
