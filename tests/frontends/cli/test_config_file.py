"""Tuning config files: what they can express, and the messages for errors in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deepgen.frontends import formats
from deepgen.operators import gemm
from deepgen.vocabulary import BadInput

FULL = """
operator = "gemm"
shapes = [{ MNK = 64 }, { M = 8, N = 16, K = 32, B = 4 }]
dtype = "f64"
layout = "nt"
target = "sim:seed=3"
seed = 5
strategy = "exhaustive"
keep_top = 3
out = "results"

[knobs]
BLOCK_M = [32, 64]

[budget]
trials = 50
time = 1.5
"""


def test_everything_a_file_can_say(project: Path) -> None:
    path = project / "my.toml"
    path.write_text(FULL)
    found = formats.read(path)
    assert found == formats.TuningFile(
        file=path,
        operators=(
            gemm(64, 64, 64, dtype="f64", layout="nt"),
            gemm(8, 16, 32, batch=4, dtype="f64", layout="nt"),
        ),
        target="sim:seed=3",
        knobs={"BLOCK_M": [32, 64]},
        trials=50,
        time_budget=1.5,
        seed=5,
        strategy="exhaustive",
        keep_top=3,
        out=project / "results",
    )


def test_json_says_the_same(project: Path) -> None:
    path = project / "my.json"
    path.write_text(json.dumps({"operator": "gemm", "shapes": {"MN": 8, "K": 4}, "budget": {"trials": 9}}))
    found = formats.read(path)
    assert found == formats.TuningFile(file=path, operators=(gemm(8, 8, 4),), trials=9)


@pytest.mark.parametrize(
    ("change", "key", "allowed"),
    [
        ({"operater": "gemm"}, "operater", "operator, shapes"),
        ({"operator": "gem"}, "operator", "gemm"),
        ({"operator": 3}, "operator is 3", "name"),
        ({"shapes": 64}, "shapes[0]: is 64", "MNK = 1024"),
        ({"shapes": []}, "shapes is empty", "MNK = 1024"),
        ({"shapes": [{"MNK": 8}, {"MN": 8}]}, "shapes[1]: gemm needs a value for K", "MNK=1024"),
        ({"shapes": {"MNK": "8"}}, "MNK is '8'", "at least 1"),
        ({"shapes": {"MNK": True}}, "MNK is True", "at least 1"),
        ({"shapes": {"MNQ": 8}}, "'Q'", "gemm"),
        ({"dtype": "f31"}, "dtype is 'f31'", "f32"),
        ({"layout": ["nn"]}, "layout is ['nn']", "nn, nt"),
        ({"target": "gpu"}, "target: unknown target 'gpu'", "x86"),
        ({"strategy": "guess"}, "strategy: unknown strategy 'guess'", "random"),
        ({"seed": -1}, "seed is -1", "at least 0"),
        ({"keep_top": 0}, "keep_top is 0", "at least 1"),
        ({"out": ""}, "out is ''", "folder"),
        ({"budget": 5}, "budget is 5", "trials and time"),
        ({"budget": {"trails": 5}}, "budget.trails", "budget.trials, budget.time"),
        ({"budget": {"trials": 2.5}}, "budget.trials is 2.5", "at least 1"),
        ({"budget": {"time": 0}}, "budget.time is 0", "a positive number"),
        ({"knobs": [1]}, "knobs is [1]", "table"),
        ({"knobs": {"BLOCK_M": 64}}, "knobs.BLOCK_M is 64", "list"),
        ({"knobs": {"BLOCK_M": []}}, "knobs.BLOCK_M is []", "list"),
    ],
)
def test_mistakes_name_file_key_and_what_is_allowed(
    project: Path, change: dict[str, object], key: str, allowed: str
) -> None:
    path = project / "my.json"
    path.write_text(json.dumps({"operator": "gemm", "shapes": {"MNK": 8}, **change}))
    with pytest.raises(BadInput) as caught:
        formats.read(path)
    assert str(path) in str(caught.value)
    assert key in str(caught.value)
    assert allowed in str(caught.value)


@pytest.mark.parametrize("missing", ["operator", "shapes"])
def test_operator_and_shapes_are_needed(project: Path, missing: str) -> None:
    path = project / "my.json"
    path.write_text(json.dumps({k: v for k, v in {"operator": "gemm", "shapes": {"MNK": 8}}.items() if k != missing}))
    with pytest.raises(BadInput, match=f"{missing} is not given"):
        formats.read(path)


@pytest.mark.parametrize(
    ("name", "content"), [("a.toml", b"x ="), ("a.json", b"{"), ("a.json", b"[1]"), ("a.json", b"\xff")]
)
def test_a_file_that_is_no_config_is_named(project: Path, name: str, content: bytes) -> None:
    (project / name).write_bytes(content)
    with pytest.raises(BadInput, match=name):
        formats.read(project / name)


def test_a_file_that_is_not_there_is_named(project: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.toml"):
        formats.read(Path("none.toml"))
