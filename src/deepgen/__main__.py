"""The command line, installed as `deepgen`, or as `python -m deepgen`."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn

from deepgen.vocabulary import bytecode

_MEASURING = ("tune", "resume")
_NONE_HERE = ("-h", "--help", "--detach", "O=0", "--engine", "--host")
_CUDA_NODES = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-ctrl-gpu")
_DEVICES = {"cpu": None, "x86": None, "arm": None, "cuda": "cuda", "hip": "hip"}  # the driver's language for each kind


def run() -> NoReturn:
    """Start the command line. A Ctrl-C during imports ends it like any other."""
    try:
        bytecode.keep()
        start_ahead(sys.argv[1:])
        from deepgen.frontends.cli.main import run as start
    except KeyboardInterrupt:
        sys.exit(130)
    start()


def start_ahead(argv: list[str]) -> None:
    """Start a worker for a command that will measure here, so that both processes import at the same time. This is a
    guess, which costs little if it is wrong.
    """
    words = [part for word in argv for part in (word.split("=", 1) if word.startswith("--") else [word])]
    if not words or words[0] not in _MEASURING or any(word in words for word in _NONE_HERE) or sys.platform != "linux":
        return
    try:
        for number in range(3):
            os.fstat(number)
    except OSError:  # a standard stream is closed: the next opened file would get its number
        return
    if "--target" in words:
        kind = _after("--target", words).partition(":")[0]
    else:
        kind = "cuda" if any(map(os.path.exists, _CUDA_NODES)) else "cpu"
    if kind in _DEVICES:
        from deepgen.run.measure import spawn

        threads = _after("--threads", words)  # part of its environment
        spawn.start_ahead(int(threads) if threads.isdecimal() else len(os.sched_getaffinity(0)), _DEVICES[kind])
        if kind == "cuda":  # the driver is needed as soon as the target is known
            threading.Thread(target=_start_driver, daemon=True).start()


def _after(option: str, words: list[str]) -> str:
    return "".join(words[words.index(option) + 1 :][:1]) if option in words else ""


def _start_driver() -> None:
    """Initialise the driver in this process too, during imports: its first call takes some tenths of a second."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuInit(0)


if __name__ == "__main__":
    run()
