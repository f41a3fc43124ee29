"""Several spaces as one: all queries of a space, over all of them."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from spaces import brute_force, frozen, spaces

from deepgen.space import Config, Space, implies, parse
from deepgen.space.member import MemberEngine
from deepgen.vocabulary import BadInput

QUICK = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)


def sketches() -> dict[str, Space]:
    direct = Space("direct")
    tile = direct.knob("tile", [8, 16, 32])
    direct.knob("unroll", [1, 2])
    direct.derive("bytes", tile * tile)
    direct.require(direct.derivations["bytes"] <= 256, "the tile fits")
    cached = Space("cached")
    tile = cached.knob("tile", [16, 32, 64])
    stages = cached.knob("stages", [1, 2, 3])
    pad = cached.knob("pad", [4, 8], when=stages > 1)
    cached.derive("bytes", tile * stages + pad)
    cached.require(cached.derivations["bytes"] <= 100, "the tile fits")
    return {"direct": direct, "cached": cached}


@pytest.fixture
def union() -> Space:
    return Space.union("both", sketches())


def test_a_union_has_the_configs_of_all_its_spaces(union: Space) -> None:
    expected: list[Config] = [{"sketch": name, **c} for name, space in sketches().items() for c in space]
    assert union.count() == len(expected)
    assert Counter(map(frozen, union)) == Counter(map(frozen, expected))
    assert all(union.at(union.rank(c)) == c for c in expected)
    assert {frozen(c) for c in union.sample(400, 1)} == set(map(frozen, expected))
    assert union.derived({"sketch": "direct", "tile": 16, "unroll": 1}) == {"bytes": 256}
    assert union.derived({"sketch": "cached", "tile": 32, "stages": 1}) == {"bytes": 32}


def test_a_union_says_what_is_wrong_with_a_config(union: Space) -> None:
    def names(config: Config) -> list[str]:
        return [broken.name for broken in union.explain(config)]

    assert names({"sketch": "direct", "tile": 32, "unroll": 1}) == ["the tile fits (direct)"]
    assert names({"sketch": "cached", "tile": 8, "stages": 1}) == ["values of tile (cached)"]
    assert names({"sketch": "cached", "tile": 16, "stages": 1, "unroll": 1}) == [
        "knob unroll exists only when sketch == 'direct'"
    ]
    with pytest.raises(BadInput, match="the tile fits"):
        union.rank({"sketch": "direct", "tile": 32, "unroll": 1})


def test_neighbors_lie_within_a_sketch_and_in_the_others(union: Space) -> None:
    here: Config = {"sketch": "direct", "tile": 16, "unroll": 1}
    near = union.neighbors(here)
    assert {c["sketch"] for c in near} == {"direct", "cached"}
    assert all(c in union and (c["sketch"] == "direct" or c["tile"] == 16) for c in near)
    # A tile of 8 is not among the cached ones: changing the sketch requires another tile.
    small: Config = {"sketch": "direct", "tile": 8, "unroll": 1}
    assert {c["sketch"] for c in union.neighbors(small)} == {"direct"}
    assert {c["sketch"] for c in union.neighbors(small, "repair")} == {"direct", "cached"}


def test_a_union_can_be_narrowed_and_extended(union: Space) -> None:
    assert {c["sketch"] for c in union.restrict({"sketch": "cached"})} == {"cached"}
    assert {c["tile"] for c in union.restrict({"tile": [16]})} == {16}
    union.require(parse("unroll < 2"), "learned later")
    assert {c.get("unroll") for c in union} == {1, None}
    union.require(implies(parse("sketch") == "cached", parse("tile > 64")), "no cache")
    assert {c["sketch"] for c in union} == {"direct"}
    union.require(parse("tile > 64"), "nothing")
    assert union.count() == 0
    assert "nothing" in union.why_empty()


def test_a_union_is_written_and_read_back(union: Space) -> None:
    again = Space.from_json(json.loads(json.dumps(union.to_json())))
    assert again.fingerprint() == union.fingerprint()
    assert list(again) == list(union)
    with pytest.raises(BadInput, match="union"):
        Space.from_json({**union.to_json(), "union": "nowhere"})


@pytest.mark.parametrize("nested", [{"inner": "nowhere"}, {"inner": "unroll"}, {"cached": "sketch"}, ["sketch"]])
def test_a_union_within_a_union_is_by_a_knob_that_all_of_its_configs_have(nested: Any) -> None:
    """Of a changed file it had counted other configs, or ended with an error of Python's."""
    inner = Space.union("inner", sketches())
    union = Space.union("all", {"inner": inner, "cached": sketches()["cached"]}, by="family")
    data = {**union.to_json(), "unions": nested}
    del data["fingerprint"]
    with pytest.raises(BadInput, match=r"union|space file"):
        Space.from_json(data).count()


def test_a_shared_knob_has_values_of_one_kind() -> None:
    one, other = Space("one"), Space("other")
    one.knob("tile", [8, 16])
    other.knob("tile", ["small", "large"])
    with pytest.raises(BadInput, match="'tile'"):
        Space.union("both", {"one": one, "other": other})
    with pytest.raises(BadInput, match="no spaces"):
        Space.union("none", {})


def test_an_order_is_kept_for_each_sketch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepgen.space.compile._QUICK_MEMORY", 0)
    union, again = Space.union("both", sketches()), Space.union("both", sketches())
    orders = union.orders()
    assert {order[0] for order in orders} == {"sketch=direct", "sketch=cached"} or len(orders) == 1
    again.arrange(orders)
    monkeypatch.setattr("deepgen.space.compile.Planner", None)
    assert list(again) == list(union)


@QUICK
@given(spaces(most_requirements=3), spaces(most_requirements=3, prefix="m"), st.data(), st.integers(0, 2**32))
def test_alternatives_compiled_apart_answer_like_the_whole(
    one: Space, other: Space, data: st.DataObject, seed: int
) -> None:
    """The same definition, compiled as one diagram and as one for each alternative."""
    knob = data.draw(st.sampled_from(one.knobs))
    part = one.restrict({knob.name: data.draw(st.lists(st.sampled_from(knob.values), min_size=1, unique=True))})
    spaces_of_all = {"one": one, "other": other, "part": part}
    if data.draw(st.booleans()):
        spaces_of_all = {"inner": Space.union("inner", {"one": one, "other": other}, by="way"), "part": part}
    union = Space.union("all", spaces_of_all)
    expected = brute_force(union)
    assert union.count() == len(expected) == one.count() + other.count() + part.count()
    listed = list(union)
    assert Counter(map(frozen, listed)) == Counter(map(frozen, expected))
    for rank, config in enumerate(listed):
        assert union.rank(config) == rank
        assert union.at(rank) == config
    if not listed:
        return
    assert all(c in union for c in union.sample(5, seed))
    config = listed[seed % len(listed)]
    assert list(Space.from_json(union.to_json())) == listed
    assert union.draw_within({name: [value] for name, value in config.items()}, seed) == config
    whole = Space.from_json({k: v for k, v in union.to_json().items() if k not in ("union", "unions", "fingerprint")})
    for kind in ("any", "repair"):
        apart = {_changed(config, c) for c in union.neighbors(config, kind)}  # type: ignore[arg-type]
        together = {_changed(config, c) for c in whole.neighbors(config, kind)}  # type: ignore[arg-type]
        if kind == "any":
            assert apart == together
        assert all(c in whole for c in union.neighbors(config, kind))  # type: ignore[arg-type]


def _changed(config: Config, other: Config) -> frozenset[tuple[str, object]]:
    return frozenset((n, other[n]) for n in config if n in other and other[n] != config[n])


@QUICK
@given(spaces(most_requirements=3), spaces(most_requirements=3, prefix="m"), st.data(), st.integers(0, 2**32))
def test_a_space_within_a_union_answers_as_if_it_were_compiled_itself(
    one: Space, other: Space, data: st.DataObject, seed: int
) -> None:
    knob = data.draw(st.sampled_from(one.knobs))
    part = one.restrict({knob.name: data.draw(st.lists(st.sampled_from(knob.values), min_size=1, unique=True))})
    members = {"one": one, "other": other, "part": part}
    if data.draw(st.booleans()):
        members = {"inner": Space.union("inner", {"one": one, "other": other}, by="way"), "part": part}
    union = Space.union("all", members)
    for label, alone in members.items():
        member = alone.within(union, label)
        listed = list(member)
        assert isinstance(member._ready()[0], MemberEngine) and member.count() == len(listed) == member.ranks
        assert Counter(map(frozen, listed)) == Counter(map(frozen, alone))
        assert [member.rank(config) for config in listed] == [*range(len(listed))]
        assert member.places([*range(len(listed))]).tolist() == [member._ready()[1].row(c) for c in listed]
        assert all(config in alone for config in (member.sample(5, seed) if listed else []))
        foreign = union.sample(3, seed) if listed else []
        assert not any(config in member for config in foreign)  # these have the union's own knob
        for kind in ("any", "adjacent", "repair"):
            for config in listed[seed % (len(listed) or 1) :][:3]:
                near = [{frozen(c) for c in space.neighbors(config, kind)} for space in (member, alone)]  # type: ignore[arg-type]
                assert kind == "repair" or near[0] == near[1]
                assert all(c in alone for c in member.neighbors(config, kind))  # type: ignore[arg-type]


def test_a_space_that_changed_since_is_compiled_itself(union: Space) -> None:
    direct = sketches()["direct"].within(union, "direct")
    assert direct.count() == 4 and isinstance(direct._ready()[0], MemberEngine)
    direct.require(direct.derivations["bytes"] <= 64, "a smaller one")
    assert direct.count() == 2 and not isinstance(direct._ready()[0], MemberEngine)
    wide = Space("wide")
    wide.knob("tile", [1024])
    for label in ("direct", "unknown"):
        member = wide.within(union, label)
        assert member.count() == 1 and not isinstance(member._ready()[0], MemberEngine)
