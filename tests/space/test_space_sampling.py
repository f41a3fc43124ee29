"""Samples are uniform, repeatable, and come from the ranks; large spaces, threads and big numbers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from math import comb

import numpy as np
import pytest

from deepgen.space import Requirement, Space, divides, implies, layers, parse, product, where
from deepgen.space import compile as compiler
from deepgen.vocabulary import BadInput


def lopsided() -> Space:
    """A space in which independent choices per knob would be far from uniform over configs."""
    space = Space("lopsided")
    x = space.knob("x", list(range(1, 13)))
    y = space.knob("y", list(range(1, 13)))
    z = space.knob("z", [0, 1, 2], when=x > 6)
    space.require(divides(x, y) | (x * y >= 72), "far from independent")
    space.require(implies(z == 2, y > 3), "rare third value")
    space.knob("free", ["a", "b"])
    return space


def test_samples_are_uniform_over_configs() -> None:
    from scipy.stats import chisquare  # here: importing it would take every worker two seconds

    space = lopsided()
    ranks = space.sample_ranks(60 * space.count(), seed=11)
    seen = np.bincount(ranks, minlength=space.count())
    assert len(seen) == space.count()
    assert chisquare(seen).pvalue > 0.001


def test_samples_are_the_configs_of_their_ranks_and_repeat_for_a_seed() -> None:
    space = lopsided()
    configs = space.sample(200, seed=5)
    assert configs == [space.at(r) for r in space.sample_ranks(200, seed=5)]
    assert configs == space.sample(200, seed=5)
    assert configs != space.sample(200, seed=6)
    assert all(c in space for c in configs)


def test_distinct_samples_are_distinct_and_can_be_all() -> None:
    space = lopsided()
    for n in (5, space.count() - 1, space.count()):
        ranks = space.sample_ranks(n, seed=1, distinct=True)
        assert len(set(ranks)) == n
    assert len(space.sample_ranks(10**6, seed=1, distinct=True)) == space.count()


def splits(levels: int, extent_log: int) -> Space:
    """Factorisations of a power of two, plus free knobs that push the count past 64 bits."""
    space = Space("splits")
    factors = [space.knob(f"f{i}", [2**e for e in range(extent_log + 1)]) for i in range(levels)]
    space.require(product(factors) == 2**extent_log, "the levels multiply to the extent")
    for i in range(80):
        space.knob(f"free{i}", [0, 1])
    return space


def test_counts_beyond_64_bits_are_exact_and_ranks_go_both_ways() -> None:
    space = splits(6, 20)
    assert space.count() == comb(25, 5) * 2**80
    for rank in (0, 1, space.count() // 3, space.count() - 1, *space.sample_ranks(20, seed=2)):
        assert space.rank(space.at(rank)) == rank
    configs = space.sample(500, seed=4)
    assert [space.rank(c) for c in configs] == space.sample_ranks(500, seed=4)
    assert len(space.sample_ranks(50, seed=0, distinct=True)) == 50


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("careful", [False, True])
def test_products_that_wrap_around_64_bits_are_not_mistaken(
    staged: bool, careful: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2**74 is 2**10 in 64 bits: neither the table of the split nor later stages may confuse them."""
    if staged:
        monkeypatch.setattr(layers, "TABLE_CELLS", 4096)
    if careful:
        monkeypatch.setattr(compiler, "_QUICK_MEMORY", 0)
    space = Space("wrap")
    f = [space.knob(f"f{i}", [2**e for e in range(25)]) for i in range(4)]
    g = space.knob("g", [1, 2**40, -(2**40)])
    space.require(product(f) == 2**10, "the levels multiply to the extent")
    space.require(f[0] * f[1] * f[2] * 2**30 * g <= 2**60, "far beyond 64 bits elsewhere")
    splits_of_10 = [(a, b, c) for a in range(11) for b in range(11) for c in range(11) if a + b + c <= 10]
    fits = sum(1 for s in splits_of_10 for e in (0, 40, None) if e is None or sum(s) + 30 + e <= 60)
    assert space.count() == fits


def test_limits_on_long_products_are_exact() -> None:
    """The open knobs could multiply to far more than 64 bits; their splits forbid it."""
    space = Space("long products")
    axes = [[space.knob(f"{a}{i}", [2**e for e in range(13)]) for i in range(4)] for a in "ijk"]
    for axis in axes:
        space.require(product(axis) == 2**12, f"the levels of {axis[0]} multiply to the extent")
    space.require(product([f for axis in axes for f in axis[2:]]) <= 255, "accumulators fit in registers")
    # By exponent: the number of ways in which the two inner levels of an axis multiply to it, and the outer ones to the
    # rest.
    ways = one = np.array([(e + 1) * (13 - e) for e in range(13)])
    for _ in range(2):
        ways = np.convolve(ways, one)
    assert space.count() == ways[:8].sum()


def test_one_part_beyond_64_bits_is_walked_exactly() -> None:
    space = Space("one part")
    knobs = [space.knob(f"k{i}", list(range(8))) for i in range(30)]
    for a, b in pairwise(knobs):
        space.require((a + b) % 8 != 7, f"{a} and {b} differ")
    assert space.count() == 8 * 7**29
    ranks = space.sample_ranks(200, seed=9)
    assert [space.rank(c) for c in space.sample(200, seed=9)] == ranks
    assert all(space.rank(space.at(r)) == r for r in ranks)


def test_a_wide_memory_limit_is_counted_without_its_table() -> None:
    """A sum of products over many knobs, compared with direct enumeration of the factorisations."""
    space = Space("tiles")
    axes = {a: [space.knob(f"{a}{i}", [1, 2, 4, 8, 16]) for i in range(4)] for a in "ijk"}
    at = space.knob("at", [0, 1])
    for axis, levels in axes.items():
        space.require(product(levels) == 16, f"levels of {axis}")

    def inner(axis: str) -> object:
        f = axes[axis]
        return where(at == 0, f[1] * f[2] * f[3], f[3])

    i, j, k = (inner(a) for a in "ijk")
    space.require(i * k + j * k + i * j <= 96, "tiles fit")  # type: ignore[operator]
    rows = [(a, b, c, 16 // (a * b * c)) for a in P for b in P for c in P if 16 % (a * b * c) == 0]
    outer = np.bincount([16 // r[0] for r in rows], minlength=17)
    last = np.bincount([r[3] for r in rows], minlength=17)
    expected = 0
    for ways in (outer, last):
        n = np.arange(17)
        a, b, c = np.meshgrid(n, n, n, indexing="ij")
        weight = ways[a] * ways[b] * ways[c]
        expected += int(weight[a * c + b * c + a * b <= 96].sum())
    assert space.count() == expected
    assert space.uniform


P = (1, 2, 4, 8, 16)


def test_many_threads_may_read_at_once() -> None:
    space = lopsided()
    expected = Space.from_json(space.to_json())
    answers = [expected.at(r) for r in range(expected.count())]

    def work(seed: int) -> bool:
        ranks = np.random.default_rng(seed).integers(0, len(answers), 50).tolist()
        return all(space.at(r) == answers[r] and space.rank(answers[r]) == r for r in ranks)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(32)))


def test_an_empty_space_says_why_when_sampled() -> None:
    space = Space("empty")
    x, y = space.knob("x", [1, 2]), space.knob("y", [1, 2])
    space.require(x + y < 100, "harmless")
    space.require(x > y, "x above y")
    space.require(y > x, "y above x")
    assert sorted(space.why_empty()) == ["x above y", "y above x"]
    with pytest.raises(BadInput, match="x above y; y above x"):
        space.sample(1, seed=0)
    assert list(space) == []


def test_a_requirement_learned_later_takes_effect() -> None:
    space = lopsided()
    before = space.count()
    space.add(Requirement("learned", parse("x != 12")))
    assert space.count() < before
    assert all(c["x"] != 12 for c in space.sample(100, seed=0))


def test_recorded_points_of_some_size_keep_their_ranks() -> None:
    configs = lopsided().sample(3000, seed=1)
    space = Space.from_points("recorded", configs)
    assert space.count() == len({frozenset(c.items()) for c in configs})
    assert all(space.at(space.rank(c)) == c for c in configs[:200])
    assert space.restrict({"free": "a"}).count() == len({frozenset(c.items()) for c in configs if c["free"] == "a"})


def test_points_of_a_damaged_file_are_refused_in_a_sentence() -> None:
    with pytest.raises(BadInput, match="of type dict cannot be a value"):
        Space.from_points("recorded", [{"TILE": 8}, {"TILE": {"of": 8}}])  # type: ignore[dict-item]
