"""The worker process: started in a clean environment, sent requests, and ended with everything it started.

A dead or stuck worker is reported as a verdict with one sentence, unless it was stopped from outside.
"""

from __future__ import annotations

import errno
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from deepgen.run.measure import spawn
from deepgen.run.measure.channel import DOING, GUARD, LOST_CHANNEL, BufferPlace, Closed, Garbled, Pulse, WorkerStage
from deepgen.run.measure.conditions import MachineReading
from deepgen.run.measure.limits import START_SECONDS
from deepgen.toolchains import guard
from deepgen.vocabulary import Verdict

_TAIL = 2048  # bytes kept of a kernel's printed output
_LOOK_SECONDS = 0.1  # between checks of the pulse: too rare to affect a timed run
_FORK_SECONDS = 0.2  # in which a newly started keeper reports its worker's process id
_LINGER_SECONDS = 2.0  # in which a worker with a closed channel ends by itself
_END_SECONDS = 10.0  # in which the keeper ends everything: freeing much memory takes a while
# Signals that end the processes of a session, a service or a machine; a kernel that sends one will do so again.
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Lost(Exception):
    """The worker died, or had to be killed."""

    def __init__(self, verdict: Verdict, detail: str, who: int, stage: WorkerStage, *, killed: bool = False) -> None:
        super().__init__(detail)
        self.verdict, self.detail, self.who, self.stage = verdict, detail, who, stage
        self.killed = killed  # or suspended, most likely from outside


class TimingWindow:
    """Holds other activity while a worker times a kernel, and samples the machine before and after."""

    def __init__(
        self, hold: Callable[[], AbstractContextManager[None]], look: Callable[[float], MachineReading]
    ) -> None:
        self._hold, self._look = hold, look
        self.looks: list[MachineReading] = []

    def step(self, held: ExitStack, cpu: float) -> None:
        """Timing begins or has ended; `cpu` is the worker's CPU time in seconds."""
        if not self.looks:
            held.enter_context(self._hold())
        self.looks.append(self._look(cpu))
        if len(self.looks) > 1:
            held.close()


class WorkerProcess:
    """One live worker, and its keeper between the worker and this process."""

    def __init__(self, threads: int, meets: str | None = None) -> None:
        """Start a worker, or take one that was started ahead; `open` waits for it. `meets`: as in `Spawned`."""
        spawned = spawn.take(threads, meets)
        self.pulse, self._channel, self._line = spawned.pulse, spawned.channel, spawned.line
        self._output, self._mark, self._keeper = spawned.output, spawned.mark, spawned.keeper
        self._tail = b""
        self._ended = self._held = False
        self._count = 1  # contenders in the current request
        self.printed = 0  # bytes printed since the last request
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._channel, selectors.EVENT_READ)
        self._selector.register(self._output, selectors.EVENT_READ)
        self.pid = self._keeper.pid  # until the worker reports its own

    def open(self, opening: Mapping[str, Any]) -> dict[str, Any]:
        """Send the worker its task. Raises Lost."""
        state = self.ask(opening, START_SECONDS)
        self.pid = state["pid"]
        return state

    @property
    def alive(self) -> bool:
        return self._keeper.poll() is None

    def ask(self, message: Mapping[str, Any], limit: float, window: TimingWindow | None = None) -> dict[str, Any]:
        """Send a request and wait for the answer; `window` handles announcements of timing. Raises Lost."""
        self.pulse.clear()
        self.pulse.enter(WorkerStage.OWN, limit)
        self.printed, self._tail = 0, b""
        self._count = len(message.get("contenders", ())) or 1
        try:
            self._channel.ask(message)
            reply = self._answer() if window is None else self._announced(window)
        except Closed:
            raise self._lost(_LINGER_SECONDS) from None
        except Garbled:
            raise self._lost(0.0) from None
        self._drain()
        if "lost" in reply:  # it is alive, but cannot run kernels any more
            lost = Lost(Verdict(reply["verdict"]), reply["lost"], self._who(), self.pulse.stage)
            self.end()
            raise lost
        return reply

    def _announced(self, window: TimingWindow) -> dict[str, Any]:
        with ExitStack() as held:
            window.looks.clear()  # samples from a worker that died
            while "timing" in (reply := self._answer()):
                window.step(held, reply["timing"])
                self._channel.ask({})
            return reply

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspends the worker while another process measures on its cores. The time of its stage is suspended too."""
        pid = self._worker_pid() if self.alive else None
        if pid is None:
            yield
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        self._held, started = True, time.monotonic()
        try:
            yield
        finally:
            self.pulse.fields.started += time.monotonic() - started
            self._held = False
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _worker_pid(self) -> int | None:
        """The worker's id, never the keeper's: if this process were killed, a suspended keeper would stay forever."""
        if self.pid == self._keeper.pid and select.select([self._line], [], [], _FORK_SECONDS)[0]:
            with suppress(OSError, ValueError):
                self.pid = int(self._line.recv(1 << 10, socket.MSG_PEEK).split(b"\n")[0])
        return None if self.pid == self._keeper.pid else self.pid

    def end(self) -> None:
        """Kill it and everything it started. May be called while another thread waits for it."""
        if self._ended:
            return
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)  # the keeper detects this
        self._keeper.send_signal(signal.SIGCONT)
        try:
            clean = self._keeper.wait(_END_SECONDS) == 0
        except subprocess.TimeoutExpired:
            clean = False
            self._keeper.kill()
            self._keeper.wait()
        if not clean:  # the keeper was killed before it could end them
            _end_marked(f"{spawn.MARK}={self._mark}".encode())
        self._ended = True

    def close(self) -> None:
        self.end()
        self._selector.close()
        self._channel.close()
        self._line.close()
        with suppress(OSError):
            os.close(self._output)

    def _answer(self) -> dict[str, Any]:
        """Wait for the answer, or until a stage exceeds its limit."""
        suspension = Suspension(self.pid)
        while True:
            for key, _ in self._selector.select(max(0.0, min(self.pulse.left(), _LOOK_SECONDS))):
                if key.fileobj is not self._channel:
                    self._drain()
                elif (answer := self._channel.take_answer()) is not None:
                    return dict(answer)
            if self._held:
                suspension = Suspension(self.pid)
                continue
            suspension.look()
            if self.pulse.left() <= 0.0:
                verdict, detail = overdue(self.pulse)
                lost = Lost(verdict, detail, self._who(), self.pulse.stage, killed=suspension.noticed)
                self.end()
                raise lost
            if not self.alive:  # a child started by the kernel holds the channel open
                raise Closed("the worker ended")

    def _drain(self) -> None:
        """Read the printed output, and keep its end."""
        with suppress(BlockingIOError):
            while part := os.read(self._output, 1 << 16):
                self.printed += len(part)
                self._tail = (self._tail + part)[-_TAIL:]
            # Closed at the other end: without this, select would return at once every time.
            with suppress(KeyError):
                self._selector.unregister(self._output)

    def _who(self) -> int:
        """The index in the request of the kernel being run, clamped because a kernel may have overwritten the page."""
        return min(max(0, int(self.pulse.fields.who)), self._count - 1)

    def _lost(self, linger: float) -> Lost:
        who, stage = self._who(), self.pulse.stage
        self._keeper.send_signal(signal.SIGCONT)  # a kernel may have stopped the keeper
        with suppress(subprocess.TimeoutExpired):
            self._keeper.wait(linger)
        died = not self.alive
        self.end()
        with suppress(OSError):
            self._drain()
        report = self._report() if died else None
        verdict, detail = death(report, self.pulse, readable(self._tail))
        return Lost(verdict, detail, who, stage, killed=_from_outside(report))

    def _report(self) -> dict[str, int]:
        """The keeper's report on how the worker ended; empty if the keeper was killed too."""
        with suppress(OSError, ValueError):
            report: dict[str, int] = json.loads(self._line.recv(1 << 10).split(b"\n")[-1])
            return report
        return {}


def _from_outside(report: Mapping[str, int] | None) -> bool:
    """Whether something else ended the worker, or the keeper, which then sends no report."""
    return report is not None and -report.get("ended", -signal.SIGKILL) in _FROM_OUTSIDE and "sent" not in report


def _end_marked(mark: bytes) -> None:
    until = time.monotonic() + _END_SECONDS
    while guard.kill_marked(mark) and time.monotonic() < until:
        time.sleep(0.01)


# Signals for unaligned access, with their codes: on x86 a general protection fault, on Arm a bus error.
_UNALIGNED = ((signal.SIGSEGV, 128), (signal.SIGBUS, 1))
_SPOILT = "closed or wrote to the worker's files"
_NEAR_STACK = 1 << 20
_SHOWN = 160  # characters of its printed output


def overdue(pulse: Pulse) -> tuple[Verdict, str]:
    """The verdict when the worker did not finish a stage in time."""
    stage, limit = pulse.stage, float(pulse.fields.limit)
    if stage is WorkerStage.LOAD:
        return Verdict.TIMED_OUT, f"loading it took longer than {limit:.3g} seconds"
    if stage.in_kernel:
        return Verdict.TIMED_OUT, f"a run did not finish within {limit:.3g} seconds ({_on_call(pulse)})"
    return Verdict.TIMED_OUT, f"checking its answer took longer than {limit:.3g} seconds"


def death(report: Mapping[str, int] | None, pulse: Pulse, printed: str) -> tuple[Verdict, str]:
    """The verdict when the worker died. `report` is the keeper's, empty if it was killed too; None: we killed the
    worker because its channel was corrupted."""
    if report is None:
        verdict, what = Verdict.CRASHED, _SPOILT
    elif "sent" in report:
        verdict, what = Verdict.CRASHED, f"sent {_signal_name(report['sent'])} to its parent process"
    elif "ended" in report:
        verdict, what = _cause(report["ended"], pulse)
    else:
        verdict, what = Verdict.CRASHED, "killed its parent process"
    where = DOING.get(pulse.stage, "before it ran")
    output = f"; it printed: {printed}" if printed else ""
    return verdict, f"{what} {where} ({_on_call(pulse)}){output}"


def readable(tail: bytes) -> str:
    """The end of a kernel's printed output, as a single line."""
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
        return Verdict.OUT_OF_MEMORY, "was killed by the system, most likely for lack of memory,"
    if note.signal and note.error == errno.ENOMEM:
        return Verdict.OUT_OF_MEMORY, "was refused memory beyond its limit and continued without it"
    if note.signal and (number, note.code) in _UNALIGNED:
        return (
            Verdict.CRASHED,
            "used an aligned instruction on an unaligned address, or an invalid address",
        )
    if number in (signal.SIGSEGV, signal.SIGBUS) and note.signal:
        return Verdict.CRASHED, _access(note.address, note.stack, note.write, pulse.places())
    names: dict[int, str] = {
        signal.SIGSEGV: "accessed unmapped memory (segmentation fault)",
        signal.SIGBUS: "accessed unmapped memory (bus error)",
        signal.SIGILL: "used an instruction that this CPU does not support",
        signal.SIGTRAP: "hit a trap that its compiler or author placed there",
        signal.SIGFPE: "divided by zero (arithmetic fault)",
        signal.SIGABRT: "aborted",
    }
    return Verdict.CRASHED, names.get(number, f"was terminated by signal {number}")


def _access(address: int, stack: int, write: int, places: Sequence[BufferPlace]) -> str:
    """Describe an invalid address relative to the tensors."""
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
    return f"{did} at an unmapped address (segmentation fault)"


_GAP = 0.5  # seconds between checks: a longer gap means that this process itself was suspended
_STOPPED = ("T", "t")


class Suspension:
    """Detects suspension of this process or another one from now on."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._looked = time.monotonic()
        self.noticed = False

    def look(self) -> None:
        """Check; to be called several times per _GAP."""
        now = time.monotonic()
        self.noticed = self.noticed or now - self._looked > _GAP or _stopped(self._pid)
        self._looked = now


def _stopped(pid: int) -> bool:
    with suppress(OSError):
        # The process name is in parentheses and may contain anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in _STOPPED
    return False
