"""The report of NVIDIA's assembler: what each entry uses."""

from __future__ import annotations

import re

from deepgen.toolchains.compilers.gpu_facts import Usage

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
