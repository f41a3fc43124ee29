"""Are right kernels called right, and wrong ones wrong? Simulated GEMM kernels, judged as finalists are.

    python benchmarks/judgement.py [--right 2000] [--wrong 1000] [--json benchmarks/results/judgement.json]

Each kernel gets a random shape and all inputs on which a finalist must be correct: three seeds of normal numbers and
every probe. `right`: all products, summed in one of several orders, with and without rounding each product, and as
tensor cores do it; none may be called wrong. `wrong`, for each format: one product of one element is lost or added
twice; 99.9 of 100 must be called wrong on some inputs. The column `usual only` shows how many would be found without
the probes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass

import numpy as np

from deepgen.operators import Array, Gemm, gemm
from deepgen.operators.compare import compare
from deepgen.run.measure import handed
from deepgen.tuning.finals.qualifying import OTHER_SEEDS
from deepgen.vocabulary.dtypes import DType, narrow, widen
from harness import parser, run_main, save, table
from tolerance import cut, in_blocks, in_pairs, in_turn, rounded

DTYPES = ("f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i8", "u8")
LAYOUTS = ("nn", "nt", "tn", "tt")
ENOUGH = 0.999  # share of the wrong kernels that must be found
PARTS = 4  # of a divided sum
CORE_BITS = 14  # of the sums of 8-bit floats that tensor cores keep
CORE_GROUP, CORE_SUMS = 32, 128  # products of one instruction; products after which f32 takes over

End = Callable[[Array], Array]


def divided(products: Array, end: End) -> Array:
    return in_turn(np.stack([in_turn(part, end) for part in np.array_split(products, PARTS)]), end)


def shuffled(products: Array, end: End) -> Array:
    return in_turn(np.random.default_rng(len(products)).permutation(products), end)


ORDERS: Mapping[str, Callable[[Array, End], Array]] = {
    "in turn": in_turn,
    "in pairs": in_pairs,
    "in blocks": in_blocks,
    "divided": divided,
    "shuffled": shuffled,
}
FUSED = ("", ", products rounded")
CORES = "tensor cores"


def whole(x: Array) -> Array:
    return x


def end_of(acc: DType) -> End:
    return rounded if acc.name == "f32" else whole


def cut_bits(x: Array) -> Array:
    """Truncate to the digits of 8-bit sums, towards zero."""
    fraction, exponent = np.frexp(x)
    kept: Array = np.ldexp(np.trunc(np.ldexp(fraction, CORE_BITS)), exponent - CORE_BITS)
    return kept


def cores(products: Array, operator: Gemm) -> Array:
    """Some products at once and exactly, then truncation; 8-bit sums keep few bits and are later added in f32."""
    if operator.dtypes[0].bits == 16:
        return in_turn(np.add.reduceat(products, np.arange(0, len(products), 8)), cut)
    sums = [
        in_turn(np.add.reduceat(part, np.arange(0, len(part), CORE_GROUP)), cut_bits)
        for part in np.split(products, np.arange(CORE_SUMS, len(products), CORE_SUMS))
    ]
    return in_turn(np.stack(sums))


def orders(operator: Gemm) -> list[str]:
    """Summation orders that a correct kernel may use. f64's products are always rounded, integers never."""
    names = [name + fused for name in ORDERS for fused in FUSED[: 2 if operator.acc == "f32" else 1]]
    return [*names, CORES] if operator.dtypes[0].bits in (8, 16) and operator.acc == "f32" else names


def computed(operator: Gemm, inputs: Mapping[str, Array], order: str) -> Array:
    """C of a correct kernel."""
    a, b, c, acc = operator.dtypes
    left, right = widen(inputs["A"], a), widen(inputs["B"], b)
    left = left.T if operator.layout[0] == "n" else left
    right = right if operator.layout[1] == "n" else right.T
    products = left[:, :, None] * right[:, None, :]
    if order == CORES:
        return narrow(cores(products, operator), c)
    end = end_of(acc)
    if order.endswith(FUSED[1]):
        products = end(products)
    return narrow(ORDERS[order.replace(FUSED[1], "")](products, end), c)


def drawn(rng: np.random.Generator, of: str, largest: int, longest: int) -> Gemm:
    m, n = (int(size) for size in rng.integers(1, largest + 1, 2))
    k = int(np.exp(rng.uniform(0.0, np.log(longest))))
    return gemm(m, n, k, dtype=of, layout=str(rng.choice(LAYOUTS)))


def sets(operator: Gemm, seed: int) -> list[tuple[int, str]]:
    """All inputs on which a finalist must be correct."""
    return [(seed, "normal"), *handed.sets(operator, seed, OTHER_SEEDS)]


def judge_right(operator: Gemm, order: str, seed: int) -> tuple[list[str], float]:
    """The probes that call it wrong, and the largest error as a share of the tolerance."""
    alarms, worst = [], 0.0
    for number, probe in sets(operator, seed):
        inputs = operator.inputs(number, probe)
        with np.errstate(all="ignore"):
            got, want = computed(operator, inputs, order), operator.reference(inputs)["C"]
        results = compare(got, want, operator.dtypes[2], operator.tolerance("C", probe))
        worst = max(worst, results.error)
        alarms += [] if results.ok else [probe]
    return alarms, worst


def rejecting(operator: Gemm, place: int, k: int, change: int, seed: int) -> list[str]:
    """The probes that detect one product missing (change = -1) or doubled (+1) in one element."""
    a, b, c, acc = operator.dtypes
    row, column = divmod(place, operator.n)
    shown = []
    for number, probe in sets(operator, seed):
        inputs = operator.inputs(number, probe)
        left = widen(inputs["A"][row] if operator.layout[0] == "n" else inputs["A"][:, row], a)
        right = widen(inputs["B"][:, column] if operator.layout[1] == "n" else inputs["B"][column], b)
        with np.errstate(all="ignore"):
            products = left * right
            total = in_pairs(np.append(products, change * products[k]), end_of(acc))
            want = operator.reference_at(inputs, "C", np.array([place]))
            got = narrow(np.reshape(total, 1), c)
        if not compare(got, want, c, operator.tolerance("C", probe)).ok:
            shown.append(probe)
    return shown


@dataclass(frozen=True)
class Right:
    """Correct kernels of one format and order: how many were called wrong, and by which inputs."""

    dtype: str
    order: str
    kernels: int
    false_alarms: int
    by: list[str]
    largest_share: float


@dataclass(frozen=True)
class Wrong:
    """Wrong kernels of one format."""

    dtype: str
    kernels: int
    rejected: int
    rejected_by_usual_inputs: int


def right_rows(count: int) -> list[Right]:
    """`count` kernels, distributed over formats and orders in turn."""
    kinds = [(of, order) for of in DTYPES for order in orders(gemm(1, 1, 1, dtype=of))]
    judged: dict[tuple[str, str], list[tuple[list[str], float]]] = {kind: [] for kind in kinds}
    for number in range(count):
        of, order = kinds[number % len(kinds)]
        rng = np.random.default_rng([1, number])
        judged[of, order].append(judge_right(drawn(rng, of, 24, 600), order, number))
    rows = []
    for (of, order), some in judged.items():
        alarms = [probes for probes, _ in some if probes]
        by = sorted({probe for probes in alarms for probe in probes})
        rows.append(Right(of, order, len(some), len(alarms), by, max((worst for _, worst in some), default=0.0)))
    return rows


def wrong_row(of: str, count: int) -> Wrong:
    shown = []
    for number in range(count):
        rng = np.random.default_rng([2, number])
        operator = drawn(rng, of, 24, 8192)
        place, k = int(rng.integers(operator.m * operator.n)), int(rng.integers(operator.k))
        shown.append(rejecting(operator, place, k, int(rng.choice([-1, 1])), number))
    return Wrong(of, count, sum(map(bool, shown)), sum("normal" in probes for probes in shown))


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--right", type=int, default=2000, help="right kernels in all [2000]")
    words.add_argument("--wrong", type=int, default=1000, help="wrong kernels of each format [1000]")
    options = words.options()
    right = right_rows(options.right)
    heads = ("right", "order", "kernels", "false alarms", "largest share")
    print(table(heads, [(r.dtype, r.order, r.kernels, r.false_alarms, r.largest_share) for r in right]))
    wrong = [wrong_row(of, options.wrong) for of in DTYPES]
    print(table(("one product lost or doubled", "kernels", "rejected", "usual only"), [astuple(row) for row in wrong]))
    save(options.json, {"right": right, "wrong": wrong})
    alarms = sum(row.false_alarms for row in right)
    missed = [row.dtype for row in wrong if row.rejected < ENOUGH * row.kernels]
    print(f"{alarms} false alarms; formats with too many missed: {', '.join(missed) or 'none'}")
    return 1 if alarms or missed else 0


if __name__ == "__main__":
    run_main(main)
