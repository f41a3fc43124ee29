"""Evaluation, knob by knob, of a requirement whose table would be too large.

After each knob it keeps only what the remaining evaluation can depend on: the values of finished sub-expressions, the
running total of each sum, product, minimum and maximum, and the verdict of each condition that interval arithmetic has
decided. States that agree on all of these are the same state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deepgen.space.arrays import apply, constant
from deepgen.space.bounds import ARITHMETIC, ARRAYS, combine
from deepgen.space.engine import CALL
from deepgen.space.expr import Expr
from deepgen.space.nodes import Nodes
from deepgen.space.rows import Array

Slot = tuple[str, int]  # what is kept (value, total, verdict), and the id of its node
Slots = dict[Slot, Array]
TOTALS = ("+", "*", "min", "max", "and", "or")
_UNKNOWN = -1
_SLOWER = 6


class Staged:
    """One requirement, and the order in which its knobs get their values."""

    def __init__(self, nodes: Nodes, expr: Expr, order: Sequence[str]) -> None:
        self.nodes, self.order = nodes, order
        self.root = nodes.flattened(expr)
        self.objects = nodes.needs_objects(expr)
        place = {name: i for i, name in enumerate(order)}
        self._span: dict[int, tuple[int, int]] = {}
        self._node: dict[int, Expr] = {}
        for node in _walk(self.root):
            scope = [place[name] for name in nodes.scope(node)]
            # (place of the first knob, place of the last knob); a constant is finished from the beginning.
            self._span[id(node)] = (min(scope), max(scope)) if scope else (-1, -1)
            self._node[id(node)] = node

    def cost(self, rows: int) -> int:
        """The cost of one step in elements: each node is an array. Python integers are slower."""
        return len(self._node) * (rows + CALL) * (_SLOWER if self.objects else 1)

    def _finished(self, node: Expr, cut: int) -> bool:
        return self._span[id(node)][1] < cut

    def _untouched(self, node: Expr, cut: int) -> bool:
        return self._span[id(node)][0] >= cut

    def _is_total(self, node: Expr) -> bool:
        # Floating-point sums depend on their order: only integers and booleans have running totals.
        return node.op in TOTALS and self.nodes.kind(node) in ("int", "bool")

    def advance(self, slots: Slots, cut: int, to: int, places: dict[str, Array]) -> tuple[Slots, Array]:
        """Assign the knobs order[cut:to]. Returns the slots after them, and which rows can still come true."""
        step = _Step(self, slots, cut, to, places)
        if to == len(self.order):
            return {}, step.value(self.root).astype(np.bool_)
        kept = step.kept()
        return kept, kept[("verdict", id(self.root))] != 0

    def finish(self, slots: Slots, cut: int, places: dict[str, Array]) -> Array:
        """The truth for arrays of all remaining knobs, which broadcast with the slots."""
        return _Step(self, slots, cut, len(self.order), places).value(self.root).astype(np.bool_)


class _Step:
    """The computation of one `advance`."""

    def __init__(self, of: Staged, slots: Slots, cut: int, to: int, places: dict[str, Array]) -> None:
        self.of, self.old, self.cut, self.to, self.places = of, slots, cut, to, places
        self._values: dict[int, Array] = {}
        self._totals: dict[int, Array | None] = {}
        self._intervals: dict[int, tuple[Any, Any] | None] = {}
        self._verdicts: dict[int, Array] = {}

    def value(self, node: Expr) -> Array:
        """The value of a node that is finished after this step."""
        cached = self._values.get(id(node))
        if cached is None:
            cached = self._values[id(node)] = self._value(node)
        return cached

    def _value(self, node: Expr) -> Array:
        old = self.old.get(("value", id(node)))
        if old is not None:
            return self._decode(node, old)
        if node.op == "const":
            return constant(node.data, self.of.objects)
        if node.op in ("knob", "present"):
            return self._decode(node, self.places[node.data])
        if self._was_partial(node) and self.of._is_total(node):
            fixed = [self.value(a) for a in node.args if a.op == "const"]
            total = self._total(node)
            result = apply(self.of.nodes, node, [*fixed, *([] if total is None else [total])])
        else:
            result = apply(self.of.nodes, node, [self.value(a) for a in node.args])
        verdict = self.old.get(("verdict", id(node)))
        return result if verdict is None else np.where(verdict == _UNKNOWN, result, verdict == 1)

    def _decode(self, node: Expr, stored: Array) -> Array:
        """Decode a stored value: knobs are stored as places, everything else as it is."""
        if node.op == "knob":
            values = self.of.nodes.variables[node.data].values
            return (values.astype(object) if self.of.objects else values)[stored]
        return self.of.nodes.variables[node.data].present[stored] if node.op == "present" else stored

    def _was_partial(self, node: Expr) -> bool:
        return not self.of._finished(node, self.cut) and not self.of._untouched(node, self.cut)

    def _total(self, node: Expr) -> Array | None:
        """The running total over the operands finished after this step, without constants."""
        if id(node) not in self._totals:
            parts = [] if ("total", id(node)) not in self.old else [self.old[("total", id(node))]]
            for arg in node.args:
                if self.of._finished(arg, self.to) and not self.of._finished(arg, self.cut):
                    parts.append(self.value(arg))
            self._totals[id(node)] = apply(self.of.nodes, node, parts) if parts else None
        return self._totals[id(node)]

    def _shape(self) -> tuple[int, ...]:
        return np.broadcast_shapes(*(p.shape for p in self.places.values()))

    # Intervals of unfinished nodes ------------------------------------------------------------------------------------

    def interval(self, node: Expr) -> tuple[Any, Any] | None:
        if id(node) not in self._intervals:
            self._intervals[id(node)] = self._interval(node)
        return self._intervals[id(node)]

    def _interval(self, node: Expr) -> tuple[Any, Any] | None:
        if self.of._finished(node, self.to):
            if self.of.nodes.kind(node) == "object":
                return None
            value = self.value(node)
            value = value.astype(np.int64) if value.dtype == np.bool_ else value
            return value, value
        if self.of._untouched(node, self.to):
            bounds = self.of.nodes.bounds(node)
            return None if bounds is None else (_plain(bounds[0]), _plain(bounds[1]))
        if self.of.nodes.kind(node) == "bool":
            verdict = self.verdict(node)
            return np.where(verdict == _UNKNOWN, 0, verdict), np.where(verdict == _UNKNOWN, 1, verdict)
        if node.op == "where":
            return self._choice(node)
        if node.op not in ARITHMETIC:
            return self.of.nodes.bounds(node)
        parts = [self.interval(a) for a in self._open_args(node)]
        if any(p is None for p in parts):
            return None
        intervals = [p for p in parts if p is not None]
        if self.of._is_total(node):
            total = self._total(node)
            if total is not None:
                intervals.append((total, total))
            return _fold(node.op, intervals)
        return combine(node.op, intervals, ARRAYS)

    def _open_args(self, node: Expr) -> list[Expr]:
        """The operands that are not in a running total."""
        if not self.of._is_total(node):
            return list(node.args)
        return [a for a in node.args if a.op == "const" or not self.of._finished(a, self.to)]

    def _choice(self, node: Expr) -> tuple[Any, Any] | None:
        condition, then, otherwise = (self.interval(a) for a in node.args)
        if condition is None or then is None or otherwise is None:
            return None
        maybe_true, maybe_false = condition[1] > 0, condition[0] < 1
        low = np.where(
            maybe_true & maybe_false, np.minimum(then[0], otherwise[0]), np.where(maybe_true, then[0], otherwise[0])
        )
        high = np.where(
            maybe_true & maybe_false, np.maximum(then[1], otherwise[1]), np.where(maybe_true, then[1], otherwise[1])
        )
        return low, high

    def verdict(self, node: Expr) -> Array:
        """1 or 0 where an unfinished condition is already decided, -1 elsewhere."""
        if id(node) not in self._verdicts:
            fresh = np.broadcast_to(self._decide(node), self._shape()).astype(np.int64)
            old = self.old.get(("verdict", id(node)))
            self._verdicts[id(node)] = fresh if old is None else np.where(old == _UNKNOWN, fresh, old)
        return self._verdicts[id(node)]

    def _decide(self, node: Expr) -> Array:
        op = node.op
        if op in ("and", "or"):
            deciding = 1 if op == "or" else 0
            low_high = [self.interval(a) for a in self._open_args(node)]
            total = self._total(node)
            parts = [(0, 1) if p is None else p for p in low_high] + ([] if total is None else [(total * 1, total * 1)])
            won = _any(((lo == deciding) & (hi == deciding)) for lo, hi in parts)
            lost = _all(((lo == 1 - deciding) & (hi == 1 - deciding)) for lo, hi in parts)
            return np.where(won, deciding, np.where(lost, 1 - deciding, _UNKNOWN))
        parts_ = [self.interval(a) for a in node.args]
        if any(p is None for p in parts_):
            return np.asarray(_UNKNOWN)
        if op == "not":
            lo, hi = parts_[0]  # type: ignore[misc]
            return np.where(lo == hi, 1 - np.asarray(lo), _UNKNOWN)
        if op in ("==", "!=", "<", "<=", ">", ">="):
            return _compare(op, parts_[0], parts_[1])
        return np.asarray(_UNKNOWN)

    # Slots ------------------------------------------------------------------------------------------------------------

    def kept(self) -> Slots:
        """The slots after this step, with zeros where a row no longer depends on them."""
        slots: Slots = {}
        relevant: dict[Slot, Array] = {}
        verdict = self.verdict(self.of.root)
        slots[("verdict", id(self.of.root))] = verdict
        open_rows = verdict == _UNKNOWN
        self._keep_args(self.of.root, open_rows, slots, relevant)
        return {
            slot: array if slot not in relevant else np.where(relevant[slot], array, 0) for slot, array in slots.items()
        }

    def _keep(self, node: Expr, rows: Array, slots: Slots, relevant: dict[Slot, Array]) -> None:
        of = self.of
        if of._untouched(node, self.to) or node.op == "const":
            return
        if of._finished(node, self.to):
            if of.nodes.kind(node) == "object" and node.op != "knob":
                for arg in node.args:
                    self._keep(arg, rows, slots, relevant)
                return
            self._note(("value", id(node)), self._encode(node), rows, slots, relevant)
            return
        if of.nodes.kind(node) == "bool":
            verdict = self.verdict(node)
            self._note(("verdict", id(node)), verdict, rows, slots, relevant)
            rows = rows & (verdict == _UNKNOWN)
        self._keep_args(node, rows, slots, relevant)

    def _keep_args(self, node: Expr, rows: Array, slots: Slots, relevant: dict[Slot, Array]) -> None:
        of = self.of
        if node.op == "where" and not of._untouched(node.args[0], self.to):
            condition, then, otherwise = node.args
            self._keep(condition, rows, slots, relevant)
            bounds = self.interval(condition)
            assert bounds is not None
            self._keep(then, rows & (bounds[1] > 0), slots, relevant)
            self._keep(otherwise, rows & (bounds[0] < 1), slots, relevant)
            return
        if of._is_total(node):
            counted = [a for a in node.args if a.op != "const" and of._finished(a, self.to)]
            if counted:
                total = self._total(node)
                assert total is not None
                self._note(("total", id(node)), total, rows, slots, relevant)
        for arg in self._open_args(node):
            self._keep(arg, rows, slots, relevant)

    def _encode(self, node: Expr) -> Array:
        if node.op in ("knob", "present"):
            old = self.old.get(("value", id(node)))
            return old if old is not None else self.places[node.data]
        return self.value(node)

    def _note(self, slot: Slot, array: Array, rows: Array, slots: Slots, relevant: dict[Slot, Array]) -> None:
        slots[slot] = np.broadcast_to(array, self._shape())
        relevant[slot] = relevant[slot] | rows if slot in relevant else rows


def _plain(bound: Any) -> Any:
    return int(bound) if isinstance(bound, bool) else bound


def _fold(op: str, parts: list[tuple[Any, Any]]) -> tuple[Any, Any] | None:
    result: tuple[Any, Any] | None = parts[0]
    for part in parts[1:]:
        result = None if result is None else combine(op, [result, part], ARRAYS)
    return result


def _any(conditions: Any) -> Any:
    result: Any = False
    for condition in conditions:
        result = result | condition
    return result


def _all(conditions: Any) -> Any:
    result: Any = True
    for condition in conditions:
        result = result & condition
    return result


def _compare(op: str, left: Any, right: Any) -> Array:
    (a, b), (c, d) = left, right
    if op == "!=":
        verdict = _compare("==", left, right)
        return np.where(verdict == _UNKNOWN, _UNKNOWN, 1 - verdict)
    if op == "==":
        sure, never = (a == b) & (c == d) & (a == c), (b < c) | (d < a)
    elif op == "<":
        sure, never = b < c, a >= d
    elif op == "<=":
        sure, never = b <= c, a > d
    elif op == ">":
        sure, never = a > d, b <= c
    else:
        sure, never = a >= d, b < c
    return np.where(sure, 1, np.where(never, 0, _UNKNOWN))


def _walk(root: Expr) -> list[Expr]:
    from deepgen.space.expr import walk

    return list(walk(root))
