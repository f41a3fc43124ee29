"""Shared by all compilers: writing a kernel's files, the verdict on a compiler run, and symbols of C++ names."""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from deepgen.toolchains import process
from deepgen.toolchains.base import BuildError, BuildLimits
from deepgen.toolchains.group import Group
from deepgen.vocabulary import BadInput, Kernel, LaunchPlan, Step, Verdict

_OUT_OF_MEMORY = re.compile(
    r"out of memory|memory exhausted|cannot allocate memory|memory allocation failure|bad_alloc|OutOfMemory", re.I
)
_OUT_OF_TIME = re.compile(r"CPU time limit exceeded")
_KILLED = re.compile(r"Killed signal terminated|unable to execute command: Killed|terminated with signal 9 ")
# Signals that are sent to all processes when a machine or a session is shut down.
_ENDED = re.compile(
    r"(?:Terminated|Hangup|Interrupt) signal terminated|unable to execute command: (?:Terminated|Hangup|Interrupt)"
    r"|terminated with signal (?:1|2|15) "
)
_TOO_LARGE = re.compile(r"File size limit exceeded|File too large")
_CRASHED = re.compile(
    r"internal compiler error.*|.*signal terminated program.*|.*frontend command failed.*|PLEASE submit"
)
_ERROR = re.compile(r"^.*\b(?:error|undefined reference)\b.*$", re.M)


def run_judged(
    name: str,
    argv: Sequence[str],
    folder: Path,
    limits: BuildLimits,
    group: Group,
    env: Mapping[str, str] | None = None,
    request: Sequence[str] | None = None,
) -> process.Finished:
    """Run a compiler, and return if it succeeds. Raises BuildError; OSError if the disk is full.

    `request`: the request for a compiler that stays resident for other builds (`resident.py`).
    """
    try:
        if request is not None:
            finished = process.run_resident(tuple(argv), request, folder=folder, limits=limits, group=group)
        else:
            finished = process.run(argv, folder=folder, limits=limits, group=group, env=env)
    except OSError as error:
        detail = f"{name} could not be started: {error.strerror or error}"
        raise BuildError(Verdict.BUILD_FAILED, detail, transient=True) from error
    judge(name, finished, limits)
    return finished


def judge(name: str, finished: process.Finished, limits: BuildLimits) -> None:
    """Raise the error for a failed build."""
    log, code = finished.log, finished.code
    if finished.end is process.End.WALL_CLOCK:
        detail = f"{name} did not finish within {limits.wall_seconds:g} s"
        raise BuildError(Verdict.BUILD_TIMEOUT, detail, log)
    if finished.end is process.End.OUTPUT:
        raise failed(name, f"printed more than {_size(limits.output_bytes)} and was stopped", log)
    if code == 0:
        return
    if code == -signal.SIGXCPU or _OUT_OF_TIME.search(log) or finished.cpu_seconds >= limits.cpu_seconds:
        detail = f"{name} used more than {limits.cpu_seconds:g} s of CPU time"
        raise BuildError(Verdict.BUILD_TIMEOUT, detail, log)
    if "No space left on device" in log:
        raise OSError(errno.ENOSPC, "No space left on device")
    if _OUT_OF_MEMORY.search(log):
        # Of 12,000 builds by NVRTC, three to six reached the memory limit, and succeeded when repeated.
        detail = f"{name} needed more than {_size(limits.memory_bytes)} of memory"
        raise BuildError(Verdict.OUT_OF_MEMORY, detail, log, transient=True)
    if code == -signal.SIGKILL or _KILLED.search(log):
        detail = f"{name} was killed from outside, most likely because the machine ran out of memory"
        raise BuildError(Verdict.OUT_OF_MEMORY, detail, log, transient=True)
    if code == -signal.SIGXFSZ or _TOO_LARGE.search(log):
        raise failed(name, f"wrote a file of more than {_size(limits.file_bytes)}", log)
    if code < 0:
        # In 12,000 builds by NVRTC there was one such crash, which did not happen again.
        detail = f"{name} crashed with {signal_name(-code)}"
        raise BuildError(Verdict.BUILD_FAILED, detail, log, transient=True)
    if ended := _ENDED.search(log):
        raise BuildError(
            Verdict.BUILD_FAILED, f"{name} was terminated from outside: {ended.group()}", log, transient=True
        )
    if crash := _CRASHED.search(log):
        raise failed(name, f"crashed: {crash.group().strip()}", log)
    if error := _ERROR.search(log):
        raise failed(name, f"rejected the source: {error.group().strip()}", log)
    printed = next((line.strip() for line in log.splitlines() if line.strip()), "and printed nothing")
    raise failed(name, f"ended with exit code {code}: {printed}", log)


def failed(name: str, what: str, log: str) -> BuildError:
    return BuildError(Verdict.BUILD_FAILED, f"{name} {what}"[:500], log)


def _size(size: int) -> str:
    return f"{size / (1 << 30):.3g} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.3g} MiB"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def write_sources(kernel: Kernel, folder: Path) -> None:
    """Write a kernel's files where a compiler finds them."""
    for source in kernel.sources:
        name = PurePosixPath(source.name)
        if name.is_absolute() or ".." in name.parts or source.name.startswith("-") or not name.parts:
            raise BadInput(
                f"kernel {kernel.name}: source {source.name!r}", allowed="must be a relative path inside its folder"
            )
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.text, encoding="utf-8")


def expressions(kernel: Kernel) -> tuple[str, ...]:
    """The entries that are C++ expressions rather than plain symbols."""
    steps = (*kernel.plan.prepare, *kernel.plan.steps)
    return tuple(dict.fromkeys(s.entry for s in steps if not s.entry.isidentifier()))


def completed(plan: LaunchPlan, symbols: Mapping[str, str]) -> LaunchPlan | None:
    """The plan with symbols in place of C++ names; None if there are none."""
    if not symbols:
        return None

    def named(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        return tuple(replace(s, entry=symbols.get(s.entry, s.entry)) for s in steps)

    return replace(plan, steps=named(plan.steps), prepare=named(plan.prepare))


def symbols_of(tool: str, kernel: Kernel, symbols: Iterable[str], log: str) -> dict[str, str]:
    """The symbol of each C++ name, found by the form of mangled names. Raises BuildError if none or several match."""
    present = set(symbols)
    out = {}
    for expression in expressions(kernel):
        fitting = sorted(symbol for symbol in present if _fits(expression, symbol))
        if len(fitting) != 1:
            what = f"{len(fitting)} functions" if fitting else "no function"
            raise failed(tool, f'the binary has {what} for {expression}: name it in extern "C"', log)
        out[expression] = fitting[0]
    return out


def _fits(expression: str, symbol: str) -> bool:
    """Whether a mangled name may be of that function: with its name, and a template if it is one."""
    path, bracket, _ = expression.lstrip(":").partition("<")
    parts = [part.strip() for part in path.split("::")]
    if symbol == parts[-1] and not bracket:
        return True
    spelled = "".join(f"{len(part)}{part}" for part in parts)
    head = f"_ZN{spelled}" if len(parts) > 1 else f"_Z{spelled}"
    follows = "I" if bracket else ""
    return re.match(re.escape(head) + follows, symbol) is not None and not (
        not bracket and symbol[len(head) :][:1] == "I"
    )
