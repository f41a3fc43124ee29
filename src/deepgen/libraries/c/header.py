"""The header of an exported library, for C and for C++."""

from __future__ import annotations

from collections.abc import Sequence

from deepgen.libraries.c.functions import Function, argument, ctype

ABI_VERSION = 1
STATUSES = ("OK", "NOT_SERVED", "BAD_ARGUMENT", "NO_WORKSPACE", "NOT_LOADED", "DEVICE_ERROR")


def header(name: str, functions: Sequence[Function]) -> str:
    """Its text."""
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


def arguments(function: Function) -> list[str]:
    """Sizes, then each tensor with its strides, run-time scalars, the workspace, and on GPUs a stream."""
    out = [f"int64_t {argument(name)}" for name in function.sizes]
    signature = function.operator.signature()
    for param in function.tensors:
        const = "" if param.written else "const "
        out.append(f"{const}{ctype(signature.dtype_of(param))} *{argument(param.name)}")
        out += [f"int64_t {stride.name}" for stride in function.strides[param.name]]
    out += ["void *workspace", "size_t workspace_bytes"]
    return [*out, *(["void *stream"] if function.on_gpu else [])]


def _declarations(function: Function) -> str:
    sizes = [f"int64_t {argument(name)}" for name in function.sizes]
    tuned = ", ".join(timed.operator.describe() for entry in function.entries for timed in entry.timed)
    return f"""// Tuned: {tuned}.
DEEPGEN_API deepgen_status {function.name}({", ".join(arguments(function))});
DEEPGEN_API deepgen_status {function.name}_workspace({", ".join([*sizes, "size_t *bytes"])});
DEEPGEN_API deepgen_status {function.name}_served({", ".join(sizes) or "void"});
"""
