"""Whether modules race: two instructions touch a place, one of them writes it, and no tokens put them in order.

Each instruction has a clock: how far each module had surely come when it began. One that touched a place before must
lie within the clock of the next that does. So a race is found whichever of the two happened to run first.
"""

from __future__ import annotations

from deepgen.targets import Vta
from deepgen_vta.simulator.fault import ProgramFault
from deepgen_vta.simulator.timeline import Timeline
from deepgen_vta.target.program import MODULES, Program, accesses, module
from deepgen_vta.target.touched import Touched


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
