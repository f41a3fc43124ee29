"""Expressions made ready for compiling: shared, folded, and total.

Equal sub-expressions become one node, knobs with a single value become constants, and absent or undefined operands
become explicit conditions, so that array code downstream never sees either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from deepgen.space.definition import Knob
from deepgen.space.evaluate import SUMS, UNDEFINED, evaluate
from deepgen.space.expr import Expr, Requirement, data_key, walk
from deepgen.space.rows import Array, Variable
from deepgen.vocabulary import BadInput

Bounds = tuple[Any, Any]
_LONG = 1 << 62  # larger numbers are kept as Python integers
_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


_DECIDED = ("and", "or", "implies", "where")


class Nodes:
    """Makes nodes that are equal exactly when they are the same object, and computes the kind and bounds of each.

    `fixed` has the values of knobs that are not variables; None means that the knob is always absent.
    """

    def __init__(self, variables: Mapping[str, Variable], fixed: Mapping[str, Any]) -> None:
        self.variables, self.fixed = variables, fixed
        self._shared: dict[Any, Expr] = {}
        self._totals: dict[int, tuple[Expr, Expr, Expr, Expr]] = {}
        self._facts: dict[int, tuple[str, Bounds | None]] = {}
        self._rows: list[tuple[frozenset[str], dict[str, Array]]] = []
        self._exact: dict[int, bool] = {}
        self._row_values: dict[tuple[int, int], Array] = {}
        self._flat: dict[int, Expr] = {}
        self._scopes: dict[int, frozenset[str]] = {}
        self._walked: dict[int, list[Expr]] = {}
        self._splits: list[tuple[frozenset[str], int]] = []

    # Making -----------------------------------------------------------------------------------------------------------

    def make(self, op: str, args: tuple[Expr, ...] = (), data: Any = None) -> Expr:
        if args and all(a.op == "const" for a in args):
            if op == "defined":
                op, args, data = "const", (), evaluate(data, {}) is not UNDEFINED
            else:
                folded = evaluate(Expr(op, args, data), {})
                # A value that cannot be computed is never used: an adjoining condition excludes it.
                op, args, data = "const", (), False if folded is UNDEFINED else folded
        identity = (op, id(data) if op == "points" else _data_key_of(op, data), *map(id, args))
        return self._shared.setdefault(identity, Expr(op, args, data))

    def true(self) -> Expr:
        return self.make("const", (), True)

    def false(self) -> Expr:
        return self.make("const", (), False)

    def all(self, *conditions: Expr) -> Expr:
        return self._join("and", conditions, deciding=False)

    def any(self, *conditions: Expr) -> Expr:
        return self._join("or", conditions, deciding=True)

    def _join(self, op: str, conditions: tuple[Expr, ...], deciding: bool) -> Expr:
        kept: dict[int, Expr] = {}
        for condition in conditions:
            for part in condition.args if condition.op == op else (condition,):
                if part.op != "const":
                    kept[id(part)] = part
                elif bool(part.data) is deciding:
                    return self.make("const", (), deciding)
        if not kept:
            return self.make("const", (), not deciding)
        return next(iter(kept.values())) if len(kept) == 1 else self.make(op, tuple(kept.values()))

    def negate(self, condition: Expr) -> Expr:
        if condition.op == "not":
            return condition.args[0]
        if condition.op in _OPPOSITE:
            return self.make(_OPPOSITE[condition.op], condition.args)
        return self.make("not", (condition,))

    def choose(self, condition: Expr, then: Expr, otherwise: Expr) -> Expr:
        if condition.op == "const":
            return then if condition.data else otherwise
        return then if then is otherwise else self.make("where", (condition, then, otherwise))

    # Explicit absence -------------------------------------------------------------------------------------------------

    def requirement(self, expr: Expr) -> Expr:
        """A condition that is true where the requirement is met: it is broken if undefined, met if absent."""
        value, absent, undefined = self.total(expr)
        return self.all(self.negate(undefined), self.any(absent, self.truth(value)))

    def condition(self, expr: Expr) -> Expr:
        """A condition that is true where this one is true, and neither absent nor undefined."""
        value, absent, undefined = self.total(expr)
        return self.all(self.negate(undefined), self.negate(absent), self.truth(value))

    def truth(self, value: Expr) -> Expr:
        if value.op == "const":
            return self.make("const", (), bool(value.data))
        return value if self.kind(value) == "bool" else self.make("!=", (value, self.make("const", (), 0)))

    def total(self, expr: Expr) -> tuple[Expr, Expr, Expr]:
        """The value, and the conditions under which it is absent and undefined."""
        cached = self._totals.get(id(expr))
        if cached is None:
            # The key is an address, so the entry keeps the expression alive.
            cached = self._totals[id(expr)] = (*self._total(expr), expr)
        return cached[:3]

    def _total(self, expr: Expr) -> tuple[Expr, Expr, Expr]:
        op, no = expr.op, self.false()
        if op == "const":
            return self.make("const", (), expr.data), no, no
        if op == "knob":
            if expr.data in self.fixed:
                value = self.fixed[expr.data]
                return (no, self.true(), no) if value is None else (self.make("const", (), value), no, no)
            present = self._present(expr.data)
            return self.make("knob", (), expr.data), self.negate(present), no
        if op == "present":
            return self._present(expr.data), no, no
        if op == "points":
            return self.make("points", (), expr.data), no, no
        if op in _DECIDED and (decided := self._decided(expr)) is not None:
            return decided
        parts = [self.total(a) for a in expr.args]
        if op == "named":
            return parts[0]
        if op in ("and", "or", "implies"):
            return self._logic(op, parts)
        if op == "where":
            (c, c_absent, c_undefined), (a, a_absent, a_undefined), (b, b_absent, b_undefined) = parts
            c = self.truth(c)
            return (
                self.choose(c, a, b),
                self.any(c_absent, self.choose(c, a_absent, b_absent)),
                self.any(c_undefined, self.choose(c, a_undefined, b_undefined)),
            )
        values = tuple(p[0] for p in parts)
        absent = self.any(*(p[1] for p in parts))
        if op in SUMS:
            values, absent = self._terms(expr, parts)
        own = self.all(self.negate(absent), self._own_undefined(op, values, expr.data))
        undefined = self.any(*(p[2] for p in parts), own)
        if op == "not":
            return self.negate(self.truth(values[0])), absent, undefined
        return self.make(op, values, expr.data), absent, undefined

    def _decided(self, expr: Expr) -> tuple[Expr, Expr, Expr] | None:
        """The result if the first operand alone decides it, so that the others need not be visited: in an alternative
        of a union they are the requirements of all other alternatives."""
        value, absent, undefined = self.total(expr.args[0])
        if value.op != "const" or any(part.op != "const" or part.data for part in (absent, undefined)):
            return None
        if expr.op == "where":
            return self.total(expr.args[1 if value.data else 2])
        decides = bool(value.data) is (expr.op == "or")
        return (self.make("const", (), expr.op != "and"), self.false(), self.false()) if decides else None

    def _terms(self, expr: Expr, parts: list[tuple[Expr, Expr, Expr]]) -> tuple[tuple[Expr, ...], Expr]:
        """The operands of a sum, with zeros for absent ones, and the condition under which all are absent."""
        zero = self.make("const", (), 0)
        terms = tuple(
            # A sum of only absent terms is already zero.
            value if _unnamed(arg).op in SUMS else self.choose(absent, zero, value)
            for arg, (value, absent, _) in zip(expr.args, parts, strict=True)
        )
        return terms, self.all(*(absent for _, absent, _ in parts))

    def _present(self, name: str) -> Expr:
        if name in self.fixed:
            return self.false() if self.fixed[name] is None else self.true()
        if bool(self.variables[name].present.all()):
            return self.true()
        return self.make("present", (), name)

    def _logic(self, op: str, parts: list[tuple[Expr, Expr, Expr]]) -> tuple[Expr, Expr, Expr]:
        """A deciding operand takes precedence, then undefined, then absent."""
        truths = [self.truth(p[0]) for p in parts]
        if op == "implies":
            truths[0] = self.negate(truths[0])
        deciding = op != "and"
        sure = [  # the conditions under which each operand alone decides the result
            self.all(self.negate(absent), self.negate(undefined), truth if deciding else self.negate(truth))
            for truth, (_, absent, undefined) in zip(truths, parts, strict=True)
        ]
        undecided = self.all(*(self.negate(s) for s in sure))
        absent, undefined = self.any(*(p[1] for p in parts)), self.any(*(p[2] for p in parts))
        value = self.any(*sure) if deciding else undecided
        return value, self.all(undecided, absent), self.all(undecided, undefined)

    def _own_undefined(self, op: str, values: tuple[Expr, ...], data: Any) -> Expr:
        zero = self.make("const", (), 0)
        if op in ("/", "//", "%", "ceil_div", "divides"):
            divisor = values[0 if op == "divides" else 1]
            return self.make("==", (divisor, zero)) if self._may_be_zero(divisor) else self.false()
        if op == "**":
            exponent = self.bounds(values[1])
            if exponent is not None and exponent[0] < 0 and self._may_be_zero(values[0]):
                return self.all(self.make("==", (values[0], zero)), self.make("<", (values[1], zero)))
        if op in ("item", "position") or (op == "table" and data[1] is None):
            return self.negate(self.make("defined", values, Expr(op, values, data)))
        return self.false()

    def _may_be_zero(self, expr: Expr) -> bool:
        bounds = self.bounds(expr)
        return bounds is None or bounds[0] <= 0 <= bounds[1]

    def flattened(self, expr: Expr) -> Expr:
        """Merge chains of integer sums, products, minima and maxima into one node each."""
        if id(expr) not in self._flat:
            done: dict[int, Expr] = {}
            for node in walk(expr):
                op, args, whole = node.op, tuple(done[id(a)] for a in node.args), self.kind(node) == "int"
                if op == "-" and whole:
                    op, args = "+", (args[0], self.make("neg", (args[1],)))
                if op in ("+", "*", "min", "max") and whole:
                    args = tuple(p for a in args for p in (a.args if a.op == op and self.kind(a) == "int" else (a,)))
                done[id(node)] = self.make(op, args, node.data) if args else node
            self._flat[id(expr)] = done[id(expr)]
        return self._flat[id(expr)]

    # Facts of nodes ---------------------------------------------------------------------------------------------------

    def scope(self, expr: Expr) -> frozenset[str]:
        """The knobs that it depends on."""
        cached = self._scopes.get(id(expr))
        if cached is None:
            if expr.op in ("knob", "present"):
                cached = frozenset((expr.data,))
            elif expr.op == "points":
                cached = frozenset(n for n in expr.data[0] if n not in self.fixed)
            else:
                cached = frozenset().union(*(self.scope(a) for a in expr.args))
            self._scopes[id(expr)] = cached
        return cached

    def kind(self, expr: Expr) -> str:
        return self.facts(expr)[0]

    def bounds(self, expr: Expr) -> Bounds | None:
        """The smallest and largest number that it can be, not necessarily attained; None if not a number."""
        return self.facts(expr)[1]

    def facts(self, expr: Expr) -> tuple[str, Bounds | None]:
        cached = self._facts.get(id(expr))
        if cached is None:
            from deepgen.space.bounds import facts_of

            cached = self._facts[id(expr)] = facts_of(self, expr)
            cached = self._facts[id(expr)] = self._sharper(expr, *cached)
        return cached

    def sharpen(
        self, rows: list[tuple[frozenset[str], dict[str, Array]]], tables: Sequence[Expr], conditions: Sequence[Expr]
    ) -> None:
        """From now on, tighten bounds with the combinations that the conditions `tables` allow: (knobs, their places).

        Also use `conditions` that make some factors multiply to a number, or to a divisor of it: no product of these
        factors is larger. Where one of these conditions fails, numbers may overflow unnoticed, so the conditions
        themselves must be computed exactly.
        """
        splits = [(expr, split) for expr in conditions if (split := self._split(expr)) is not None]
        self._exact = {id(expr): self.needs_objects(expr) for expr in (*tables, *(expr for expr, _ in splits))}
        self._splits = [split for _, split in splits]
        self._rows = rows
        self._row_values.clear()
        self._facts.clear()

    def _split(self, expr: Expr) -> tuple[frozenset[str], int] | None:
        """The factors and the number in `a * b * c == number` and in `number % (a * b * c) == 0`."""
        if expr.op != "==" or expr.args[1].op != "const":
            return None
        factors, number = expr.args[0], expr.args[1].data
        if factors.op == "%" and number == 0 and factors.args[0].op == "const":
            number, factors = factors.args[0].data, factors.args[1]
        names = self._factors(factors)
        return (frozenset(names), number) if names and type(number) is int and number > 0 else None

    def _factors(self, expr: Expr) -> list[str]:
        """The knobs of a product of distinct knobs, all of them positive integers; else none."""
        if expr.op == "knob":
            own = self.variables[expr.data]
            return [expr.data] if own.kind == "int" and own.values.min() >= 1 else []
        parts = [self._factors(a) for a in expr.args] if expr.op == "*" else [[]]
        names = [name for part in parts for name in part]
        return names if all(parts) and len(set(names)) == len(names) else []

    def _largest_product(self, names: list[str]) -> int:
        largest = {name: int(self.variables[name].values.max()) for name in names}
        result = 1
        for split, number in self._splits:
            own = [largest.pop(name) for name in split if name in largest]
            result *= min(number, prod(own))
        return result * prod(largest.values())

    def _sharper(self, expr: Expr, kind: str, bounds: Bounds | None) -> tuple[str, Bounds | None]:
        if self._splits and expr.op == "*" and bounds is not None and (factors := self._factors(expr)):
            bounds = bounds[0], max(bounds[0], min(bounds[1], self._largest_product(factors)))
        if not self._rows or kind != "int" or bounds is None or max(abs(bounds[0]), abs(bounds[1])) >= _LONG:
            return kind, bounds
        low, high = bounds
        for part, (names, _) in enumerate(self._rows):
            if self.scope(expr) and self.scope(expr) <= names:
                values = self._on_rows(expr, part)
                sharper = max(low, int(values.min())), min(high, int(values.max()))
                # Contradictory requirements leave no combinations; then any bounds are correct.
                low, high = sharper if sharper[0] <= sharper[1] else (low, high)
        return kind, (low, high)

    def _on_rows(self, expr: Expr, part: int) -> Array:
        from deepgen.space.arrays import apply, constant

        cached = self._row_values.get((id(expr), part))
        if cached is None:
            if expr.op == "const":
                cached = constant(expr.data)
            elif expr.op in ("knob", "present"):
                own = self.variables[expr.data]
                cached = (own.values if expr.op == "knob" else own.present)[self._rows[part][1][expr.data]]
            else:
                cached = apply(self, expr, [self._on_rows(a, part) for a in expr.args])
            self._row_values[id(expr), part] = cached
        return cached

    def needs_objects(self, expr: Expr) -> bool:
        """Whether 64-bit integers could overflow in it, so that Python integers are needed."""
        cached = self._exact.get(id(expr))
        if cached is None:
            sizes: dict[int, int] = {}
            for node in self.walked(expr):
                sizes[id(node)] = self._size(node, [sizes[id(a)] for a in node.args])
            cached = self._exact[id(expr)] = max(sizes.values()) >= _LONG
        return cached

    def walked(self, expr: Expr) -> list[Expr]:
        """Its nodes, operands before operations."""
        cached = self._walked.get(id(expr))
        if cached is None:
            cached = self._walked[id(expr)] = list(walk(expr))
        return cached

    def _size(self, node: Expr, parts: list[int]) -> int:
        """An upper bound on all numbers in the computation of an integer node, in any order of a sum or product."""
        kind, bounds = self.facts(node)
        if node.op == "**" and kind == "float" and self.kind(node.args[0]) in ("int", "bool"):
            return _LONG  # integers if the exponent is positive
        if kind not in ("int", "bool"):
            return 1
        if bounds is None:
            return _LONG
        own = int(max(abs(bounds[0]), abs(bounds[1]), 1))
        lowest = [self.facts(a)[1] for a in node.args]
        if node.op == "*" and not all(b is not None and b[0] >= 1 for b in lowest):
            return max(own, prod(parts))
        if node.op in ("+", "-") and not all(b is not None and b[0] >= 0 for b in lowest):
            return max(own, sum(parts))
        return own


def condition_parts(nodes: Nodes, knobs: Sequence[Knob], requirements: Sequence[Requirement]) -> list[Expr]:
    """The conditions of every valid config, as total conditions that are as small as possible."""
    wanted = []
    for knob in knobs:
        if knob.when is not None:
            exists, there = nodes.condition(knob.when), nodes.make("present", (), knob.name)
            wanted.append(nodes.any(nodes.all(exists, there), nodes.all(nodes.negate(exists), nodes.negate(there))))
    # A conjunction is met exactly if each of its conditions is; splitting it first keeps each of them small.
    conditions = [part for r in requirements for part in (r.expr.args if r.expr.op == "and" else (r.expr,))]
    wanted += [nodes.requirement(c) for c in conditions]
    parts: dict[int, Expr] = {}
    for expr in wanted:
        for part in expr.args if expr.op == "and" else (expr,):
            parts[id(part)] = part
    return list(parts.values())


def _unnamed(expr: Expr) -> Expr:
    return _unnamed(expr.args[0]) if expr.op == "named" else expr


def _data_key_of(op: str, data: Any) -> Any:
    return id(data) if op == "defined" else data_key(data)


Leaf = Callable[[str], Array]


def misfit(expr: Expr, error: Exception) -> BadInput:
    return BadInput(f"'{expr}' cannot be computed for all values of its knobs: {error}")
