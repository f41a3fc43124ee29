"""Runs programs on a board, over SSH or on this machine if it is one. It needs a shell, tar and timeout, but no Python.

Each run is one command: the program, its request and new inputs go in as an archive, and results come back as one.
 What a run leaves on the board is removed by the shell that ran it, also when the connection
is lost; a program ends itself when its time is up.
"""

from __future__ import annotations

import io
import re
import secrets
import shlex
import subprocess
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from deepgen.run.riscv import perf
from deepgen.run.riscv.program import REQUEST, Ran
from deepgen.toolchains import programs
from deepgen.vocabulary import BadInput, DeepgenError, Json, Missing

LOCAL = "local"  # in place of a host: this machine
_HERE = ("sh", "-c")
_ATTEMPTS = 3  # at a connection
_PAUSE = 1.0  # seconds before the next one
_CONNECT_SECONDS = 20
_TRANSFER_SECONDS = 120.0  # beside the program's own time
_LOST = 255  # the exit code of ssh where the connection is the problem
_NO_INPUTS = 90
_CODE, _LOG, _PROGRAM, _INPUTS = "code", "log", "program", "inputs"
_ROOT = 'root="${XDG_CACHE_HOME:-$HOME/.cache}/deepgen-board"'
_OPEN = f"""
{_ROOT}
mkdir -p "$root" && find "$root" -mindepth 1 -maxdepth 1 -mmin +60 -exec rm -rf {{}} +
umask 077; mkdir -p "$root/%(session)s" && uname -m
"""
# The folder has the shell's number: where a connection was lost, another shell may still be at the same run. That one
# may even begin after the session was closed, so it makes no folder of a session.
_RUN = f"""
set -e; umask 077; {_ROOT}; place="$root/%(session)s/%(run)s-$$"; [ -d "$root/%(session)s" ] || exit {_NO_INPUTS}
trap 'was=$?; [ $was = 0 ] || echo >"$place/room" || echo No space left >&2; cd /; rm -rf "$place"; exit $was' EXIT
trap 'exit 1' HUP INT TERM PIPE
mkdir "$place"; cd "$place"; tar xf -
if [ -d {_INPUTS} ]; then rm -rf ../%(inputs)s; mv {_INPUTS} ../%(inputs)s; fi
[ -d ../%(inputs)s ] || exit {_NO_INPUTS}
ln -s ../%(inputs)s/* .; chmod 700 {_PROGRAM}; code=0
timeout -k 1 %(seconds)d %(before)s./{_PROGRAM} . >{_LOG} 2>&1 </dev/null || code=$?
echo $code >{_CODE}; %(after)s; rm -f {_PROGRAM} set-*; tar cf - .
"""
# While such a shell writes into the folder, it is not empty, and stays.
_CLOSE = f"""
{_ROOT}
for attempt in 1 2 3 4 5; do rm -rf "$root/%(session)s" && break; sleep 1; done
"""
_TIMEOUT = 124  # the exit code of timeout
_HOST = re.compile(r"(?:[\w.-]+@)?[\w][\w.-]*(?::\d{1,5})?")


class RemoteBoard:
    """A board that the user's ssh reaches, by keys and known hosts as they are set up there."""

    counts = False
    lacks = ""

    def __init__(self, host: str, scratch: Path) -> None:
        """Raises Missing without ssh, DeepgenError where the board does not answer."""
        if not _HOST.fullmatch(host):
            raise BadInput(f"--host {host[:60]!r}", allowed=f"USER@HOST, USER@HOST:PORT or {LOCAL}")
        self._command = _HERE if host == LOCAL else _over_ssh(host)
        self._host, self._scratch = host, scratch
        self._session = f"session-{secrets.token_hex(6)}"
        self._there: set[str] = set()  # inputs that the board has
        self._perf: dict[str, str] = {}  # why an event cannot be counted there; empty where it can be
        self._runs = 0
        self._waiting: subprocess.Popen[bytes] | None = None  # for a program
        self._closed = False
        machine = self._open()
        if machine != "riscv64":
            raise BadInput(f"{host} is {machine[:40] or 'unknown'}", allowed="a riscv64 board as --host")
        self.conditions: Mapping[str, Json] = {"host": host}

    def run(
        self,
        program: Path,
        inputs: Path,
        request: str,
        seconds: float,
        *,
        counted: bool,
        profile: perf.Profile = perf.Profile(),  # noqa: B008 (frozen)
    ) -> Ran:
        folder = self._scratch / f"run-{self._runs}"
        self._runs += 1
        values = {
            "session": self._session,
            "run": folder.name,
            "inputs": inputs.name,
            "seconds": max(1, round(seconds)),
            "before": "".join(f"{shlex.quote(word)} " for word in profile.before),
            "after": profile.after,
        }
        started = time.monotonic()
        for _ in range(2):
            sent = _archive(program, request, None if inputs.name in self._there else inputs)
            try:
                came = self._asked(_RUN % values, sent, seconds + _TRANSFER_SECONDS)
                break
            except _NoInputs:  # somebody has tidied up
                self._there.discard(inputs.name)
                self._open()
        else:
            raise DeepgenError(f"{self._host}: files sent there do not persist")
        self._there.add(inputs.name)
        _unpack(came, folder, self._host)
        ran = Ran(0, True, time.monotonic() - started, "", folder)
        exit_text = ran.read(_CODE).strip()
        code = int(exit_text) if exit_text.isdecimal() else 1
        # A shell adds 128 to the number of a signal.
        signalled = 128 - code if code > 128 else code
        return replace(ran, code=signalled, in_time=code != _TIMEOUT, log=ran.read(_LOG))

    def _open(self) -> str:
        """Make the folder of the session; gives the kind of the machine."""
        output = self._asked(_OPEN % {"session": self._session}, b"", _TRANSFER_SECONDS)
        return output.decode(errors="replace").strip()

    def uncountable(self, events: Sequence[str]) -> Mapping[str, str]:
        """The events that the board's perf cannot count, each with the reason. It is asked once about each."""
        new = [event for event in events if event not in self._perf]
        if new:
            output = self._asked(perf.question(new), b"", _TRANSFER_SECONDS).decode(errors="replace")
            self._perf.update({event: perf.answer(output, new).get(event, "") for event in new})
        return {event: self._perf[event] for event in events if self._perf[event]}

    def close(self) -> None:
        """May be called while a program runs, from another thread."""
        self._closed = True
        if self._waiting is not None:
            self._waiting.kill()
        try:
            self._run_once(_CLOSE % {"session": self._session}, b"", _TRANSFER_SECONDS, lambda process: None)
        except DeepgenError:
            return  # the board removes it when somebody connects an hour later or more

    def _asked(self, script: str, sent: bytes, seconds: float) -> bytes:
        """What a command printed. A connection that is lost is made again, and the command repeated."""

        def begun(process: subprocess.Popen[bytes]) -> None:
            self._waiting = process

        lost = ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE * attempt)
            if self._closed:
                break
            try:
                return self._run_once(script, sent, seconds, begun)
            except _Lost as error:
                lost = str(error)
        raise DeepgenError(
            f"{self._host}: the connection was lost ({lost}); results so far are kept: run the same command again "
            "to resume"
        )

    def _run_once(
        self, script: str, sent: bytes, seconds: float, begun: Callable[[subprocess.Popen[bytes]], None]
    ) -> bytes:
        """The same, tried once. `begun` is called with the process. Raises _Lost where another try may help."""
        argv = (*self._command, script if self._host == LOCAL else f"sh -c {shlex.quote(script)}")
        pipe = subprocess.PIPE
        process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        begun(process)
        try:
            came, errors = process.communicate(sent, timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise _Lost(f"no answer within {seconds:.0f} s") from None
        code, message = process.returncode, errors.decode(errors="replace").strip()
        if code == 0:
            return came
        if code == _NO_INPUTS:
            raise _NoInputs
        if code != _LOST and code > 0:
            raise DeepgenError(f"{self._host}: {_why(message, code)}")
        if fault := _lasting(message):
            raise DeepgenError(f"{self._host}: {fault}")
        raise _Lost(_last(message))


def _over_ssh(host: str) -> tuple[str, ...]:
    ssh = programs.search("ssh")
    if ssh is None:
        remedy = "Install it with `apt-get install openssh-client`."
        raise Missing("ssh", blocks=f"{host} cannot be reached", remedy=remedy)
    address, _, port = host.partition(":")
    options = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_SECONDS}", "-o", "ServerAliveInterval=10")
    return (ssh, *options, *(("-p", port) if port else ()), "--", address)


class _Lost(DeepgenError):
    """The connection was lost."""


class _NoInputs(Exception):
    """The board has no longer the inputs that were sent to it."""


def _lasting(message: str) -> str | None:
    """What another attempt would not change."""
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in message:
        return "its host key differs from the one in ~/.ssh/known_hosts: find out why before connecting again"
    if "Host key verification failed" in message:
        return "its host key is not in ~/.ssh/known_hosts: connect once with ssh, check the key, and accept it"
    if "Permission denied" in message:
        return "the login was refused: add your key there with ssh-copy-id"
    return None


def _why(message: str, code: int) -> str:
    if "No space left" in message or "Disk quota" in message:
        return f"its disk is full ({_last(message)}); free space there and run the same command again"
    return f"a command failed with exit code {code}: {_last(message)}"


def _last(message: str) -> str:
    return message.splitlines()[-1].strip()[:200] if message.strip() else "no reason given"


def _archive(program: Path, request: str, inputs: Path | None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.add(program, _PROGRAM)
        entry = tarfile.TarInfo(REQUEST)
        entry.size = len(request.encode())
        archive.addfile(entry, io.BytesIO(request.encode()))
        if inputs is not None:
            archive.add(inputs, _INPUTS)
    return out.getvalue()


def _unpack(came: bytes, folder: Path, host: str) -> None:
    """Plain files alone, by their last names: a board may have been told to send anything."""
    folder.mkdir()
    try:
        with tarfile.open(fileobj=io.BytesIO(came)) as archive:
            for entry in archive:
                content = archive.extractfile(entry) if entry.isreg() else None
                name = Path(entry.name).name
                if content is not None and name not in ("", ".."):
                    (folder / name).write_bytes(content.read())
    except (tarfile.TarError, EOFError) as error:
        raise DeepgenError(f"{host}: the reply cannot be read ({error})") from error
