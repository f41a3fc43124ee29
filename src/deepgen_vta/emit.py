"""Emits the program of a product with given tiles: its loops as instructions, then tokens that synchronise modules."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from deepgen_vta.chip import MICRO_OP, Vta
from deepgen_vta.program import (
    MICRO_OPS,
    QUEUES,
    Gemm,
    Image,
    Instruction,
    Load,
    MicroOp,
    Program,
    Store,
    Touched,
    accesses,
    module,
)
from deepgen_vta.space import OUTER, ROWS, SUM, TILE, Product, Tiles


def emit(product: Product, tiles: Tiles, target: Vta) -> Program:
    writer = _Writer(product, tiles)
    writer.write()
    ops = tuple(writer.micro_ops)
    first = Load(MICRO_OPS, MICRO_OP, 0, 0, 1, len(ops), len(ops))
    program = Program((product.left, product.right, product.result), ops, (first, *writer.instructions))
    return replace(program, instructions=with_tokens(program, target))


class _Writer:
    """Writes the instructions in the order of a single thread of control."""

    def __init__(self, product: Product, tiles: Tiles) -> None:
        self.product, self.tiles = product, tiles
        self.instructions: list[Instruction] = []
        self.micro_ops: list[MicroOp] = []
        self._sequences: dict[MicroOp, int] = {}  # the first micro-op of each sequence -> its index

    def write(self) -> None:
        tiles, product = self.tiles, self.product
        along_rows, along_columns = product.rows // tiles.rows, product.columns // tiles.columns
        by_rows = tiles.outer == ROWS
        outer, inner = (along_rows, along_columns) if by_rows else (along_columns, along_rows)
        threads = range(tiles.threads)
        for outside in range(outer):
            self._loads(OUTER, outside, outside, 0, 0)
            for iteration in range(inner // tiles.threads):
                at = [(outside, iteration * tiles.threads + t) for t in threads]
                places = [place if by_rows else place[::-1] for place in at]
                for thread in threads:
                    self._loads(TILE, *places[thread], 0, thread)
                    self._gemm(0, thread, reset=True)
                for piece in range(product.depth // tiles.depth):
                    for thread in threads:
                        self._loads(SUM, *places[thread], piece, thread)
                    for thread in threads:
                        self._gemm(piece, thread, reset=False)
                for thread in threads:
                    self._store(*places[thread], thread)

    def _loads(self, at: str, row: int, column: int, piece: int, thread: int) -> None:
        """The loads for a tile at this level of the loop nest."""
        tiles = self.tiles
        if tiles.input_at == at:
            self._load(self.product.left, row * tiles.rows, tiles.rows, at, piece, thread)
        if tiles.weight_at == at:
            self._load(self.product.right, column * tiles.columns, tiles.columns, at, piece, thread)

    def _load(self, image: Image, row: int, rows: int, at: str, piece: int, thread: int) -> None:
        length = self.tiles.depth if at == SUM else self.product.depth
        start = row * image.columns + piece * self.tiles.depth
        self.instructions.append(
            Load(image.tensor, image.buffer, thread * rows * length, start, rows, length, image.columns)
        )

    def _gemm(self, piece: int, thread: int, *, reset: bool) -> None:
        """Rows in the outer loop, columns in the inner loop, and micro-ops along the sum."""
        tiles = self.tiles
        size = tiles.rows * tiles.columns
        left, left_step = self._operand(tiles.input_at, tiles.rows, piece, thread)
        right, right_step = self._operand(tiles.weight_at, tiles.columns, piece, thread)
        first = self._sequence((thread * size, left, right))
        last = first + (1 if reset else tiles.depth)
        steps = (tiles.columns, left_step, 0, 1, 0, right_step)
        self.instructions.append(Gemm(reset, first, last, tiles.rows, tiles.columns, steps))

    def _operand(self, at: str, rows: int, piece: int, thread: int) -> tuple[int, int]:
        """The start of a piece of a matrix in its buffer, and the stride of its rows."""
        if at == SUM:
            return thread * rows * self.tiles.depth, self.tiles.depth
        kept = 0 if at == OUTER else thread * rows * self.product.depth
        return kept + piece * self.tiles.depth, self.product.depth

    def _sequence(self, start: MicroOp) -> int:
        if start not in self._sequences:
            self._sequences[start] = len(self.micro_ops)
            accumulator, left, right = start
            self.micro_ops += [(accumulator, left + step, right + step) for step in range(self.tiles.depth)]
        return self._sequences[start]

    def _store(self, row: int, column: int, thread: int) -> None:
        tiles, image = self.tiles, self.product.result
        start = row * tiles.rows * image.columns + column * tiles.columns
        at = thread * tiles.rows * tiles.columns
        self.instructions.append(Store(image.tensor, at, start, tiles.rows, tiles.columns, image.columns))


def with_tokens(program: Program, target: Vta) -> tuple[Instruction, ...]:
    """The instructions with the tokens that enforce their order.

    An instruction waits for the last one of another module that accessed the same places, unless it, or an earlier one
    of its module, has already waited for that or for a later one. So the tokens of a queue are taken in the order in
    which they are given.
    """
    marks: list[tuple[list[str], list[str]]] = [([], []) for _ in program.instructions]  # waits, signals
    touched = Touched(target)
    waited: dict[str, int] = defaultdict(lambda: -1)
    for number, instruction in enumerate(program.instructions):
        own = module(instruction)
        touches = [(access.buffer, access.places, access.writes) for access in accesses(program, instruction)]
        for queue, (giver, taker) in QUEUES.items():
            if taker == own:
                last = max(touched.last(giver, *access) for access in touches)
                if last > waited[queue]:
                    waited[queue] = last
                    marks[number][0].append(queue)
                    marks[last][1].append(queue)
        for access in touches:
            touched.note(own, *access, number)
    return tuple(
        replace(one, waits=tuple(waits), signals=tuple(signals))
        for one, (waits, signals) in zip(program.instructions, marks, strict=True)
    )
