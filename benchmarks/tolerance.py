"""Is the tolerance of a GEMM sound? Right sums in several orders must pass, and a lost product must not.

    python benchmarks/tolerance.py [--samples 8192] [--json benchmarks/results/tolerance.json]

Each sample is one element of C: a sum of K products in f32, compared with the same sum in f64. The tail matters: a
result has up to 1e8 elements. So samples are also drawn with a drift that makes large results common, and each is
weighted by its likelihood without the drift (the balance heuristic). The columns: the largest error seen, as a share of
the tolerance; the probability that one element of a correct result is called wrong; the same without the part of the
tolerance that grows like sqrt(K); how many single lost products are missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from math import erfc, sqrt

import numpy as np

from deepgen.operators import Array, Tolerance, gemm
from deepgen.vocabulary.dtypes import dtype, narrow, widen
from harness import parser, run_main, save, table

LENGTHS = (16, 256, 2560, 7000)
DRIFTS = (0.0, 2.0, 4.0, 6.0)  # of the result, in its standard deviations
MANY = 64  # products of each element that are lost, one at a time
GROUP = 32  # products that a blocked sum adds up separately
LARGEST, ENOUGH = 7.0, 30  # results, in standard deviations; minimum samples of a group
F32_EPSILON = dtype("f32").epsilon


@dataclass(frozen=True)
class Drawn:
    """Products of some elements of C, K of them in each column, with reference data."""

    products: Array  # f64, exact
    want: Array
    scale: Array
    weight: Array  # the likelihood of each, over that of drawing it; they add up to about 1


def rounded(x: Array) -> Array:
    return x.astype(np.float32)


def cut(x: Array) -> Array:
    """Truncate to f32 towards zero."""
    near = x.astype(np.float32)
    below: Array = np.nextafter(near, np.float32(0))
    return np.where(np.abs(near.astype(np.float64)) > np.abs(x), below, near)


def in_turn(terms: Array, end: Callable[[Array], Array] = rounded) -> Array:
    """A sequential sum, rounded after each addition."""
    total = end(np.zeros(terms.shape[1:]))
    for term in terms:
        total = end(total.astype(np.float64) + term)
    return total


def in_blocks(products: Array, end: Callable[[Array], Array] = rounded) -> Array:
    whole = len(products) // GROUP * GROUP
    sums = in_turn(np.swapaxes(products[:whole].reshape(-1, GROUP, *products.shape[1:]), 0, 1), end)
    return in_turn(np.concatenate([sums, products[whole:]]), end)


def in_pairs(products: Array, end: Callable[[Array], Array] = rounded) -> Array:
    terms = end(products)
    while len(terms) > 1:
        odd = terms[len(terms) // 2 * 2 :]
        sums = end(terms[0 : len(terms) // 2 * 2 : 2].astype(np.float64) + terms[1::2])
        terms = np.concatenate([sums, odd])
    total: Array = terms[0]
    return total


def cut_each(count: int) -> Callable[[Array], Array]:
    """As in tensor cores: this many products at once and exactly, then truncation."""

    def total(products: Array) -> Array:
        return in_turn(np.add.reduceat(products, np.arange(0, len(products), count)), cut)

    return total


# Summation orders, with the formats of A and B, and of C, for which they must pass.
ORDERS: Mapping[str, tuple[Callable[[Array], Array], str, str]] = {
    "in turn": (in_turn, "f32", "f32"),
    "in blocks": (in_blocks, "f32", "f32"),
    "in pairs": (in_pairs, "f32", "f32"),
    "f16 in turn": (in_turn, "f16", "f16"),
    "bf16 in turn": (in_turn, "bf16", "bf16"),
    "bf16, cut each 8": (cut_each(8), "bf16", "f32"),
    "bf16, cut each 16": (cut_each(16), "bf16", "f32"),
}


def draw(k: int, count: int, seed: int, of: str, drifts: tuple[float, ...] = DRIFTS) -> Drawn:
    """`count` elements for each drift."""
    rng = np.random.default_rng([seed, k])
    a, b = (rng.standard_normal((k, count * len(drifts)), dtype=np.float32) for _ in range(2))
    b += np.repeat(np.array(drifts, np.float32) / np.float32(sqrt(k)), count) * a
    ratio = np.zeros(a.shape[1])
    along, squares = (a.astype(np.float64) * b).sum(0), (a.astype(np.float64) ** 2).sum(0)
    for drift in np.array(drifts) / sqrt(k):
        ratio += np.exp(drift * along - drift**2 * squares / 2) / len(drifts)
    a, b = (widen(narrow(x, dtype(of)), dtype(of)) for x in (a, b))
    products = a * b
    scale = np.sqrt((a**2).sum(0) * (b**2).sum(0)) / k
    return Drawn(products, products.sum(0), scale, 1 / (ratio * a.shape[1]))


def allowed(drawn: Drawn, tolerance: Tolerance) -> Array:
    out: Array = tolerance.absolute * drawn.scale + tolerance.relative * np.abs(drawn.want)
    return out


def chance(off: Array, bound: Array, drawn: Drawn) -> float:
    """The probability that an error exceeds its bound.

    Results are grouped by their size. In a group, errors relative to their bound are assumed to be normal with the
    observed mean and deviation.
    """
    size = np.minimum(np.abs(drawn.want) / sqrt(len(drawn.products)), LARGEST).astype(int)
    total = 0.0
    for group in np.unique(size):
        share, weight = (off / bound)[size == group], drawn.weight[size == group]
        if len(share) < ENOUGH:
            continue
        margin = (1 - np.array([1, -1]) * share.mean()) / share.std()
        total += float(weight.sum()) * sum(erfc(m / sqrt(2)) / 2 for m in margin)
    return total


@dataclass(frozen=True)
class Row:
    sum: str
    k: int
    largest_share: float
    false_alarm_an_element: float
    without_the_walk: float
    lost_products_missed: float


def row(name: str, k: int, samples: int, seed: int = 0) -> Row:
    total, of, c = ORDERS[name]
    operator, drawn = gemm(64, 64, k, dtype=of, c=c), draw(k, samples, seed, of)
    tolerance = operator.tolerance("C")
    walk = F32_EPSILON * sqrt(k)
    bound = allowed(drawn, tolerance)
    off = widen(narrow(total(drawn.products), dtype(c)), dtype(c)) - drawn.want
    usual = slice(0, samples)  # without a drift
    lost = np.abs(off - drawn.products[:MANY])[:, usual] <= bound[usual]
    without = chance(off, bound - walk * np.abs(drawn.want), drawn)
    return Row(name, k, float(np.abs(off / bound).max()), chance(off, bound, drawn), without, float(lost.mean()))


def main() -> None:
    words = parser(__doc__)
    words.add_argument("--samples", type=int, default=8192, help="elements for each drift [8192]")
    options = words.options()
    rows = [row(name, k, options.samples, options.seed) for k in LENGTHS for name in options.chosen(ORDERS)]
    heads = ("sum", "K", "largest share", "false alarm", "without the walk", "lost missed")
    print(table(heads, [astuple(one) for one in rows]))
    save(options.json, rows)


if __name__ == "__main__":
    run_main(main)
