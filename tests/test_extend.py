"""The names that extensions import are available under one module, which loads no more than it needs."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import deepgen
from deepgen import extend
from deepgen.targets import Target


@pytest.mark.parametrize("module", [deepgen, extend])
def test_every_public_name_resolves(module: object) -> None:
    names = module.__all__  # type: ignore[attr-defined]
    assert list(names) == sorted(set(names))
    assert set(names) <= set(dir(module))
    for name in dir(module):
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing  # type: ignore[attr-defined]


def test_an_operator_needs_no_search_and_no_command_line() -> None:
    program = "import sys; from deepgen.extend import Operator; print(*filter(lambda m: 'deepgen' in m, sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "deepgen.operators" in done.stdout
    assert not any(
        layer in done.stdout for layer in ("deepgen.tuning.search", "deepgen.tuning", "deepgen.frontends.cli")
    )


def test_what_is_imported_is_what_types_are_checked_with() -> None:
    places = {}
    for node in ast.walk(ast.parse(Path(extend.__file__).read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("deepgen"):
            places |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
    loaded = dict(extend._WHERE)
    loaded |= {name: tuple(module.rsplit(".", 1)) for name, module in extend._MODULES.items()}
    assert loaded == places and set(extend.__all__) == set(places)


@dataclass(frozen=True)
class Board(Target):
    """A target of a plug-in, with a fact that JSON does not have."""

    lanes: frozenset[int] = field(default=frozenset(), metadata=extend.coded(read=frozenset, write=sorted))


def test_facts_of_a_plug_ins_target_may_have_forms_of_their_own() -> None:
    board = Board("board:one", frozenset({4, 2}))
    assert board.to_json() == {"name": "board:one", "lanes": [2, 4]}
    assert Board.from_json(board.to_json()) == board
