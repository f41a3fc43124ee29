"""Runs an emitted kernel in the SIMT dialect on the CPU: its own source with the emulated implementation of the
dialect.
"""

from __future__ import annotations

import _ctypes
import ctypes
import shutil
import subprocess
import weakref
from collections.abc import Callable, Collection, Mapping
from fcntl import LOCK_EX, flock
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from deepgen.operators import Operator
from deepgen.operators.base import Array
from deepgen.operators.compare import Comparison, compare
from deepgen.space import parse
from deepgen.toolchains import default_cache_folder
from deepgen.vocabulary import Kernel, ScalarArg, TensorArg, WorkspaceArg

COMPILER = next((found for name in ("clang++-19", "clang++", "g++") if (found := shutil.which(name))), None)
NO_COMPILER = "no C++ compiler is installed, so kernels cannot be emulated"
_HARNESS = """
#include "{source}"
extern "C" void clear() {{ emulate::machine.ranges.clear(); }}
extern "C" void buffer(char* begin, i64 bytes, int writable, int once) {{
    emulate::machine.ranges.push_back({{begin, bytes, writable != 0, once != 0, {{}}}});
}}
"""
_ENTRY = """
extern "C" const char* run_{entry}(void** args, int grid, int threads, int shared) {{
    return emulate::launch({entry}, args, grid, threads, shared);
}}
"""
# Templates and functions of the emulated dialect, compiled as a separate object.
_ALL = """#include "dialect.h"
COMPILED template class std::vector<emulate::Range>;
COMPILED template class std::vector<emulate::Byte>;
COMPILED template class std::vector<emulate::Copy>;
COMPILED template class std::vector<emulate::Fiber>;
COMPILED template class std::vector<char>;
COMPILED template class std::vector<bool>;
"""
_ELSEWHERE = "-DEMULATE_OWN=extern inline __attribute__((gnu_inline))"
_FLAGS = ("-O0", "-w", "-fPIC", "-DDG_EMULATE")
_CLANG = COMPILER is not None and "clang" in Path(COMPILER).name
_LINKER = ("-fuse-ld=lld-19",) if _CLANG and shutil.which("ld.lld-19") else ()  # twice as fast
_KINDS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float, "f64": ctypes.c_double}


def build(kernel: Kernel, folder: Path, *more: str) -> ctypes.CDLL:
    """The kernel as a library for this machine. The kernel's own flags select the variant."""
    return compiled(kernel, folder, harness(kernel), *more)


def harness(kernel: Kernel) -> str:
    """The kernel's source and the code that starts each of its entries."""
    entries = dict.fromkeys(step.entry for step in kernel.plan.steps)
    return _HARNESS.format(source=kernel.sources[0].name) + "".join(_ENTRY.format(entry=name) for name in entries)


def compiled(kernel: Kernel, folder: Path, text: str, *more: str) -> ctypes.CDLL:
    """A library of a harness that includes the kernel's source."""
    shared = dialect()
    for source in kernel.sources:
        if source.name in shared:
            assert source.text == shared[source.name], "it has been read already, as it is in the package"
        else:
            (folder / source.name).write_text(source.text)
    (folder / "harness.cpp").write_text(text)
    return loaded(folder / "harness.cpp", *kernel.flags, *more)


def loaded(source: Path, *more: str) -> ctypes.CDLL:
    """A source, with its local includes, as a library of this process."""
    assert COMPILER is not None
    command = [COMPILER, *_FLAGS, *_parsed(), *_LINKER, "-shared", *more]
    library = source.with_suffix(".so")
    made = subprocess.run(
        [*command, "-o", library.name, source.name], cwd=source.parent, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr[:3000]
    found = ctypes.CDLL(str(library))
    # The stacks of its threads are up to 256 MiB, and ctypes itself never unloads a library.
    weakref.finalize(found, _ctypes.dlclose, found._handle).atexit = False
    return found


def dialect() -> dict[str, str]:
    """The headers that every kernel includes, for any flags."""
    package = resources.files("deepgen.kernels.shared.dialect")
    return {name: package.joinpath(name).read_text() for name in ("dialect.h", "emulate.h")}


def _parsed() -> tuple[str, ...]:
    """Flags for clang to use precompiled headers for the dialect and for C++: these take more than half of a kernel's
    compilation.
    """
    folder = _headers()
    return ("-I", str(folder), *(("-include-pch", f"{folder}/all.pch", f"{folder}/all.o") if _CLANG else ()))


def standard(header: Path, *flags: str) -> tuple[str, ...]:
    """Flags for clang to use C++'s own headers, which a header includes, precompiled: parsing them takes half of a
    compilation. `flags`: those of the kernels that decide how it is parsed.
    """
    return ("-include-pch", f"{_standard(header, flags)}/all.pch") if _CLANG else ()


@cache
def _standard(header: Path, flags: tuple[str, ...]) -> Path:
    lines = [line for line in header.read_text().splitlines() if line.startswith("#include <")]

    def write(folder: Path) -> None:
        (folder / "all.h").write_text("\n".join([*lines, ""]))
        command = [str(COMPILER), *flags, "-x", "c++-header", "-o", "all.pch", "all.h"]
        subprocess.run(command, cwd=folder, check=True)

    return _once((flags, lines), write)


@cache
def _headers() -> Path:
    texts = (*dialect().items(), ("all.h", _ALL))
    return _once((_FLAGS, texts), lambda folder: _read_once(texts, folder))


def _once(contents: object, write: Callable[[Path], None]) -> Path:
    """One folder for all processes of a run; clang's file contains its path, so it is written to its final place."""
    digest = sha256(repr((COMPILER, contents)).encode()).hexdigest()
    folder = default_cache_folder().parent / f"headers-{digest[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not (folder / "whole").exists():
            write(folder)
            (folder / "whole").touch()
    return folder


def _read_once(texts: Collection[tuple[str, str]], folder: Path) -> None:
    for name, text in texts:
        (folder / name).write_text(text)
    if _CLANG:
        for flags in (
            ("-fpch-instantiate-templates", "-DCOMPILED=extern", _ELSEWHERE, "-x", "c++-header", "-o", "all.pch"),
            ("-DCOMPILED=", "-DEMULATE_OWN=", "-O2", "-x", "c++", "-c", "-o", "all.o"),
        ):
            command = [str(COMPILER), *_FLAGS, "-std=c++17", *flags, "all.h"]
            subprocess.run(command, cwd=folder, check=True)


def run(
    kernel: Kernel, library: ctypes.CDLL, operator: Operator, probe: str = "normal", times: int = 1
) -> tuple[str, Comparison]:
    """What went wrong (empty: nothing), and how the last run's worst output compares with the exact one."""
    inputs = operator.inputs(1, probe)
    tensors = {t.name: _tensor(t.shape, inputs.get(t.name), t.dtype) for t in operator.tensors()}
    spaces: dict[str, Array] = {}
    error = ""
    for _ in range(times):
        for param in operator.signature().outputs:
            if param.name in inputs:
                tensors[param.name][...] = inputs[param.name]
            else:
                tensors[param.name].view(np.uint8).fill(0xFF)  # so that unwritten elements show
        error = error or steps(kernel, library, operator, tensors, spaces)
    dtypes, answers = {t.name: t.dtype for t in operator.tensors()}, operator.reference(inputs)
    found = [
        compare(tensors[name], answer, dtypes[name], operator.tolerance(name, probe))
        for name, answer in answers.items()
    ]
    return error, max(found, key=lambda comparison: comparison.error)


def wrong(kernel: Kernel, library: ctypes.CDLL, operator: Operator, probe: str = "normal") -> str:
    """What is wrong with the outputs of an operator, in words; empty if nothing is."""
    error, found = run(kernel, library, operator, probe)
    return error or ("" if found.ok else f"{operator.describe()} ({probe}): {found}")


def _tensor(shape: tuple[int, ...], values: Array | None, dtype: Any) -> Array:
    if values is not None:
        return np.ascontiguousarray(values).copy()
    return np.zeros(shape, dtype=dtype.numpy())


def steps(
    kernel: Kernel,
    library: ctypes.CDLL,
    operator: Operator,
    tensors: Mapping[str, Array],
    spaces: dict[str, Array],
    written: Collection[str] | None = None,
) -> str:
    """Run all steps; returns what went wrong. `written`: the tensors that may be written, by default the operator's
    outputs.
    """
    scalars = dict(operator.scalars())
    outputs = {param.name for param in operator.signature().outputs} if written is None else written

    def number(size: int | float | str) -> Any:
        return parse(size).evaluate(scalars) if isinstance(size, str) else size

    for step in kernel.plan.steps:
        library.clear()
        values: list[Any] = []
        for arg in step.args:
            if isinstance(arg, TensorArg):
                array = tensors[arg.tensor]
                # A result that is also read is still written once.
                _declare(library, array, arg.tensor in outputs, arg.tensor in outputs)
                values.append(ctypes.c_void_p(array.ctypes.data))
            elif isinstance(arg, WorkspaceArg):
                if arg.name not in spaces:
                    fill = 0 if arg.zeroed else 0xFF
                    spaces[arg.name] = np.full(int(number(arg.bytes)) + 64, fill, dtype=np.uint8)
                start = -spaces[arg.name].ctypes.data % 64
                array = spaces[arg.name][start : start + int(number(arg.bytes))]
                _declare(library, array, True, False)
                values.append(ctypes.c_void_p(array.ctypes.data))
            else:
                assert isinstance(arg, ScalarArg)
                value = number(arg.value)
                values.append(_KINDS[arg.ctype](int(value) if arg.ctype.startswith("i") else value))
        packed = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        entry = library[f"run_{step.entry}"]
        entry.restype = ctypes.c_char_p
        one_by_one = any(source.name == "cluster_blocks.h" for source in kernel.sources)
        cluster = 1 if one_by_one else step.cluster[0]  # is emulated as one block, or its blocks one after another
        grid, block = int(number(step.grid[0])) // cluster, int(number(step.block[0])) * cluster
        said = entry(packed, grid, block, int(number(step.shared_bytes)))
        if said:
            return f"{step.entry}: {said.decode()}"
    zeroed = [
        name for s in kernel.plan.steps for a in s.args if isinstance(a, WorkspaceArg) and a.zeroed for name in [a.name]
    ]
    dirty = [name for name in zeroed if spaces[name].any()]
    return f"workspace {dirty[0]} is not left zero" if dirty else ""


def _declare(library: ctypes.CDLL, array: Array, writable: bool, once: bool) -> None:
    library.buffer(ctypes.c_void_p(array.ctypes.data), ctypes.c_int64(array.nbytes), int(writable), int(once))
