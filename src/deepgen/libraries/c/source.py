"""The C of an exported library: its header, one file for CPUs, and one for each kind of GPU.

Their dispatch tables are as in predict.py: times at the tuned shapes, relative to the best.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log

from deepgen.baselines import products
from deepgen.baselines.products import VendorModel
from deepgen.libraries import predict
from deepgen.libraries.c.functions import ExportedFunction, argument, ctype
from deepgen.libraries.c.kernels import KernelText
from deepgen.libraries.choice import choose, model_of
from deepgen.libraries.entry import Entry
from deepgen.libraries.predict import Point
from deepgen.libraries.store import LibraryContent
from deepgen.operators.signature import INOUT
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


@dataclass(frozen=True)
class Table:
    """The kernels of a function that were timed under the same conditions, and the shapes at which they were timed."""

    entries: tuple[Entry, ...]
    kernels: tuple[KernelText, ...]
    points: tuple[Point, ...]
    chosen: tuple[int, ...]  # at each point: the index of the kernel, or -1 for a vendor's library


def tables_of(function: ExportedFunction, kernels: Mapping[str, KernelText], content: LibraryContent) -> list[Table]:
    """One table per device and conditions; the device with the most instruction sets comes first."""
    by: dict[tuple[str, bool, int | None], list[Entry]] = {}
    for entry in function.entries:
        if entry.name in kernels:
            by.setdefault(entry.conditions, []).append(entry)
    ordered = sorted(by.values(), key=lambda rows: (-len(rows[0].target.instruction_sets), -len(rows)))
    return [_table(function, rows, kernels, content) for rows in ordered]


def tables_text(function: ExportedFunction, tables: Sequence[Table]) -> str:
    """All tables of a function in C."""
    parts, rows = [], []
    for place, table in enumerate(tables):
        rivals = list(dict.fromkeys(name for point in table.points for name in point.baselines))
        lost = [_lost(p.kernels.get(entry.kernel_id), p) for entry in table.entries for p in table.points]
        both = list(zip(table.entries, table.kernels, strict=True))
        modelled = [_modelled(entry, p) if text.modelled else "NAN" for entry, text in both for p in table.points]
        theirs = [_lost(p.baselines.get(name), p, predict.MOST_LOST) for name in rivals for p in table.points]
        first = table.entries[0]
        model = products.vendor_model(first.operator, first.target)
        reached = [_logarithm(products.reached(p.operator, first.target)) for p in table.points]
        sizes = [str(point.operator.sizes()[name]) for point in table.points for name in function.sizes]
        rows_of = products.row_bytes(first.operator, first.target)
        off = predict.spread(table.entries, table.points, model_of)
        margins = [repr(predict.margin(entry, table.points, off)) for entry in table.entries]
        name = f"{function.name}_{place}"
        parts += [
            _array(f"kernel *const {name}_kernels", (f"&{text.object}" for text in table.kernels)),
            _array(f"const int64_t {name}_sizes", sizes or ["0"]),
            _array(f"const double {name}_lost", lost),
            _array(f"const double {name}_modelled", modelled),
            _array(f"const double {name}_rivals", theirs or ["NAN"]),
            _array(f"const int {name}_row_bytes", [str(rows_of.get(size, 0)) for size in function.sizes] or ["0"]),
            _array(f"const double {name}_reached", reached),
            _array(f"const int {name}_chosen", map(str, table.chosen)),
            _array(f"const double {name}_margins", margins),
            "" if model is None else _vendor_model(function, model, name),
        ]
        counts = f"{len(table.kernels)}, {len(table.points)}, {len(function.sizes)}, {len(rivals)}"
        names = ("sizes", "lost", "modelled", "rivals", "row_bytes", "reached")
        arrays = ", ".join(f"{name}_{part}" for part in names)
        vendor = "0" if model is None else f"{name}_vendor_model"
        limits = f"{predict.LOST_PER_OCTAVE}, {predict.FAR}, {predict.MOST_LOST!r}"
        rows.append(f"{{{name}_kernels, {counts}, {arrays}, {vendor}, {name}_chosen, {name}_margins, {limits}}}")
    return "\n".join([*parts, _array(f"const group {function.name}_groups", rows)])


def _table(
    function: ExportedFunction, entries: Sequence[Entry], kernels: Mapping[str, KernelText], content: LibraryContent
) -> Table:
    own = function.operator.sizes()
    fixed = [name for name in own if name not in function.sizes]
    all_points = predict.points(entries, content.times)
    points = tuple(p for p in all_points if all(p.operator.sizes()[name] == own[name] for name in fixed))
    names = [entry.name for entry in entries]
    served = [choose(content, point.operator, entries[0].target).entry for point in points]
    chosen = tuple(names.index(entry.name) if entry is not None and entry.name in names else -1 for entry in served)
    return Table(tuple(entries), tuple(kernels[name] for name in names), points, chosen)


def _array(declared: str, values: Iterable[str]) -> str:
    return f"static {declared}[] = {{{', '.join(values)}}};"


def _vendor_model(function: ExportedFunction, model: VendorModel, name: str) -> str:
    """The vendor's model as a function of sizes."""
    signature = function.operator.signature()
    bytes_of = [
        f"{dtype(signature.dtype_of(p)).bytes * (2 if p.role == INOUT else 1)} * {function.product(p.shape)}"
        for p in function.tensors
    ]
    numbers = (model.multiprocessors, model.byte_seconds, products.FIXED_SECONDS, products.PARTS_SECONDS)
    rates = ", ".join(map(repr, (*numbers, products.PARTS, products.LEAST_K, products.STEP)))
    arguments = ", ".join([*(function.sized[size] for size in products.SIZES), " + ".join(bytes_of)])
    tiles = _array(
        f"const tile {name}_tiles", (f"{{{rows}, {columns}, {each!r}}}" for rows, columns, each in model.tiles)
    )
    return f"""{tiles}
static double {name}_vendor_model(const int64_t *v) {{
    static const vendor_model here = {{{rates}, {name}_tiles, {len(model.tiles)}}};
    return reached_seconds(&here, {arguments});
}}"""


def _lost(seconds: float | None, point: Point, most: float = inf) -> str:
    return "NAN" if seconds is None else repr(min(point.lost(seconds), most))


def _logarithm(seconds: float | None) -> str:
    return "NAN" if seconds is None else repr(log(seconds))


def _modelled(entry: Entry, point: Point) -> str:
    seconds = model_of(entry, point.operator)
    return "NAN" if seconds is None else repr(seconds)
