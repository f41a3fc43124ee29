"""Entries of launch plans that are C++ names, such as `::add` or `k<float, 128>`: a build finds their symbols."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from deepgen.toolchains.compilers.judge import failed
from deepgen.vocabulary import Kernel, LaunchPlan, Step


def expressions(kernel: Kernel) -> tuple[str, ...]:
    """The entries that are not symbols as they stand."""
    steps = (*kernel.plan.prepare, *kernel.plan.steps)
    return tuple(dict.fromkeys(s.entry for s in steps if not s.entry.isidentifier()))


def completed(plan: LaunchPlan, symbols: Mapping[str, str]) -> LaunchPlan | None:
    """The plan with symbols for C++ names; None where it has none of them."""
    if not symbols:
        return None

    def named(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        return tuple(replace(s, entry=symbols.get(s.entry, s.entry)) for s in steps)

    return replace(plan, steps=named(plan.steps), prepare=named(plan.prepare))


def found(tool: str, kernel: Kernel, symbols: Iterable[str], log: str) -> dict[str, str]:
    """The symbol of each C++ name, by the form of mangled names. Raises BuildError where none or several fit."""
    present = set(symbols)
    out = {}
    for expression in expressions(kernel):
        fitting = sorted(symbol for symbol in present if _fits(expression, symbol))
        if len(fitting) != 1:
            what = f"{len(fitting)} functions" if fitting else "no function"
            raise failed(tool, f'the binary has {what} for {expression}: name it in extern "C"', log)
        out[expression] = fitting[0]
    return out


def _fits(expression: str, symbol: str) -> bool:
    """Whether a mangled name may be of that function: of its name, and a template where it is one."""
    path, bracket, _ = expression.lstrip(":").partition("<")
    parts = [part.strip() for part in path.split("::")]
    if symbol == parts[-1] and not bracket:
        return True
    spelled = "".join(f"{len(part)}{part}" for part in parts)
    head = f"_ZN{spelled}" if len(parts) > 1 else f"_Z{spelled}"
    follows = "I" if bracket else ""
    return re.match(re.escape(head) + follows, symbol) is not None and not (
        not bracket and symbol[len(head) :][:1] == "I"
    )
