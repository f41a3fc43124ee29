"""A GPU compiler's statistics of a kernel, in one form for NVIDIA and AMD, with the occupancy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod

from deepgen.targets import Target
from deepgen.vocabulary import Json, Kernel, Step


@dataclass(frozen=True)
class Usage:
    """The resources of one entry point."""

    registers: int  # of a thread
    spill_bytes: int  # written and read, of a thread
    stack_bytes: int
    shared_bytes: int  # static
    scalar_registers: int = 0  # of a wavefront; AMD only


def summary(entries: Mapping[str, Usage], kernel: Kernel, target: Target) -> dict[str, Json]:
    """The facts of the entry that uses most registers, which is the one that does the work, and of each by name."""
    facts: dict[str, dict[str, Json]] = {}
    for name, usage in entries.items():
        own: dict[str, Json] = dict(asdict(usage))
        step = next((s for s in (*kernel.plan.steps, *kernel.plan.prepare) if s.entry == name), None)
        facts[name] = {**own, **(_residence(usage, step, target) if step is not None else {})}
    if not facts:
        return {}
    # Helpers for a split sum or a prepacking may stand beside it: what they use says little.
    launched = [s.entry for s in kernel.plan.steps if s.entry in facts]
    main = max(launched or facts, key=lambda name: entries[name].registers)
    return {**facts[main], "entries": dict(facts)} if len(facts) > 1 else facts[main]


def _residence(usage: Usage, step: Step, target: Target) -> dict[str, Json]:
    """How many blocks fit a multiprocessor, where the launch plan gives numbers and not expressions."""
    sizes = [size for size in step.block if isinstance(size, int)]
    if len(sizes) < len(step.block) or not isinstance(step.shared_bytes, int):
        return {}
    threads, shared = prod(sizes), usage.shared_bytes + step.shared_bytes
    resident = target.residence(threads, usage.registers, shared)
    if resident is None:
        return {}
    return {"shared_bytes": shared, "blocks_per_sm": resident[0], "occupancy": resident[1]}


# One entry's paragraph.
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_LINE = re.compile(r"ptxas[\w-]* info|ptxas         \.|\s*\d+ bytes stack frame")


def entries(log: str) -> dict[str, Usage]:
    """The statistics of each entry."""
    out = {}
    pieces = _ENTRY.split(log)[1:]
    for name, text in zip(pieces[::2], pieces[1::2], strict=True):
        stack, used, shared = _STACK.search(text), _USED.search(text), _SHARED.search(text)
        out[name] = Usage(
            registers=int(used[1]) if used else 0,
            spill_bytes=int(stack[2]) + int(stack[3]) if stack else 0,
            stack_bytes=int(stack[1]) if stack else 0,
            shared_bytes=int(shared[1]) if shared else 0,
        )
    return out


def without_report(log: str) -> str:
    """The rest of a compiler's log."""
    kept = [line for line in log.splitlines() if not _LINE.match(line)]
    return "\n".join(kept).strip()
