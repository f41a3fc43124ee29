"""When each instruction of a program runs: three modules, four queues of tokens, one bus.

A module begins an instruction when it has finished the one before and has a token from every queue that the
instruction waits for; that takes `start_cycles`. A transfer then waits `memory_latency`, and for the bus, which moves
`bus_bytes` a cycle for one transfer at a time, each row in whole cycles. A GEMM takes a cycle for each micro-op of each
turn of its loops. Tokens are given at the end. Instructions are fetched in time, and queues have room for all tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from deepgen.targets import Vta
from deepgen_vta.simulator.fault import ProgramFault
from deepgen_vta.target import ACCUMULATOR
from deepgen_vta.target.program import MODULES, QUEUES, Gemm, Instruction, Program, Store, module


@dataclass(frozen=True)
class Run:
    """One instruction: its number in the program, and from whom it took tokens, as numbers too."""

    number: int
    after: tuple[int, ...]


@dataclass(frozen=True)
class Timeline:
    runs: tuple[Run, ...]  # in the order in which they begin
    cycles: int
    busy: Mapping[str, int]  # cycles that each module worked


def timeline(program: Program, target: Vta) -> Timeline:
    """Raises ProgramFault where a module waits for a token that never comes."""
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
            raise ProgramFault(f"instruction {stuck} waits for a token that never comes")
        begins, _, name = min(ready)
        number = waiting[name].popleft()
        instruction = program.instructions[number]
        runs.append(Run(number, tuple(tokens[queue].popleft()[1] for queue in instruction.waits)))
        if isinstance(instruction, Gemm):
            ends = begins + target.start_cycles + instruction.turns
        else:
            arrives = max(begins + target.start_cycles + target.memory_latency, bus)
            ends = bus = arrives + _beats(instruction, target)
        busy[name] += ends - begins
        free[name] = ends
        for queue in instruction.signals:
            tokens[queue].append((ends, number))
    return Timeline(tuple(runs), max(free.values()), busy)


def _beats(transfer: Instruction, target: Vta) -> int:
    """The cycles that a transfer has the bus."""
    assert not isinstance(transfer, Gemm)
    if isinstance(transfer, Store):
        element = target.element_bytes(ACCUMULATOR) // 4 * target.stored_bytes
    else:
        element = target.element_bytes(transfer.buffer)
    return transfer.rows * -(-transfer.columns * element // target.bus_bytes)
