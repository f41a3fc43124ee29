"""A random order must hold every position once, or a search would repeat or miss configs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepgen.tuning.search.base import Shuffle


@given(count=st.integers(1, 300), seed=st.integers(0, 2**32))
def test_every_position_once(count: int, seed: int) -> None:
    order = Shuffle(count, seed)
    assert sorted(order[i] for i in range(count)) == list(range(count))


def test_huge_orders_cost_nothing() -> None:
    order = Shuffle(10**40, 1)
    seen = {order[i] for i in range(1000)}
    assert len(seen) == 1000 and all(0 <= r < 10**40 for r in seen)


def test_positions_spread_evenly() -> None:
    order = Shuffle(1 << 20, 5)
    quarters = [0] * 4
    for i in range(4000):
        quarters[order[i] * 4 >> 20] += 1
    assert all(850 < q < 1150 for q in quarters)


def test_outside_is_an_error() -> None:
    with pytest.raises(IndexError):
        Shuffle(3, 0)[3]
