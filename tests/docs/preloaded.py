"""`deepgen` and `python -c` as commands that start at once: each is a fork of a process that has imported everything.

Importing takes most of a short command's time, and pages show a hundred of them. Tests whose subject is how a process
starts, is ended or is imported into start one of their own.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType

_WITH_TORCH = ("bench",)  # every command would carry it along

# What lies in $PATH. Name, arguments, folder, environment and streams go to the server; the command's number and, at
# its end, its exit code come back. Signals are passed on.
_CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
asked = json.dumps([{name!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(server, [len(asked).to_bytes(8, "little")], [0, 1, 2])
server.sendall(asked)
pid = int.from_bytes(server.recv(8), "little")
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(pid, number))
code = server.recv(1)
os._exit(code[0] if code else 1)
"""


@contextmanager
def command(folder: Path) -> Iterator[Path]:
    """A folder for $PATH in which `deepgen` is such a command; so is `at-once`, which is `python -c`."""
    address = str(folder / "server")
    for name in ("deepgen", "at-once"):
        script = folder / name
        script.write_text(_CLIENT.format(python=sys.executable, address=address, name=name))
        script.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        words = [sys.executable, __file__, str(listening.fileno())]
        env = {name: value for name, value in os.environ.items() if name != "TESTS_WITHOUT"}  # commands say it
        server = subprocess.Popen(words, pass_fds=[listening.fileno()], stdin=subprocess.DEVNULL, env=env)
    try:
        yield folder
    finally:
        server.kill()
        server.wait()


def deepgen(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, and what it said."""
    return subprocess.run([_shared() / "deepgen", *words], cwd=cwd, capture_output=True, text=True, check=False)


def python(text: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own, and what it said."""
    return subprocess.run([_shared() / "at-once", text], cwd=cwd, capture_output=True, text=True, check=False)


@cache
def _shared() -> Path:
    """Of this process, as long as it lives."""
    serving = command(Path(mkdtemp(prefix="deepgen-commands-")))
    atexit.register(serving.__exit__, None, None, None)
    return serving.__enter__()


def _serve(listening: socket.socket) -> None:
    _preload()
    while True:
        client, _ = listening.accept()
        if os.fork() == 0:  # this one waits for the command, so that the server never waits
            listening.close()
            _answer(client)
            os._exit(0)
        client.close()
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _answer(client: socket.socket) -> None:
    header, streams, _, _ = socket.recv_fds(client, 8, 3)
    told = b""
    while len(told) < int.from_bytes(header, "little"):
        told += client.recv(1 << 16)
    name, argv, cwd, environment = json.loads(told)
    pid = os.fork()
    if pid == 0:
        client.close()
        for number, (stream, of) in enumerate(zip(streams, ("stdin", "stdout", "stderr"), strict=True)):
            os.dup2(stream, number)
            os.close(stream)
            setattr(sys, of, open(number, "w" if number else "r", buffering=1, closefd=False))  # noqa: SIM115
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environment)
        if "torch" in environment.get("TESTS_WITHOUT", ""):
            from deepgen.baselines import torch_cpu

            torch_cpu.find_spec = lambda name: None
        _end(_code_of(name, argv))
    for stream in streams:
        os.close(stream)
    client.send(pid.to_bytes(8, "little"))
    client.send(bytes([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF]))


def _code_of(name: str, argv: list[str]) -> int:
    try:
        if name == "deepgen":
            from deepgen.__main__ import run

            sys.argv = ["deepgen", *argv]
            run()
        else:
            sys.argv = ["-c"]
            sys.path.insert(0, "")
            sys.modules["__main__"] = ModuleType("__main__")
            exec(argv[0], vars(sys.modules["__main__"]))
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _end(code: int) -> None:
    """As Python ends, but for taking down what was imported: that would take longer than most commands."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _preload() -> None:
    import pkgutil
    from importlib import import_module

    import deepgen.frontends.cli
    from deepgen import generators

    for module in pkgutil.iter_modules(deepgen.frontends.cli.__path__):
        if module.name not in _WITH_TORCH:
            import_module(f"deepgen.frontends.cli.{module.name}")
    generators.families()
    for name in (
        "deepgen.tuning.tuner",
        "deepgen.tuning.engines.local",
        "deepgen.space.union",
        "deepgen.report.view.block",
        "deepgen.compiler.making",
    ):
        import_module(name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
