"""Spaces too wide to be compiled: samples stay uniform, and the count is an estimate, marked as such."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from schedule_spaces import conv, gemm, tiled
from spaces import brute_force, frozen, spaces

from deepgen.space import Space, implies, relax, union
from deepgen.space.compile import Constraint
from deepgen.space.engine import TooWide, TooWideToCount
from deepgen.vocabulary import BadInput

QUICK = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)
LITTLE = 1 << 26  # enough for a diagram of the splits, and far too little for all requirements together


def give_up(patch: pytest.MonkeyPatch, keeps: Callable[[Constraint], bool]) -> None:
    """From now on no space is compiled completely, and the relaxed diagram contains only what `keeps` selects."""
    add = relax._Relaxation._add

    def compile_space(*_: object) -> None:
        raise TooWide("asked for by the test")

    patch.setattr(union, "compile_space", compile_space)
    patch.setattr(relax, "TABLE_CELLS", 0)
    patch.setattr(relax._Relaxation, "_add", lambda self, own: keeps(own) and add(self, own))


@QUICK
@given(spaces(), st.integers(0, 2**32))
def test_a_relaxed_space_has_exactly_the_valid_configs(space: Space, seed: int) -> None:
    valid = {frozen(c) for c in brute_force(space)}
    assume(valid)
    with pytest.MonkeyPatch.context() as patch:
        rng = np.random.default_rng(seed)
        give_up(patch, lambda _: bool(rng.integers(2)))
        configs = list(space)
        assert {frozen(c) for c in configs} == valid
        assert len(configs) == len(valid)
        assert all(space.at(space.rank(c)) == c and c in space for c in configs)
        assert sum(space.are_ranks(range(space.ranks))) == len(valid)
        assert {frozen(c) for c in space.sample(20, seed)} <= valid
        assert len(space.sample_ranks(1000, seed, distinct=True)) <= len(valid)
        for kind in ("any", "adjacent", "repair"):
            assert {frozen(c) for c in space.neighbors(configs[0], kind)} <= valid  # type: ignore[arg-type]


def test_samples_of_a_relaxed_space_are_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    give_up(monkeypatch, lambda own: "z" in own.scope)
    space = Space("lopsided")
    x, y = space.knob("x", list(range(1, 13))), space.knob("y", list(range(1, 13)))
    z = space.knob("z", [0, 1, 2], when=x > 6)
    space.require((y % x == 0) | (x * y >= 72), "far from independent")
    space.require(implies(z == 2, y > 3), "rare third value")
    valid = [space.rank(c) for c in brute_force(space)]
    seen = Counter(space.sample_ranks(60 * len(valid), seed=11))
    spread = sum((seen[rank] - 60) ** 2 / 60 for rank in valid)  # chi-square: about one for each config
    assert abs(spread - len(valid)) < 5 * (2 * len(valid)) ** 0.5
    size = space.size()
    assert not size.exact
    assert abs(size.count - len(valid)) < 5 * size.error * len(valid)
    with pytest.raises(TooWideToCount, match=r"about \d+ \(within \d+%\)"):
        space.count()
    nowhere = space.are_ranks(range(space.ranks)).index(False)
    with pytest.raises(BadInput, match="no config"):
        space.at(nowhere)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tiled(conv("conv2d", 1, [60, 60], 768, 360, 3, 1), 4, last_derived=True, memory=LITTLE),
        lambda: tiled(conv("conv3d", 8, [8, 56, 56], 64, 64, 3, 1), 4, memory=LITTLE),
        lambda: tiled(gemm(1000, 768, 3072), 5, memory=LITTLE),
    ],
)
def test_spaces_of_schedule_rules_are_sampled(make: Callable[[], Space]) -> None:
    """With little memory they are too wide to be counted exactly."""
    space = make()
    configs = space.sample(25, 0)
    assert all(space.explain(c) == [] for c in configs)
    assert configs == space.sample(25, 0)
    assert space.uniform
    assert space.size().error < 0.1
    assert all(space.at(space.rank(c)) == c for c in configs[:5])
    assert space.neighbors(configs[0])


def test_a_limit_on_a_sum_is_kept_for_its_terms_where_the_whole_is_too_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise only one or two in a million draws would be valid."""
    space = Space("tight")
    a, b, c, d, e, f = (space.knob(name, list(range(1, 101))) for name in "abcdef")
    space.require(a * b + c * d + e * f <= 30, "fits")
    exact = space.count()
    give_up(monkeypatch, lambda own: len(own.scope) == 2)
    relaxed = Space.from_json(space.to_json())
    assert relaxed.ranks < 20 * exact
    assert abs(relaxed.size().count - exact) < 5 * relaxed.size().error * exact
