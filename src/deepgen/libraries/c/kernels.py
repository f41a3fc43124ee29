"""One kernel in an exported library: its requirements, its workspace and its launch plan as C functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deepgen.libraries.c.functions import ExportedFunction, NotInC, in_c
from deepgen.libraries.c.models import model_text
from deepgen.libraries.entry import Entry
from deepgen.operators import Param
from deepgen.run.call import gpu_kernel, plans
from deepgen.vocabulary import DescriptorArg, Kernel, LaunchPlan, ScalarArg, Step, TensorArg, WorkspaceArg
from deepgen.vocabulary.dtypes import dtype

_NUMBERS = {"i32": "int32_t", "i64": "int64_t", "f32": "float", "f64": "double"}
_MOST_ENTRIES = 8  # as in runtime.h


@dataclass(frozen=True)
class Workspace:
    """A part of the caller's workspace."""

    name: str
    bytes: str  # in C
    align: int
    zeroed: bool


@dataclass(frozen=True)
class KernelText:
    """A kernel's place in the source: the name of its object and the C that defines it."""

    object: str
    text: str
    modelled: bool  # whether it includes its family's model


def kernel_text(
    function: ExportedFunction, entry: Entry, kernel: Kernel, place: int, image: bytes | None
) -> KernelText:
    """`kernel`: as it is launched. `image`: its module, on a GPU. Raises NotInC."""
    function, plan = function.at(entry), kernel.plan
    if plan.constants:
        raise NotInC("it copies tensors to global variables")
    if plan.exclusive:
        raise NotInC("only one thread at a time may call it")
    if not function.on_gpu and kernel.language != "c":
        raise NotInC(f"it is in {kernel.language}, whose functions C cannot call")
    entries = list(dict.fromkeys(step.entry for step in plans.steps_of(plan)))
    if len(entries) > _MOST_ENTRIES:
        raise NotInC(f"it has {len(entries)} entries, and at most {_MOST_ENTRIES} are possible")
    spaces = _workspaces(plan, function.scalars)
    name = f"kernel_{place}"
    target = entry.target
    file = "0" if function.on_gpu else quoted(f"{entry.name}.so")
    features = _strings(target.instruction_sets)
    model = None if function.fixed else model_text(entry, function.sizes, f"{name}_model")
    parts = [
        f"// {entry.name}: {kernel.name}, {kernel.id[:16]}",
        _serves(function, kernel, name),
        _bytes(spaces, name),
        model or "",
        "" if image is None else _image(image, name),
        _run(function, plan, spaces, entries, name),
        f"""static kernel {name} = {{
    .name = {quoted(entry.name)}, .file = {file}, .machine = {quoted(target.built_for)},
    .image = {f"(const unsigned char *){name}_image" if image is not None else "0"},
    .features = {features}, .entries = {_strings(entries)},
    .serves = {name}_serves, .bytes = {name}_bytes, .run = {name}_run,
    .model = {f"{name}_model" if model is not None else "0"},
}};
""",
    ]
    return KernelText(name, "\n".join(part for part in parts if part), model is not None)


def _serves(function: ExportedFunction, kernel: Kernel, name: str) -> str:
    """All requirements of the kernel, dense tensors unless it takes other strides, and ranges of 32-bit arguments."""
    named = plans.names_of(kernel.plan)
    conditions = [in_c(expression, function.scalars) for expression, _ in kernel.requirements]
    passed = [a for step in plans.steps_of(kernel.plan) for a in step.args if isinstance(a, ScalarArg)]
    whole = dict.fromkeys(a.value for a in passed if a.ctype == "i32" and isinstance(a.value, str))
    conditions += [f"({in_c(value, function.scalars)} <= INT32_MAX)" for value in whole]
    if function.fixed:
        own = function.operator.sizes()
        conditions += [f"({function.sized[size]} == {in_c(own[size], {})})" for size in function.sizes]
    for strides in function.strides.values():
        for stride in strides:
            spelled = function.scalars[stride.scalar]
            aliases = {alias for alias, text in function.scalars.items() if text == spelled}
            # Families in C are verified on dense tensors only.
            if not function.on_gpu or not aliases & named:
                conditions.append(f"({spelled} == {stride.dense})")
    tests = "\n        && ".join(conditions) or "1"
    return f"static int {name}_serves(const int64_t *v) {{\n    (void)v;\n    return {tests};\n}}"


def _workspaces(plan: LaunchPlan, scalars: Mapping[str, str]) -> list[Workspace]:
    """Each workspace once; steps that name the same one share it, at the largest size requested."""
    spaces: dict[str, Workspace] = {}
    for arg in (a for step in plans.steps_of(plan) for a in step.args if isinstance(a, WorkspaceArg)):
        text, before = in_c(arg.bytes, scalars), spaces.get(arg.name)
        if before is not None and before.bytes != text:
            text = f"greatest({before.bytes}, {text})"
        # Zeroed again if a run could read what the previous one left: callers may pass different memory.
        spaces[arg.name] = Workspace(arg.name, text, max(arg.align, 1), arg.zeroed)
    return list(spaces.values())


def _bytes(spaces: Sequence[Workspace], name: str) -> str:
    """The first part must begin at an aligned address, so space for that is included."""
    whole = [f"aligned((size_t){space.bytes}, {space.align}) + {space.align}" for space in spaces]
    return f"static size_t {name}_bytes(const int64_t *v) {{\n    (void)v;\n    return {' + '.join(whole) or '0'};\n}}"


def _image(image: bytes, name: str) -> str:
    padded = image + bytes(-len(image) % 8)
    words = [f"0x{int.from_bytes(padded[i : i + 8], 'little'):x}u" for i in range(0, len(padded), 8)]
    lines = [", ".join(words[i : i + 6]) for i in range(0, len(words), 6)]
    body = ",\n    ".join(lines)
    modules = f"static loaded_module {name}_modules[MOST_CONTEXTS];"
    return f"static const uint64_t {name}_image[] = {{\n    {body}\n}};\n{modules}"


def _run(
    function: ExportedFunction, plan: LaunchPlan, spaces: Sequence[Workspace], entries: Sequence[str], name: str
) -> str:
    lines = ["(void)v, (void)t, (void)w, (void)stream;"]
    if function.on_gpu:
        lines += [
            "void **functions;",
            "deepgen_status status;",
            f"if ((status = functions_of(k, {name}_modules, &functions))) return status;",
        ]
    for space in spaces:
        lines += [
            f"w = (char *)aligned((size_t)w, {space.align});",
            f"void *w_{space.name} = w;",
            f"w += (size_t){space.bytes};",
        ]
        if space.zeroed and function.on_gpu:
            fill = f"driver.fill(w_{space.name}, 0, (size_t){space.bytes}, stream)"
            lines.append(f'if ((status = driver_status(k, "zeroing its workspace", {fill}))) return status;')
        elif space.zeroed:
            lines.append(f"memset(w_{space.name}, 0, (size_t){space.bytes});")
    step_text = _launched if function.on_gpu else _called
    for step in plans.steps_of(plan):
        lines += step_text(function, step, entries.index(step.entry))
    body = "\n    ".join([*lines, "return DEEPGEN_OK;"])
    head = "kernel *k, const int64_t *v, void *const *t, char *w, void *stream"
    return f"static deepgen_status {name}_run({head}) {{\n    {body}\n}}"


def _called(function: ExportedFunction, step: Step, entry: int) -> list[str]:
    """A call of a function of the kernel's shared library."""
    types, values = [], []
    for arg in step.args:
        kind, value = _argument(function, arg)
        types.append(kind)
        values.append(f"({kind}){value}")
    return [f"((void (*)({', '.join(types) or 'void'}))k->symbols[{entry}])({', '.join(values)});"]


def _launched(function: ExportedFunction, step: Step, entry: int) -> list[str]:
    """A launch: its arguments as variables, and an array of their addresses."""
    lines, names = [], []
    for place, arg in enumerate(step.args):
        name = f"a{place}"
        if isinstance(arg, DescriptorArg):
            lines += _descriptor(function, arg, name)
        else:
            kind, value = _argument(function, arg)
            lines.append(f"{kind} {name} = ({kind}){value};")
        names.append(f"&{name}")
    three = [_three(sizes, function.scalars) for sizes in (step.grid, step.block, step.cluster)]
    shared = in_c(step.shared_bytes, function.scalars)
    lines += [
        f"void *arguments[] = {{{', '.join(names) or '0'}}};",
        f"launch_shape shape = {{{', '.join(three)}, (unsigned){shared}, {int(step.overlaps)}}};",
        f"if ((status = launch(k, functions[{entry}], &shape, stream, arguments))) return status;",
    ]
    return ["{", *(f"    {line}" for line in lines), "}"]


def _argument(function: ExportedFunction, arg: object) -> tuple[str, str]:
    """The type and the value of an argument in C."""
    if isinstance(arg, TensorArg):
        return "void *", f"t[{[param.name for param in function.tensors].index(arg.tensor)}]"
    if isinstance(arg, WorkspaceArg):
        return "void *", f"w_{arg.name}"
    if isinstance(arg, ScalarArg):
        return _NUMBERS[arg.ctype], f"({in_c(arg.value, function.scalars)})"
    raise NotInC("it takes a descriptor on a CPU")


def _descriptor(function: ExportedFunction, arg: DescriptorArg, name: str) -> list[str]:
    """A tensor map, encoded for this call."""
    if function.kind != "cuda":
        raise NotInC("it takes a tensor map, which only NVIDIA's GPUs have")
    place = [param.name for param in function.tensors].index(arg.tensor)
    param: Param = function.tensors[place]
    element = dtype(function.operator.signature().dtype_of(param))
    codes = gpu_kernel.codes(arg, element.name)
    spec = arg.spec
    shape = [function.product((size,)) for size in reversed(param.shape)]
    sizes = shape if spec.sizes is None else [in_c(size, function.scalars) for size in spec.sizes]
    dense = [f"({' * '.join([*sizes[:i], str(element.bytes)])})" for i in range(1, len(sizes))]
    strides = dense if spec.strides is None else [in_c(size, function.scalars) for size in spec.strides]
    box = [in_c(size, function.scalars) for size in spec.box]
    values = f"(uint64_t[]){{{', '.join(sizes)}}}, (uint64_t[]){{{', '.join(strides) or '0'}}}"
    where = f"w_{arg.copy}" if arg.copy else f"t[{place}]"
    call = f"encode(k, &{name}, {codes.element}, {len(sizes)}, {where}, {values}, (uint32_t[]){{{', '.join(box)}}}"
    if spec.lower is not None:
        corners, steps = [*spec.lower, *(spec.upper or ())], [1, *(spec.steps or ()), 1]
        signed, apart = (", ".join(in_c(size, function.scalars) for size in part) for part in (corners, steps))
        call = f"{call.replace('encode(', 'encode_windows(', 1)}, (int[]){{{signed}}}, (uint32_t[]){{{apart}}}"
    return [f"tensor_map {name};", f"if ((status = {call}, {codes.swizzle}, {codes.l2}))) return status;"]


def _three(sizes: Sequence[int | str], scalars: Mapping[str, str]) -> str:
    whole = [f"(unsigned){in_c(size, scalars)}" for size in (*sizes, 1, 1, 1)[:3]]
    return f"{{{', '.join(whole)}}}"


def _strings(words: Sequence[str]) -> str:
    return f"(const char *const[]){{{', '.join([*map(quoted, words), '0'])}}}"


def quoted(text: str) -> str:
    """A C string literal: JSON's are the same, as long as they are ASCII."""
    return json.dumps(text)
