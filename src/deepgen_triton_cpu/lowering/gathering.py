"""Operations across elements: reductions, scans, histograms, gathers, concatenations, products."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from deepgen.extend import BadInput
from deepgen_triton_cpu.lowering.c_types import NARROW, narrowed, rounded
from deepgen_triton_cpu.lowering.ir import Block, Op, Type, Value, insert, make
from deepgen_triton_cpu.lowering.nest import Nest
from deepgen_triton_cpu.lowering.shapes import ZERO, Index, linear, strides
from deepgen_triton_cpu.lowering.writer import Buffer, Writer

# Reductions by one operation, whose loops are written by hand in tile.h.
_SIMPLE = {
    "arith.addf": "add", "arith.addi": "add", "arith.maxnumf": "maxnum", "arith.minnumf": "minnum",
    "arith.maximumf": "maximum", "arith.minimumf": "minimum", "arith.maxsi": "max", "arith.minsi": "min",
    "arith.mulf": "mul", "arith.muli": "mul",
}  # fmt: skip
_HELPED = ("f32", "f64", "i32", "i64")
_DOTS = {"f32": "f32", "f64": "f64", "f16": "f32", "bf16": "f32", "f8E4M3FN": "f32", "f8E5M2": "f32", "i8": "i32"}
_SCALED = frozenset({0, 1, 4, 5, 6})  # numbers of e4m3, e5m2, e2m1, bf16 and fp16 as types of tt.dot_scaled
_E2M1 = 4
_OGT, _OLT, _UNORDERED = 2, 4, 14  # of arith.cmpf
_FEW = 8  # elements that a loop written by hand does not pay for


def _wide(element: str) -> str:
    """The type in which elements are brought together."""
    return "f32" if element in NARROW else element


def reduce(writer: Writer, op: Op) -> None:
    axis, shape = op.integer("axis"), op.operands[0].type.shape
    block = op.regions[0].block
    simple = _simple(block)
    along_rows = all(size == 1 for size in shape[axis + 1 :])
    element = op.operands[0].type.element
    if simple and along_rows and _wide(element) in _HELPED and shape[axis] >= _FEW:
        _reduce_rows(writer, op, axis, simple)
    else:
        _reduce_any(writer, op, axis, block)


def _simple(block: Block) -> str | None:
    first, *others = block.ops
    plain = len(others) == 1 and list(others[0].operands) == first.results and set(first.operands) == set(block.args)
    return _SIMPLE.get(first.name) if plain else None


def _reduce_rows(writer: Writer, op: Op, axis: int, simple: str) -> None:
    """Each row is a stretch of memory, or becomes one first."""
    value = op.operands[0]
    shape, element = value.type.shape, _wide(value.type.element)
    outer, size = shape[:axis], shape[axis]
    buffer = writer.buffers.get(value)
    direct = buffer is not None and buffer.element == element
    nest = Nest(writer, outer)
    row = linear(outer, nest.indices)
    call = f"reduce_{simple}_{element}"
    of = op.result.type
    into = writer.allocate(element, outer) if of.tensor else None
    target = f"{into.name}[{row.text}]" if into else writer.variable(op.result)
    if direct:
        assert buffer is not None
        at = buffer.name if row.text == "0" else f"{buffer.name} + {row.text} * {size}"
        nest.put(nest.inmost, f"{target} = {rounded(of.element, f'{call}({at}, {size})')};")
        nest.emit(simd=False)
    else:
        held = writer.allocate(element, (size,))
        inner = Nest(writer, shape)
        value_at = inner.at(value)
        index = inner.indices[axis].text
        inner.put(inner.inmost, f"{held.name}[{index}] = {value_at.text};")
        place = linear(outer, inner.indices[:axis])
        target = f"{into.name}[{place.text}]" if into else target
        inner.after.append(f"{target} = {rounded(of.element, f'{call}({held.name}, {size})')};")
        inner.emit()
    if into:
        writer.buffers[op.result] = into


def _reduce_any(writer: Writer, op: Op, axis: int, block: Block) -> None:
    """Element after element along the axis, into where the results lie."""
    shape = op.operands[0].type.shape
    _leave_out_nans(block)
    left = [size for d, size in enumerate(shape) if d != axis]
    sums = [writer.allocate(_wide(value.type.element), left) for value in op.operands]
    first = Nest(writer, left)
    start = [*first.indices[:axis], ZERO, *first.indices[axis:]]
    for value, into in zip(op.operands, sums, strict=True):
        place = linear(left, first.indices)
        first.put(first.inmost, f"{into.name}[{place.text}] = {first.at(value, start).text};")
    first.emit()
    if shape[axis] > 1:
        order = list(range(len(shape)))
        nest = Nest(writer, shape, order)
        _from_second(nest, axis)
        indices = [index for d, index in enumerate(nest.indices) if d != axis]
        place = linear(left, indices)
        so_far = [_reads(nest, into, place) for into in sums]
        news = [nest.at(value) for value in op.operands]
        for into, combined in zip(sums, nest.region(block, [*so_far, *news]), strict=True):
            nest.put(nest.inmost, f"{into.name}[{place.text}] = {combined.text};")
        nest.emit(low="1" if nest.dims[-1] == axis else "0", simd=nest.dims[-1] != axis)
    for result, into in zip(op.results, sums, strict=True):
        if result.type.tensor:
            writer.buffers[result] = into
        else:
            writer.define(result, f"{into.name}[0]")


def _leave_out_nans(block: Block) -> None:
    """Lets argmax and argmin ignore NaN wherever it is, as max and min do.

    What Triton writes for them gives NaN or not by the order of elements, which is a backend's own.
    """
    half = len(block.args) // 2
    for at, op in enumerate(block.ops):
        compared = op.name == "arith.cmpf" and op.integer("predicate") in (_OGT, _OLT) and half == 2
        if compared and op.operands == [block.args[0], block.args[half]]:
            other = block.args[half]
            nan = make("arith.cmpf", [other, other], Type("i1"), op, predicate=f"{_UNORDERED} : i64")
            either = make("arith.ori", [op.result, nan.result], Type("i1"), op)
            for later in block.ops[at + 1 :]:
                later.operands = [either.result if value is op.result else value for value in later.operands]
            insert(block, at + 1, nan)
            insert(block, at + 2, either)
            return


def _from_second(nest: Nest, axis: int) -> None:
    """Leaves the first element of the axis out, where the axis is not the innermost loop."""
    if nest.dims[-1] != axis:
        level = nest.dims.index(axis) + 1
        nest.outer[level].append(f"if ({nest.indices[axis].text} == 0) continue;")


def _reads(nest: Nest, into: Buffer, place: Index) -> Index:
    return nest.keep(into.element, f"{into.name}[{place.text}]", nest.inmost)


def scan(writer: Writer, op: Op) -> None:
    axis, shape = op.integer("axis"), op.operands[0].type.shape
    block, backwards = op.regions[0].block, op.flag("reverse")
    sums = [writer.allocate(_wide(value.type.element), shape) for value in op.operands]
    order = list(range(len(shape)))
    nest = Nest(writer, shape, order)
    index = nest.indices[axis]
    if index.level == 0:  # one element: it is the result
        for value, into in zip(op.operands, sums, strict=True):
            writer.fill(into, value)
    else:
        there = nest.keep("i64", f"{shape[axis] - 1} - {index.text}" if backwards else index.text, index.level)
        indices = [there if d == axis else i for d, i in enumerate(nest.indices)]
        place = linear(shape, indices)
        step = strides(shape)[axis] * (-1 if backwards else 1)
        news = [nest.at(value, indices) for value in op.operands]
        for into, new in zip(sums, news, strict=True):
            nest.put(nest.inmost, f"if ({index.text} == 0) {into.name}[{place.text}] = {new.text};")
        nest.put(nest.inmost, f"if ({index.text} == 0) continue;")
        before = Index(f"({place.text} - ({step}))", place.level)
        so_far = [_reads(nest, into, before) for into in sums]
        late = [nest.keep(into.element, new.text, nest.inmost) for into, new in zip(sums, news, strict=True)]
        for into, combined in zip(sums, nest.region(block, [*so_far, *late]), strict=True):
            nest.put(nest.inmost, f"{into.name}[{place.text}] = {combined.text};")
        nest.emit(simd=False)
    for result, into in zip(op.results, sums, strict=True):
        writer.buffers[result] = into


def histogram(writer: Writer, op: Op) -> None:
    into = writer.allocate(op.result.type.element, op.result.type.shape)
    bins = op.result.type.count
    writer.write(f"for (int64_t n = 0; n < {bins}; n++) {into.name}[n] = 0;")
    nest = Nest(writer, op.operands[0].type.shape)
    bin = nest.at(op.operands[0]).text
    also = f" && {nest.at(op.operands[1]).text}" if len(op.operands) > 1 else ""
    nest.put(nest.inmost, f"if ({bin} >= 0 && {bin} < {bins}{also}) {into.name}[{bin}]++;")
    nest.emit(simd=False)
    writer.buffers[op.result] = into


def gather(writer: Writer, op: Op) -> None:
    source, indices = op.operands
    axis = op.integer("axis")
    held = writer.ensure(source)
    into = writer.allocate(op.result.type.element, op.result.type.shape)
    nest = Nest(writer, indices.type.shape)
    index = nest.at(indices)
    place = linear(source.type.shape, [index if d == axis else i for d, i in enumerate(nest.indices)])
    nest.put(nest.inmost, f"{into.name}[{linear(into.shape, nest.indices).text}] = {held.name}[{place.text}];")
    nest.emit(simd=False)
    writer.buffers[op.result] = into


def concatenate(writer: Writer, op: Op) -> None:
    into = writer.allocate(op.result.type.element, op.result.type.shape)
    start = 0
    for value in op.operands:
        nest = Nest(writer, value.type.shape)
        element = narrowed(into.element, nest.at(value).text)
        place = linear(value.type.shape, nest.indices)
        nest.put(nest.inmost, f"{into.name}[{start} + {place.text}] = {element};")
        nest.emit()
        start += value.type.count
    writer.buffers[op.result] = into


def dot(writer: Writer, op: Op) -> None:
    a, b, c = op.operands
    element = a.type.element
    if element in NARROW and b.type.element in NARROW and b.type.element != element:
        element, left, right = "f32", _widened(writer, a), _widened(writer, b)
    else:
        left, right = writer.ensure(a), writer.ensure(b)
    if element not in _DOTS or right.element != element or _wide(c.type.element) != _DOTS[element]:
        what = f"tt.dot of {a.type.element} and {b.type.element} into {c.type.element}"
        raise BadInput(what, where=op.location, allowed="f16, bf16, f8 and f32 into f32, f64 into f64, i8 into i32")
    _multiply(writer, op, left, right)


def dot_scaled(writer: Writer, op: Op) -> None:
    """A product of numbers that have a scale for each group of them along what is summed over."""
    a, b, c, *scales = op.operands
    one, other = op.integers("operandSegmentSizes")[3:]
    types = [op.integer(f"{side}_elem_type") for side in "ab"]
    if _wide(c.type.element) != "f32" or not set(types) <= _SCALED:
        raise BadInput(
            "tt.dot_scaled of these types", where=op.location, allowed="e2m1, e4m3, e5m2, bf16, fp16 into f32"
        )
    rank = len(a.type.shape)
    packed = [-1 if of != _E2M1 else axis for of, axis in zip(
        types, (rank - (1 if op.flag("lhs_k_pack") else 2), rank - (2 if op.flag("rhs_k_pack") else 1)), strict=True
    )]  # fmt: skip
    left = _widened(writer, a, packed[0], scales[0] if one else None, rank - 1)
    right = _widened(writer, b, packed[1], scales[-1] if other else None, rank - 2)
    _multiply(writer, op, left, right)


def _widened(writer: Writer, value: Value, packed: int = -1, scale: Value | None = None, summed: int = 0) -> Buffer:
    """A tensor in f32. Along `packed` two numbers are in a byte; `summed`: the dimension along which scales are."""
    shape = [size * 2 if d == packed else size for d, size in enumerate(value.type.shape)]
    into = writer.allocate("f32", shape)
    nest = Nest(writer, shape)
    text = nest.at(
        value, [Index(f"({i.text} / 2)", i.level) if d == packed else i for d, i in enumerate(nest.indices)]
    ).text
    if packed >= 0:
        text = f"widen_e2m1({text} >> {nest.indices[packed].text} % 2 * 4)"
    if scale is not None:
        group = shape[summed] // scale.type.shape[-1]
        others = [index for d, index in enumerate(nest.indices) if d != summed]
        index = nest.indices[summed]
        factor = nest.at(scale, [*others, Index(f"({index.text} / {group})", index.level)]).text
        text += f" * {f'widen_e8m0({factor})' if scale.type.element == 'i8' else factor}"
    nest.put(nest.inmost, f"{into.name}[{linear(shape, nest.indices).text}] = {text};")
    nest.emit()
    return into


def _multiply(writer: Writer, op: Op, left: Buffer, right: Buffer) -> None:
    """a b + c, where c's own buffer holds the result if nothing reads it later."""
    c, element = op.operands[2], left.element
    wide = _wide(c.type.element)
    replaced = writer.replaceable(c, op.result, op) if op.result.type.element == wide else None
    if replaced and writer.buffers[replaced] in (left, right):  # it is read while the result is written
        replaced = None
    into = writer.buffers[replaced] if replaced else writer.allocate(wide, op.result.type.shape)
    if replaced is not c:
        writer.fill(into, c)
    if replaced:
        del writer.buffers[replaced]
    *batch, m, k = left.shape
    n = right.shape[-1]
    room = writer.scratch
    copies = writer.allocate(wide, (k * n if element == wide else m * k + 2 * k * n,))
    count = prod(batch)
    if count > 1:
        writer.write(f"for (int64_t n = 0; n < {count}; n++)")
    steps = [f" + n * {size}" if count > 1 else "" for size in (m * k, k * n, m * n)]
    passed = ", ".join(f"{one.name}{step}" for one, step in zip((left, right, into), steps, strict=True))
    writer.write(f"dot_{NARROW.get(element, element)}({passed}, {copies.name}, {m}, {n}, {k});")
    writer.scratch = room
    if op.result.type.element != wide:
        nest = Nest(writer, into.shape)
        place = linear(into.shape, nest.indices).text
        nest.put(nest.inmost, f"{into.name}[{place}] = {rounded(op.result.type.element, f'{into.name}[{place}]')};")
        nest.emit()
    writer.buffers[op.result] = into


def elements(writer: Writer, op: Op) -> None:
    """tt.map_elementwise: a block of operations on single elements."""
    pack = op.integer("pack", 1)
    if pack != 1:
        raise BadInput(f"tt.map_elementwise of {pack} elements at once", where=op.location, allowed="pack=1")
    nest = Nest(writer, op.operands[0].type.shape)
    results = nest.region(op.regions[0].block, [nest.at(value) for value in op.operands])
    for result, one in zip(op.results, results, strict=True):
        into = writer.allocate(result.type.element, result.type.shape)
        place = linear(into.shape, nest.indices)
        nest.put(nest.inmost, f"{into.name}[{place.text}] = {narrowed(into.element, one.text)};")
        writer.buffers[result] = into
    nest.emit()


def unsplat(writer: Writer, op: Op) -> None:
    value = op.operands[0]
    nest = Nest(writer, value.type.shape)
    element = nest.at(value)
    writer.write(*nest.outer[0])
    writer.define(op.result, element.text)


HANDLERS: dict[str, Callable[[Writer, Op], None]] = {
    "tt.reduce": reduce,
    "tt.scan": scan,
    "tt.histogram": histogram,
    "tt.gather": gather,
    "tt.cat": concatenate,
    "tt.dot": dot,
    "tt.dot_scaled": dot_scaled,
    "tt.map_elementwise": elements,
    "tt.unsplat": unsplat,
}
