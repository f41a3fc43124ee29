"""A GPU compiler's statistics of a kernel, in one form for NVIDIA and AMD, including occupancy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod

from deepgen.targets import Target
from deepgen.vocabulary import Json, Kernel, Step


@dataclass(frozen=True)
class Usage:
    """The resource usage of one entry point."""

    registers: int  # per thread
    spill_bytes: int  # stored and loaded, per thread
    stack_bytes: int
    shared_bytes: int  # static
    scalar_registers: int = 0  # per wavefront; AMD only


def summary(entries: Mapping[str, Usage], kernel: Kernel, target: Target) -> dict[str, Json]:
    """The facts of the entry that uses the most registers, as it does the main work, and of all entries by name."""
    facts: dict[str, dict[str, Json]] = {}
    for name, usage in entries.items():
        own: dict[str, Json] = dict(asdict(usage))
        step = next((s for s in (*kernel.plan.steps, *kernel.plan.prepare) if s.entry == name), None)
        facts[name] = {**own, **(_residence(usage, step, target) if step is not None else {})}
    if not facts:
        return {}
    # Helpers for split sums or prepacking may be in the same binary; their usage is unimportant.
    launched = [s.entry for s in kernel.plan.steps if s.entry in facts]
    main = max(launched or facts, key=lambda name: entries[name].registers)
    return {**facts[main], "entries": dict(facts)} if len(facts) > 1 else facts[main]


def _residence(usage: Usage, step: Step, target: Target) -> dict[str, Json]:
    """Blocks per multiprocessor and occupancy, if the launch plan has numbers rather than expressions."""
    sizes = [size for size in step.block if isinstance(size, int)]
    if len(sizes) < len(step.block) or not isinstance(step.shared_bytes, int):
        return {}
    threads, shared = prod(sizes), usage.shared_bytes + step.shared_bytes
    resident = target.residence(threads, usage.registers, shared)
    if resident is None:
        return {}
    return {"shared_bytes": shared, "blocks_per_sm": resident[0], "occupancy": resident[1]}


# The report on one entry.
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
    """A compiler's log without that report."""
    kept = [line for line in log.splitlines() if not _LINE.match(line)]
    return "\n".join(kept).strip()
