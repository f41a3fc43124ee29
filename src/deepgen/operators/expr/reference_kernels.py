"""The reference of an expression as a kernel: plain loops in f64 and i64, a function for each stage.

It shares no code with the compiler for expressions. Results match `interpret.py`: numbers and their allowed errors. On
GPUs one or a few threads compute an element; in C a function computes a range of its units, so that threads can share
them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from math import prod, sqrt

from deepgen.operators.compare import scale_format
from deepgen.operators.expr.contraction import Contraction, contraction, plain_contraction
from deepgen.operators.expr.interpret import ancestors
from deepgen.operators.expr.nodes import Expression, Stage, reads
from deepgen.operators.expr.reference_terms import (
    THREADS,
    Reduced,
    StageFunction,
    Term,
    added,
    decomposed,
    group_size,
    lanes,
)
from deepgen.operators.expr.rounding import sum_share
from deepgen.operators.products import tiny_step
from deepgen.vocabulary.dtypes import DType, dtype
from deepgen.vocabulary.json import digest
from deepgen.vocabulary.kernel import Arg, Kernel, LaunchPlan, Source, Step, TensorArg, WorkspaceArg

_HEADER = "reference.h"
_DEVICE_HEADER = "reference_device.h"  # included by it on devices, and by GEMM's own reference
_PRODUCTS = 4  # in C, per number that is read or written
_GRID = 2**31 - 1
_MOST_ARGUMENTS = 400  # of eight bytes: CUDA passes at most 4096 bytes
_WIDTH = 1 << 14  # in C: elements of a line per unit
_SCALE_LIMITS = {"f32": float.fromhex("0x1.fffffep127"), "f64": float.fromhex("0x1.fffffffffffffp1023")}
_WHOLE = {"sum": ("add", "0"), "prod": ("mul", "1"), "max": ("max", "LEAST"), "min": ("min", "MOST")}
_C_FLAGS = ("-O2", "-ftree-vectorize", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")


@dataclass(frozen=True)
class OwnScale:
    """An output's own scale: the stage that computes it, and the format in which kernels provide it."""

    stage: str
    format: str


def reference_kernel(
    expression: Expression, language: str, scales: Mapping[str, OwnScale] | None = None
) -> Kernel | None:
    """For each output NAME it writes `want_NAME`, and `scale_NAME` for floats: f32, but f64 for f64.

    In C, results of narrow formats are written in f32, and large sums of products are not included: a step reads
    `stage_NAME` and `off_NAME`, which numpy computes. `scales`: for outputs whose scale is not the propagated error; no
    errors are propagated then. None if it cannot be written in that language.
    """
    if language not in ("c", "cuda", "hip"):
        return None
    # numpy multiplies matrices faster than plain loops in C.
    products = [s.name for s in expression.stages if language == "c" and _is_large(contraction(expression, s))]
    if any(name in products or _is_product(expression, name, products) for name in expression.outputs):
        return None
    writer = _ReferenceWriter(expression, language, scales, products)
    wanted = ancestors(expression, expression.outputs, products) - {*products}
    stages = [stage for stage in expression.stages if stage.name in wanted]
    functions = [writer.stage(place, stage) for place, stage in enumerate(stages)]
    steps = tuple(step for _, step in functions)
    if any(len(step.args) > _MOST_ARGUMENTS or int(step.grid[0]) > _GRID for step in steps):
        return None
    headers = [Source(_HEADER, (resources.files("deepgen.operators.expr") / _HEADER).read_text())]
    if language != "c":
        headers.append(Source(_DEVICE_HEADER, (resources.files("deepgen.operators") / _DEVICE_HEADER).read_text()))
    host = "#define DG_HOST 1\n" if language == "c" else ""
    text = f'{host}#include "{_HEADER}"\n\n' + "\n".join(body for body, _ in functions)
    flags = _C_FLAGS if language == "c" else ()
    sources = (Source("reference.c" if language == "c" else "reference.cu", text), *headers)
    name = f"reference_{digest([*(source.text for source in sources), *flags], 12)}"
    return Kernel(name, language, sources, flags, LaunchPlan(steps))


def _is_product(expression: Expression, output: str, products: Collection[str]) -> bool:
    product = plain_contraction(expression, output)
    return product is not None and product.stage.name in products


def is_narrow(of: DType) -> bool:
    """Whether numbers of a format are compared in f32 in C: f32 rounding errors are far below those of such a
    format."""
    return not of.integer and of.bits <= 16


def _is_large(product: Contraction | None) -> bool:
    """Whether a sum of products should be left to a library: it has far more products than numbers."""
    if product is None:
        return False
    stage = product.stage
    extents = {axis.name: axis.extent for axis in (*stage.axes, *stage.reduced)}
    read = [
        prod(extents[name] for name in frozenset().union(*(i.iterators for i in one.read.indices)))
        for one in (product.left, product.right)
    ]
    return prod(extents.values()) > _PRODUCTS * (sum(read) + prod(stage.shape))


class _ReferenceWriter:
    def __init__(
        self, expression: Expression, language: str, scales: Mapping[str, OwnScale] | None, products: Collection[str]
    ) -> None:
        self.expression, self.language, self.scales = expression, language, scales
        self.sources: dict[str, tuple[Arg, Arg | None]] = {}
        self.sources.update({t.name: (TensorArg(t.name), None) for t in expression.tensors})
        # Outputs whose scale is the magnitude of their products, by the stage that sums these.
        self.sizes: dict[str, list[str]] = {}
        self.carried: set[str] = set()  # stages whose errors are computed
        if scales is None:
            self._look_for_errors()
        for name in products:
            off = TensorArg(f"off_{name}") if name in self.carried else None
            self.sources[name] = TensorArg(f"stage_{name}"), off

    def _look_for_errors(self) -> None:
        for name in self.expression.outputs:
            if dtype(self.expression.dtype_of(name)).integer:
                continue
            product = plain_contraction(self.expression, name)
            if product is None:
                self.carried.add(name)
            else:
                self.sizes.setdefault(product.stage.name, []).append(name)
        for stage in reversed(self.expression.stages):
            if stage.name in self.carried:
                read = {one.tensor for one in reads(stage.value)}
                floats = (s for s in self.expression.stages if s.name in read and not dtype(s.dtype).integer)
                self.carried.update(s.name for s in floats)

    def stage(self, place: int, stage: Stage) -> tuple[str, Step]:
        function = StageFunction(self.expression, self.sources, stage.name in self.carried)
        every = (*stage.axes, *stage.reduced)
        function.ranges = {axis.name: (0, axis.extent - 1) for axis in every}
        function.places = {axis.name: f"i{n}" for n, axis in enumerate(every)}
        if stage.scan is not None:
            body, grid, shared = self._scan(function, stage)
        elif stage.reduced:
            body, grid, shared = self._reduction(function, stage)
        else:
            body, grid, shared = self._elements(function, stage)
        name = f"reference_stage{place}"
        host = self.language == "c"
        head = f"void {name}(i64 first, i64 last, " if host else f"DG_KERNEL {name}("
        lines = [f"{head}{', '.join(function.declared)}) {{", *function.reals, *body, "}", ""]
        block = (1, 1, 1) if host else (THREADS, 1, 1)
        return "\n".join(lines), Step(name, tuple(function.args), (grid, 1, 1), block, shared_bytes=shared)

    def _elements(self, function: StageFunction, stage: Stage) -> tuple[list[str], int, int]:
        axes = stage.axes
        extents = [function.number(axis.extent) for axis in axes]
        count = prod(stage.shape)
        function.begin()
        stored = self._stored(function, stage, function.term(stage.value))
        body = [*function.lines, *stored]
        if self.language != "c":
            at = f"const i64 at = (i64)block_id() * {THREADS} + thread_id();"
            guard = f"if (at >= {function.number(count)}) return;"
            return [at, guard, *decomposed("at", extents, 0), *body], -(-count // THREADS), 0
        last, line = extents[-1], axes[-1].extent
        pieces = -(-line // _WIDTH)
        of = function.number(pieces)
        loops = [
            "for (i64 unit = first; unit < last; ++unit) {",
            f"const i64 line = unit / {of}, low = unit % {of} * {_WIDTH};",
            f"const i64 high = low + {_WIDTH} < {last} ? low + {_WIDTH} : {last};",
            *decomposed("line", extents[:-1], 0),
            f"for (i64 i{len(axes) - 1} = low; i{len(axes) - 1} < high; ++i{len(axes) - 1}) {{",
            f"const i64 at = line * {last} + i{len(axes) - 1};",
            *body,
            "}",
            "}",
        ]
        return loops, count // line * pieces, 0

    def _reduction(self, function: StageFunction, stage: Stage) -> tuple[list[str], int, int]:
        extents = [function.number(axis.extent) for axis in stage.axes]
        reduced = [function.number(axis.extent) for axis in stage.reduced]
        product = contraction(self.expression, stage)
        function.begin()
        every = self._terms(function, stage, product)
        sums = list({one.term: one for one in every}.values())  # squares are added up once
        point, terms = function.lines, [one.term for one in sums]
        names = [f"s{n}" for n in range(len(sums))]
        function.begin()
        result, size = self._finished(function, stage, product, [f"s{terms.index(one.term)}" for one in every])
        finish = [*function.lines, *self._stored(function, stage, result, size)]
        if self.language == "c":
            around = decomposed("at", extents, 0)
            loops = ["for (i64 at = first; at < last; ++at) {", *around, *lanes(sums, point, reduced, len(extents))]
            return [*loops, *finish, "}"], prod(stage.shape), 0
        count, points = prod(stage.shape), prod(axis.extent for axis in stage.reduced)
        group = group_size(count, points, stage.reduced[-1].extent)
        *inner, last = (f"i{len(extents) + n}" for n in range(len(reduced)))
        threads, elements = function.number(group), function.number(count)
        loops = [
            f"const int group = (int){threads}, lane = thread_id() & (group - 1);",
            f"const i64 at = ((i64)block_id() * {THREADS} + thread_id()) / group;",
            f"const int live = at < {elements};",
            "const i64 element = live ? at : 0;",
            *decomposed("element", extents, 0),
            *(f"{one.kind} {name} = {one.start};" for one, name in zip(sums, names, strict=True)),
            *(
                f"for (i64 {i} = 0; live && {i} < {extent}; ++{i}) {{"
                for i, extent in zip(inner, reduced, strict=False)
            ),
            f"for (i64 {last} = lane; live && {last} < {reduced[-1]}; {last} += group) {{",
            *point,
            *(f"{name} = {one.join(name, one.term)};" for one, name in zip(sums, names, strict=True)),
            *("}" for _ in reduced),
            "if (group > 1) {",
            *(f"KEEP({one.kind}, {n}, s{n});" for n, one in enumerate(sums)),
            "barrier();",
            "for (int half = group / 2; half; half /= 2) {",
            "if (lane < half) {",
            *(
                f"s{n} = {one.join(f's{n}', f'OTHER({one.kind}, {n})')}; KEEP({one.kind}, {n}, s{n});"
                for n, one in enumerate(sums)
            ),
            "}",
            "barrier();",
            "}",
            "}",
            "if (live && lane == 0) {",
            *finish,
            "}",
        ]
        return loops, -(-count * group // THREADS), 8 * THREADS * len(sums)

    def _terms(self, function: StageFunction, stage: Stage, product: Contraction | None) -> list[Reduced]:
        """The values that are combined over the points: first the numbers, then the parts of errors."""
        if product is not None:
            left, right = function.term(product.left.value), function.term(product.right.value)
            if dtype(stage.dtype).integer:
                term = function.let(f"whole_mul({left.value}, {right.value})", "i64")
                return [Reduced("i64", "0", term, lambda a, b: f"whole_add({a}, {b})")]
            sums = [added(f"{left.value} * {right.value}")]
            if function.errors or stage.name in self.sizes:
                sums += [added(f"{one.value} * {one.value}") for one in (left, right)]
            off = [
                f"{one.error} * (size({other.value}) + {other.error or '0'})"
                for one, other in ((left, right), (right, left))
                if one.error
            ]
            return [*sums, added(" + ".join(off))] if off else sums
        return self._joined(function, stage, function.term(stage.value))

    def _joined(self, function: StageFunction, stage: Stage, term: Term) -> list[Reduced]:
        op = str(stage.reduce)
        if dtype(stage.dtype).integer:
            name, start = _WHOLE[op]
            return [Reduced("i64", start, term.value, lambda a, b: f"whole_{name}({a}, {b})")]
        if op == "sum":
            sums = [added(term.value)]
            sums += [added(f"{term.value} * {term.value}")] if function.errors else []
            return [*sums, added(term.error)] if term.error else sums
        if op == "prod":
            factors = [term.value, *([f"(size({term.value}) + {term.error or '0'})"] if function.errors else [])]
            return [Reduced("f64", "1", factor, lambda a, b: f"{a} * {b}") for factor in factors]
        start = "-INFINITE" if op == "max" else "INFINITE"
        sums = [Reduced("f64", start, term.value, lambda a, b: f"{op}imum({a}, {b})")]
        worst = Reduced("f64", "0", term.error or "0", lambda a, b: f"maximum({a}, {b})")
        return [*sums, worst] if term.error else sums

    def _finished(
        self, function: StageFunction, stage: Stage, product: Contraction | None, sums: Sequence[str]
    ) -> tuple[Term, str | None]:
        """The result of a reduction and, for sums of products, the typical magnitude of a product."""
        points = prod(axis.extent for axis in stage.reduced)
        if product is None:
            return self._result(function, stage, sums, points, function.real(float(points))), None
        of = dtype(stage.dtype)
        if of.integer or len(sums) == 1:
            return Term(sums[0]), None
        absolute, relative = sum_share(points, of, tuple(map(dtype, product.formats)))
        sized = function.let(f"root({sums[1]}) * root({sums[2]})")
        size = function.let(f"{sized} / {function.real(float(points))}")
        if not function.errors:
            return Term(sums[0]), size
        share, of_itself = function.real(absolute / points), function.real(relative)
        others = f" + {sums[3]}" if len(sums) > 3 else ""
        return Term(sums[0], function.let(f"{sized} * {share} + size({sums[0]}) * {of_itself}{others}")), size

    def _result(
        self, function: StageFunction, stage: Stage, sums: Sequence[str], most: int, count: str, sequential: str = ""
    ) -> Term:
        """The same as in `rounding.py`. `most`: the largest number of terms; `count`: the actual number; `sequential`:
        the error of sums whose terms are added one by one, if it may be larger."""
        of, op, total = dtype(stage.dtype), str(stage.reduce), sums[0]
        if of.integer or not function.errors:
            return Term(total)
        if op in ("max", "min"):
            return Term(total, sums[1] if len(sums) > 1 else None)
        if op == "prod":
            added = f"{sums[1]} * {of.epsilon!r} * {count} + {tiny_step(of, kept=False)!r}"
            return Term(total, function.let(f"({sums[1]} - size({total})) + {added}"))
        absolute, relative = sum_share(most, of)
        share, of_itself = function.real(absolute / most), function.real(relative)
        tiny = function.real(sqrt(most) * tiny_step(of, kept=False))
        error = f"root({sums[1]} * {count}) * {share} + size({total}) * {of_itself} + {tiny}"
        error = f"maximum({sequential}, {error})" if sequential else error
        return Term(total, function.let(f"{sums[2]} + {error}" if len(sums) > 2 else error))

    def _scan(self, function: StageFunction, stage: Stage) -> tuple[list[str], int, int]:
        """Each line along the scanned axis is one unit."""
        along = next(n for n, axis in enumerate(stage.axes) if axis.name == stage.scan)
        extents = [function.number(axis.extent) for axis in stage.axes]
        others = [n for n in range(len(extents)) if n != along]
        lines = prod(stage.shape) // stage.axes[along].extent
        function.begin()
        sums = self._joined(function, stage, function.term(stage.value))
        names = [f"s{n}" for n in range(len(sums))]
        function.lines += [f"{name} = {one.join(name, one.term)};" for one, name in zip(sums, names, strict=True)]
        of, sequential = dtype(stage.dtype), ""
        if stage.reduce == "sum" and function.errors and not of.integer:
            term = sums[0].term
            function.lines += [f"if ({term} != before) ended += run * run, run = 0;", f"before = {term};",
                               f"run += size({names[0]});"]  # fmt: skip
            sequential = f"root(ended + run * run) * {function.real(0.5 * of.epsilon)}"
        # Running values change: reads of them below are repeated for each element.
        result = self._result(function, stage, names, stage.axes[along].extent, f"(f64)(i{along} + 1)", sequential)
        at = "0"
        for n, extent in enumerate(extents):
            at = f"({at}) * {extent} + i{n}" if n else "i0"
        body = [*function.lines, f"const i64 at = {at};", *self._stored(function, stage, result)]
        rest = decomposed("line", [extents[n] for n in others], 0, [f"i{n}" for n in others])
        loop = [
            *rest,
            *(f"{one.kind} {name} = {one.start};" for one, name in zip(sums, names, strict=True)),
            *(["f64 before = 0, ended = 0, run = 0;"] if sequential else []),
            f"for (i64 i{along} = 0; i{along} < {extents[along]}; ++i{along}) {{",
            *body,
            "}",
        ]
        if self.language == "c":
            return ["for (i64 line = first; line < last; ++line) {", *loop, "}"], lines, 0
        thread = f"const i64 line = (i64)block_id() * {THREADS} + thread_id();"
        return [thread, f"if (line >= {function.number(lines)}) return;", *loop], -(-lines // THREADS), 0

    def _stored(self, function: StageFunction, stage: Stage, term: Term, size: str | None = None) -> list[str]:
        """The code that writes an element's number, its error if a later stage needs it, and its scale."""
        name, count = stage.name, prod(stage.shape)
        kind = "i64" if dtype(stage.dtype).integer else "f64"
        as_scale = next((one for one, of in (self.scales or {}).items() if of.stage == name), None)
        if as_scale is not None:
            return [self._scale(function, as_scale, term.value)]
        output = name in self.expression.outputs
        want, value = TensorArg(f"want_{name}"), WorkspaceArg(f"value_{name}", 8 * count)
        narrow = output and self.language == "c" and is_narrow(dtype(self._format(name)))
        held: Arg = want if output and not narrow else value
        lines = []
        if narrow:
            lines.append(f"STORE(f32, {function.pointer(want, 'f32', written=True)}, at, {term.value});")
        if not narrow or self._is_read(name, [stage.name for stage in self.expression.stages]):
            lines.append(f"STORE({kind}, {function.pointer(held, kind, written=True)}, at, {term.value});")
        error = None
        if term.error is not None and kind == "f64" and self._is_read(name, self.carried):
            error = WorkspaceArg(f"error_{name}", 8 * count)
            lines.append(f"STORE(f64, {function.pointer(error, 'f64', written=True)}, at, {term.error});")
        self.sources[name] = held, error
        if output and name in self.carried:
            lines.append(self._scale(function, name, term.error or "0.0", term.value))
        return lines + [self._scale(function, one, str(size), term.value) for one in self.sizes.get(name, ()) if size]

    def _format(self, output: str) -> str:
        """The format of the operator's output."""
        return self.scales[output].format if self.scales else self.expression.dtype_of(output)

    def _is_read(self, name: str, by: Collection[str]) -> bool:
        later = (stage for stage in self.expression.stages if stage.name in by)
        return any(one.tensor == name for stage in later for one in reads(stage.value))

    def _scale(self, function: StageFunction, output: str, scale: str, value: str | None = None) -> str:
        kind = scale_format(dtype(self._format(output))).name
        pointer = function.pointer(TensorArg(f"scale_{output}"), kind, written=True)
        kept = scale if value is None else f"scale_of({scale}, {value}, {_SCALE_LIMITS[kind]!r})"
        return f"STORE({kind}, {pointer}, at, {kept});"
