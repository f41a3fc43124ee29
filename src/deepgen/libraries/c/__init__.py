"""A library's kernels as a folder that C and C++ programs use: header, shared library, CMake and pkg-config files.

include/NAME.h
lib/libNAME.so, libNAME.so.1    the functions, which choose a kernel and call it
lib/NAME/                       the CPU kernels, as they were measured
lib/cmake/NAME/, lib/pkgconfig/ for find_package and pkg-config; the folder may be moved
src/                            the sources of the shared library
CMakeLists.txt                  builds it again, for another machine

A wheel of it is a Python package that needs numpy, but neither deepgen nor a compiler.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory

from deepgen import __version__, targets
from deepgen.libraries.c.functions import ExportedFunction, NotInC, functions_of
from deepgen.libraries.c.kernels import KernelText, kernel_text
from deepgen.libraries.c.source import ABI_VERSION, header, source
from deepgen.libraries.entry import Entry
from deepgen.libraries.winners import Library
from deepgen.operators import Operator
from deepgen.space import parse
from deepgen.space.expr import Expr
from deepgen.targets import host
from deepgen.toolchains import toolchain_for
from deepgen.toolchains.compilers.c import CCompiler
from deepgen.vocabulary import BadInput, DeepgenError, Json, JsonObject, completed
from deepgen.vocabulary.dtypes import dtype

NAME = "deepgen_kernels"
_RUNTIME = ("runtime.h", "gpu.h")


@dataclass(frozen=True)
class Exported:
    """What was written."""

    folder: Path
    name: str
    functions: tuple[ExportedFunction, ...]
    library: Path
    skipped: Mapping[str, str]  # entries that are not part of it, and why


def export(library: Library, folder: Path, name: str = NAME) -> Exported:
    """Write the folder, which must be empty or missing. It appears only once it is complete."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise BadInput(f"the name is {name!r}", allowed="lower-case letters, digits and _, starting with a letter")
    check_folder(folder)
    if folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{folder} is not empty", allowed="a new folder")
    if library.damaged():
        raise DeepgenError(f"{library.folder} is damaged: see deepgen library check")
    entries = library.list()
    if not entries:
        raise BadInput(f"{library.folder} has no entries", allowed="add studies first: deepgen library add")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
        written = _write(library, entries, Path(scratch) / "out", name)
        written.folder.replace(folder)
    return replace(written, folder=folder, library=folder / written.library.relative_to(written.folder))


def check_folder(path: Path) -> None:
    """Raises BadInput if a file is in the place of the folder."""
    if path.exists() and not path.is_dir():
        raise BadInput(f"{path} is a file", allowed="a folder")


def _write(library: Library, entries: Sequence[Entry], folder: Path, name: str) -> Exported:
    for part in ("include", "src", f"lib/{name}"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    texts: dict[str, KernelText] = {}
    skipped: dict[str, str] = {}
    functions = functions_of(entries)
    for function in functions:
        for entry in function.entries:
            try:
                texts[entry.name] = _kernel(library, function, entry, len(texts), folder / "lib" / name)
            except NotInC as error:
                skipped[entry.name] = str(error)
    served = [function for function in functions if any(entry.name in texts for entry in function.entries)]
    if not served:
        why = "; ".join(f"{entry}: {words}" for entry, words in skipped.items())
        raise DeepgenError(f"none of the kernels of {library.folder} can be exported: {why}")
    files = _write_sources(library, folder, name, served, texts)
    built = _build(folder, name, files)
    for path, text in packaging(name, __version__, ABI_VERSION, files).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return Exported(folder, name, tuple(served), built, skipped)


def _kernel(library: Library, function: ExportedFunction, entry: Entry, place: int, kernels: Path) -> KernelText:
    stored = library.store.stored(entry, trusted=library.trusted)
    assert stored.binary is not None, "`stored` has already reported a changed binary"
    image = stored.binary.read_bytes() if function.on_gpu else None
    text = kernel_text(function, entry, completed(stored.kernel, stored.plan), place, image)
    if not function.on_gpu:
        shutil.copyfile(stored.binary, kernels / f"{entry.name}.so")
    return text


def _write_sources(
    library: Library, folder: Path, name: str, functions: list[ExportedFunction], texts: Mapping[str, KernelText]
) -> list[str]:
    """Write the header, the runtime, and one file per kind of device; returns the names of these files."""
    (folder / "include" / f"{name}.h").write_text(header(name, functions))
    for file in _RUNTIME:
        text = resources.files("deepgen.libraries.c").joinpath(file).read_text(encoding="utf-8")
        (folder / "src" / file).write_text(text)
    files = []
    for kind in dict.fromkeys(function.kind for function in functions):
        alike = [function for function in functions if function.kind == kind]
        files.append(f"{name}_{kind}.c")
        text = source(name, alike, texts, library.content(), main=len(files) == 1)
        (folder / "src" / files[-1]).write_text(text)
    return files


def _build(folder: Path, name: str, files: list[str]) -> Path:
    """Build the shared library for this machine's CPU, using only the base instruction set."""
    compiler = toolchain_for(targets.resolve("cpu"), "c")
    assert isinstance(compiler, CCompiler), "CPUs have C compilers"
    shared = folder / "lib" / f"lib{name}.so.{ABI_VERSION}"
    command = [*compiler.command, *FLAGS, "-shared", f"-Wl,-soname,{shared.name}", "-Iinclude", "-Isrc"]
    command += ["-o", f"lib/{shared.name}", *(f"src/{file}" for file in files), *LIBRARIES]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
        raise DeepgenError(f"the exported library cannot be built: {first}")
    (shared.parent / f"lib{name}.so").symlink_to(shared.name)
    return shared


# Without contraction, predicted times match those of Python to the last bit.
FLAGS = (
    "-O2",
    "-ffp-contract=off",
    "-std=gnu11",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Werror=implicit-function-declaration",
)
LIBRARIES = ("-ldl", "-lpthread", "-lm")


def packaging(name: str, version: str, abi: int, sources: Sequence[str]) -> Mapping[str, str]:
    """Paths relative to the exported folder, and their contents."""
    return {
        f"lib/cmake/{name}/{name}Config.cmake": _config(name, abi),
        f"lib/cmake/{name}/{name}ConfigVersion.cmake": _version(version),
        f"lib/pkgconfig/{name}.pc": _pkg_config(name, version),
        "CMakeLists.txt": _project(name, version, abi, sources),
    }


def _config(name: str, abi: int) -> str:
    return f"""# The folder may be moved: everything is found from here.
get_filename_component(_{name}_prefix "${{CMAKE_CURRENT_LIST_DIR}}/../../.." ABSOLUTE)
if(NOT TARGET {name}::{name})
  add_library({name}::{name} SHARED IMPORTED)
  set_target_properties({name}::{name} PROPERTIES
    IMPORTED_LOCATION "${{_{name}_prefix}}/lib/lib{name}.so.{abi}"
    IMPORTED_SONAME "lib{name}.so.{abi}"
    INTERFACE_INCLUDE_DIRECTORIES "${{_{name}_prefix}}/include")
endif()
unset(_{name}_prefix)
"""


def _version(version: str) -> str:
    return f"""set(PACKAGE_VERSION "{version}")
if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
endif()
"""


def _pkg_config(name: str, version: str) -> str:
    return f"""prefix=${{pcfiledir}}/../..
libdir=${{prefix}}/lib
includedir=${{prefix}}/include

Name: {name}
Description: Tuned kernels, made by deepgen library export
Version: {version}
Libs: -L${{libdir}} -l{name}
Cflags: -I${{includedir}}
"""


def _project(name: str, version: str, abi: int, sources: Sequence[str]) -> str:
    listed = " ".join(f"src/{source}" for source in sources)
    return f"""# Builds the library of functions again, such as for another machine; the kernels stay as they are.
cmake_minimum_required(VERSION 3.13)
project({name} VERSION {version} LANGUAGES C)
include(GNUInstallDirs)
find_package(Threads REQUIRED)
add_library({name} SHARED {listed})
target_include_directories({name} PUBLIC include PRIVATE src)
target_compile_options({name} PRIVATE -std=gnu11 -fvisibility=hidden -ffp-contract=off)
target_link_libraries({name} PRIVATE Threads::Threads ${{CMAKE_DL_LIBS}} m)
set_target_properties({name} PROPERTIES SOVERSION {abi} VERSION {abi})
install(TARGETS {name} DESTINATION lib)
install(DIRECTORY include/ DESTINATION include)
install(DIRECTORY lib/{name} lib/cmake lib/pkgconfig DESTINATION lib)
"""


_TIME = (1980, 1, 1, 0, 0, 0)  # fixed, so that equal content gives an identical file


def write_wheel(library: Library, folder: Path, name: str = NAME) -> tuple[Path, Exported]:
    """Write NAME-VERSION-py3-none-linux_MACHINE.whl into a folder."""
    check_folder(folder)
    with TemporaryDirectory(prefix="deepgen-wheel-") as scratch:
        exported = export(library, Path(scratch) / "exported", name)
        tag = f"py3-none-linux_{host.machine()}"
        files = {**_package(exported), **_metadata(name, tag)}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{__version__}-{tag}.whl"
    record = f"{name}-{__version__}.dist-info/RECORD"
    rows = [f"{file},sha256={_digest(data)},{len(data)}" for file, data in files.items()]
    files[record] = "\n".join([*rows, f"{record},,", ""]).encode()
    fresh = path.with_suffix(".new")
    with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, data in files.items():
            about = zipfile.ZipInfo(file, _TIME)
            about.external_attr = 0o644 << 16
            about.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(about, data)
    fresh.replace(path)
    return path, exported


def _package(exported: Exported) -> dict[str, bytes]:
    name, lib = exported.name, exported.library.parent
    module = resources.files("deepgen.libraries.c").joinpath("python_package.py").read_bytes()
    about: JsonObject = {
        "library": exported.library.name,
        "abi": ABI_VERSION,
        "functions": [_function(function) for function in exported.functions],
    }
    kernels = sorted((lib / name).iterdir())
    return {
        f"{name}/__init__.py": module,
        f"{name}/functions.json": json.dumps(about, indent=1).encode(),
        f"{name}/lib/{exported.library.name}": exported.library.read_bytes(),
        **{f"{name}/lib/{name}/{kernel.name}": kernel.read_bytes() for kernel in kernels},
    }


def _metadata(name: str, tag: str) -> Mapping[str, bytes]:
    info = f"{name}-{__version__}.dist-info"
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {__version__}\nSummary: Tuned kernels, made by deepgen\n"
    wheel = f"Wheel-Version: 1.0\nGenerator: deepgen {__version__}\nRoot-Is-Purelib: false\nTag: {tag}\n"
    return {
        f"{info}/METADATA": f"{head}Requires-Python: >=3.10\nRequires-Dist: numpy\n".encode(),
        f"{info}/WHEEL": wheel.encode(),
    }


def _function(function: ExportedFunction) -> JsonObject:
    signature = function.operator.signature()
    tensors: list[Json] = [
        {
            "name": param.name,
            "dtype": dtype(signature.dtype_of(param)).storage,
            "shape": [_size(size) for size in param.shape],
            "read": param.read,
            "written": param.written,
            "strides": len(function.strides[param.name]),
        }
        for param in function.tensors
    ]
    tuned = ", ".join(timed.operator.describe() for entry in function.entries for timed in entry.timed)
    return {
        "name": function.name.removeprefix("deepgen_"),
        "symbol": function.name,
        "doc": f"Tuned: {tuned}.",
        "gpu": function.on_gpu,
        "sizes": list(function.sizes),
        "tensors": tensors,
        "shapes": [_shapes(entry.operator) for entry in function.entries] if function.fixed else [],
    }


def _shapes(operator: Operator) -> JsonObject:
    """The sizes of an operator whose shapes are plain numbers, and the shapes of its tensors."""
    tensors = operator.signature().tensors
    shapes: JsonObject = {param.name: [_size(size) for size in param.shape] for param in tensors}
    return {"sizes": dict(operator.sizes()), "tensors": shapes}


def _size(size: int | str) -> Json:
    return size if isinstance(size, int) else _tree(parse(size))


def _tree(expr: Expr) -> Json:
    """A size as a tree that the package evaluates."""
    if expr.op == "knob":
        return str(expr.data)
    if expr.op == "const" and isinstance(expr.data, int):
        return expr.data
    if expr.op in ("+", "-", "*", "//"):
        return [expr.op, *(_tree(arg) for arg in expr.args)]
    raise NotInC(f"a tensor has the size '{expr}', which the Python package cannot compute")


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
