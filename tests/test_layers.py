"""The picture in docs/architecture.md: a layer imports only from layers on its left."""

from __future__ import annotations

import ast
from pathlib import Path

import deepgen

ROOT = Path(deepgen.__file__).parent
LAYERS = {
    "vocabulary": 0,
    "operators": 1,
    "targets": 1,
    "space": 1,
    "generators": 2,
    "build": 3,
    "baselines": 4,
    "measure": 4,
    "engines": 5,
    "search": 5,
    "library": 6,
    "tuning": 7,
    "cluster": 8,
    "cli": 9,
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
        found |= {n.split(".")[1] for n in names if n.startswith("deepgen.") and n.count(".") >= 1}
    return found & set(LAYERS)


def test_data_flows_one_way() -> None:
    wrong = []
    for path in ROOT.rglob("*.py"):
        layer = path.relative_to(ROOT).parts[0]
        if layer in LAYERS:
            wrong += [
                f"{path.relative_to(ROOT)} imports {other}" for other in imports(path) if LAYERS[other] > LAYERS[layer]
            ]
    assert not wrong, wrong


def test_pure_layers_do_no_input_or_output() -> None:
    forbidden = {"os", "pathlib", "subprocess", "socket", "sqlite3", "shutil", "tempfile"}
    for layer in ("operators", "space"):
        for path in (ROOT / layer).rglob("*.py"):
            used = {
                alias.name.split(".")[0]
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, (ast.Import, ast.ImportFrom))
                for alias in (node.names if isinstance(node, ast.Import) else [ast.alias(node.module or "")])
            }
            assert not used & forbidden, f"{path} imports {used & forbidden}"
