"""The values of an expression as code for its reference kernels: C statements that use `reference.h`; and loops:
positions along axes, interleaved sums in C, threads that share an element on GPUs.

Sizes, coefficients and constants are arguments, so that one binary serves all shapes of an operator.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deepgen.operators.compare import largest
from deepgen.operators.expr.facts import Facts
from deepgen.operators.expr.index import Index, Iter, Quotient
from deepgen.operators.expr.nodes import (
    Binary,
    Cast,
    Compare,
    Const,
    Expression,
    Logic,
    Place,
    Read,
    Select,
    Unary,
    Value,
)
from deepgen.operators.products import tiny_step
from deepgen.vocabulary.dtypes import dtype
from deepgen.vocabulary.kernel import Arg, ScalarArg

_COMPARE = {"lt": "<", "le": "<=", "eq": "==", "ne": "!="}
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_ONE, _SOME = 1.0, 4.0  # steps, as in rounding.py
THREADS = 256  # per block, on GPUs
_LANES = 8  # interleaved sums, in C
_ENOUGH_THREADS, _LONG, _MANY, _WARP = 1 << 18, 1 << 10, 1 << 20, 32  # on GPUs


@dataclass(frozen=True)
class Term:
    """Variable names: a number and its error, or a condition and whether it is uncertain; None: it is exact."""

    value: str
    error: str | None = None


@dataclass
class StageFunction:
    """One stage as a function: its arguments so far, and the statements of the current block."""

    expression: Expression
    sources: Mapping[str, tuple[Arg, Arg | None]]  # the arrays with the numbers and errors of tensors and stages
    errors: bool  # whether errors are propagated
    args: list[Arg] = field(default_factory=list)
    declared: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)  # the variable of each axis
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    _pointers: dict[Arg, str] = field(default_factory=dict)
    _extents: dict[str, list[str]] = field(default_factory=dict)
    _terms: dict[Any, Term] = field(default_factory=dict)
    _reals: list[str] = field(default_factory=list)
    _count: int = 0

    def number(self, value: int) -> str:
        name = f"n{len(self.args)}"
        self.args.append(ScalarArg("i64", value))
        self.declared.append(f"i64 {name}")
        return name

    def real(self, value: float) -> str:
        """The number by its bits: JSON cannot represent infinity."""
        (bits,) = struct.unpack("<q", struct.pack("<d", value))
        name = f"c{len(self.args)}"
        self._reals.append(f"const f64 {name} = real({self.number(bits)});")
        return name

    @property
    def reals(self) -> list[str]:
        return self._reals

    def pointer(self, arg: Arg, kind: str = "void", *, written: bool = False) -> str:
        if arg not in self._pointers:
            name = self._pointers[arg] = f"p{len(self.args)}"
            self.args.append(arg)
            self.declared.append(f"{'' if written else 'const '}{kind}* RESTRICT {name}")
        return self._pointers[arg]

    def begin(self) -> None:
        """A new block of statements: values computed in other blocks are not visible in it."""
        self.lines = []
        self._terms.clear()

    def let(self, text: str, kind: str = "f64") -> str:
        name = f"x{self._count}"
        self._count += 1
        self.lines.append(f"const {kind} {name} = {text};")
        return name

    def term(self, value: Value) -> Term:
        """The term of a value; its code is added unless this block has it already."""
        key = (type(value), value)
        if key not in self._terms:
            self._terms[key] = self._term(value)
        return self._terms[key]

    def _term(self, value: Value) -> Term:
        if isinstance(value, Const):
            integer = dtype(value.dtype).integer
            return Term(self.number(int(value.value)) if integer else self.real(float(value.value)))
        if isinstance(value, Place):
            return Term(self.let(self.index(value.index), "i64"))
        if isinstance(value, Read):
            return self._read(value)
        if isinstance(value, Cast):
            return self._cast(value)
        if isinstance(value, Unary):
            return self._unary(value)
        if isinstance(value, Binary):
            return self._binary(value)
        if isinstance(value, Compare):
            return self._compare(value)
        if isinstance(value, Logic):
            x, y, sign = self.term(value.left), self.term(value.right), "&" if value.op == "and" else "|"
            unsure = [one.error for one in (x, y) if one.error]
            both = self.let(f"{x.value} {sign} {y.value}", "int")
            return Term(both, self.let(" | ".join(unsure), "int") if unsure else None)
        assert isinstance(value, Select)
        return self._select(value)

    def _read(self, read: Read) -> Term:
        values, errors = self.sources[read.tensor]
        of = dtype(self.expression.dtype_of(read.tensor))
        at = self.let(self._flat(read), "i64")
        is_input = any(t.name == read.tensor for t in self.expression.tensors)
        held = of.name.replace("tf32", "f32") if is_input else "i64" if of.integer else "f64"
        kind = "i64" if of.integer else "f64"
        value = self.let(f"read_{held}({self.pointer(values)}, {at})", kind)
        if errors is None or not self.errors:
            return Term(value)
        return Term(value, self.let(f"read_f64({self.pointer(errors)}, {at})"))

    def _flat(self, read: Read) -> str:
        """The offset of an element. Indices outside the tensor are clamped: a guard discards those elements."""
        shape = self.expression.shape_of(read.tensor)
        if read.tensor not in self._extents:
            self._extents[read.tensor] = [self.number(extent) for extent in shape]
        facts, text = Facts(self.ranges), ""
        for index, extent, name in zip(read.indices, shape, self._extents[read.tensor], strict=True):
            low, high = facts.bounds(index)
            place = self.index(index)
            place = place if low >= 0 and high < extent else f"inside({place}, {name})"
            text = f"({text}) * {name} + {place}" if text else place
        return text

    def index(self, index: Index) -> str:
        parts = [self.number(index.constant)] if index.constant else []
        for atom, times in index.terms:
            if isinstance(atom, Iter):
                part = self.places[atom.name]
            else:
                function = "whole_div" if isinstance(atom, Quotient) else "whole_mod"
                part = f"{function}({self.index(atom.of)}, {self.number(atom.by)})"
            parts.append(part if times == 1 else f"{self.number(times)} * {part}")
        return f"({' + '.join(parts) or '0'})"

    def rounded(self, value: str, error: str | None, name: str, steps: float = _ONE) -> Term:
        """The term after one rounded operation in a format."""
        of = dtype(name)
        if of.integer or not self.errors:
            return Term(value)
        added = f"rounded({value}, {steps * of.epsilon!r}, {largest(of)!r}) + {tiny_step(of, kept=False)!r}"
        return Term(value, self.let(f"{error} + {added}" if error else added))

    def _cast(self, cast: Cast) -> Term:
        x, before, to = self.term(cast.value), dtype(cast.value.dtype), dtype(cast.dtype)
        if to.integer:
            return Term(self.let(f"(i64)({to.name}){x.value}", "i64"))
        value = self.let(f"(f64){x.value}")
        exact = before.bits <= 16 and to.bits >= 32 if before.integer else to.epsilon <= before.epsilon
        return Term(value, x.error) if exact else self.rounded(value, x.error, cast.dtype, 0.5)

    def _unary(self, unary: Unary) -> Term:
        x, op = self.term(unary.value), unary.op
        if dtype(unary.dtype).integer:
            return Term(self.let(f"whole_{op}({x.value})", "i64"), x.error)
        if op in ("neg", "abs"):
            return Term(self.let(f"-{x.value}" if op == "neg" else f"size({x.value})"), x.error)
        if op == "floor":
            value = self.let(f"floor({x.value})")
            if not x.error:
                return Term(value)
            return Term(value, self.let(f"floor({x.value} + {x.error}) - floor({x.value} - {x.error})"))
        value = self.let(f"fn_{op}({x.value})")
        error = self.let(f"slope_{op}({x.value}, {value}, {x.error})") if x.error else None
        return self.rounded(value, error, unary.dtype, _SOME)

    def _binary(self, binary: Binary) -> Term:
        x, y, op = self.term(binary.left), self.term(binary.right), binary.op
        a, b = x.value, y.value
        if dtype(binary.dtype).integer:
            return Term(self.let(f"whole_{op}({a}, {b})", "i64"))
        exact = x.error is None and y.error is None
        ea, eb = x.error or "0", y.error or "0"
        if op in ("max", "min"):
            value = self.let(f"{op}imum({a}, {b})")
            return Term(value, None if exact else self.let(f"chosen({value}, {a}, {ea}, {b}, {eb})"))
        if op == "pow":
            value = self.let(f"fn_pow({a}, {b})")
            error = self.let(f"of_power({a}, {ea}, {b}, {eb}, {value})") if self.errors else None
            return self.rounded(value, error, binary.dtype, _SOME * 4)
        value = self.let(f"{a} {_SIGNS[op]} {b}")
        if exact:
            return self.rounded(value, None, binary.dtype, _SOME if op == "div" else _ONE)
        if op in ("add", "sub"):
            return self.rounded(value, self.let(f"{ea} + {eb}"), binary.dtype)
        if op == "mul":
            error = self.let(f"size({a}) * {eb} + size({b}) * {ea} + {ea} * {eb}")
            return self.rounded(value, error, binary.dtype)
        return self.rounded(value, self.let(f"of_quotient({value}, {ea}, {b}, {eb})"), binary.dtype, _SOME)

    def _compare(self, compare: Compare) -> Term:
        x, y = self.term(compare.left), self.term(compare.right)
        value = self.let(f"{x.value} {_COMPARE[compare.op]} {y.value}", "int")
        if x.error is None and y.error is None:
            return Term(value)
        within = f"{x.error or '0'} + {y.error or '0'}"
        return Term(value, self.let(f"size({x.value} - {y.value}) <= {within}", "int"))

    def _select(self, select: Select) -> Term:
        condition, x, y = (self.term(one) for one in (select.condition, select.then, select.otherwise))
        kind = "i64" if dtype(select.dtype).integer else "f64"
        value = self.let(f"{condition.value} ? {x.value} : {y.value}", kind)
        if x.error is None and y.error is None and condition.error is None:
            return Term(value)
        ex, ey = x.error or "0", y.error or "0"
        error = self.let(f"{condition.value} ? {ex} : {ey}")
        if condition.error is None:
            return Term(value, error)
        either = f"size((f64)({x.value} - {y.value})) + {ex} + {ey}"
        return Term(value, self.let(f"{condition.error} ? {either} : {error}"))


@dataclass(frozen=True)
class Reduced:
    """A value that is added up, or otherwise combined, over the points of a reduction."""

    kind: str  # f64 or i64
    start: str
    term: str  # the value of each point
    join: Callable[[str, str], str]


def added(term: str) -> Reduced:
    return Reduced("f64", "0", term, lambda a, b: f"{a} + {b}")


def decomposed(of: str, extents: Sequence[str], start: int, names: Sequence[str] = ()) -> list[str]:
    """A flat index as indices along axes, all but the first of which are remainders."""
    names = names or [f"i{start + n}" for n in range(len(extents))]
    lines = [f"i64 rest_{of} = {of};"] if extents else []
    for name, extent in reversed([*zip(names[1:], extents[1:], strict=True)]):
        lines += [f"const i64 {name} = rest_{of} % {extent};", f"rest_{of} /= {extent};"]
    return [*lines, *(f"const i64 {name} = rest_{of};" for name in names[:1] if extents)]


def lanes(sums: Sequence[Reduced], point: Sequence[str], reduced: Sequence[str], start: int) -> list[str]:
    """A reduction in C: along its last axis several interleaved sums, which a compiler vectorizes."""
    last = f"i{start + len(reduced) - 1}"
    joined = [f"lane{n}[l] = {one.join(f'lane{n}[l]', one.term)};" for n, one in enumerate(sums)]
    inner = [f"const i64 {last} = base + l;", *point, *joined, "}"]
    lines = [f"{one.kind} lane{n}[{_LANES}];" for n, one in enumerate(sums)]
    lines += [f"for (int l = 0; l < {_LANES}; ++l) lane{n}[l] = {one.start};" for n, one in enumerate(sums)]
    outer = [f"i{start + n}" for n in range(len(reduced) - 1)]
    lines += [f"for (i64 {i} = 0; {i} < {n}; ++{i}) {{" for i, n in zip(outer, reduced, strict=False)]
    lines += [
        f"for (i64 base = 0; base < {reduced[-1]}; base += {_LANES}) {{",
        f"if ({reduced[-1]} - base >= {_LANES}) for (int l = 0; l < {_LANES}; ++l) {{",
        *inner,
        f"else for (int l = 0; l < (int)({reduced[-1]} - base); ++l) {{",
        *inner,
        "}",
        *("}" for _ in outer),
    ]
    for n, one in enumerate(sums):
        lines += [
            f"{one.kind} s{n} = lane{n}[0];",
            f"for (int l = 1; l < {_LANES}; ++l) s{n} = {one.join(f's{n}', f'lane{n}[l]')};",
        ]
    return lines


def group_size(elements: int, points: int, last: int) -> int:
    """How many threads of a GPU share an element: as many as fill the GPU, and whole warps for long rows.

    `points` are reduced, `last` of them along the axis that is shared.
    """
    group = 1
    rows = points >= _LONG and elements < _MANY
    while group < THREADS and (elements * group < _ENOUGH_THREADS or (rows and group < _WARP)):
        group *= 2
    while group > last:
        group //= 2
    return group if points >= _WARP or elements * points < _ENOUGH_THREADS else 1
