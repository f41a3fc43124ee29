"""Functions of a config as expressions: both return the same values."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from deepgen.space import parse
from deepgen.vocabulary import BadInput
from deepgen_formats.kernel_tuner.functions import MOST_ROWS, expression_of

KNOBS = {"x": [1, 2, 4], "y": [0, 3], "way": ["row", "column"], "unused": [7, 8, 9]}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "arithmetic": lambda p: p["x"] * p["y"] + 1,
    "comparison": lambda p: p["x"] * 2 <= p["y"],
    "a choice": lambda p: p["x"] if p["way"] == "row" else 2 * p["y"],
    "and, or, not": lambda p: p["x"] > 1 and not (p["y"] == 0 or p["way"] == "row"),
    "a chain": lambda p: 1 <= p["x"] < 4,
    "membership": lambda p: p["x"] in (1, 4),
    "mathematics": lambda p: math.ceil(p["x"] / 3) + max(p["y"], 1),
    "reading by get": lambda p: p.get("x", 0) + p.get("absent", 5),
    "all of it": lambda p: sum(v for v in p.values() if isinstance(v, int)),
    "names of parameters": lambda x, way: x * len(way),
    "another knob in one branch": lambda p: p["y"] if p["x"] == 4 else -1,
    "nothing": lambda p: 12,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_expression_gives_what_its_function_gives(name: str) -> None:
    function = FUNCTIONS[name]
    expression = parse(expression_of(function, KNOBS, "it"))
    for values in product(*KNOBS.values()):
        config = dict(zip(KNOBS, values, strict=True))
        wanted = function(config["x"], config["way"]) if name == "names of parameters" else function(config)
        assert expression.evaluate(config) == wanted, config


def test_a_look_up_has_only_what_is_read() -> None:
    assert expression_of(lambda p: p["x"] in (1, 4), KNOBS, "it") == "table(x, {1: 1, 2: 0, 4: 1})"


def test_what_cannot_be_an_expression_is_said() -> None:
    with pytest.raises(BadInput, match="a restriction raised KeyError: 'z'"):
        expression_of(lambda p: p["z"] in (1,), KNOBS, "a restriction")
    with pytest.raises(BadInput, match="it gave None"):
        expression_of(lambda p: print(end=""), KNOBS, "it")
    wide = {name: range(MOST_ROWS // 100) for name in "ab"}
    with pytest.raises(BadInput, match="cannot be tabulated"):
        expression_of(lambda p: p["a"] in (p["b"],), wide, "it")
