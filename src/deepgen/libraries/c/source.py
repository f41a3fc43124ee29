"""The C of an exported library: its header, one file for CPUs, and one for each kind of GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deepgen.libraries.c.functions import ExportedFunction, argument, ctype
from deepgen.libraries.c.kernels import KernelText
from deepgen.libraries.c.tables import Table, tables_of, tables_text
from deepgen.libraries.store import LibraryContent
from deepgen.vocabulary.dtypes import dtype
from deepgen.vocabulary.kernel import GPU_ALIGN


def source(
    name: str,
    functions: Sequence[ExportedFunction],
    kernels: Mapping[str, KernelText],
    content: LibraryContent,
    *,
    main: bool,
) -> str:
    """The C file of all functions of one kind. `kernels` is keyed by entry name; `main` marks the first file."""
    kind = functions[0].kind
    defines = [f'#define DEEPGEN_NAME "{name}"', *(["#define DEEPGEN_MAIN"] if main else [])]
    defines += ["#define DEEPGEN_HIP"] if kind == "hip" else []
    no_gpu = "static int load_module(kernel *k) { return k->state = 0; }"
    parts = [
        "// Made by `deepgen library export`.",
        "#define _GNU_SOURCE",
        *defines,
        f'#include "{name}.h"',
        '#include "runtime.h"',
        '#include "gpu.h"' if functions[0].on_gpu else no_gpu,
        "",
    ]
    for function in functions:
        here = [kernels[entry.name].text for entry in function.entries if entry.name in kernels]
        tables = tables_of(function, kernels, content)
        parts += [*here, tables_text(function, tables), _definition(function, tables)]
    return "\n".join(parts)


def _definition(function: ExportedFunction, tables: Sequence[Table]) -> str:
    """The function itself, the query of its workspace, and the query whether a shape is served."""
    strides = [stride for param in function.tensors for stride in function.strides[param.name]]
    sizes = [argument(name) for name in function.sizes]
    declared = [f"int64_t {name}" for name in sizes]
    values = ", ".join([*sizes, *(stride.name for stride in strides)]) or "0"
    numbers = max(function.numbers, 1)  # C has no arrays without elements
    tensors = ", ".join(f"(void *){argument(param.name)}" for param in function.tensors)
    count = f"(int)(sizeof {function.name}_groups / sizeof(group))"
    negative = [_unless(f"{name} < 0", f"{name} is negative") for name in sizes]
    dense = [f"v[{len(sizes) + place}] = {stride.dense};" for place, stride in enumerate(strides)]
    objects = [text.object for table in tables for text in table.kernels]
    apart = "" if function.on_gpu else " || ".join(f"{stride.name} != {stride.dense}" for stride in strides)
    why = f'{apart} ? "its tensors must be dense on processors" : why_' if apart else "why_"
    every = [f"if ({k}_bytes(v) > needed_) needed_ = {k}_bytes(v);" for k in objects]
    return f"""
DEEPGEN_API deepgen_status {function.name}({", ".join(arguments(function))}) {{
    const int64_t v[] = {{{values}}};
    static _Thread_local struct {{ int64_t v[{numbers}]; kernel *chosen; }} last_;
    {_lines(negative)}
    {_lines(_checks(function))}
    if (!last_.chosen || memcmp(last_.v, v, sizeof v)) {{
        const char *why_;
        last_.chosen = choose({function.name}_groups, {count}, v, v, &why_);
        if (!last_.chosen) return fail(DEEPGEN_NOT_SERVED, "{function.name}: %s", {why});
        memcpy(last_.v, v, sizeof v);
    }}
    void *const tensors_[] = {{{tensors}}};
    return run(last_.chosen, v, tensors_, workspace, workspace_bytes, {"stream" if function.on_gpu else "0"});
}}

DEEPGEN_API deepgen_status {function.name}_workspace({", ".join([*declared, "size_t *bytes"])}) {{
    int64_t v[{numbers}] = {{{", ".join(sizes) or "0"}}};
    size_t needed_ = 0;
    {_lines([*negative, _unless("!bytes", "bytes is null"), *dense, *every])}
    *bytes = needed_;
    return DEEPGEN_OK;
}}

DEEPGEN_API deepgen_status {function.name}_served({", ".join(declared) or "void"}) {{
    int64_t v[{numbers}] = {{{", ".join(sizes) or "0"}}};
    const char *why_;
    {_lines([*negative, *dense])}
    if (choose({function.name}_groups, {count}, v, v, &why_)) return DEEPGEN_OK;
    return fail(DEEPGEN_NOT_SERVED, "{function.name}: %s", why_);
}}
"""


def _checks(function: ExportedFunction) -> list[str]:
    """Checks of the arguments that hold for every kernel. If the outputs are empty, the call returns at once."""
    signature = function.operator.signature()
    nothing = " && ".join(f"{function.product(param.shape)} == 0" for param in function.tensors if param.written)
    out = [] if function.fixed else [f"if ({nothing}) return DEEPGEN_OK;"]
    for param in function.tensors:
        name = argument(param.name)
        align = max(param.align or dtype(signature.dtype_of(param)).bytes, GPU_ALIGN if function.on_gpu else 1)
        if not param.written and not function.fixed:
            out.append(_unless(f"{function.product(param.shape)} == 0", f"{name} has no elements"))
        if not param.optional:
            out.append(_unless(f"!{name}", f"{name} is null"))
        out.append(_unless(f"(uintptr_t){name} % {align}", f"{name} is not {align}-byte aligned"))
        for stride in function.strides[param.name]:
            out.append(_unless(f"{stride.name} < {stride.dense}", f"{stride.name} is less than a row has elements"))
    return out


def _unless(test: str, words: str) -> str:
    return f'if ({test}) return fail(DEEPGEN_BAD_ARGUMENT, "{words}");'


def _lines(lines: Sequence[str]) -> str:
    return "\n    ".join(lines)


ABI_VERSION = 1
STATUSES = ("OK", "NOT_SERVED", "BAD_ARGUMENT", "NO_WORKSPACE", "NOT_LOADED", "DEVICE_ERROR")


def header(name: str, functions: Sequence[ExportedFunction]) -> str:
    """The text of the header."""
    guard = f"{name.upper()}_H"
    codes = ",\n    ".join(f"DEEPGEN_{status} = {code}" for code, status in enumerate(STATUSES))
    return f"""// Tuned kernels, made by `deepgen library export`. Every function may be called from several threads.
//
// Sizes and strides count elements; tensors are row-major. Formats that C lacks (bf16, f16, 8-bit floats)
// are passed as their bits. On GPUs all pointers, the workspace too, are to device memory, and a call only
// enqueues work on the stream; 0 is the default one. The function with _workspace at the end of its name
// tells how many bytes of workspace a call with these sizes may need; the one with _served, whether a call
// with dense tensors would be served.
#ifndef {guard}
#define {guard}

#include <stddef.h>
#include <stdint.h>

#define DEEPGEN_ABI_VERSION {ABI_VERSION}
#if defined(__GNUC__)
#define DEEPGEN_API __attribute__((visibility("default")))
#else
#define DEEPGEN_API
#endif

#ifdef __cplusplus
extern "C" {{
#endif

typedef enum {{
    {codes}
}} deepgen_status;

DEEPGEN_API int deepgen_abi_version(void);
DEEPGEN_API const char *deepgen_status_text(deepgen_status status);
DEEPGEN_API const char *deepgen_last_error(void);  // what was wrong with this thread's last call that failed

// Kernels on processors start threads of their own. A program that has others, such as OpenMP's, may lend them: kernels
// that are loaded by later calls have their work done by this function. It calls work(job) on the calling thread and on
// as many others as it likes, and returns when all are done. OpenMP's GOMP_parallel is such a function; both numbers
// are always 0.
typedef void (*deepgen_parallel)(void (*work)(void *job), void *job, unsigned threads, unsigned flags);
DEEPGEN_API void deepgen_set_parallel(deepgen_parallel parallel);

{chr(10).join(_declarations(function) for function in functions)}
#ifdef __cplusplus
}}
#endif

#endif
"""


def arguments(function: ExportedFunction) -> list[str]:
    """Sizes, then each tensor with its strides, run-time scalars, the workspace, and on GPUs a stream."""
    out = [f"int64_t {argument(name)}" for name in function.sizes]
    signature = function.operator.signature()
    for param in function.tensors:
        const = "" if param.written else "const "
        out.append(f"{const}{ctype(signature.dtype_of(param))} *{argument(param.name)}")
        out += [f"int64_t {stride.name}" for stride in function.strides[param.name]]
    out += ["void *workspace", "size_t workspace_bytes"]
    return [*out, *(["void *stream"] if function.on_gpu else [])]


def _declarations(function: ExportedFunction) -> str:
    sizes = [f"int64_t {argument(name)}" for name in function.sizes]
    tuned = ", ".join(timed.operator.describe() for entry in function.entries for timed in entry.timed)
    return f"""// Tuned: {tuned}.
DEEPGEN_API deepgen_status {function.name}({", ".join(arguments(function))});
DEEPGEN_API deepgen_status {function.name}_workspace({", ".join([*sizes, "size_t *bytes"])});
DEEPGEN_API deepgen_status {function.name}_served({", ".join(sizes) or "void"});
"""
