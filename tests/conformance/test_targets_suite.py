"""What every target must satisfy."""

from __future__ import annotations

import json

import pytest

from deepgen import targets
from deepgen.targets import Target

NAMES = [
    "x86:native",
    "x86:avx2",
    "x86:avx512",
    "cuda:sm_90a",
    "cuda:h200",
    "hip:gfx906",
    "hip:z100",
    "sim",
    "sim:faults=0.5",
]


@pytest.fixture(params=NAMES)
def target(request: pytest.FixtureRequest) -> Target:
    return targets.resolve(request.param)


def test_its_name_says_its_kind(target: Target) -> None:
    assert target.kind in targets.KINDS
    assert target.name == target.kind or target.name.startswith(target.kind + ":")


def test_its_facts_are_json_and_come_back_whole(target: Target) -> None:
    text = json.dumps(target.to_json())
    assert targets.from_json(json.loads(text)) == target


def test_its_fingerprint_is_that_of_its_facts(target: Target) -> None:
    assert target.fingerprint() == targets.resolve(target.name).fingerprint()
    others = {targets.resolve(n).fingerprint() for n in NAMES if n != target.name}
    assert target.fingerprint() not in others


def test_it_describes_itself_in_one_line(target: Target) -> None:
    assert target.name in target.describe() and "\n" not in target.describe()


def test_it_cannot_be_changed(target: Target) -> None:
    with pytest.raises(AttributeError):
        target.name = "other"  # type: ignore[misc]
