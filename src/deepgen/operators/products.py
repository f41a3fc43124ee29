"""Inputs for sums of products: they reveal a lost product, narrow accumulators, and flushed denormals."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import isqrt, sqrt
from typing import TYPE_CHECKING

from deepgen.operators.base import Array
from deepgen.vocabulary.dtypes import DType, narrow

if TYPE_CHECKING:
    import numpy as np

# Formats whose denormals must not be flushed to zero, in inputs and in results. Not bf16: the instructions of
# x86 and Arm that multiply it flush them. Not tf32: vendors do not document it.
DENORMALS = ("f64", "f32", "f16", "f8e4m3", "f8e5m2")
# Numbers of this size are denormal, and so are their products with numbers of size 1. 8-bit floats have wider results:
# there only the inputs are denormal.
TINY = {
    "f64": 2.0**-1060,
    "f32": 2.0**-140,
    "tf32": 2.0**-140,
    "bf16": 2.0**-130,
    "f16": 2.0**-20,
    "f8e4m3": 2.0**-7,
    "f8e5m2": 2.0**-15,
}
# As a share of one product on the inputs of `cancelling`, where all have the same size. It is less than the effect of a
# lost product, and leaves room for algorithms that do not add up the products themselves, as some convolutions.
EXACT_SHARE = 0.25
BLOCK = 128  # steps of K that share a factor where blocks have factors


@dataclass(frozen=True)
class Cancelling:
    """Which products of a sum cancel each other, and which remain: indices along the sum."""

    first: Array
    second: Array  # each the negative of its partner in `first`
    free: Array


def cancelling(rng: np.random.Generator, count: int, most: int) -> Cancelling:
    """Pairs of products, +1 and -1, until at most `most` (at least one) are left: no result is larger than that.

    Results are then exact in any order of summation, even in a format with few digits: any product that is lost or
    added twice is detected. Partners are apart, so that two lost neighbours do not cancel.
    """
    free = min(count, most)
    free -= (count - free) % 2
    order = rng.permutation(count)
    return Cancelling(order[free::2], order[free + 1 :: 2], order[:free])


def signs(negative: Array, of: DType) -> Array:
    """+1 and -1 in a format's storage."""
    import numpy as np

    plus, minus = narrow(np.array([1.0, -1.0]), of)
    stored: Array = np.where(negative, minus, plus)
    return stored


def distinct(rows: Array) -> tuple[Array, Array]:
    """The indices of distinct rows and, for every row, the index among these of the one it equals.

    Many probes have few distinct rows: each is computed once.
    """
    import numpy as np

    seen: dict[bytes, int] = {}
    digests = (hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows)
    first = np.array([seen.setdefault(digest, place) for place, digest in enumerate(digests)])
    kept, kind = np.unique(first, return_inverse=True)
    return kept, kind.reshape(-1)


def largest_factor(products: int, limit: int) -> int:
    """The largest m for which the sum of that many products of integers up to m stays within a limit."""
    return isqrt(limit // products)


def integer_range(of: DType, factor: int) -> tuple[int, int] | None:
    """The integers of a format up to a magnitude; None: all of them."""
    least, greatest = of.whole
    low, high = max(least, -factor), min(greatest, factor)
    return None if (low, high) == of.whole else (low, high)


def tiny_floor(products: int, gain: float, inputs: tuple[DType, DType], sums: DType, result: DType) -> float:
    """The error that a sum of that many products may have if all of them are tiny.

    Below the smallest normal number, all numbers are the same step apart. There each product and each sum is rounded to
    half a step: errors that add up to a root mean square of 0.4 sqrt(products) steps, of which ten times as much is
    allowed. The result is rounded once more. `gain`: the factor that is applied after the sum.
    """
    kept = all(of.name in DENORMALS for of in inputs)
    step = 0.0 if sums.integer else tiny_step(sums, kept=kept)
    return 4.0 * sqrt(products) * max(1.0, gain) * step + tiny_step(result, kept=kept)


def tiny_step(dtype: DType, *, kept: bool) -> float:
    """The step between denormals if they must be `kept`, or if all hardware keeps them; otherwise the smallest normal
    number, because they may be flushed to zero."""
    normal = _SMALLEST_NORMAL.get(dtype.name, 2.0**-126)
    return normal * dtype.epsilon if kept or dtype.name in _ALWAYS_KEPT else normal


_SMALLEST_NORMAL = {"f64": 2.0**-1022, "f16": 2.0**-14, "f8e4m3": 2.0**-6, "f8e5m2": 2.0**-14}
_ALWAYS_KEPT = ("f16", "f8e4m3", "f8e5m2")
