"""Names use the field's terms: docs/architecture.md has the list."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
# Words that say nothing about what a variable holds.
EMPTY = {"told", "said", "made", "found", "given", "known"}
# A loop has iterations, a matrix is transposed.
DIALECT = {"turn", "turns", "turned", "turning"}
WORD = re.compile(rf"(?<![^\W_])(?:{'|'.join(EMPTY | DIALECT)})(?![^\W_])", re.IGNORECASE)


def names(text: str) -> Iterator[tuple[int, str]]:
    """Every name that a file defines or uses: variables, parameters, fields, functions, classes."""
    for node in ast.walk(ast.parse(text)):
        for field in ("id", "arg", "attr", "name"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                yield getattr(node, "lineno", 0), name


def banned(name: str) -> bool:
    bare = name.strip("_").lower()
    return bare in EMPTY or bool(DIALECT & set(bare.split("_")))


def test_names_are_the_fields_words() -> None:
    wrong = [
        f"{path.relative_to(SRC)}:{line}: {name}"
        for path in sorted(SRC.rglob("*.py"))
        if SRC / "deepgen/testing" not in path.parents  # `given` is hypothesis's
        if WORD.search(text := path.read_text())
        for line, name in names(text)
        if banned(name)
    ]
    assert not wrong, f"{len(wrong)} names to be changed, such as\n" + "\n".join(wrong[:40])


@pytest.mark.parametrize("text", ["found = 1", "def f(given): ...", "x.known", "class Told: ...", "for turn in x: ..."])
def test_they_are_seen(text: str) -> None:
    assert any(banned(name) for _, name in names(text))


@pytest.mark.parametrize("text", ["founded = 1", "return_turnover = 2", "'found'"])
def test_others_are_left_alone(text: str) -> None:
    assert not any(banned(name) for _, name in names(text))
