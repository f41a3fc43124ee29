"""A library's functions for JAX: exported to C, with a C handler for each that XLA calls, and registered with JAX."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import jax

from deepgen import targets
from deepgen.libraries import Library, NotServed
from deepgen.libraries import library as opened
from deepgen.libraries.c import Exported, export
from deepgen.libraries.c.functions import ExportedFunction
from deepgen.operators import Operator
from deepgen.operators.signature import TensorFacts
from deepgen.toolchains import toolchain_for
from deepgen.toolchains.compilers.c import CCompiler
from deepgen.vocabulary import BadInput, DeepgenError
from deepgen.vocabulary.dtypes import dtype
from deepgen.vocabulary.folders import Scratch

# JAX's names of formats that numpy lacks.
_NAMES = {"bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}
_NUMBERS = count()  # of libraries in this process: their functions share XLA's table of names
_PREFIX = "deepgen_"


class JaxFunction:
    """An operator in all shapes that its kernels support, as a traceable function on JAX arrays."""

    def __init__(self, function: ExportedFunction, library: ctypes.CDLL, target: str) -> None:
        self.name = function.name.removeprefix(_PREFIX)
        self._function, self._library, self._target = function, library, target
        signature = function.operator.signature()
        self._read = [param for param in function.tensors if param.read]
        self._formats = {p.name: jax_dtype(signature.dtype_of(p)) for p in function.tensors}

    def __call__(self, *arrays: Any) -> Any:
        """Returns the operator's result: an array, or several. Raises NotServed, also while tracing."""
        if len(arrays) != len(self._read):
            names = ", ".join(param.name for param in self._read)
            raise BadInput(f"{self.name} is given {len(arrays)} arrays", allowed=names)
        signature, facts = self._function.operator.signature(), {}
        for param, array in zip(self._read, arrays, strict=True):
            wanted = self._formats[param.name]
            if getattr(array, "dtype", None) != wanted:
                what = getattr(array, "dtype", type(array).__name__)
                raise BadInput(f"{self.name}: {param.name} is {what}", allowed=f"an array of {wanted}")
            facts[param.name] = TensorFacts(tuple(array.shape), signature.dtype_of(param))
        bound = self._bound(facts)
        sizes = [ctypes.c_int64(bound.sizes()[name]) for name in self._function.sizes]
        if self._library[f"{self._function.name}_served"](*sizes):
            raise NotServed(self._words())
        needed = ctypes.c_size_t()
        if self._library[f"{self._function.name}_workspace"](*sizes, ctypes.byref(needed)):
            raise DeepgenError(self._words())
        written = {param.name for param in self._function.tensors if param.written}
        outs = [jax.ShapeDtypeStruct(t.shape, self._formats[t.name]) for t in bound.tensors() if t.name in written]
        space = [jax.ShapeDtypeStruct((needed.value,), "uint8")] if needed.value else []
        results = jax.ffi.ffi_call(self._target, [*outs, *space], vmap_method="sequential")(*arrays)
        return results[0] if len(outs) == 1 else tuple(results[: len(outs)])

    def _bound(self, facts: Mapping[str, TensorFacts]) -> Operator:
        """The operator in the shape of the arrays."""
        if not self._function.fixed:
            return self._function.operator.bind(facts)
        able: list[Operator] = []
        for entry in self._function.entries:
            shapes = {tensor.name: tensor.shape for tensor in entry.operator.tensors()}
            if all(shapes[name] == fact.shape for name, fact in facts.items()):
                able.append(entry.operator)
        untold = [name for name in self._function.sizes if len({one.sizes()[name] for one in able}) > 1]
        if untold:
            what = f"{self.name}: several kernels take arrays of these shapes and differ in {', '.join(untold)}"
            raise NotServed(f"{what}; JAX cannot tell them apart")
        if able:
            return able[0]
        wanted = ", ".join(f"{name} {'x'.join(map(str, fact.shape))}" for name, fact in facts.items())
        raise NotServed(f"{self.name}: no kernel was tuned for {wanted}")

    def _words(self) -> str:
        return str(self._library.deepgen_last_error().decode(errors="replace"))

    def __repr__(self) -> str:
        return f"<{self.name} for JAX: {', '.join(param.name for param in self._read)}>"


class Functions(Mapping[str, JaxFunction]):
    """A library's functions, by name and as attributes."""

    def __init__(self, functions: Mapping[str, JaxFunction], without: Mapping[str, str], scratch: Scratch) -> None:
        self._functions, self._scratch = functions, scratch
        self.without = without  # functions of the library that JAX cannot call, and why

    def __getitem__(self, name: str) -> JaxFunction:
        return self._functions[name]

    def __getattr__(self, name: str) -> JaxFunction:
        if name not in self._functions:
            why = f" ({self.without[name]})" if name in self.without else ""
            raise AttributeError(f"no function {name!r}{why}; there are: {', '.join(self._functions) or 'none'}")
        return self._functions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def __repr__(self) -> str:
        return f"<deepgen functions for JAX: {', '.join(self._functions) or 'none'}>"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._functions]


def functions(library: Library | str | Path, *, trust: bool = False) -> Functions:
    """The functions of a library, or of the library in a folder, that run on CPUs. They are compiled by this call.

    `trust` allows binaries that were not written by this user's deepgen to run.
    """
    library = library if isinstance(library, Library) else opened(library, trust=trust)
    scratch = Scratch("jax")
    number = next(_NUMBERS)
    # The loader identifies shared libraries by name: two with the same name would be the first one.
    exported = export(library, scratch.path / "exported", f"deepgen_jax_{number}")
    without = {f.name.removeprefix(_PREFIX): why for f in exported.functions if (why := unfit(f)) is not None}
    able = [function for function in exported.functions if function.name.removeprefix(_PREFIX) not in without]
    built = _built(exported, able)
    loaded, calls = ctypes.CDLL(str(exported.library)), ctypes.CDLL(str(built))
    loaded.deepgen_last_error.restype = ctypes.c_char_p
    served = {}
    for function in able:
        target = f"{function.name}_{number}"
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(calls[handler_name(function)]), platform="cpu")
        entry = JaxFunction(function, loaded, target)
        served[entry.name] = entry
    return Functions(served, without, scratch)


def jax_dtype(name: str) -> Any:
    return jax.numpy.dtype(_NAMES.get(name, dtype(name).storage))


def _built(exported: Exported, able: list[ExportedFunction]) -> Path:
    """The shared library of the handlers, linked with the functions that they call."""
    (exported.folder / "src" / "handlers.c").write_text(source(exported.name, able))
    compiler = toolchain_for(targets.resolve("cpu"), "c")
    assert isinstance(compiler, CCompiler), "CPUs have C compilers"
    library = exported.library.with_name("handlers.so")
    command = [*compiler.command, "-O2", "-std=gnu11", "-fPIC", "-shared", "-o", str(library), "src/handlers.c"]
    command += [
        "-Iinclude",
        f"-I{jax.ffi.include_dir()}",
        str(exported.library),
        f"-Wl,-rpath,{exported.library.parent}",
    ]
    done = subprocess.run(command, cwd=exported.folder, capture_output=True, text=True, check=False)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
        raise DeepgenError(f"the handlers for XLA cannot be built: {first}")
    return library


_HEAD = """// Handlers of XLA's FFI for a library's functions on processors.
#include "{name}.h"
#include "xla/ffi/api/c_api.h"

// XLA asks for the version that a handler was compiled with before it calls it.
static int told_version(XLA_FFI_CallFrame *frame) {{
    XLA_FFI_Extension_Base *extension = frame->extension_start;
    if (!extension || extension->type != XLA_FFI_Extension_Metadata) return 0;
    XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)extension)->metadata;
    metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    metadata->api_version.minor_version = XLA_FFI_API_MINOR;
    return 1;
}}

static XLA_FFI_Error *failed(XLA_FFI_CallFrame *frame) {{
    XLA_FFI_Error_Create_Args given = {{0}};
    given.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
    given.message = deepgen_last_error();
    given.errc = XLA_FFI_Error_Code_INTERNAL;
    return frame->api->XLA_FFI_Error_Create(&given);
}}
"""


def unfit(function: ExportedFunction) -> str | None:
    """Why a function cannot have a handler; None if it can."""
    if function.on_gpu:
        return "it runs on a GPU"
    if any(param.read and param.written for param in function.tensors):
        return "it updates an array in place, which JAX does not support"
    missing = [name for name in function.sizes if not function.fixed and _dimension(function, name) is None]
    return f"{missing[0]} cannot be derived from its arrays" if missing else None


def handler_name(function: ExportedFunction) -> str:
    return f"{function.name}_xla"


def source(name: str, functions: Sequence[ExportedFunction]) -> str:
    """The C file; `name` is that of the exported library."""
    return "\n".join([_HEAD.format(name=name), *map(_handler, functions)])


def _handler(function: ExportedFunction) -> str:
    buffers, arguments = [], []
    counts = {"args": 0, "rets": 0}
    for param in function.tensors:
        where = "rets" if param.written else "args"
        place = f"frame->{where}.{where}[{counts[where]}]"
        buffers.append(f"const XLA_FFI_Buffer *{_buffer(param.name)} = {place};")
        counts[where] += 1
        arguments += [f"{_buffer(param.name)}->data", *(stride.dense for stride in function.strides[param.name])]
    passed = ", ".join([*(f"v[{place}]" for place in range(len(function.sizes))), *arguments])
    lines = "\n    ".join(buffers)
    return f"""
XLA_FFI_Error *{handler_name(function)}(XLA_FFI_CallFrame *frame) {{
    if (told_version(frame) || frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return 0;
    {lines}
    const XLA_FFI_Buffer *space = frame->rets.size > {counts["rets"]} ? frame->rets.rets[{counts["rets"]}] : 0;
    {_sizes(function)}
    return {function.name}({passed}, space ? space->data : 0, space ? space->dims[0] : 0) ? failed(frame) : 0;
}}
"""


def _sizes(function: ExportedFunction) -> str:
    """C that sets the sizes: from dimensions, or, if shapes are plain numbers, to those of the matching kernel."""
    if not function.sizes:
        return ""
    if not function.fixed:
        return f"const int64_t v[] = {{{', '.join(str(_dimension(function, name)) for name in function.sizes)}}};"
    lines = [f"int64_t v[{len(function.sizes)}] = {{0}};"]
    for entry in function.entries:
        of, sizes = function.at(entry), entry.operator.sizes()
        tests = [
            f"{_buffer(param.name)}->dims[{place}] == {size}"
            for param in of.tensors
            for place, size in enumerate(param.shape)
        ]
        sets = [f"v[{place}] = {sizes[name]};" for place, name in enumerate(function.sizes)]
        lines.append(f"if ({' && '.join(tests) or '1'}) {{ {' '.join(sets)} }}")
    return "\n    ".join(lines)


def _dimension(function: ExportedFunction, size: str) -> str | None:
    """Where C reads a size: a dimension of some tensor."""
    for param in function.tensors:
        if size in param.shape:
            return f"{_buffer(param.name)}->dims[{param.shape.index(size)}]"
    return None


def _buffer(tensor: str) -> str:
    return f"in_{tensor}"
