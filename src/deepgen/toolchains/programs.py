"""Programs on this machine: their paths and versions."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deepgen.vocabulary import BadInput

_ANSWER_SECONDS = 20.0  # for a tool's answer to a query


@dataclass(frozen=True)
class Tool:
    """A program that deepgen can use."""

    name: str
    serves: str  # its purpose
    remedy: str  # how to install it


def named(name: str, path: str) -> str:
    """The executable set by the user, as a path or a name on the search path."""
    executable = shutil.which(str(Path(path).expanduser()))
    if executable is None:
        raise BadInput(f"the path set for {name}, {path}, is not an executable", allowed="a program, or none set")
    return str(Path(executable).absolute())


def search(name: str) -> str | None:
    """The path of a tool that the user did not set."""
    if name == "zig":
        spec = importlib.util.find_spec("ziglang")
        for folder in (spec.submodule_search_locations or []) if spec else []:
            packaged = shutil.which("zig", path=folder)
            if packaged:
                return packaged
    return shutil.which(name) or next(_with_suffix(name), None)


def _with_suffix(name: str) -> Iterator[str]:
    """Versions installed side by side, such as clang-19, newest first."""
    versions: list[tuple[int, str]] = []
    for folder in os.get_exec_path():
        for path in Path(folder).glob(f"{name}-*"):
            number = path.name[len(name) + 1 :]
            if number.isdigit() and shutil.which(str(path)):
                versions.append((int(number), str(path)))
    yield from (path for _, path in sorted(versions, key=lambda pair: -pair[0]))


def python_headers() -> str | None:
    """The folder of Python's headers, which building C extensions needs; many systems package them separately."""
    folder = Path(sysconfig.get_path("include"))
    return str(folder) if (folder / "Python.h").is_file() else None


_ANSWERS: dict[tuple[object, ...], str] = {}


def ask(path: str, *words: str) -> str:
    """A program's output. It is cached until the file or the search path changes: each build queries its compiler's
    identity, and clang takes as long for that as gcc for a small kernel."""
    try:
        file = Path(path).stat()
    except OSError:
        return _asked(path, *words)  # raises with the reason
    key = (path, words, os.environ.get("PATH"), file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns)
    if key not in _ANSWERS:
        _ANSWERS[key] = _asked(path, *words)
    return _ANSWERS[key]


def _asked(path: str, *words: str) -> str:
    for last in (False, False, True):
        try:
            answer = subprocess.run(
                [path, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_ANSWER_SECONDS,
                check=True,
                env={**os.environ, "LC_ALL": "POSIX"},
            )
            return answer.stdout.decode(errors="replace")
        except (OSError, subprocess.SubprocessError) as error:
            killed = isinstance(error, subprocess.CalledProcessError) and error.returncode < 0
            if last or not killed:  # killed from outside: repeat, as this may be bad luck
                raise BadInput(f"{path} does not work: {_why(error)}") from error
    raise AssertionError("the last try returns or raises")


def _why(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it gives no answer within {_ANSWER_SECONDS:g} s"
    if isinstance(error, subprocess.CalledProcessError):
        message = error.stderr.decode(errors="replace").strip().splitlines()
        return message[0] if message else f"it ends with code {error.returncode}"
    return str(getattr(error, "strerror", None) or error)


def version(path: str) -> str:
    return number(ask(path, "--version"))


def number(text: str) -> str:
    match = re.search(r"\d+\.\d+(\.\d+)?", text)
    return match.group() if match else text.strip()[:40] or "unknown"
