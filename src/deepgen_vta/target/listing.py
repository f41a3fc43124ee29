"""A program as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from deepgen_vta.target.program import Gemm, Instruction, Load, Program, module


def listing(program: Program) -> str:
    """For people: an instruction a line."""
    return "\n".join(_line(number, one) for number, one in enumerate(program.instructions)) + "\n"


def _line(number: int, one: Instruction) -> str:
    if isinstance(one, Gemm):
        what = "reset" if one.reset else "gemm"
        told = f"{what} {one.outer} x {one.inner} x micro-ops {one.first}..{one.last - 1}"
    elif isinstance(one, Load):
        told = f"load {one.image}[{one.start}: {one.rows} x {one.columns}] to {one.buffer}[{one.to}]"
    else:
        told = f"store accumulator[{one.at}] to {one.image}[{one.start}: {one.rows} x {one.columns}]"
    return f"{number:5} {module(one):8}{told}{_queues(' waits ', one.waits)}{_queues(' signals ', one.signals)}"


def _queues(word: str, queues: Sequence[str]) -> str:
    return word + ", ".join(queues) if queues else ""
