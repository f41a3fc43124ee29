"""Many lowered functions in one library: one compiler call, and a child process that runs them all.

Every tensor is placed at the end of its pages, before a guard page, or at their start, after one.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deepgen.compiler.passes.ir import Buffer, Function
from deepgen.compiler.text import c
from deepgen.vocabulary.dtypes import dtype

COMPILERS = [found for name in ("gcc", "clang-19", "clang") if (found := shutil.which(name))]
NO_COMPILER = "neither gcc nor clang is installed"
_NONE = 0  # PROT_NONE
_LIBC = ctypes.CDLL(None, use_errno=True)


def library(functions: Sequence[Function], folder: Path, *flags: str, compiler: str | None = None) -> Path:
    """The functions case0, case1, ... in one shared library."""
    parts = [c.definitions(function, f"case{n}") for n, function in enumerate(functions)]
    for header in {h for function in functions for h in c.headers(function)}:
        (folder / header.name).write_text(header.text)
    (folder / "all.c").write_text(c.file_text(parts, parallel=(folder / "cpu_pool.h").exists()))
    command = [
        compiler or COMPILERS[0],
        "-O1",
        "-std=gnu11",
        "-w",
        "-shared",
        "-fPIC",
        "-pthread",
        *flags,
        "all.c",
        "-o",
        "all.so",
        "-lm",
    ]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "all.so"


def run(
    loaded: Any, n: int, function: Function, inputs: Sequence[Any], threads: int, *, at_end: bool = False
) -> list[Any]:
    """The results of function n. Tensors of every other function are at the end of their pages, or all of them."""
    arrays = [_guarded(buffer, at_end=at_end or n % 2 == 0) for buffer in function.parameters]
    for array, given in zip(arrays, inputs, strict=False):
        array[...] = given.reshape(array.shape)  # rules may have merged dimensions
    for array in arrays[len(inputs) :]:
        array[...] = 77
    scratch = Buffer("", "u8", (function.shared_bytes + threads * function.thread_bytes + 1,), (1,), "global")
    workspace = _guarded(scratch, at_end=False)
    workspace[...] = 0xA5
    addresses = [ctypes.c_void_p(array.ctypes.data) for array in (*arrays, workspace)]
    getattr(loaded, f"case{n}")(*addresses, ctypes.c_int32(threads))
    for array, given in zip(arrays, inputs, strict=False):
        assert np.array_equal(array, given.reshape(array.shape)), "an input was written to"
    return [array.copy() for array in arrays[len(inputs) :]]


def in_child(work: Callable[[Callable[[str], None]], None]) -> str:
    """Run work in a child process: empty if all went well, otherwise its last message."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work(lambda words: _say(writing, words))
            os._exit(0)
        except BaseException as error:
            _say(writing, f"{type(error).__name__}: {error}")
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as said:
        words = said.read().split("\0")
    _, status = os.waitpid(child, 0)
    return "" if status == 0 else f"status {status}: {words[-2]}"


def _say(to: int, words: str) -> None:
    os.write(to, f"{words[:3000]}\0".encode())


def _guarded(buffer: Buffer, *, at_end: bool) -> Any:
    kind = dtype(buffer.dtype).numpy()
    size = buffer.elements * kind.itemsize
    page = mmap.PAGESIZE
    room = -(-size // page) * page
    memory = mmap.mmap(-1, room + 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (start, start + page + room):
        assert _LIBC.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), _NONE) == 0
    offset = page + (room - size if at_end else 0)
    return np.frombuffer(memory, kind, buffer.elements, offset).reshape(buffer.sizes)
