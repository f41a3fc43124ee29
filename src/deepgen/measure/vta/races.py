"""Whether modules race: two instructions touch a place, one of them writes it, and no tokens put them in order.

Each instruction has a clock: how far each module had surely come when it began. One that touched a place before must
lie within the clock of the next that does. So a race is found whichever of the two happened to run first.
"""

from __future__ import annotations

from itertools import product as pairs

import numpy as np

from deepgen.generators.rules.vta.program import MODULES, Program, accesses, module
from deepgen.measure.vta.fault import ProgramFault
from deepgen.measure.vta.timeline import Timeline
from deepgen.targets import Vta
from deepgen.targets.vta import BUFFERS


def check_races(program: Program, order: Timeline, target: Vta) -> None:
    """Raises ProgramFault for the first race."""
    last = {
        (name, buffer, writes): np.full(target.depth(buffer), -1)
        for name, buffer, writes in pairs(MODULES, BUFFERS, (False, True))
    }
    clocks: dict[int, dict[str, int]] = {}
    newest = {name: dict.fromkeys(MODULES, -1) for name in MODULES}
    for run in order.runs:
        instruction = program.instructions[run.number]
        own = module(instruction)
        seen = [newest[own], *(clocks[number] for number in run.after)]
        clock = {name: max(one[name] for one in seen) for name in MODULES}
        for access in accesses(program, instruction):
            for name, writes in pairs(MODULES, (False, True)):
                if name == own or not (writes or access.writes):
                    continue
                before = int(last[name, access.buffer, writes][access.places].max())
                if before > clock[name]:
                    what = f"instructions {before} and {run.number} race for the {access.buffer} buffer"
                    raise ProgramFault(f"{what}: no token puts {name} and {own} in order")
            last[own, access.buffer, access.writes][access.places] = run.number
        clock[own] = run.number
        clocks[run.number] = newest[own] = clock
