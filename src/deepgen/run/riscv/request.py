"""What a program is told before it runs, and what it answers (`toolchains/board/board.c` is the other side)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from deepgen.operators import Operator
from deepgen.run.call import plans
from deepgen.toolchains.board import calls
from deepgen.vocabulary import Kernel, ScalarArg

_NAN_BYTE = 0xFF  # a NaN in every floating format
_IN_TURN = -1  # integers: one byte or another, so that none is right by chance for long


@dataclass(frozen=True)
class Run:
    """One call, on a set of inputs."""

    set: int
    counted: bool = False


@dataclass(frozen=True)
class Timed:
    """Calls that are timed after the others, on sets of inputs in turn, until there are enough of them."""

    least: int
    most: int
    seconds: float
    cold_bytes: int = 0  # of other memory that is written before each; 0: caches stay warm


@dataclass(frozen=True)
class Wanted:
    """What a program is to do."""

    runs: tuple[Run, ...]
    timed: Timed | None = None
    tight: bool = False  # align tensors to their element only, as a user's arrays may be

    @property
    def costs(self) -> bool:
        """Whether more than a verdict is wanted."""
        return self.timed is not None or any(run.counted for run in self.runs)

    @property
    def most_runs(self) -> int:
        return len(self.runs) + (self.timed.most if self.timed else 0)


def text(kernel: Kernel, operator: Operator, wanted: Wanted, *, sets: int, vlen: int, seconds: float) -> str:
    """The request. `sets`: of inputs that there are; `vlen`: bits of the vector registers that the kernel needs;
    `seconds`: that one call may take."""
    scalars = operator.scalars()
    plans.check_shape(kernel, scalars)
    lines = [f"vectors {vlen}", f"limit {ceil(seconds)}"]
    for tensor in operator.tensors():
        align = tensor.dtype.bytes if wanted.tight else 64
        poison = _IN_TURN if tensor.dtype.integer else _NAN_BYTE
        lines.append(f"tensor {tensor.name} {tensor.role} {tensor.bytes} {align} {poison}")
    prepared = plans.prepared(kernel.plan)
    for name, (arg, size) in plans.workspaces(kernel.plan, scalars).items():
        # What the preparation leaves there must stay.
        kept = arg.lasting or (arg.zeroed and name in prepared)
        kind = "lasting" if kept else "zeroed" if arg.zeroed else "plain"
        lines.append(f"workspace {name} {size} {arg.align} {kind}")
    lines += [f"number {_number(arg, scalars)}" for arg in calls.numbers(kernel)]
    # Where inputs do not take turns, the only set is used again.
    lines += [f"run {run.set % sets} {'counted' if run.counted else 'plain'}" for run in wanted.runs]
    if wanted.timed is not None:
        t = wanted.timed
        lines.append(f"time {t.least} {t.most} {round(t.seconds * 1e9)} {sets} {t.cold_bytes}")
    return "\n".join((*lines, ""))


def answers(text: str) -> Sequence[Mapping[str, Any]]:
    """The lines that can be read. A kernel may have written among them: what is torn counts as missing."""
    found: list[Mapping[str, Any]] = []
    for line in text.splitlines():
        try:
            told = json.loads(line)
        except ValueError:
            continue
        if isinstance(told, dict):
            found.append(told)
    return found


def _number(arg: ScalarArg, scalars: plans.Scalars) -> str:
    value = plans.scalar(arg, scalars).value
    return str(value) if arg.ctype.startswith("i") else float(value).hex()
