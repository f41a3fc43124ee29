"""Indices of tensor elements: sums of loop iterators times integers, with quotients and remainders by constants.

The form is canonical: terms are sorted and merged, so that equal indices compare equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from deepgen.vocabulary.errors import BadInput


@dataclass(frozen=True, order=True)
class Iter:
    """An iterator, by the name of its axis or loop."""

    name: str

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class _Divided:
    """Base of quotients and remainders. Text and hash are needed hundreds of thousands of times, so they are cached."""

    of: Index
    by: int

    _sign: ClassVar[str] = ""

    def __hash__(self) -> int:
        kept = self.__dict__
        if "hash" not in kept:
            kept["hash"] = hash((self.of, self.by))
        return kept["hash"]  # type: ignore[no-any-return]

    def __str__(self) -> str:
        kept = self.__dict__
        if "text" not in kept:
            kept["text"] = f"(({self.of}) {self._sign} {self.by})"
        return kept["text"]  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[Any, ...]:  # hashes differ between processes
        return type(self), (self.of, self.by)


@dataclass(frozen=True)
class Quotient(_Divided):
    """Rounded down, as Python's // does."""

    _sign = "//"
    __hash__ = _Divided.__hash__


@dataclass(frozen=True)
class Remainder(_Divided):
    """Never negative, as Python's % by a positive number."""

    _sign = "%"
    __hash__ = _Divided.__hash__


Atom: TypeAlias = "Iter | Quotient | Remainder"


@dataclass(frozen=True)
class Index:
    """constant + the sum of coefficient * atom."""

    terms: tuple[tuple[Atom, int], ...] = ()
    constant: int = 0

    def __hash__(self) -> int:
        kept = self.__dict__  # as `cached_property` does, but without its lock
        if "hash" not in kept:
            kept["hash"] = hash((self.terms, self.constant))
        return kept["hash"]  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[Any, ...]:  # hashes differ between processes
        return Index, (self.terms, self.constant)

    def __add__(self, other: Index | int) -> Index:
        other = index(other)
        if not other.terms:
            return Index(self.terms, self.constant + other.constant) if other.constant else self
        if not self.terms:
            return Index(other.terms, self.constant + other.constant) if self.constant else other
        return _sum((*self.terms, *other.terms), self.constant + other.constant)

    __radd__ = __add__

    def __mul__(self, times: int) -> Index:
        if isinstance(times, bool) or not isinstance(times, int):
            raise BadInput(f"index {shown(self)} times {times!r}", allowed="indices can only be multiplied by integers")
        if not times:
            return Index()
        if times == 1:
            return self
        return Index(tuple((atom, c * times) for atom, c in self.terms), self.constant * times)

    __rmul__ = __mul__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Index | int) -> Index:
        return self + index(other) * -1

    def __rsub__(self, other: Index | int) -> Index:
        return index(other) + self * -1

    def __floordiv__(self, by: int) -> Index:
        _divisor(self, by)
        if by == 1:
            return self
        whole = Index(tuple((a, c // by) for a, c in self.terms if c % by == 0), self.constant // by)
        rest = Index(tuple((a, c) for a, c in self.terms if c % by), self.constant % by)
        return whole + (Index(((Quotient(rest, by), 1),)) if rest.terms else 0)

    def __mod__(self, by: int) -> Index:
        _divisor(self, by)
        rest = Index(tuple((a, c) for a, c in self.terms if c % by), self.constant % by)
        if by == 1 or not rest.terms:
            return Index((), rest.constant if by != 1 else 0)
        return Index(((Remainder(rest, by), 1),))

    def __str__(self) -> str:
        signed = [(c, str(a) if abs(c) == 1 else f"{a} * {abs(c)}") for a, c in self.terms]
        if self.constant or not signed:
            signed.append((self.constant, str(abs(self.constant))))
        first, *others = signed
        head = ("-" if first[0] < 0 else "") + first[1]
        return head + "".join(f" {'-' if sign < 0 else '+'} {text}" for sign, text in others)

    @property
    def plain(self) -> str | None:
        """The iterator that it consists of, if it is nothing else."""
        atom, times = self.terms[0] if len(self.terms) == 1 and not self.constant else (None, 0)
        return atom.name if isinstance(atom, Iter) and times == 1 else None

    @property
    def iterators(self) -> frozenset[str]:
        kept = self.__dict__
        if "iterators" not in kept:
            kept["iterators"] = frozenset(name for atom, _ in self.terms for name in _iterators(atom))
        return kept["iterators"]  # type: ignore[no-any-return]

    def step(self, name: str) -> int | None:
        """How much it grows per step of an iterator; None if that varies."""
        if any(name in atom.of.iterators for atom, _ in self.terms if not isinstance(atom, Iter)):
            return None
        return next((times for atom, times in self.terms if atom == Iter(name)), 0)

    def substitute(self, by: Mapping[str, Index | int]) -> Index:
        """The index with iterators replaced by other indices."""
        if self.iterators.isdisjoint(by):
            return self
        terms: list[tuple[Atom, int]] = []
        constant = self.constant
        for atom, times in self.terms:
            if (atom.name not in by) if isinstance(atom, Iter) else atom.of.iterators.isdisjoint(by):
                terms.append((atom, times))
                continue
            part = _substituted(atom, by)
            terms += part.terms if times == 1 else [(inner, c * times) for inner, c in part.terms]
            constant += part.constant * times
        return _sum(terms, constant)

    def bounds(self, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
        """The least and greatest value, for iterators between the given least and greatest values."""
        low = high = self.constant
        for atom, times in self.terms:
            least, most = ranges[atom.name] if isinstance(atom, Iter) else _bounds(atom, ranges)
            low += times * (least if times > 0 else most)
            high += times * (most if times > 0 else least)
        return low, high

    def span(self, extents: Mapping[str, Any], least: Callable[[Any, Any], Any] = min) -> Any:
        """How many places it can reach at most while the named iterators run over that many values and others are
        fixed.

        Extents may be numbers or expressions over knobs; `least` is then the minimum of such expressions.
        """
        total: Any = 1
        for atom, times in self.terms:
            total = total + abs(times) * (_span(atom, extents, least) - 1)
        return total


def iterator(name: str) -> Index:
    return Index(((Iter(name), 1),))


def shown(of: Index | str) -> str:
    """The text for users: without the serial numbers that distinguish equal names of axes."""
    return re.sub(r"#\d+", "", str(of))


def index(value: Index | int) -> Index:
    """An integer as an index; an index is returned unchanged."""
    if isinstance(value, Index):
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise BadInput(f"{value!r} cannot be an index", allowed="an axis, an integer, or sums and products of them")
    return Index((), value.__index__())


def summed(parts: Iterable[tuple[Index, int]], constant: int = 0) -> Index:
    """A sum of multiples of indices."""
    terms: list[tuple[Atom, int]] = []
    for part, times in parts:
        terms += part.terms if times == 1 else [(atom, c * times) for atom, c in part.terms]
        constant += part.constant * times
    return _sum(terms, constant)


def _sum(terms: Iterable[tuple[Atom, int]], constant: int) -> Index:
    """The canonical form. Lowering adds indices hundreds of thousands of times."""
    merged: dict[Atom, int] = {}
    for atom, times in terms:
        merged[atom] = merged.get(atom, 0) + times
    kept = [term for term in merged.items() if term[1]]
    if len(kept) > 1:
        kept.sort(key=_name)
    return Index(tuple(kept), constant)


def _name(term: tuple[Atom, int]) -> str:
    atom = term[0]
    return atom.name if isinstance(atom, Iter) else str(atom)


def _divisor(of: Index, by: int) -> None:
    if isinstance(by, bool) or not isinstance(by, int) or by < 1:
        raise BadInput(f"index {shown(of)} divided by {by!r}", allowed="a positive integer")


def _iterators(atom: Atom) -> frozenset[str]:
    return frozenset({atom.name}) if isinstance(atom, Iter) else atom.of.iterators


def _substituted(atom: Atom, by: Mapping[str, Index | int]) -> Index:
    if isinstance(atom, Iter):
        return index(by[atom.name])
    inner = atom.of.substitute(by)
    return inner // atom.by if isinstance(atom, Quotient) else inner % atom.by


def _bounds(atom: Atom, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    if isinstance(atom, Iter):
        return ranges[atom.name]
    low, high = atom.of.bounds(ranges)
    if isinstance(atom, Quotient):
        return low // atom.by, high // atom.by
    same = low // atom.by == high // atom.by
    return (low % atom.by, high % atom.by) if same else (0, atom.by - 1)


def _span(atom: Atom, extents: Mapping[str, Any], least: Callable[[Any, Any], Any]) -> Any:
    if isinstance(atom, Iter):
        return extents.get(atom.name, 1)
    inner = atom.of.span(extents, least)
    return (inner + (atom.by - 2)) // atom.by + 1 if isinstance(atom, Quotient) else least(inner, atom.by)
