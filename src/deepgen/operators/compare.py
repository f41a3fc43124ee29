"""Compares results with the reference, element by element, within the operator's tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from deepgen.operators.base import Answer, Array, Tolerance
from deepgen.operators.products import tiny_step
from deepgen.vocabulary import DType
from deepgen.vocabulary.dtypes import dtype, widen
from deepgen.vocabulary.parallel import in_chunks


@dataclass(frozen=True)
class Comparison:
    """How a result compares with the reference."""

    error: float  # the largest error as a share of the tolerance; infinite for a wrong NaN, Inf or integer
    wrong: int  # elements out of tolerance
    first: int | None  # flat index of the first of them
    size: int

    @property
    def ok(self) -> bool:
        return self.wrong == 0


def compare(got: Array, want: Answer, dtype: DType, tolerance: Tolerance) -> Comparison:
    """NaN is required where the reference has NaN, and Inf where it has Inf or overflows the format. If the tolerance
    is as large as the format's range, any result is correct.

    Denormal numbers may be rounded to zero: see `floor`.
    """
    flat, reference, scale = got.reshape(-1), want.values.reshape(-1), flat_scale(want)
    pieces: list[tuple[float, int, int | None]] = [(0.0, 0, None)]

    def some(piece: slice) -> None:
        with np.errstate(all="ignore"):
            scales = scale[piece] if scale.size > 1 else scale
            shares = _shares(flat[piece], reference[piece], scales, dtype, tolerance)
            bad = ~(shares <= 1.0)
            wrong = int(bad.sum())
            shares = np.where(np.isnan(shares), np.inf, shares) if wrong else shares
            pieces.append((float(shares.max()), wrong, piece.start + int(bad.argmax()) if wrong else None))

    in_chunks(flat.size, some)
    first = min((place for _, _, place in pieces if place is not None), default=None)
    return Comparison(max(error for error, _, _ in pieces), sum(wrong for _, wrong, _ in pieces), first, flat.size)


def flat_scale(answer: Answer) -> Array:
    """The scale of each element in memory order; a single one if all are the same."""
    if answer.scale.size == 1:
        return answer.scale.reshape(-1)
    return np.broadcast_to(answer.scale, answer.values.shape).reshape(-1)


def scale_format(of: DType) -> DType:
    """The format in which an output's scales are stored and compared: those of f64 results may be smaller than any
    f32."""
    return dtype("f64" if of.name == "f64" else "f32")


def explain(name: str, got: Array, want: Array, dtype: DType, comparison: Comparison, poison: int | None) -> str:
    """One sentence on the first wrong element. `poison`: the byte that the output was filled with before the run."""
    assert comparison.first is not None
    index = ", ".join(str(int(i)) for i in np.unravel_index(comparison.first, got.shape))
    element = got.reshape(-1)[comparison.first : comparison.first + 1]
    return explain_element(f"{name}[{index}]", element, want.reshape(-1)[comparison.first], dtype, comparison, poison)


def explain_element(
    place: str, element: Array, want: Any, dtype: DType, comparison: Comparison, poison: int | None
) -> str:
    count = f"{comparison.wrong} of {comparison.size} elements wrong"
    if poison is not None and bool((np.ascontiguousarray(element).view(np.uint8) == poison).all()):
        return f"{place} was never written ({count})"
    value = widen(element, dtype)[0]
    worst = f", the largest error {comparison.error:.3g} times the tolerance" if np.isfinite(comparison.error) else ""
    return f"{place} is {value:.9g}, should be {want:.9g} ({count}{worst})"


def _shares(got: Array, want: Array, scale: Array, dtype: DType, tolerance: Tolerance) -> Array:
    """Each element's error as a share of its tolerance."""
    if dtype.integer:
        wide = widen(got, dtype)
        return np.where(wide == want, 0.0, np.inf)
    x, want = widen(got, dtype), want.astype(np.float64, copy=False)
    allowed = (
        tolerance.absolute * scale.astype(np.float64) + tolerance.relative * np.abs(want) + floor(dtype, tolerance)
    )
    off = np.abs(x - want)
    shares: Array = off / allowed
    unknown = (allowed >= largest(dtype)) & np.isfinite(want)
    if unknown.any():  # any value is accepted
        shares[unknown] = 0.0
    odd = ~np.isfinite(shares)
    if odd.any():
        # With zero tolerance only equality is correct; an Inf is correct for the same Inf or for a sum that overflows.
        same = (x == want) | (np.isnan(x) & np.isnan(want))
        overflow = np.isinf(x) & (np.sign(x) == np.sign(want)) & (np.abs(want) + allowed >= largest(dtype))
        shares[odd] = np.where((same | overflow)[odd], 0.0, np.inf)
    return shares


def largest(dtype: DType) -> float:
    """The largest finite number of a format."""
    if dtype.name in _LARGEST:
        return _LARGEST[dtype.name]
    return float(np.finfo(dtype.numpy()).max)


def floor(dtype: DType, tolerance: Tolerance) -> float:
    """The error that any result may have; see Tolerance."""
    if dtype.integer:
        return 0.0
    return tolerance.floor if tolerance.floor is not None else tiny_step(dtype, kept=False)


_LARGEST = {"bf16": float(np.finfo(np.float32).max) * (1 - 2.0**-9), "f8e4m3": 448.0, "f8e5m2": 57344.0}
