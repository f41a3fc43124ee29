"""What ended a program, as a verdict and a sentence."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import Any

from deepgen.run.measure.bench import Rejected
from deepgen.run.riscv.place import Ran
from deepgen.vocabulary import DeepgenError, Verdict

_NOT_WRITTEN = 74  # the runner's exit code where it cannot write its answers
_SIGALRM = 14


def check(told: Sequence[Mapping[str, Any]], ran: Ran) -> None:
    """Raises Rejected where a kernel ended its program or did harm, DeepgenError where the machine is at fault."""
    for line in told:
        _check_line(line)
    if any("done" in line for line in told) and ran.code == 0:
        return
    if not ran.in_time or ran.code == -_SIGALRM:
        raise Rejected(Verdict.TIMED_OUT, f"did not finish within {ran.seconds:.3g} s")
    if ran.code < 0:
        raise Rejected(Verdict.CRASHED, _signal(-ran.code))
    said = next((line.strip() for line in ran.log.splitlines() if line.strip()), "")
    if not ran.started:
        raise DeepgenError(f"the program did not start: {said or f'exit code {ran.code}'}")
    if ran.code == _NOT_WRITTEN:
        raise DeepgenError("the program could not write its answers: is the disk full where it ran?")
    ended = f"ended with exit code {ran.code} before its runs were over"
    raise Rejected(Verdict.CRASHED, f"{ended}: {said}" if said else ended)


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
        raise DeepgenError(f"the program could not do its work: {line['failed']}")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
