"""The tolerance of each element of a user's own kernel, derived from its reference's inputs and operations."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from deepgen.kernels.own.carried import OwnArithmetic, Untraced, errors_of
from deepgen.operators.base import Array, Tolerance
from deepgen.operators.expr.interpret import finite_scale
from deepgen.vocabulary import DType
from deepgen.vocabulary.parallel import in_chunks, in_parts, usual_threads

# A function of the arrays by name, which returns results by output.
Called = Callable[[Mapping[str, Any]], Mapping[str, Any]]
_ROOM = 4.0  # factor on propagated errors: functions written by hand, and operations that a reference does not have
_STEPS = 14.0  # for the result itself: fast exponentials of GPUs
_NOTICED, _FEWEST = 2.0**-12, 2.0**-6  # a change visible in any result; the share of results that may not change
_DRAWS, _SPREAD = 3, 4.0  # of changed inputs, if errors cannot be propagated
_MOST_ELEMENTS = 1 << 24  # of inputs: propagated errors take several times their memory
_PERIOD = 65_521  # of drawn numbers; a prime, so that no two rows are equal
_SHARED = 1 << 20  # numbers from which on threads share the work
_SLOW_SECONDS = 1.0  # of a reference that is called no more often than necessary


def tolerance(of: DType, *, carried: bool, terms: float) -> Tolerance:
    """If errors were propagated (`carried`), they are the scale; else some roundings of the result, and of adding up
    terms."""
    if of.integer:
        return Tolerance(0.0, 0.0)
    single = of.epsilon if of.name == "f64" else 2.0**-23
    share = _ROOM if carried else 2.0 * of.epsilon + 4.0 * single * max(1.0, terms) ** 0.5
    return Tolerance(share, 2.0 * of.epsilon + _STEPS * single)


class Scales:
    """The scales of the results of one call of a reference."""

    def __init__(self, call: Called, inputs: Mapping[str, Array], formats: Mapping[str, DType], terms: float) -> None:
        """`formats`: of the inputs; `terms`: approximate number of terms of an element, 0 if unknown."""
        self._call, self._inputs, self._formats, self._terms = call, inputs, formats, terms
        started = time.monotonic()
        self.results = call({name: _copied(array, array.dtype) for name, array in inputs.items()})
        self._slow = time.monotonic() - started > _SLOW_SECONDS
        self._carried: dict[OwnArithmetic, Mapping[str, Any] | None] = {}
        self._spread: dict[bool, Mapping[str, Array]] = {}

    def of(self, output: str, values: Array, of: DType) -> Array:
        arithmetic = OwnArithmetic.of(of, [*self._formats.values()])
        if sum(array.size for array in self._inputs.values()) > _MOST_ELEMENTS:
            self._carried[arithmetic] = None
        if arithmetic not in self._carried:
            try:
                self._carried[arithmetic] = errors_of(self._call, self._inputs, arithmetic)
            except Untraced:
                self._carried[arithmetic] = None
        carried = (self._carried[arithmetic] or {}).get(output)
        wide = of.name == "f64"
        if carried is not None and carried.values.shape == values.shape:
            error = np.broadcast_to(carried.error, values.shape)
            with np.errstate(all="ignore"):
                off = np.abs(carried.values - values) > _ROOM * error + 2.0**-20 * np.abs(values)
            if not off.any():
                return finite_scale(error, values, wide=wide)
        return finite_scale(self._changed(wide)[output], values, wide=wide)

    def _changed(self, wide: bool) -> Mapping[str, Array]:
        """The largest change of each element when inputs change by half a step, and when everything is computed in
        f32."""
        if wide in self._spread:
            return self._spread[wide]
        half, rng = 2.0**-53 if wide else 2.0**-24, np.random.default_rng(41)
        usual = {n: np.asarray(v, np.float64) for n, v in self.results.items() if v is not None}
        draws = 1 if self._slow else _DRAWS
        spread = {n: np.zeros(v.shape) for n, v in usual.items()}
        for draw in range(draws + (not wide)):
            changed = {n: _moved(a, half, rng) if draw < draws else _single(a) for n, a in self._inputs.items()}
            try:
                with np.errstate(all="ignore"):
                    results = self._call(changed)
            except Exception:
                if draw < draws:
                    raise
                continue  # a reference may not support f32
            for name, value in usual.items():
                _widen_to(spread[name], np.asarray(results[name]), value)
        terms = self._terms_of(usual, spread, rng)
        for name, value in usual.items():
            _rounded_too(spread[name], value, terms[name] ** 0.5, 2.0 * half)
        self._spread[wide] = spread
        return spread

    def _terms_of(
        self, usual: Mapping[str, Array], spread: Mapping[str, Array], rng: np.random.Generator
    ) -> dict[str, float]:
        """The approximate number of inputs that an element of each output depends on: a few, or perhaps all.

        If every other number changes at random, elements that depend on n of them stay the same in 2^-n of all cases.
        """
        if self._terms:
            return dict.fromkeys(usual, max(1.0, self._terms))
        with np.errstate(all="ignore"):
            results = self._call({n: _moved(a, _NOTICED, rng, few=True) for n, a in self._inputs.items()})
        terms, most = {}, float(max((a.size for a in self._inputs.values()), default=1))
        for name, values in usual.items():
            moving = spread[name] > 0  # others never change
            stayed = int((np.asarray(results[name], np.float64)[moving] == values[moving]).sum())
            few = stayed > _FEWEST * moving.sum() and stayed > 1
            terms[name] = min(most, 2.0 * float(np.log2(moving.sum() / stayed)) + 1.0) if few else most
        return terms


def _widen_to(spread: Array, result: Array, usual: Array) -> None:
    """Updates each element's change if it is larger than before."""
    largest, changed, before = spread.reshape(-1), np.broadcast_to(result, usual.shape).reshape(-1), usual.reshape(-1)

    def some(piece: slice) -> None:
        with np.errstate(all="ignore"):
            off = np.subtract(changed[piece], before[piece], dtype=np.float64)
            np.fmax(largest[piece], np.abs(off, out=off), out=largest[piece])

    in_chunks(largest.size, some)


def _rounded_too(spread: Array, usual: Array, factor: float, step: float) -> None:
    """The total error: from the inputs, and from a step of the result itself."""
    scale, values = spread.reshape(-1), usual.reshape(-1)

    def some(piece: slice) -> None:
        with np.errstate(all="ignore"):
            scale[piece] = factor * (_SPREAD * scale[piece] + step * np.abs(values[piece]))

    in_chunks(scale.size, some)


def _moved(values: Array, half: float, rng: np.random.Generator, *, few: bool = False) -> Array:
    """Changes each number, or every other one at random, by half a step; the random pattern repeats in large arrays."""
    if values.dtype.kind != "f":
        return _copied(values, values.dtype)
    moved: Array = np.empty(values.shape, values.dtype)
    numbers, out = values.reshape(-1), moved.reshape(-1)
    drawn = rng.integers(0, 2, size=min(numbers.size, _PERIOD))
    factors = 1.0 + half * (drawn if few else 2.0 * drawn - 1.0)
    size = max(1, factors.size)

    def some(first: int, last: int) -> None:
        with np.errstate(all="ignore"):
            for start in range(first * size, min(numbers.size, last * size), size):
                piece = slice(start, min(numbers.size, start + size))
                np.multiply(numbers[piece], factors[: piece.stop - start], out=out[piece])

    in_parts(-(-numbers.size // size), usual_threads() if numbers.size > _SHARED else 1, some)
    return moved


def _single(values: Array) -> Array:
    return _copied(values, np.dtype(np.float32) if values.dtype.kind == "f" else values.dtype)


def _copied(values: Array, kind: np.dtype[Any]) -> Array:
    """Copies in threads: new memory costs more than writing to it, and threads share that cost too."""
    copy: Array = np.empty(values.shape, kind)
    before, after = values.reshape(-1), copy.reshape(-1)

    def some(piece: slice) -> None:
        with np.errstate(all="ignore"):
            after[piece] = before[piece]

    in_chunks(after.size, some)
    return copy
