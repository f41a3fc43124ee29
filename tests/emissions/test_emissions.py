"""A sample of the replay: today's emissions equal the committed list. `replay.py` compares all of it."""

from __future__ import annotations

import re

import emission_cases
import pytest
import replay
from emission_cases import Case

LISTED = replay.read()
CASES = [case for case in emission_cases.cases() if case.name in LISTED.get(case.family, {})]
RULES = ("rules", "rules_constant_weights", "vta")
# A sample, and the first of each family; an emission by rules takes as long as ten others.
BEGIN = {case.family: case for case in reversed(CASES)}
DEFAULTS = [
    case
    for place, case in enumerate(CASES)
    if place % (20 if case.family in RULES else 5) == 0 or case is BEGIN[case.family]
]
WHOLE = CASES[3::80]
REMEDY = "python tests/emissions/replay.py shows all differences, and says in its first lines what to do about them"


def test_the_list_has_cases_of_every_family_and_no_others() -> None:
    own = {emission_cases.OWN, emission_cases.TRITON, emission_cases.TRITON_C, emission_cases.OLDER}
    current = emission_cases.RENAMES["families"]
    assert {current.get(family, family) for family in LISTED} == {*emission_cases.BUILT_IN, *own}
    assert {(family, name) for family in LISTED for name in LISTED[family]} == {(c.family, c.name) for c in CASES}


@pytest.mark.parametrize("family", LISTED)
def test_defaults_are_emitted_as_before(family: str) -> None:
    differing = []
    for case in DEFAULTS:
        if case.family == family and emission_cases.lacks(case) is None:
            emission = emission_cases.default(case)
            lines = {} if emission is None else dict([replay.line_of(emission)])
            differing += replay.differences(case, LISTED[family][case.name], lines)
    assert not differing, REMEDY


@pytest.mark.parametrize("case", WHOLE, ids=lambda case: re.sub(r"\W+", "-", f"{case.family} {case.name}"))
def test_spaces_and_drawn_configs_are_as_before(case: Case) -> None:
    if reason := emission_cases.lacks(case):
        pytest.skip(reason)
    assert (
        replay.differences(case, LISTED[case.family][case.name], replay.lines_of(case, LISTED[case.family][case.name]))
        == []
    ), REMEDY


def test_a_rename_leaves_hashes_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    before = replay.hashed({"name": "tile", "text": "int tile_rows = 1; tile(tile_rows);"})
    monkeypatch.setitem(emission_cases.RENAMES, "texts", [{"old": "tile_rows", "new": "rows_of_tile", "why": "a test"}])
    assert replay.hashed({"name": "tile", "text": "int rows_of_tile = 1; tile(rows_of_tile);"}) == before
    assert replay.hashed({"name": "tile", "text": "int rows_of_tiles = 1; tile(rows_of_tiles);"}) != before


def test_differences_are_told_apart() -> None:
    case = Case("rules", "gemv M=50 K=333", "sim", 1)
    old = {"space": "1", "default a": "2", "drawn b": "3"}
    assert replay.differences(case, old, old) == []
    name = "rules: gemv M=50 K=333 on sim"
    assert replay.differences(case, old, {**old, "drawn b": "4"}) == [f"{name}: drawn b: another kernel"]
    assert replay.differences(case, old, {"space": "5", "default a": "2", "drawn c": "3"}) == [
        f"{name}: another space",
        f"{name}: drawn b: this config is gone",
        f"{name}: drawn c: this config is new",
    ]
    assert replay.differences(case, old, {}) == [f"{name}: no longer served"]
    assert replay.differences(case, {}, old) == [f"{name}: not in the list"]
