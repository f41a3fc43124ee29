"""From Triton's IR of a kernel to C: a function for one program, and one that runs a grid of them in threads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from deepgen.extend import BadInput, Source, shared_headers
from deepgen_triton_cpu.lowering import gathering, memory
from deepgen_triton_cpu.lowering.axes import carry_offsets
from deepgen_triton_cpu.lowering.c_types import NARROW, computed, constant_of, rounded, unsigned
from deepgen_triton_cpu.lowering.control import Control
from deepgen_triton_cpu.lowering.elementwise import TABLE
from deepgen_triton_cpu.lowering.ir import Block, Function, Op, Region, Type, Value, walk
from deepgen_triton_cpu.lowering.nest import Nest
from deepgen_triton_cpu.lowering.parse import parse
from deepgen_triton_cpu.lowering.uses import SOURCES, VIEWS
from deepgen_triton_cpu.lowering.writer import Writer

ENTRY = "deepgen_triton"
_FLAGS = (
    "-std=gnu11", "-pthread", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing", "-w",
)  # fmt: skip
_HEADERS = ("tile.h", "tile_math.h", "tile_atomics.h", "tile_dot.h", "tile_dot_narrow.h")
_NOTHING = frozenset(
    {
        "tt.return", "ttg.barrier", "gpu.barrier", "tt.debug_barrier", "llvm.intr.assume", "tt.grid_dependency_wait",
        "tt.grid_dependency_launch_dependents",
    }
)  # fmt: skip
_INDENT = "    "


@dataclass(frozen=True)
class Lowered:
    """A kernel in C. Its entry takes the kernel's own parameters, then the grid, threads and scratch memory."""

    name: str  # of the function
    text: str
    parameters: tuple[str, ...]  # the types of the kernel's own
    scratch: int  # bytes for each thread


def lower(text: str, entry: str = ENTRY) -> Lowered:
    """The C of a kernel in Triton's IR, as its generic form prints it; `entry` is what the function is called there.

    Raises BadInput for an operation that is not served, with its place in the source.
    """
    function, others = parse(text)
    inline_calls(function, others)
    carry_offsets(function)
    writer = Writer(function, memory.load)
    control: Control

    def write_op(op: Op) -> None:
        _write_op(writer, control, op)

    control = Control(writer, write_op)
    names = [f"a{place}" for place in range(len(function.args))]
    for name, value in zip(names, function.args, strict=True):
        element = value.type.element
        writer.name(value, rounded(element, name) if element in NARROW else name)
    control.function(function.body)
    types = [value.type.element for value in function.args]
    text = _program(function.name, entry, types, names, writer, _tiles(function))
    return Lowered(function.name, text, tuple(types), writer.most_scratch)


def sources(text: str, name: str) -> tuple[Source, ...]:
    """All files of a kernel in C, the one to compile first."""
    return (Source(f"{name}.c", text), *_headers())


def flags(fused: bool = True) -> tuple[str, ...]:
    """What the C compiler is told; `fused`: a product and a sum may be one operation with one rounding."""
    return (*_FLAGS, f"-ffp-contract={'fast' if fused else 'off'}")


@cache
def _headers() -> tuple[Source, ...]:
    folder = resources.files(__package__)
    own = (Source(name, folder.joinpath(name).read_text()) for name in _HEADERS)
    return (*own, *shared_headers())


def _write_op(writer: Writer, control: Control, op: Op) -> None:
    if op in writer.uses.inlined or op.name in _NOTHING:
        return
    if op.name in ("tt.get_program_id", "tt.get_num_programs"):
        kind = "program" if op.name == "tt.get_program_id" else "programs"
        writer.name(op.result, f"{kind}[{op.integer('axis')}]")
    elif op.name in ("scf.for", "scf.while", "scf.if"):
        {"scf.for": control.loop, "scf.while": control.repeat, "scf.if": control.branch}[op.name](op)
    elif op.name in _HANDLERS:
        if op.name not in gathering.HANDLERS or any(writer.uses.used(result) for result in op.results):
            _HANDLERS[op.name](writer, op)
    elif op.results and op.result.type.tensor and (op.name in TABLE or op.name in VIEWS or op.name in SOURCES):
        writer.materialise(op.result, op)
    elif not (op.results and not op.result.type.tensor and writer.scalar_op(op)):
        raise BadInput(f"{op.name} is not supported on CPUs", where=op.location, allowed="see docs/triton-cpu.md")


def _tiles(function: Function) -> str | None:
    """Which numbers are multiplied in tiles of AMX: a file has instructions for one kind of them."""
    multiplied = [op.operands[0].type.element for op in walk(function.body) if op.name == "tt.dot"]
    return next((element for element in ("bf16", "i8") if element in multiplied), None)


def _program(name: str, entry: str, types: list[str], names: list[str], writer: Writer, tiles: str | None) -> str:
    """The whole file."""
    kinds = [computed(element) if element not in NARROW else "float" for element in types]
    fields = [f"{kind} {one};" for kind, one in zip(kinds, names, strict=True)]
    taken = [f"{constant_of(kind)} {one} = given->{one};" for kind, one in zip(kinds, names, strict=True)]
    passed = "".join(f"{kind} {one}, " for kind, one in zip(kinds, names, strict=True))
    copied = "".join(f".{one} = {one}, " for one in names)
    lines = [
        f"// {name}, from Triton's IR of it.",
        *([f"#define TILES_OF_{tiles.upper()}"] if tiles else []),
        '#include "tile.h"',
        "",
        "typedef struct {",
        *(_INDENT + line for line in fields),
        f"{_INDENT}int32_t programs[3];",
        f"{_INDENT}char *scratch;",
        f"{_INDENT}long all, each;     // programs, and how many are drawn at once",
        f"{_INDENT}_Atomic long next;  // to draw",
        f"}} {entry}_job;",
        "",
        f"static void {entry}_program(const {entry}_job *given, const int32_t *program, char *scratch) {{",
        *_indented([*taken, "const int32_t *programs = given->programs;", *writer.lines]),
        "}",
        "",
        f"static void {entry}_draw(void *arg, int thread) {{",
        *_indented(
            [
                f"{entry}_job *given = arg;",
                "for (long start; (start = atomic_fetch_add(&given->next, given->each)) < given->all;)",
                "for (long n = start; n < start + given->each && n < given->all; n++) {",
                "long x = given->programs[0], y = given->programs[1];",
                "int32_t program[3] = {(int32_t)(n % x), (int32_t)(n / x % y), (int32_t)(n / x / y)};",
                f"{entry}_program(given, program, given->scratch + thread * {writer.most_scratch}L);",
                "}",
            ]
        ),
        "}",
        "",
        f"void {entry}({passed}int32_t x, int32_t y, int32_t z, int32_t threads, void *scratch) {{",
        *_indented(
            [
                f"{entry}_job given = {{{copied}.programs = {{x, y, z}}, .scratch = scratch, .all = (long)x * y * z}};",
                "given.each = chunk(given.all, threads);",
                f"deepgen_pool_run(given.all < threads ? (int)given.all : threads, {entry}_draw, &given);",
            ]
        ),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _indented(lines: list[str]) -> list[str]:
    out, depth = [], 1
    for line in lines:
        depth -= line.startswith("}")
        out.append(line if line.startswith("#") else _INDENT * depth + line)
        depth += line.endswith("{")
    return out


def inline_calls(function: Function, others: Mapping[str, Function]) -> None:
    while calls := [op for op in walk(function.body) if op.name == "tt.call"]:
        for call in calls:
            _inline(function, call, others)


def _inline(function: Function, call: Op, others: Mapping[str, Function]) -> None:
    name = call.attributes.get("callee", "").lstrip("@")
    if name not in others or len(others[name].body.blocks) != 1:
        what = f"tt.call of {name}, which returns from several places"
        raise BadInput(what, where=call.location, allowed="a function that Triton inlines, or one with a single return")
    block = call.block
    assert block is not None
    values: dict[Value, Value] = dict(zip(others[name].args, call.operands, strict=True))
    *ops, last = others[name].body.block.ops
    at = block.ops.index(call)
    block.ops[at : at + 1] = [_copied(op, block, values) for op in ops]
    returned = {old: values.get(new, new) for old, new in zip(call.results, last.operands, strict=True)}
    for op in walk(function.body):
        op.operands = [returned.get(value, value) for value in op.operands]


def _copied(op: Op, block: Block, values: dict[Value, Value]) -> Op:
    operands = [values.get(value, value) for value in op.operands]
    copied = Op(op.name, operands, [], op.attributes, [], op.successors, op.location, block)
    for place, value in enumerate(op.results):
        values[value] = Value(value.type, copied, block, place)
        copied.results.append(values[value])
    for region in op.regions:
        copy = Region(op=copied)
        copied.regions.append(copy)
        for inner in region.blocks:
            new = Block(inner.label, region=copy)
            copy.blocks.append(new)
            for place, value in enumerate(inner.args):
                values[value] = Value(value.type, None, new, place)
                new.args.append(values[value])
            new.ops = [_copied(one, new, values) for one in inner.ops]
    return copied


def _print(writer: Writer, op: Op) -> None:
    """One line for each element, as on a GPU: the program, the place in the tensor, the value."""
    prefix = json.loads(op.attributes.get("prefix", '""')).replace("%", "%%")
    if not op.operands:
        writer.write(
            f"printf({json.dumps(f'pid (%d, %d, %d){prefix}' + chr(10))}, program[0], program[1], program[2]);"
        )
    signs = op.integers("isSigned")
    for place, value in enumerate(op.operands):
        nest = Nest(writer, value.type.shape)
        places = ", ".join(f"%{len(str(size - 1))}d" for size in value.type.shape)
        which = f"(operand {place}) " if len(op.operands) > 1 else ""
        form, kind = _form(value.type, op.flag("hex"), bool(signs[place]))
        text = json.dumps(f"pid (%d, %d, %d) idx ({places}){prefix}{which}{form}\n")
        indices = "".join(f", (int){index.text}" for index in nest.indices)
        printed = f"({kind}){nest.at(value).text}"
        nest.put(nest.inmost, f"printf({text}, program[0], program[1], program[2]{indices}, {printed});")
        nest.emit(simd=False)
    writer.write("fflush(stdout);")


def _form(of: Type, hexadecimal: bool, signed: bool) -> tuple[str, str]:
    """How a number is printed, and as what type of C."""
    if of.pointer:
        return "%p", "void *"
    if of.floating:
        return ("%a" if hexadecimal else "%f"), "double"
    if hexadecimal or not signed or of.element == "i1":
        return (f"0x%0{of.bits // 4}llx" if hexadecimal else "%llu"), f"unsigned long long)({unsigned(of.element)}"
    return "%lld", "long long"


def _assert(writer: Writer, op: Op) -> None:
    """Ends the process where a condition does not hold, as a GPU ends the kernel."""
    message = json.loads(op.attributes.get("message", '""'))
    text = json.dumps(f"{op.location}: assertion failed: {message}\n")
    value = op.operands[0]
    nest = Nest(writer, value.type.shape)
    nest.put(nest.inmost, f"if (!{nest.at(value).text}) {{ fputs({text}, stderr); abort(); }}")
    nest.emit(simd=False)


_HANDLERS = memory.HANDLERS | gathering.HANDLERS | {"tt.print": _print, "tt.assert": _assert}
