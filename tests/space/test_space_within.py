"""One config from part of a space, without compiling the part: in counted spaces, in unions, in spaces too wide."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from spaces import brute_force, frozen, spaces
from test_space_wide import give_up

from deepgen.space import Config, Space

QUICK = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)


def keeps(config: Config, values: dict[str, set[object]]) -> bool:
    return all(config[name] in some for name, some in values.items() if name in config)


@QUICK
@given(spaces(), spaces(most_requirements=2, prefix="m"), st.data(), st.integers(0, 2**32))
def test_what_is_drawn_is_valid_and_keeps_to_the_values(
    one: Space, other: Space, data: st.DataObject, seed: int
) -> None:
    # A space too wide to be counted is never known to be empty: that takes a solver.
    some = brute_force(one) and brute_force(other)
    for wide in (False, True) if some else (False,):
        for space in (one.restrict({}), Space.union("both", {"one": one, "other": other})):
            chosen = data.draw(st.lists(st.sampled_from(space.knobs), max_size=2, unique=True))
            values = {k.name: data.draw(st.sets(st.sampled_from(k.values), min_size=1)) for k in chosen}
            expected = {frozen(c) for c in brute_force(space) if keeps(c, values)}
            with pytest.MonkeyPatch.context() as patch:
                rng = np.random.default_rng(seed)
                if wide:
                    give_up(patch, lambda _, rng=rng: bool(rng.integers(2)))
                drawn = [space.draw_within(values, seed + i) for i in range(3)]
            assert [c is not None for c in drawn] == [bool(expected)] * 3
            assert {frozen(c) for c in drawn if c is not None} <= expected


@pytest.mark.parametrize("wide", [False, True])
def test_every_config_of_a_part_is_as_likely(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if wide:
        give_up(monkeypatch, lambda _: False)
    few, many = Space("few"), Space("many")
    for space, most in ((few, 6), (many, 40)):
        a, b = (space.knob(name, [1, 2, 4, 8, 16]) for name in "ab")
        space.require(a * b <= most, "they fit")
    both = Space.union("both", {"few": few, "many": many})
    values = {"a": {2, 4}}
    drawn = Counter(frozen(found) for seed in range(400) if (found := both.draw_within(values, seed)) is not None)
    part = [frozen(c) for c in brute_force(both) if keeps(c, values)]  # type: ignore[arg-type]
    assert drawn.total() == 400 and set(drawn) == set(part)
    expected = 400 / len(part)
    assert sum((count - expected) ** 2 / expected for count in drawn.values()) < 3 * len(part)
