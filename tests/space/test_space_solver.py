"""A space that exceeds its memory bound: a solver answers what it can, and reports what it cannot."""

from __future__ import annotations

import builtins
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from deepgen.space import Space, ceil_div, maximum, product, where
from deepgen.space.solver import SolverEngine, TooWideToCount
from deepgen.vocabulary import Missing


def wide(memory: int = 1000) -> Space:
    space = Space("wide", memory=memory)
    knobs = [space.knob(f"k{i}", [1, 2, 3, 5, 7, 11, 13]) for i in range(8)]
    mode = space.knob("mode", ["a", "b"])
    extra = space.knob("extra", [1, 2], when=mode == "b")
    total = sum((a * b for a, b in pairwise(knobs)), start=knobs[0] * 0)
    space.require(total + maximum(knobs[0], ceil_div(knobs[1], 2)) <= 200, "sum of products")
    space.require(where(mode == "a", knobs[0], knobs[1]) % 2 == 1, "odd")
    space.require(extra <= knobs[2], "extra is small")
    return space


@pytest.mark.slow
def test_a_wide_space_is_answered_by_a_solver() -> None:
    pytest.importorskip("ortools")
    space = wide()
    assert not space.uniform
    configs = space.sample(4, seed=1)
    assert configs == space.sample(4, seed=1)
    assert all(space.explain(c) == [] and c in space for c in configs)
    near = space.neighbors(configs[0], "any")
    assert near
    assert all(space.explain(c) == [] for c in near)
    with pytest.raises(TooWideToCount, match="no exact count"):
        space.count()
    with pytest.raises(TooWideToCount, match="no ranks"):
        space.sample_ranks(3, seed=0)
    first = space.iterate()
    assert next(first) != next(first)


def test_an_order_that_was_found_before_spares_the_search_and_gives_the_same_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("deepgen.space.compile._QUICK_MEMORY", 0)
    space, again, other = (wide(memory=1 << 30).restrict({f"k{i}": [1, 2, 5] for i in range(8)}) for _ in range(3))
    ranks = range(0, space.count(), 7)
    [order] = space.orders()
    other.arrange([order[1:], [*order[1:], order[1]]])
    assert [other.at(rank) for rank in ranks] == [space.at(rank) for rank in ranks], "orders that do not fit"
    again.arrange([order])
    monkeypatch.setattr("deepgen.space.compile.Planner", None)
    assert [again.at(rank) for rank in ranks] == [space.at(rank) for rank in ranks]
    assert again.orders() == [order]


def test_the_solver_agrees_with_the_diagram() -> None:
    pytest.importorskip("ortools")
    space = wide(memory=1 << 30).restrict({f"k{i}": [1, 2, 5] for i in range(8)})
    assert space.uniform
    solver = SolverEngine("small", space.knobs, space.requirements, "test")
    few = space.restrict({f"k{i}": [1] for i in range(2, 8)})
    assert sum(map(len, SolverEngine("few", few.knobs, few.requirements, "test").chunks(0))) == few.count() > 9
    assert not solver.empty()
    config = space.at(0)
    row = solver.rows_of.row(config)
    assert row is not None
    repaired = solver.repaired(row, solver.rows_of.absent)
    assert repaired
    assert all(solver.contains(r) for r in repaired)


def test_the_solver_takes_products_of_many_factors() -> None:
    """Without the splits, the product of the twelve knobs could reach 2**144."""
    pytest.importorskip("ortools")
    space = Space("long products")
    axes = [[space.knob(f"{a}{i}", [2**e for e in range(13)]) for i in range(4)] for a in "ijk"]
    for axis in axes:
        space.require(product(axis) == 2**12, f"the levels of {axis[0]} multiply to the extent")
    space.require(product([f for axis in axes for f in axis[1:]]) <= 2**20, "tiles fit")
    solver = SolverEngine("long products", space.knobs, space.requirements, "test")
    assert all(solver.contains(row) for row in solver.drawn_rows(2, np.random.default_rng(0)).tolist())


def test_without_the_solver_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name.startswith("ortools"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(Missing, match=r"deepgen-kernels\[solver\]"):
        wide().sample(1, seed=0)
