"""Standalone programs for boards without Python: a runner in C, linked statically with the kernel.

This module converts the launch plan to the C calls that the runner makes.
"""

from __future__ import annotations

from collections.abc import Sequence

from deepgen.vocabulary import BadInput, Kernel, ScalarArg, Step, TensorArg, WorkspaceArg

_TYPES = {"i32": "int32_t", "i64": "int64_t", "f32": "float", "f64": "double"}


def tensors(kernel: Kernel) -> list[str]:
    """The tensors that the calls pass, in the order of their names in C."""
    return list(dict.fromkeys(a.tensor for s in _steps(kernel) for a in s.args if isinstance(a, TensorArg)))


def workspaces(kernel: Kernel) -> list[str]:
    return list(dict.fromkeys(a.name for s in _steps(kernel) for a in s.args if isinstance(a, WorkspaceArg)))


def numbers(kernel: Kernel) -> list[ScalarArg]:
    """The scalar arguments, in the order of their values in a request."""
    return [a for s in _steps(kernel) for a in s.args if isinstance(a, ScalarArg)]


def source(kernel: Kernel) -> str:
    """The C file that calls the kernel's entries."""
    if kernel.plan.constants:
        raise BadInput(
            f"kernel {kernel.name} reads constants by symbol", allowed="pass tensors as arguments on a board"
        )
    for name in (*(step.entry for step in _steps(kernel)), *tensors(kernel), *workspaces(kernel)):
        if not name.isidentifier() or not name.isascii():
            raise BadInput(f"kernel {kernel.name} names {name[:60]!r}", allowed="use C identifiers on a board")
    kinds = "".join("i" if arg.ctype.startswith("i") else "d" for arg in numbers(kernel))
    declared = dict.fromkeys(_declaration(step) for step in _steps(kernel))
    first = sum(isinstance(a, ScalarArg) for s in kernel.plan.prepare for a in s.args)
    return "\n".join(
        (
            '#include "board.h"',
            *declared,
            f"const char *const board_tensors[] = {{{_names(tensors(kernel))}}};",
            f"const char *const board_workspaces[] = {{{_names(workspaces(kernel))}}};",
            f'const char board_numbers[] = "{kinds}";',
            _function("board_prepare", kernel, kernel.plan.prepare, 0),
            _function("board_run", kernel, kernel.plan.steps, first),
            "",
        )
    )


def _steps(kernel: Kernel) -> tuple[Step, ...]:
    return (*kernel.plan.prepare, *kernel.plan.steps)


def _names(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in (*names, ""))


def _declaration(step: Step) -> str:
    kinds = [_TYPES[arg.ctype] if isinstance(arg, ScalarArg) else "void *" for arg in step.args]
    return f"void {step.entry}({', '.join(kinds) or 'void'});"


def _function(name: str, kernel: Kernel, steps: Sequence[Step], number: int) -> str:
    calls = []
    for step in steps:
        arguments = []
        for arg in step.args:
            if isinstance(arg, ScalarArg):
                arguments.append(f"({_TYPES[arg.ctype]})n[{number}].{'i' if arg.ctype.startswith('i') else 'd'}")
                number += 1
            elif isinstance(arg, WorkspaceArg):
                arguments.append(f"w[{workspaces(kernel).index(arg.name)}]")
            elif isinstance(arg, TensorArg):
                arguments.append(f"t[{tensors(kernel).index(arg.tensor)}]")
            else:
                raise BadInput(
                    f"{step.entry} takes a descriptor of {arg.tensor}", allowed="tensors, scalars and workspaces"
                )
        calls.append(f"    {step.entry}({', '.join(arguments)});")
    used = "    (void)t, (void)w, (void)n;"
    return "\n".join((f"void {name}(void **t, void **w, const board_number *n) {{", used, *calls, "}"))
