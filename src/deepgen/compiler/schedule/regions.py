"""Which part of a tensor is read while some loops run: where it begins, over the other loops, and how long it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

from deepgen.operators.expr.index import Atom, Index, Iter, Quotient, Remainder, index


def region(reads: Sequence[Index], inner: Mapping[str, int], size: int) -> tuple[Index, int]:
    """Of one dimension of `size` elements, for all indices that read it while the `inner` loops run.

    It may reach beyond the dimension where it is shorter than that.
    """
    parts = [low_and_span(_joined(read), inner) for read in reads]
    first = parts[0][0]
    shifts = [low - first for low, _ in parts]
    if any(shift.terms for shift in shifts):
        return Index(), size
    least = min(shift.constant for shift in shifts)
    span = max(shift.constant + span for shift, (_, span) in zip(shifts, parts, strict=True)) - least
    return (first + least, span) if span < size else (Index(), size)


def _joined(of: Index) -> Index:
    """An equal index in which the quotient and the remainder of one index are that index again."""
    terms = dict(of.terms)
    for atom, times in of.terms:
        if isinstance(atom, Remainder) and terms.get(Quotient(atom.of, atom.by)) == times * atom.by:
            both = Index(((atom, times), (Quotient(atom.of, atom.by), times * atom.by)))
            return _joined(of - both + atom.of * times)
    return of


def low_and_span(of: Index, inner: Mapping[str, int]) -> tuple[Index, int]:
    """The least value of an index while the inner loops run, and how many values up to the greatest."""
    low, span = Index((), of.constant), 1
    for atom, times in of.terms:
        at, length = _atom(atom, inner)
        low = low + (at if times > 0 else at + (length - 1)) * times
        span += abs(times) * (length - 1)
    return low, span


def _atom(atom: Atom, inner: Mapping[str, int]) -> tuple[Index, int]:
    if isinstance(atom, Iter):
        return (index(0), inner[atom.name]) if atom.name in inner else (Index(((atom, 1),)), 1)
    low, span = low_and_span(atom.of, inner)
    # All values of `low` leave the same remainder by this, so that the greatest remainder by `atom.by` is known.
    step = gcd(atom.by, *(times for _, times in low.terms))
    most = atom.by - step + low.constant % step + span - 1
    if isinstance(atom, Quotient):
        return low // atom.by, most // atom.by + 1 if span > 1 else 1
    return (low % atom.by, span) if span == 1 or most < atom.by else (index(0), atom.by)
