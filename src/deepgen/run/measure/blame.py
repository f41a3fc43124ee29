"""From a dead or stuck worker to a verdict and one clear sentence."""

from __future__ import annotations

import errno
import signal
from collections.abc import Mapping, Sequence

from deepgen.run.measure.buffers import GUARD
from deepgen.run.measure.pulse import Place, Pulse, Stage
from deepgen.run.measure.worker import LOST_CHANNEL
from deepgen.vocabulary import Verdict

_DOING = {
    Stage.LOAD: "while it was loaded",
    Stage.PREPARE: "while it prepared its data",
    Stage.VERIFY: "in a verifying run",
    Stage.TIME: "in a timed run",
    Stage.CHECK: "after it had run, so it damaged the process",
    Stage.JUDGE: "where the kernel ran that answers are compared with",
}
# What processors raise, with the code beside it: x86 a protection fault that is not about a page, Arm a bus error.
_UNALIGNED = ((signal.SIGSEGV, 128), (signal.SIGBUS, 1))
_SPOILT = "closed or wrote to the worker's files"
_NEAR_STACK = 1 << 20
_SHOWN = 160  # characters of what it printed


def overdue(pulse: Pulse) -> tuple[Verdict, str]:
    """The worker did not finish a stage in time."""
    stage, limit = pulse.stage, float(pulse.fields.limit)
    if stage is Stage.LOAD:
        return Verdict.TIMED_OUT, f"loading it took longer than {limit:.3g} seconds"
    if stage.in_kernel:
        return Verdict.TIMED_OUT, f"a run did not end within {limit:.3g} seconds ({_on_call(pulse)})"
    return Verdict.TIMED_OUT, f"checking its answer took longer than {limit:.3g} seconds"


def death(report: Mapping[str, int] | None, pulse: Pulse, printed: str) -> tuple[Verdict, str]:
    """The worker ended. `report`: the keeper's report, empty if it was killed too; None: the worker was killed
    by us because its channel was corrupted."""
    if report is None:
        verdict, what = Verdict.CRASHED, _SPOILT
    elif "sent" in report:
        verdict, what = Verdict.CRASHED, f"sent {_signal_name(report['sent'])} to its parent process"
    elif "ended" in report:
        verdict, what = _cause(report["ended"], pulse)
    else:
        verdict, what = Verdict.CRASHED, "killed its parent process"
    where = _DOING.get(pulse.stage, "before it ran")
    said = f"; it printed: {printed}" if printed else ""
    return verdict, f"{what} {where} ({_on_call(pulse)}){said}"


def readable(tail: bytes) -> str:
    """The end of what a kernel printed, fit to be shown in a line."""
    text = tail.decode("utf-8", "replace")
    clean = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return clean if len(clean) <= _SHOWN else "..." + clean[-_SHOWN:]


def _on_call(pulse: Pulse) -> str:
    return f"call {max(1, pulse.fields.calls)}"


def _signal_name(number: int) -> str:
    return {int(s): s.name for s in signal.Signals}.get(number, f"signal {number}")


def _cause(returncode: int, pulse: Pulse) -> tuple[Verdict, str]:
    note = pulse.fields
    if returncode == LOST_CHANNEL:
        return Verdict.CRASHED, _SPOILT
    if note.exited and returncode >= 0:
        return Verdict.CRASHED, f"called exit({note.status})"
    if returncode >= 0:
        return Verdict.CRASHED, f"ended the process with exit code {returncode}"
    number = -returncode
    if number == signal.SIGKILL:
        return Verdict.OUT_OF_MEMORY, "was killed by the system, most likely for want of memory,"
    if note.signal and note.error == errno.ENOMEM:
        return Verdict.OUT_OF_MEMORY, "was refused memory beyond its limit and went on without it"
    if note.signal and (number, note.code) in _UNALIGNED:
        return (
            Verdict.CRASHED,
            "used an aligned instruction on an address that is not aligned, or an impossible address",
        )
    if number in (signal.SIGSEGV, signal.SIGBUS) and note.signal:
        return Verdict.CRASHED, _access(note.address, note.stack, note.write, pulse.places())
    names: dict[int, str] = {
        signal.SIGSEGV: "touched memory that is not there (segmentation fault)",
        signal.SIGBUS: "touched memory that is not there (bus error)",
        signal.SIGILL: "used an instruction that this processor does not have",
        signal.SIGTRAP: "ran into a trap that its compiler or its author put there",
        signal.SIGFPE: "divided by zero (arithmetic fault)",
        signal.SIGABRT: "aborted",
    }
    return Verdict.CRASHED, names.get(number, f"was ended by signal {number}")


def _access(address: int, stack: int, write: int, places: Sequence[Place]) -> str:
    """Describe a bad address in terms of the tensors."""
    did = {0: "read", 1: "wrote"}.get(write, "touched memory")
    for place in places:
        end = place.start + place.bytes
        if place.start <= address < end and place.read_only:
            return f"wrote to its input {place.name} (at byte {address - place.start})"
        if end <= address < end + GUARD:
            return f"{did} past the end of {place.name} (at byte {address - place.start} of {place.bytes})"
        if place.start - GUARD <= address < place.start:
            return f"{did} before the start of {place.name} (at byte {address - place.start})"
    if stack and abs(address - stack) < _NEAR_STACK:
        return "overflowed the stack"
    if address < 1 << 16:
        return f"{did} through a null pointer (segmentation fault)"
    return f"{did} at an address that is not there (segmentation fault)"
