"""What a program is told before it runs, and what it answers (`build/board/board.c` is the other side)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepgen.build.board import calls
from deepgen.operators import Operator
from deepgen.runtime import plans
from deepgen.vocabulary import Kernel, ScalarArg

_NAN_BYTE = 0xFF  # a NaN in every floating format
_IN_TURN = -1  # integers: one byte or another, so that none is right by chance for long


@dataclass(frozen=True)
class Run:
    """One call, on a set of inputs."""

    set: int
    counted: bool = False


def text(kernel: Kernel, operator: Operator, runs: Sequence[Run], *, tight: bool) -> str:
    """The request. A tight one aligns tensors to their element only, as a user's arrays may be."""
    scalars = operator.scalars()
    plans.check_shape(kernel, scalars)
    lines = []
    for tensor in operator.tensors():
        align = tensor.dtype.bytes if tight else 64
        poison = _IN_TURN if tensor.dtype.integer else _NAN_BYTE
        lines.append(f"tensor {tensor.name} {tensor.role} {tensor.bytes} {align} {poison}")
    prepared = plans.prepared(kernel.plan)
    for name, (arg, size) in plans.workspaces(kernel.plan, scalars).items():
        # What the preparation leaves there must stay.
        kept = arg.lasting or (arg.zeroed and name in prepared)
        kind = "lasting" if kept else "zeroed" if arg.zeroed else "plain"
        lines.append(f"workspace {name} {size} {arg.align} {kind}")
    lines += [f"number {_number(arg, scalars)}" for arg in calls.numbers(kernel)]
    lines += [f"run {run.set} {'counted' if run.counted else 'plain'}" for run in runs]
    return "\n".join((*lines, ""))


def answers(text: str) -> list[Mapping[str, Any]]:
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
