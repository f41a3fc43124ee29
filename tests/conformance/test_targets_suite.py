"""What every target must satisfy."""

from __future__ import annotations

import json

import pytest

from deepgen import targets
from deepgen.targets import Target

NAMES = [
    "cpu",
    "x86:avx2",
    "x86:avx512",
    "arm:neon",
    "riscv:rv64gcv_zvl256b",
    "riscv:k1",
    "cuda:sm_90a",
    "cuda:h200",
    "hip:gfx906",
    "hip:z100",
    "sim",
    "sim:faults=0.5",
    "vta",
]


@pytest.fixture(params=NAMES)
def target(request: pytest.FixtureRequest) -> Target:
    return targets.resolve(request.param)


def test_its_name_says_its_kind(target: Target) -> None:
    kind = targets.KINDS.get(target.kind)()
    assert type(kind.from_json(target.to_json())) is type(target)
    assert target.name == target.kind or target.name.startswith(target.kind + ":")


def test_its_facts_are_json_and_come_back_whole(target: Target) -> None:
    text = json.dumps(target.to_json())
    assert targets.from_json(json.loads(text)) == target


def test_its_fingerprint_is_that_of_its_facts(target: Target) -> None:
    assert target.fingerprint() == targets.resolve(target.name).fingerprint()
    others = {t.fingerprint() for t in map(targets.resolve, NAMES) if t.name != target.name}
    assert target.fingerprint() not in others


def test_it_describes_itself_in_one_line(target: Target) -> None:
    assert target.name in target.describe() and "\n" not in target.describe()


def test_it_cannot_be_changed(target: Target) -> None:
    with pytest.raises(AttributeError):
        target.name = "other"  # type: ignore[misc]


def test_it_says_what_it_can_do(target: Target) -> None:
    assert target.languages and target.runner in ("cpu", "gpu", "riscv", "sim", "vta")
    assert target.runs_on(target)
    assert json.loads(json.dumps(target.build_facts()))["name"] == target.name
    known = target.peak("f32")
    assert known is None or known > 0.0
