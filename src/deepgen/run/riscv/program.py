"""The protocol of a program with one kernel: its request, its results, how it ended, and its counts.

`toolchains/board/board.c` implements the other side.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Protocol

from deepgen.operators import Operator
from deepgen.run.call import plans
from deepgen.run.measure.bench import Rejected
from deepgen.run.measure.guarded import Placement
from deepgen.targets.riscv import CLASSES, SCALAR, Costs
from deepgen.toolchains import board
from deepgen.toolchains.compilers.judge import signal_name
from deepgen.vocabulary import DeepgenError, Json, Kernel, ScalarArg, Verdict

ANSWERS, COUNTS, REQUEST = "answers", "counts", "request"  # files of a run


@dataclass(frozen=True)
class Ran:
    """A program that has ended."""

    code: int  # its exit code, or minus the signal that ended it
    in_time: bool
    seconds: float
    log: str  # its printed output
    folder: Path  # has its answers, results and counts

    @property
    def started(self) -> bool:
        return (self.folder / ANSWERS).exists()

    def read(self, name: str) -> str:
        try:
            return (self.folder / name).read_text(errors="replace")
        except OSError:
            return ""


class ProgramHost(Protocol):
    """Runs programs one at a time."""

    @property
    def conditions(self) -> Mapping[str, Json]:
        """The conditions to store with measurements taken there."""
        ...

    @property
    def lacks(self) -> str:
        """Features of the target that its CPU lacks, in words: why an instruction may be unknown there."""
        ...

    @property
    def counts(self) -> bool:
        """Whether instructions are counted there instead of measuring times."""
        ...

    def run(self, program: Path, inputs: Path, request: str, seconds: float, *, counted: bool) -> Ran:
        """Run a program in a fresh folder with its request and these input files. Raises DeepgenError if that is
        impossible."""
        ...

    def close(self) -> None: ...


_NAN_BYTE = 0xFF  # a NaN in every floating-point format
_ALTERNATING = -1  # integers: two bytes alternate, so that none stays correct by chance


@dataclass(frozen=True)
class Run:
    """One call with one set of inputs."""

    set: int
    counted: bool = False


@dataclass(frozen=True)
class TimedCalls:
    """Timed calls after the others, on alternating sets of inputs, until there are enough samples."""

    least: int
    most: int
    seconds: float
    cold_bytes: int = 0  # of other memory written before each call; 0: caches stay warm


@dataclass(frozen=True)
class Wanted:
    """What a program has to do."""

    runs: tuple[Run, ...]
    timed: TimedCalls | None = None
    placed: Placement = Placement.LINES

    @property
    def costs(self) -> bool:
        """Whether it returns costs in addition to a verdict."""
        return self.timed is not None or any(run.counted for run in self.runs)

    @property
    def most_runs(self) -> int:
        return len(self.runs) + (self.timed.most if self.timed else 0)


def text(kernel: Kernel, operator: Operator, wanted: Wanted, *, sets: int, vlen: int, seconds: float) -> str:
    """The request. `sets`: the number of input sets; `vlen`: bits of the vector registers that the kernel needs;
    `seconds`: the time limit of one call."""
    scalars, signature = operator.scalars(), operator.signature()
    plans.check_shape(kernel, scalars)
    lines = [f"vectors {vlen}", f"limit {ceil(seconds)}"]
    for tensor in operator.tensors():
        align, off = wanted.placed.border(signature[tensor.name].align or tensor.dtype.bytes)
        poison = _ALTERNATING if tensor.dtype.integer else _NAN_BYTE
        lines.append(f"tensor {tensor.name} {tensor.role} {tensor.bytes} {align} {off} {poison}")
    prepared = plans.prepared(kernel.plan)
    for name, (arg, size) in plans.workspaces(kernel.plan, scalars).items():
        # Data from the preparation must be kept.
        kept = arg.lasting or (arg.zeroed and name in prepared)
        kind = "lasting" if kept else "zeroed" if arg.zeroed else "plain"
        lines.append(f"workspace {name} {size} {arg.align} {kind}")
    lines += [f"number {_number(arg, scalars)}" for arg in board.numbers(kernel)]
    # If inputs do not alternate, the only set is used again.
    lines += [f"run {run.set % sets} {'counted' if run.counted else 'plain'}" for run in wanted.runs]
    if wanted.timed is not None:
        t = wanted.timed
        lines.append(f"time {t.least} {t.most} {round(t.seconds * 1e9)} {sets} {t.cold_bytes}")
    return "\n".join((*lines, ""))


def answers(text: str) -> Sequence[Mapping[str, Any]]:
    """The readable lines. A kernel may have written among them: broken lines count as missing."""
    parsed: list[Mapping[str, Any]] = []
    for line in text.splitlines():
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        if isinstance(answer, dict):
            parsed.append(answer)
    return parsed


def _number(arg: ScalarArg, scalars: plans.Scalars) -> str:
    value = plans.scalar(arg, scalars).value
    return str(value) if arg.ctype.startswith("i") else float(value).hex()


_NOT_WRITTEN = 74  # the program's exit code if it cannot write its answers
_SIGALRM = 14


def check(answered: Sequence[Mapping[str, Any]], ran: Ran) -> None:
    """Raises Rejected if a kernel ended its program or did damage, DeepgenError if the machine is at fault."""
    for line in answered:
        _check_line(line)
    if any("done" in line for line in answered) and ran.code == 0:
        return
    if not ran.in_time or ran.code == -_SIGALRM:
        raise Rejected(Verdict.TIMED_OUT, f"did not finish within {ran.seconds:.3g} s")
    if ran.code < 0:
        raise Rejected(Verdict.CRASHED, signal_name(-ran.code))
    printed = next((line.strip() for line in ran.log.splitlines() if line.strip()), "")
    if not ran.started:
        raise DeepgenError(f"the program did not start: {printed or f'exit code {ran.code}'}")
    if ran.code == _NOT_WRITTEN:
        raise DeepgenError("the program could not write its results: is the disk full where it ran?")
    ended = f"ended with exit code {ran.code} before its runs were done"
    raise Rejected(Verdict.CRASHED, f"{ended}: {printed}" if printed else ended)


def _check_line(line: Mapping[str, Any]) -> None:
    where = f"{line.get('buffer')} (at byte {line.get('byte')} of {line.get('bytes')})"
    if "died" in line:
        near = f" {line['where']} {where}" if "buffer" in line else ""
        if line.get("where") == "in":
            near = f" on writing to {where}, which is only read"
        raise Rejected(Verdict.CRASHED, f"{line['died']}{near}")
    if "damaged" in line:
        raise Rejected(Verdict.WRONG, f"wrote {line['damaged']} {where}")
    if "changed" in line:
        raise Rejected(Verdict.WRONG, f"left {line['changed']} changed")
    if "refused" in line:
        raise Rejected(Verdict.REFUSED, str(line["refused"]))
    if "failed" in line:
        if str(line["failed"]).startswith("no memory"):
            raise Rejected(Verdict.OUT_OF_MEMORY, str(line["failed"]))
        raise DeepgenError(f"the program failed: {line['failed']}")


_GROUPS = {1: "mf8", 2: "mf4", 4: "mf2", 8: "m1", 16: "m2", 32: "m4", 64: "m8"}
_UNKNOWN = -1  # after `vsetvl`, which takes the type from a register


@dataclass(frozen=True)
class InstructionCounts:
    """How often instructions of each class ran, by the eighths of a vector register that they process."""

    of: Mapping[tuple[str, int], int]

    @property
    def instructions(self) -> int:
        return sum(self.of.values())

    @property
    def vectors(self) -> int:
        return sum(count for (kind, _), count in self.of.items() if kind not in SCALAR)

    def cycles(self, costs: Costs) -> float:
        """The weighted count. Groups of unknown size count as the largest size."""
        return sum(
            count * costs.cycles(kind, (64 if eighths == _UNKNOWN else eighths) / 8)
            for (kind, eighths), count in self.of.items()
        )

    def named(self) -> Iterator[tuple[str, float]]:
        """Each count under a name such as vector_load_unit_m4."""
        for (kind, eighths), count in sorted(self.of.items()):
            size = "" if kind in SCALAR else f"_{_GROUPS.get(eighths, f'{eighths}_eighths')}"
            yield kind + size, float(count)

    @staticmethod
    def from_text(text: str) -> InstructionCounts:
        counts: dict[tuple[str, int], int] = {}
        for line in text.splitlines():
            try:
                kind, eighths, count = line.split()
                if kind not in CLASSES:
                    raise ValueError(kind)
                counts[kind, int(eighths)] = int(count)
            except ValueError as error:
                raise DeepgenError(f"under qemu {line[:60]!r} appears among the counts") from error
        if not counts:
            raise DeepgenError("under qemu nothing was counted: no run was marked")
        return InstructionCounts(counts)
