"""The picture in docs/architecture.md: a layer imports only from layers on its left."""

from __future__ import annotations

import ast
from pathlib import Path

import deepgen

ROOT = Path(deepgen.__file__).parent
# From left to right. Layers on one line do not know each other.
ORDER = (
    ("vocabulary",),
    ("targets", "space"),
    ("operators",),
    ("kernels",),
    ("compiler",),
    ("generators",),
    ("toolchains",),
    ("settings", "baselines"),
    ("run",),
    ("tuning",),
    ("libraries", "report"),
    ("frontends",),
    ("extend", "testing"),
    ("jax", "torch", "triton", "triton_cpu"),
    ("__main__",),
)
RANK = {layer: rank for rank, layers in enumerate(ORDER) for layer in layers}
# Names of the package itself are looked up when they are used, so that any layer may ask for its version.
PACKAGE = "__init__"


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The layers that a file imports from, whatever it takes of them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
        found |= {n.split(".")[1] for n in names if n.startswith("deepgen.")}
    return found & set(RANK)


def test_every_module_has_its_layer() -> None:
    strange = {layer_of(path) for path in ROOT.rglob("*.py")} - {*RANK, PACKAGE}
    assert not strange


def test_data_flows_one_way() -> None:
    wrong = []
    for path in ROOT.rglob("*.py"):
        layer = layer_of(path)
        for other in imports(path) - {layer} if layer != PACKAGE else ():
            if RANK[other] >= RANK[layer]:
                wrong.append(f"{path.relative_to(ROOT)} imports {other}")
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
