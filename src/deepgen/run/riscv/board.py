"""Runs programs on a board, over SSH or on this machine if it is one. It needs a shell, tar and timeout, but no Python.

Each run is one command: the program, its request and new inputs are sent as an archive, and the results return as one.
The shell that executes a run removes its files from the board, even when the connection is lost; a program ends itself
when its time limit is reached.
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
_ATTEMPTS = 3  # to connect
_PAUSE = 1.0  # seconds before the next attempt
_CONNECT_SECONDS = 20
_TRANSFER_SECONDS = 120.0  # besides the program's own time
_LOST = 255  # ssh's exit code for a failed connection
_NO_INPUTS = 90
_CODE, _LOG, _PROGRAM, _INPUTS = "code", "log", "program", "inputs"
_ROOT = 'root="${XDG_CACHE_HOME:-$HOME/.cache}/deepgen-board"'
_OPEN = f"""
{_ROOT}
mkdir -p "$root" && find "$root" -mindepth 1 -maxdepth 1 -mmin +60 -exec rm -rf {{}} +
umask 077; mkdir -p "$root/%(session)s" && uname -m
"""
# The folder's name ends in the shell's process id: after a lost connection, another shell may still be executing the
# same run. That shell may even start after the session was closed, so it does not create a session's folder.
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
# While such a shell writes into the folder, removing it fails.
_CLOSE = f"""
{_ROOT}
for attempt in 1 2 3 4 5; do rm -rf "$root/%(session)s" && break; sleep 1; done
"""
_TIMEOUT = 124  # timeout's exit code
_HOST = re.compile(r"(?:[\w.-]+@)?[\w][\w.-]*(?::\d{1,5})?")


class RemoteBoard:
    """A board reached with the user's ssh, with the keys and known hosts configured there."""

    counts = False
    lacks = ""

    def __init__(self, host: str, scratch: Path) -> None:
        """Raises Missing without ssh, DeepgenError if the board does not answer."""
        if not _HOST.fullmatch(host):
            raise BadInput(f"--host {host[:60]!r}", allowed=f"USER@HOST, USER@HOST:PORT or {LOCAL}")
        self._command = _HERE if host == LOCAL else _over_ssh(host)
        self._host, self._scratch = host, scratch
        self._session = f"session-{secrets.token_hex(6)}"
        self._there: set[str] = set()  # inputs that are on the board
        self._perf: dict[str, str] = {}  # why each event cannot be counted there; empty if it can
        self._runs = 0
        self._waiting: subprocess.Popen[bytes] | None = None  # the running command
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
            except _NoInputs:  # the board's folder was cleaned
                self._there.discard(inputs.name)
                self._open()
        else:
            raise DeepgenError(f"{self._host}: files sent there do not persist")
        self._there.add(inputs.name)
        _unpack(came, folder, self._host)
        ran = Ran(0, True, time.monotonic() - started, "", folder)
        exit_text = ran.read(_CODE).strip()
        code = int(exit_text) if exit_text.isdecimal() else 1
        # A shell reports a signal as 128 plus its number.
        signalled = 128 - code if code > 128 else code
        return replace(ran, code=signalled, in_time=code != _TIMEOUT, log=ran.read(_LOG))

    def _open(self) -> str:
        """Make the session's folder; returns the machine's architecture."""
        output = self._asked(_OPEN % {"session": self._session}, b"", _TRANSFER_SECONDS)
        return output.decode(errors="replace").strip()

    def uncountable(self, events: Sequence[str]) -> Mapping[str, str]:
        """The events that the board's perf cannot count, with reasons. Each is tried only once."""
        new = [event for event in events if event not in self._perf]
        if new:
            output = self._asked(perf.question(new), b"", _TRANSFER_SECONDS).decode(errors="replace")
            self._perf.update({event: perf.answer(output, new).get(event, "") for event in new})
        return {event: self._perf[event] for event in events if self._perf[event]}

    def close(self) -> None:
        """May be called from another thread while a program runs."""
        self._closed = True
        if self._waiting is not None:
            self._waiting.kill()
        try:
            self._run_once(_CLOSE % {"session": self._session}, b"", _TRANSFER_SECONDS, lambda process: None)
        except DeepgenError:
            return  # a connection an hour or more later removes it

    def _asked(self, script: str, sent: bytes, seconds: float) -> bytes:
        """The output of a command. If the connection is lost, it is made again and the command is repeated."""

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
        """One attempt of the same. `begun` is called with the process. Raises _Lost if another attempt may succeed."""
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
    """The board no longer has the inputs that were sent to it."""


def _lasting(message: str) -> str | None:
    """An error that another attempt would not change, or None."""
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
    """Unpack only regular files, by their base names: a compromised board may send anything."""
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
