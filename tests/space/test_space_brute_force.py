"""Every answer of the compiled engine against brute force, on random small spaces."""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from spaces import brute_force, conditions, frozen, spaces

from deepgen.space import Requirement, Space, layers, parse
from deepgen.space import compile as compiler
from deepgen.space.expr import walk

QUICK = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)


@QUICK
@given(spaces())
def test_counts_lists_and_ranks_every_valid_config_once(space: Space) -> None:
    expected = brute_force(space)
    assert space.count() == len(expected)
    listed = list(space)
    assert Counter(map(frozen, listed)) == Counter(map(frozen, expected))
    for rank, config in enumerate(listed):
        assert space.at(rank) == config
        assert space.rank(config) == rank
    half = len(listed) // 2
    assert list(space.iterate(half)) == listed[half:]


@QUICK
@given(spaces())
def test_staged_requirements_count_the_same(space: Space) -> None:
    """Requirements whose tables are too large are evaluated knob by knob: this forces that for all of them."""
    expected = space.count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "TABLE_CELLS", 0)
        staged = Space.from_json(space.to_json())
        assert staged.count() == expected
        assert {frozen(c) for c in staged} == {frozen(c) for c in space}


@QUICK
@given(spaces())
def test_a_better_order_changes_no_count(space: Space) -> None:
    expected = space.count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "_QUICK_MEMORY", 0)
        assert Space.from_json(space.to_json()).count() == expected


@QUICK
@given(spaces(), st.integers(0, 2**32))
def test_contains_and_explain_agree_on_any_assignment(space: Space, seed: int) -> None:
    rng = np.random.default_rng(seed)
    valid = {frozen(c) for c in brute_force(space)}
    for _ in range(10):
        places = [int(rng.integers(k.places)) for k in space.knobs]
        config = {k.name: k.values[i] for k, i in zip(space.knobs, places, strict=True) if i < len(k.values)}
        inside = frozen(config) in valid
        assert space.contains(config) == inside
        assert (space.explain(config) == []) == inside


@QUICK
@given(spaces(), st.integers(0, 2**32))
def test_neighbors_of_every_kind(space: Space, seed: int) -> None:
    valid = brute_force(space)
    if not valid:
        return
    config = valid[seed % len(valid)]

    def changes(other: dict[str, object]) -> list[str]:
        return [n for n in config if n in other and other[n] != config[n]]

    near = space.neighbors(config, "any")
    reachable = {(n, other[n]) for other in valid if (found := changes(other)) and len(found) == 1 for n in found}
    assert {frozen(n) for n in near} <= {frozen(v) for v in valid}
    assert all(len(changes(n)) == 1 for n in near)
    assert {(changes(n)[0], n[changes(n)[0]]) for n in near} == reachable
    by_name = {k.name: k.values for k in space.knobs}
    for other in space.neighbors(config, "adjacent"):
        (name,) = changes(other)
        assert abs(by_name[name].index(other[name]) - by_name[name].index(config[name])) == 1
    repaired = space.neighbors(config, "repair")
    assert {frozen(n) for n in repaired} <= {frozen(v) for v in valid}
    for name in config:
        for value in by_name[name]:
            fits = [len(changes(v)) for v in valid if v.get(name) == value]
            if value != config[name] and fits:
                assert min(fits) in {len(changes(r)) for r in repaired if r.get(name) == value}


@QUICK
@given(spaces(), st.data())
def test_restrict_intersect_and_add_filter_the_configs(space: Space, data: st.DataObject) -> None:
    knob = data.draw(st.sampled_from(space.knobs))
    kept = data.draw(st.lists(st.sampled_from(knob.values), min_size=1, unique=True))
    valid = brute_force(space)
    narrowed = space.restrict({knob.name: kept})
    assert {frozen(c) for c in narrowed} == {frozen(c) for c in valid if knob.name not in c or c[knob.name] in kept}
    assert {frozen(c) for c in narrowed.intersect(space)} == {frozen(c) for c in narrowed}
    numeric = [parse(k.name) for k in space.knobs if not isinstance(k.values[0], str)]
    added = Space.from_json(space.to_json())
    added.count()
    added.add(Requirement("learned later", data.draw(conditions(numeric, []))))
    assert {frozen(c) for c in added} == {frozen(c) for c in brute_force(added)}


@QUICK
@given(spaces())
def test_json_round_trip_keeps_everything(space: Space) -> None:
    text = json.dumps(space.to_json())
    again = Space.from_json(json.loads(text))
    assert json.dumps(again.to_json()) == text
    assert again.fingerprint() == space.fingerprint()
    assert list(again) == list(space)


@QUICK
@given(spaces())
def test_printed_expressions_are_read_back(space: Space) -> None:
    for requirement in space.requirements:
        named = {n.data: n for n in walk(requirement.expr) if n.op == "named"}
        assert parse(str(requirement.expr), named).same(requirement.expr)


@QUICK
@given(spaces())
def test_points_make_the_same_space(space: Space) -> None:
    valid = brute_force(space)
    if not valid:
        return
    points = Space.from_points("points", valid)
    assert points.count() == len(valid)
    assert {frozen(c) for c in points} == {frozen(c) for c in valid}
    assert all(points.at(points.rank(c)) == c for c in valid)
    assert Space.from_json(points.to_json()).count() == len(valid)


@QUICK
@given(spaces())
def test_removals_add_up(space: Space) -> None:
    total = len(brute_force(_without(space, [])))
    for removal in space.removed_by():
        own = [r for r in space.requirements if r.name == removal.name]
        others = [r for r in space.requirements if r.name != removal.name]
        assert removal.alone == total - len(brute_force(_without(space, own)))
        assert removal.only == len(brute_force(_without(space, others))) - space.count()


def _without(space: Space, kept: list[Requirement]) -> Space:
    other = Space("other")
    for knob in space.knobs:
        other.knob(knob.name, knob.values, knob.when)
    for requirement in kept:
        other.add(requirement)
    return other


@QUICK
@given(spaces(most_requirements=6))
def test_why_empty_names_a_smallest_conflict(space: Space) -> None:
    names = space.why_empty()
    if space.count():
        assert names == []
        return
    chosen = [r for r in space.requirements if r.name in names]
    assert brute_force(_without(space, chosen)) == []
    for smaller in combinations(space.requirements, len(names) - 1):
        if names:
            assert brute_force(_without(space, list(smaller)))
