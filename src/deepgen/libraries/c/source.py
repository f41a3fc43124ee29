"""The C files of an exported library: one for processors and one for each kind of GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deepgen.libraries.c.functions import Function, argument
from deepgen.libraries.c.header import arguments
from deepgen.libraries.c.kernels import KernelText
from deepgen.libraries.c.tables import Table, tables_of, tables_text
from deepgen.libraries.store import Content
from deepgen.vocabulary.dtypes import dtype

_GPU_ALIGN = 16  # kernels load up to 16 bytes at once


def source(
    name: str, functions: Sequence[Function], kernels: Mapping[str, KernelText], content: Content, *, main: bool
) -> str:
    """The C file of all functions of one kind. `kernels`: by the names of their entries; `main`: the first file."""
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


def _definition(function: Function, tables: Sequence[Table]) -> str:
    """The function itself, the query of its workspace, and whether it serves."""
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


def _checks(function: Function) -> list[str]:
    """What the arguments must satisfy, whichever kernel is chosen. Where nothing is to be written all is done."""
    signature = function.operator.signature()
    nothing = " && ".join(f"{function.product(param.shape)} == 0" for param in function.tensors if param.written)
    out = [] if function.fixed else [f"if ({nothing}) return DEEPGEN_OK;"]
    for param in function.tensors:
        name = argument(param.name)
        align = max(param.align or dtype(signature.dtype_of(param)).bytes, _GPU_ALIGN if function.on_gpu else 1)
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
