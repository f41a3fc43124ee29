"""What XLA calls: for each function of an exported library a handler in C, which takes sizes from its buffers."""

from __future__ import annotations

from collections.abc import Sequence

from deepgen.libraries.c.functions import Function

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


def unfit(function: Function) -> str | None:
    """Why a function has no handler; None where it has one."""
    if function.on_gpu:
        return "it runs on a GPU"
    if any(param.read and param.written for param in function.tensors):
        return "it changes an array in place, which JAX has not"
    missing = [name for name in function.sizes if not function.fixed and _dimension(function, name) is None]
    return f"its arrays do not tell {missing[0]}" if missing else None


def handler_name(function: Function) -> str:
    return f"{function.name}_xla"


def source(name: str, functions: Sequence[Function]) -> str:
    """The C file; `name` is that of the exported library."""
    return "\n".join([_HEAD.format(name=name), *map(_handler, functions)])


def _handler(function: Function) -> str:
    buffers, arguments = [], []
    counts = {"args": 0, "rets": 0}
    for param in function.tensors:
        where = "rets" if param.written else "args"
        place = f"frame->{where}.{where}[{counts[where]}]"
        buffers.append(f"const XLA_FFI_Buffer *{_buffer(param.name)} = {place};")
        counts[where] += 1
        arguments += [f"{_buffer(param.name)}->data", *(stride.dense for stride in function.strides[param.name])]
    given = ", ".join([*(f"v[{place}]" for place in range(len(function.sizes))), *arguments])
    lines = "\n    ".join(buffers)
    return f"""
XLA_FFI_Error *{handler_name(function)}(XLA_FFI_CallFrame *frame) {{
    if (told_version(frame) || frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return 0;
    {lines}
    const XLA_FFI_Buffer *space = frame->rets.size > {counts["rets"]} ? frame->rets.rets[{counts["rets"]}] : 0;
    {_sizes(function)}
    return {function.name}({given}, space ? space->data : 0, space ? space->dims[0] : 0) ? failed(frame) : 0;
}}
"""


def _sizes(function: Function) -> str:
    """They are set: to dimensions, or where shapes are numbers to those of the kernel that takes such arrays."""
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


def _dimension(function: Function, size: str) -> str | None:
    """Where C finds a size: a dimension of some tensor."""
    for param in function.tensors:
        if size in param.shape:
            return f"{_buffer(param.name)}->dims[{param.shape.index(size)}]"
    return None


def _buffer(tensor: str) -> str:
    return f"in_{tensor}"
