"""A simulator of VTA: what a program computes, whether its modules race, and how many cycles it takes.

When each instruction of a program runs (`timeline`): three modules, four queues of tokens, one bus. A module starts an
instruction when it has finished the previous one and has a token from every queue that the instruction waits for;
starting takes `start_cycles`. A transfer then waits `memory_latency`, and for the bus, which moves `bus_bytes` per
cycle for one transfer at a time, each row in whole cycles. A GEMM takes one cycle for each micro-op of each iteration
of its loops. Tokens are given at the end. Instructions are always fetched in time, and queues have room for all tokens.

Modules race (`check_races`) if two instructions access a place, one of them writes it, and no tokens order them. Each
instruction has a vector clock: how far each module is known to have come when it began. An earlier access to a place
must be within the clock of the next one. So a race is found whichever of the two happened to run first.

What it computes (`execute`): buffers and memory are arrays, and instructions run sequentially and exactly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepgen_vta.chip import ACCUMULATOR, INPUT, MICRO_OP, WEIGHT, Vta
from deepgen_vta.program import (
    MODULES,
    QUEUES,
    Gemm,
    Image,
    Instruction,
    Load,
    Program,
    Store,
    Touched,
    accesses,
    gemm_places,
    memory_places,
    module,
)


class ProgramFault(Exception):
    """A program that hangs or races. Never shown to a user: it is converted to a verdict."""


@dataclass(frozen=True)
class Run:
    """One instruction: its number in the program, and the numbers of those that gave it tokens."""

    number: int
    after: tuple[int, ...]


@dataclass(frozen=True)
class Timeline:
    runs: tuple[Run, ...]  # in the order in which they begin
    cycles: int
    busy: Mapping[str, int]  # cycles in which each module worked


def timeline(program: Program, target: Vta) -> Timeline:
    """Raises ProgramFault if a module waits for a token that never arrives."""
    waiting = {name: deque[int]() for name in MODULES}
    for number, instruction in enumerate(program.instructions):
        waiting[module(instruction)].append(number)
    tokens = {queue: deque[tuple[int, int]]() for queue in QUEUES}  # when and by which instruction it was given
    free, busy, bus = dict.fromkeys(MODULES, 0), dict.fromkeys(MODULES, 0), 0
    runs: list[Run] = []
    while any(waiting.values()):
        ready = []
        for place, (name, numbers) in enumerate(waiting.items()):
            waits = program.instructions[numbers[0]].waits if numbers else ()
            if numbers and all(tokens[queue] for queue in waits):
                ready.append((max([free[name], *(tokens[queue][0][0] for queue in waits)]), place, name))
        if not ready:
            stuck = next(numbers[0] for numbers in waiting.values() if numbers)
            raise ProgramFault(f"instruction {stuck} waits for a token that never arrives")
        begins, _, name = min(ready)
        number = waiting[name].popleft()
        instruction = program.instructions[number]
        runs.append(Run(number, tuple(tokens[queue].popleft()[1] for queue in instruction.waits)))
        if isinstance(instruction, Gemm):
            ends = begins + target.start_cycles + instruction.iterations
        else:
            arrives = max(begins + target.start_cycles + target.memory_latency, bus)
            ends = bus = arrives + _beats(instruction, target)
        busy[name] += ends - begins
        free[name] = ends
        for queue in instruction.signals:
            tokens[queue].append((ends, number))
    return Timeline(tuple(runs), max(free.values()), busy)


def _beats(transfer: Instruction, target: Vta) -> int:
    """The cycles for which a transfer occupies the bus."""
    assert not isinstance(transfer, Gemm)
    if isinstance(transfer, Store):
        element = target.element_bytes(ACCUMULATOR) // 4 * target.stored_bytes
    else:
        element = target.element_bytes(transfer.buffer)
    return transfer.rows * -(-transfer.columns * element // target.bus_bytes)


def check_races(program: Program, order: Timeline, target: Vta) -> None:
    """Raises ProgramFault for the first race."""
    touched = Touched(target)
    clocks: dict[int, dict[str, int]] = {}
    newest = {name: dict.fromkeys(MODULES, -1) for name in MODULES}
    for run in order.runs:
        instruction = program.instructions[run.number]
        own = module(instruction)
        seen = [newest[own], *(clocks[number] for number in run.after)]
        clock = {name: max(one[name] for one in seen) for name in MODULES}
        for access in accesses(program, instruction):
            for name in MODULES:
                before = touched.last(name, access.buffer, access.places, access.writes)
                if name != own and before > clock[name]:
                    what = f"instructions {before} and {run.number} race for the {access.buffer} buffer"
                    raise ProgramFault(f"{what}: no token puts {name} and {own} in order")
            touched.note(own, access.buffer, access.places, access.writes, run.number)
        clock[own] = run.number
        clocks[run.number] = newest[own] = clock


Array = NDArray[Any]
_UNWRITTEN = -0x21524111  # initial content of buffers and results


def execute(program: Program, order: Timeline, target: Vta, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The results for the inputs given by name. Results have the shapes of their images."""
    memory = {image.tensor: _laid_out(image, target, inputs.get(image.tensor)) for image in program.images}
    shapes = {INPUT: (target.rows, target.block), WEIGHT: (target.block, target.block)}
    buffers: dict[str, Array] = {
        name: np.full((target.depth(name), *shape), 0x55, np.int8) for name, shape in shapes.items()
    }
    accumulators = np.full((target.depth(ACCUMULATOR), target.rows, target.block), _UNWRITTEN, np.int32)
    loaded = np.zeros(target.depth(MICRO_OP), np.int64) - 1  # the index of the program's micro-op at each place
    for run in order.runs:
        one = program.instructions[run.number]
        if isinstance(one, Gemm):
            ops = tuple(program.micro_ops[n] if n >= 0 else (0, 0, 0) for n in loaded[one.first : one.last])
            _gemm(one, gemm_places(ops, _from_zero(one)), buffers, accumulators)
        elif not isinstance(one, Load):
            memory[one.image][memory_places(one)] = accumulators[one.at : one.at + one.rows * one.columns]
        elif one.buffer == MICRO_OP:
            loaded[one.to : one.to + one.rows * one.columns] = memory_places(one)
        else:
            buffers[one.buffer][one.to : one.to + one.rows * one.columns] = memory[one.image][memory_places(one)]
    return {i.tensor: _as_matrix(i, target, memory[i.tensor]) for i in program.images if i.buffer == ACCUMULATOR}


def _from_zero(gemm: Gemm) -> Gemm:
    return Gemm(gemm.reset, 0, gemm.last - gemm.first, gemm.outer, gemm.inner, gemm.steps)


def _gemm(gemm: Gemm, places: tuple[Array, Array, Array], buffers: Mapping[str, Array], accumulators: Array) -> None:
    to, left, right = places
    if gemm.reset:
        accumulators[to] = 0
        return
    products = np.einsum("nri,noi->nro", buffers[INPUT][left].astype(np.int32), buffers[WEIGHT][right].astype(np.int32))
    np.add.at(accumulators, to, products)


def element(image: Image, target: Vta) -> tuple[int, int]:
    """The rows and columns of a matrix in one element of its image."""
    return (target.block if image.buffer == WEIGHT else target.rows), target.block


def _laid_out(image: Image, target: Vta, matrix: Array | None) -> Array:
    """A matrix in the memory layout written by the host: elements of its buffer, row by row."""
    if image.buffer == ACCUMULATOR:
        return np.full((image.size, target.rows, target.block), _UNWRITTEN, np.int32)
    assert matrix is not None, "inputs and weights are given"
    high, wide = element(image, target)
    whole = np.zeros((image.rows * high, image.columns * wide), np.int8)
    transposed = matrix.transpose(image.axes)
    whole[: transposed.shape[0], : transposed.shape[1]] = transposed
    split = whole.reshape(image.rows, high, image.columns, wide)
    laid_out: Array = split.transpose(0, 2, 1, 3).reshape(image.size, high, wide)
    return laid_out


def _as_matrix(image: Image, target: Vta, elements: Array) -> Array:
    split = elements.reshape(image.rows, image.columns, target.rows, target.block)
    whole = split.transpose(0, 2, 1, 3).reshape(image.rows * target.rows, image.columns * target.block)
    matrix: Array = whole.transpose(image.axes)
    return matrix
