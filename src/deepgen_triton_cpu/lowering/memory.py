"""Loads, stores and atomic operations. Rows of neighbours become plain loops; anything else goes element by element."""

from __future__ import annotations

from collections.abc import Callable

from deepgen.extend import BadInput
from deepgen_triton_cpu.lowering.axes import Guard
from deepgen_triton_cpu.lowering.c_types import NARROW, computed, narrowed, widened
from deepgen_triton_cpu.lowering.ir import Op, Value
from deepgen_triton_cpu.lowering.nest import SIMD, Nest
from deepgen_triton_cpu.lowering.shapes import ZERO, Index, linear
from deepgen_triton_cpu.lowering.writer import Buffer, Writer

# By the numbers of tt.atomic_rmw: and, or, xor, add, fadd, max, min, umax, umin, exchange.
_RMW = {1: "and", 2: "or", 3: "xor", 4: "add", 5: "add", 6: "max", 7: "min", 8: "umax", 9: "umin", 10: "exchange"}


def load(writer: Writer, op: Op) -> None:
    pointer, mask, other = (*op.operands, None, None)[:3]
    assert pointer is not None
    element = pointer.type.pointee
    if not pointer.type.tensor:
        text = widened(element, f"*{writer.scalar(pointer)}")
        if mask is not None:
            otherwise = writer.scalar(other) if other is not None else "0"
            text = f"{writer.scalar(mask)} ? {text} : {otherwise}"
        writer.define(op.result, text)
        return
    into = writer.allocate(element, pointer.type.shape)
    order, guards = _order(writer, pointer)

    def rows(regular: bool) -> None:
        _load_rows(writer, into, pointer, mask, other, order, regular)

    _versions(writer, guards, rows)
    writer.buffers[op.result] = into


def _order(writer: Writer, pointer: Value) -> tuple[list[int], list[Guard] | None]:
    """Dimensions for loops, the innermost along neighbours, with the conditions for that; None: they are nowhere."""
    shape = pointer.type.shape
    dims = list(range(len(shape)))
    for dim in reversed([d for d in dims if shape[d] > 1]):
        guards: list[Guard] = []
        if writer.axes.step(pointer, dim, guards) == 1:
            return [*(d for d in dims if d != dim), dim], guards
    return dims, None


def _versions(writer: Writer, guards: list[Guard] | None, rows: Callable[[bool], None]) -> None:
    """Loops over neighbours where they are such, which may be known only when the kernel runs."""
    if not guards:
        rows(guards is not None)
        return
    nest = Nest(writer, ())
    conditions = []
    for guard in guards:
        number, by = (nest.at(value, [ZERO] * len(value.type.shape)) for value in guard.remainder.operands)
        conditions.append(f"does_not_wrap({number.text}, {by.text}, {guard.length})")
    writer.write("{", *nest.outer[0], f"if ({' && '.join(conditions)}) {{")
    rows(True)
    writer.write("} else {")
    rows(False)
    writer.write("}", "}")


def _row(nest: Nest, pointer: Value, regular: bool) -> str:
    """What a pointer of the innermost loop points at; `known`: the next is the neighbour of this one."""
    if not regular or not nest.depth:
        return nest.address(pointer, nest.indices)
    last = nest.dims[-1]
    start = [ZERO if d == last else index for d, index in enumerate(nest.indices)]
    return f"{nest.at(pointer, start).text}[{nest.indices[last].text}]"


def _load_rows(
    writer: Writer,
    into: Buffer,
    pointer: Value,
    mask: Value | None,
    other: Value | None,
    order: list[int],
    regular: bool,
) -> None:
    nest = Nest(writer, pointer.type.shape, order)
    place = linear(into.shape, nest.indices)
    element = into.element
    if mask is None:
        nest.put(nest.inmost, f"{into.name}[{place.text}] = {_row(nest, pointer, regular)};")
        nest.emit()
        return
    last = nest.dims[-1] if nest.dims else None
    bounds = writer.axes.bounds(mask, last) if last is not None else None
    uniform = last is not None and (other is None or writer.axes.step(other, last) == 0)
    if bounds is None or not uniform or last is None:
        value = Index("0") if other is None else nest.at(other)
        condition = nest.at(mask)
        kept = narrowed(element, value.text)
        nest.put(nest.inmost, f"{into.name}[{place.text}] = {kept};")
        nest.put(nest.inmost, f"if ({condition.text}) {into.name}[{place.text}] = {_row(nest, pointer, regular)};")
        nest.emit(simd=False)
        return
    start = [ZERO if d == last else index for d, index in enumerate(nest.indices)]
    value = Index("0") if other is None else nest.at(other, start)
    conditions, low, high = nest.stretch(bounds, last)
    if conditions:
        held = nest.keep("i1", " && ".join(conditions), nest.inmost - 1).text
        if low != "0":
            low = nest.keep("i64", f"{held} ? {low} : 0", nest.inmost - 1).text
        high = nest.keep("i64", f"{held} ? {high} : 0", nest.inmost - 1).text
    name = nest.indices[last].text
    kept = f"{into.name}[{place.text}] = {narrowed(element, value.text)};"
    size = pointer.type.shape[last]
    if low != "0":
        nest.before += [SIMD, f"for (int64_t {name} = 0; {name} < {low}; {name}++) {kept}"]
    if high != str(size):
        nest.after += [SIMD, f"for (int64_t {name} = {high}; {name} < {size}; {name}++) {kept}"]
    nest.put(nest.inmost, f"{into.name}[{place.text}] = {_row(nest, pointer, regular)};")
    nest.emit(low=low, high=high)


def store(writer: Writer, op: Op) -> None:
    pointer, value = op.operands[:2]
    mask = op.operands[2] if len(op.operands) > 2 else None
    element = pointer.type.pointee
    if not pointer.type.tensor:
        condition = f"if ({writer.scalar(mask)}) " if mask is not None else ""
        writer.write(f"{condition}*{writer.scalar(pointer)} = {narrowed(element, writer.scalar(value))};")
        return
    order, guards = _order(writer, pointer)

    def rows(regular: bool) -> None:
        nest = Nest(writer, pointer.type.shape, order)
        conditions, low, high, simd = _masked(writer, nest, mask)
        source = nest.at(value)
        kept = nest.keep(value.type.element, source.text, nest.inmost) if source.level < nest.inmost else source
        nest.put(nest.inmost, f"{_row(nest, pointer, regular)} = {narrowed(element, kept.text)};")
        nest.emit(conditions, low, high, simd)

    _versions(writer, guards, rows)


def _masked(writer: Writer, nest: Nest, mask: Value | None) -> tuple[list[str], str, str | None, bool]:
    """What limits the innermost loop: conditions, first, end; otherwise elements are skipped one by one."""
    if mask is None:
        return [], "0", None, True
    nest.holding(mask)
    bounds = writer.axes.bounds(mask, nest.dims[-1]) if nest.dims else None
    if bounds is not None:
        return *nest.stretch(bounds, nest.dims[-1]), True
    condition = nest.at(mask)
    if not nest.depth:
        return [condition.text], "0", None, True
    nest.put(nest.inmost, f"if (!{condition.text}) continue;")
    return [], "0", None, False


def atomic(writer: Writer, op: Op) -> None:
    """tt.atomic_rmw and tt.atomic_cas. Elements that a mask leaves out give zero."""
    pointer, *values = op.operands
    element = pointer.type.pointee
    name = _atomic_name(op, element)
    mask = values.pop() if op.name == "tt.atomic_rmw" and len(values) > 1 else None
    kind = computed(element) if element not in NARROW else "float"
    if not pointer.type.tensor:
        call = f"{name}({', '.join(writer.scalar(value) for value in (pointer, *values))})"
        writer.define(op.result, f"{writer.scalar(mask)} ? {call} : ({kind})0" if mask is not None else call)
        return
    nest = Nest(writer, pointer.type.shape)
    args = ", ".join(nest.at(value).text for value in (pointer, *values))
    call = f"{name}({args})"
    if mask is not None:
        call = f"{nest.at(mask).text} ? {call} : ({kind})0"
    if writer.uses.used(op.result):
        into = writer.allocate(element, pointer.type.shape)
        place = linear(into.shape, nest.indices)
        nest.put(nest.inmost, f"{into.name}[{place.text}] = {narrowed(element, f'({call})')};")
        writer.buffers[op.result] = into
    else:
        nest.put(nest.inmost, f"(void)({call});")
    nest.emit(simd=False)


def poll(writer: Writer, op: Op) -> None:
    """tt.atomic_poll: waits until a number is there, or a time in nanoseconds is over."""
    pointer, *values = (writer.scalar(value) for value in op.operands)
    writer.define(op.result, f"atomic_poll_{op.operands[1].type.element}({pointer}, {', '.join((*values, '-1')[:2])})")


def _atomic_name(op: Op, element: str) -> str:
    if op.name == "tt.atomic_cas":
        return f"atomic_cas_{NARROW.get(element, element)}"
    kind = _RMW.get(op.integer("atomic_rmw_op"))
    if kind is None or element not in ("i32", "i64", "f32", "f64", "f16", "bf16"):
        what = f"tt.atomic_rmw number {op.integer('atomic_rmw_op')} of {element}"
        raise BadInput(what, where=op.location, allowed="32- and 64-bit integers and floats")
    return f"atomic_{kind}_{element}"


HANDLERS: dict[str, Callable[[Writer, Op], None]] = {
    "tt.load": load,
    "tt.store": store,
    "tt.atomic_rmw": atomic,
    "tt.atomic_cas": atomic,
    "tt.atomic_poll": poll,
}
