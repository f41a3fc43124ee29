"""Facts about indices: the ranges of loop variables, and indices that are known not to be negative."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import TypeAlias

from deepgen.operators.expr.facts import as_index
from deepgen.operators.expr.index import Atom, Index, Iter, Quotient, Remainder, index, summed
from deepgen.operators.expr.nodes import Compare, Logic, Value

Terms: TypeAlias = "tuple[tuple[Atom, int], ...]"


@dataclass(frozen=True)
class IndexBounds:
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    facts: tuple[Index, ...] = ()
    simplest: dict[Terms, Index] = field(default_factory=dict, compare=False, repr=False)  # so far, without constants

    def inside(self, variable: str, extent: int) -> IndexBounds:
        return self.between(variable, 0, extent)

    def between(self, variable: str, first: int, end: int) -> IndexBounds:
        """Bounds for the iterations of a loop from `first` to before `end`."""
        return IndexBounds({**self.ranges, variable: (first, end - 1)}, self.facts)

    def assuming(self, facts: Iterable[Index]) -> IndexBounds:
        return IndexBounds(self.ranges, (*self.facts, *facts), self.simplest)

    def always(self, condition: Index) -> bool:
        """Whether it is certainly not negative."""
        low = condition.bounds(self.ranges)[0]
        return low >= 0 or any(self._follows(condition, low, fact) for fact in self.facts)

    def _follows(self, condition: Index, low: int, fact: Index) -> bool:
        """Whether a condition that is at least `low` is never less than a fact."""
        if condition.iterators.isdisjoint(fact.iterators):
            return low >= fact.bounds(self.ranges)[1]
        return (condition - fact).bounds(self.ranges)[0] >= 0

    def never(self, condition: Index) -> bool:
        """Whether it is certainly negative."""
        return self.always(-1 - condition)

    def simple(self, of: Index) -> Index:
        """An equal index without quotients and remainders whose values follow from the ranges."""
        if all(isinstance(atom, Iter) and self._runs(atom) for atom, _ in of.terms):
            return of
        if of.terms not in self.simplest:
            self.simplest[of.terms] = self._joined(summed((self._atom(atom), times) for atom, times in of.terms))
        return self.simplest[of.terms] + of.constant

    def _runs(self, atom: Iter) -> bool:
        low, high = self.ranges.get(atom.name, (0, 1))
        return low != high

    def _joined(self, total: Index) -> Index:
        """An equal index in which parts of one index are recombined."""
        if (whole := joined(total)) != total:
            return self.simple(whole)
        merged = dict(total.terms)
        for atom, times in total.terms:
            inner = _quotient(atom)
            # x // 4 % 3 * 4 + x % 4 is x % 12.
            low = Remainder(inner.of, inner.by) if isinstance(atom, Remainder) and inner else None
            if low is not None and isinstance(atom, Remainder) and times == low.by * merged.get(low, 0):
                whole = Index(((atom, times), (low, merged[low])))
                return self.simple(total - whole + low.of % (low.by * atom.by) * merged[low])
            # x // 4 // 3 is x // 12, if the corresponding remainder is not present.
            if isinstance(atom, Quotient) and inner and Remainder(atom.of, atom.by) not in merged:
                return self.simple(total - Index(((atom, times),)) + inner.of // (inner.by * atom.by) * times)
        return total

    def _atom(self, atom: Iter | Quotient | Remainder) -> Index:
        if isinstance(atom, Iter):
            low, high = self.ranges.get(atom.name, (0, 1))
            return Index((), low) if low == high else Index(((atom, 1),))
        inner = self.simple(atom.of)
        simple = inner // atom.by if isinstance(atom, Quotient) else inner % atom.by
        return summed(((self._part(left), times) for left, times in simple.terms), simple.constant)

    def _part(self, atom: Iter | Quotient | Remainder) -> Index:
        return Index(((atom, 1),)) if isinstance(atom, Iter) else self._simple_index(atom)

    def _simple_index(self, atom: Quotient | Remainder) -> Index:
        low, high = atom.of.bounds(self.ranges)
        if low // atom.by != high // atom.by:
            return self._without_small(atom)
        q = low // atom.by
        return Index((), q) if isinstance(atom, Quotient) else atom.of - q * atom.by

    def _without_small(self, atom: Quotient | Remainder) -> Index:
        """(x * 8 + v) % 64 is x % 8 * 8 + v if v is less than 8, and (x * 8 + v) // 64 is x // 8."""
        for step in sorted({gcd(atom.by, times) for _, times in atom.of.terms}, reverse=True):
            small = Index(tuple(t for t in atom.of.terms if t[1] % step), atom.of.constant % step)
            low, high = small.bounds(self.ranges)
            if step > 1 and low >= 0 and high < step:
                rest = atom.of - small
                large = Index(tuple((a, t // step) for a, t in rest.terms), rest.constant // step)
                if isinstance(atom, Quotient):
                    return self.simple(large // (atom.by // step))
                return self.simple(large % (atom.by // step)) * step + small
        return Index(((atom, 1),))


def _quotient(atom: Iter | Quotient | Remainder) -> Quotient | None:
    """The quotient that is the only term of an atom's index, if the atom is its quotient or remainder."""
    if isinstance(atom, Iter) or len(atom.of.terms) != 1 or atom.of.constant:
        return None
    (inner, times), *_ = atom.of.terms
    return inner if isinstance(inner, Quotient) and times == 1 else None


def conditions(value: Value) -> tuple[Index, ...] | None:
    """The indices that are all non-negative exactly when a condition over integers holds; None for other conditions."""
    if isinstance(value, Logic) and value.op == "and":
        left, right = conditions(value.left), conditions(value.right)
        return None if left is None or right is None else (*left, *right)
    if isinstance(value, Compare) and value.op in ("lt", "le", "eq"):
        left_side, right_side = as_index(value.left), as_index(value.right)
        if left_side is not None and right_side is not None:
            above = right_side - left_side
            return {"lt": (above - 1,), "le": (above,), "eq": (above, above * -1)}[value.op]
    return None


def region(reads: Sequence[Index], inner: Mapping[str, int], size: int) -> tuple[Index, int]:
    """The region of a dimension of `size` elements that these indices read while the `inner` loops run: start and
    length.

    It may extend beyond the dimension if that is shorter.
    """
    parts = [low_and_span(joined(read), inner) for read in reads]
    first = parts[0][0]
    shifts = [low - first for low, _ in parts]
    if any(shift.terms for shift in shifts):
        return Index(), size
    least = min(shift.constant for shift in shifts)
    span = max(shift.constant + span for shift, (_, span) in zip(shifts, parts, strict=True)) - least
    return (first + least, span) if span < size else (Index(), size)


def joined(of: Index) -> Index:
    """An equal index in which the quotient and the remainder of the same index are recombined."""
    terms = dict(of.terms)
    for atom, times in of.terms:
        if isinstance(atom, Remainder) and terms.get(Quotient(atom.of, atom.by)) == times * atom.by:
            both = Index(((atom, times), (Quotient(atom.of, atom.by), times * atom.by)))
            return joined(of - both + atom.of * times)
    return of


def low_and_span(of: Index, inner: Mapping[str, int]) -> tuple[Index, int]:
    """The least value of an index while the inner loops run, and the number of values up to the greatest."""
    low, span = Index((), of.constant), 1
    for atom, times in of.terms:
        at, length = _part(atom, inner)
        low = low + (at if times > 0 else at + (length - 1)) * times
        span += abs(times) * (length - 1)
    return low, span


def _part(atom: Atom, inner: Mapping[str, int]) -> tuple[Index, int]:
    if isinstance(atom, Iter):
        return (index(0), inner[atom.name]) if atom.name in inner else (Index(((atom, 1),)), 1)
    low, span = low_and_span(atom.of, inner)
    # All values of `low` leave the same remainder when divided by this, so the greatest remainder by `atom.by` is
    # known.
    step = gcd(atom.by, *(times for _, times in low.terms))
    most = atom.by - step + low.constant % step + span - 1
    if isinstance(atom, Quotient):
        return low // atom.by, most // atom.by + 1 if span > 1 else 1
    return (low % atom.by, span) if span == 1 or most < atom.by else (index(0), atom.by)
