"""Many GPU programs in one library, run by the emulation: blocks of fibers, every access checked."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import simt_emulation as simt

from deepgen.compiler.passes.ir import Program
from deepgen.compiler.text import gpu
from deepgen.compiler.text.gpu import entry
from deepgen.vocabulary import TensorArg
from deepgen.vocabulary.dtypes import dtype

_HARNESS = """
extern "C" void clear() { emulate::machine.ranges.clear(); }
extern "C" void buffer(char* begin, i64 bytes, int writable) {
    emulate::machine.ranges.push_back({begin, bytes, writable != 0, false, {}});
}
extern "C" i64 conflicts() { return emulate::conflicts; }
"""
_ENTRY = """
extern "C" const char* run_{entry}(void** args, int grid, int threads, int shared) {{
    return emulate::launch({space}::{entry}, args, grid, threads, shared);
}}
"""


def library(programs: Sequence[Program], folder: Path, warp: int = 32) -> ctypes.CDLL:
    """The programs case0, case1, ... in one shared library."""
    folder.mkdir(exist_ok=True)
    for package in ("deepgen.compiler.text", "deepgen.kernels.shared.dialect"):
        for file in resources.files(package).iterdir():
            if file.name.endswith(".h") and file.name not in simt.dialect():
                (folder / file.name).write_text(file.read_text())
    headers = ("matrices.h", "clusters.h", "rounded.h")
    text = [*(f'#include "{name}"' for name in headers), _HARNESS]
    for n, program in enumerate(programs):
        named = replace(program, name=f"case{n}")
        text += [f"namespace space{n} {{", gpu.emit(named), "}"]
        entries = (entry(named, launch) for launch in range(len(program.launches)))
        text += [_ENTRY.format(entry=entry, space=f"space{n}") for entry in entries]
    (folder / "all.cpp").write_text("\n".join(text))
    loaded = simt.loaded(folder / "all.cpp", "-std=c++17", f"-DWARP={warp}")
    loaded.conflicts.restype = ctypes.c_int64
    return loaded


def run(loaded: ctypes.CDLL, n: int, program: Program, inputs: Sequence[Any]) -> tuple[str, list[Any]]:
    """The error of program n (empty: none), and its results."""
    program = replace(program, name=f"case{n}")
    kernel = gpu.kernel(program, "cuda", 32)
    arrays = {b.name: _aligned(b.sizes, dtype(b.dtype).numpy()) for b in (*program.inputs, *program.outputs)}
    for buffer, given in zip(program.inputs, inputs, strict=True):
        arrays[buffer.name][...] = np.reshape(given, buffer.sizes)  # axes may have been joined
    for buffer in program.outputs:
        arrays[buffer.name].view(np.uint8).fill(0xFF)
    for buffer in program.scratch:
        arrays[buffer.name] = _aligned((buffer.elements,), dtype(buffer.dtype).numpy())
    for step in kernel.plan.steps:
        loaded.clear()
        addresses = []
        for arg in step.args:
            name = arg.tensor if isinstance(arg, TensorArg) else arg.name  # type: ignore[union-attr]
            array = arrays[name]
            writable = name not in {buffer.name for buffer in program.inputs}
            loaded.buffer(ctypes.c_void_p(array.ctypes.data), ctypes.c_int64(array.nbytes), int(writable))
            addresses.append(ctypes.c_void_p(array.ctypes.data))
        packed = (ctypes.c_void_p * len(addresses))(*(ctypes.addressof(a) for a in addresses))
        entry = loaded[f"run_{step.entry}"]
        entry.restype = ctypes.c_char_p
        cluster = step.cluster[0]  # is emulated as one block
        said = entry(packed, int(step.grid[0]) // cluster, int(step.block[0]) * cluster, int(step.shared_bytes))
        if said:
            return f"{step.entry}: {said.decode()}", []
    return "", [arrays[buffer.name] for buffer in program.outputs]


def _aligned(shape: tuple[int, ...], kind: Any) -> Any:
    size = int(np.prod(shape)) * kind.itemsize
    memory = np.full(size + 256, 0xFF, np.uint8)
    start = -memory.ctypes.data % 256
    return memory[start : start + size].view(kind).reshape(shape)
