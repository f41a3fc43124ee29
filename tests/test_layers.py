"""The layers of docs/architecture.md: a layer imports only from layers below it, and the page's picture is current."""

from __future__ import annotations

import ast

import layers

SRC = layers.SRC


def test_no_layers_import_each_other_in_a_circle() -> None:
    assert not layers.circle()


def test_the_picture_is_of_today() -> None:
    drawn = layers.PICTURE.read_text() == layers.picture()
    assert drawn, "draw it again: python tests/layers.py --write"


def test_what_things_are_is_below_what_is_done_with_them() -> None:
    """Data flow in one direction, as described on the page."""
    height = layers.heights()
    order = ("vocabulary", "space", "operators", "kernels", "compiler", "generators", "tuning", "report", "frontends")
    assert sorted(order, key=lambda name: height[name]) == list(order)
    assert height["targets"] < height["toolchains"] < height["run"] < height["tuning"]


def test_the_core_imports_no_plug_in() -> None:
    plugins = set(layers.packages()) - {layers.CORE}
    assert plugins == {"deepgen_cluster", "deepgen_formats", "deepgen_triton_cpu", "deepgen_vta"}
    assert not {name: others & plugins for name, others in layers.graph().items() if others & plugins}


def test_pure_layers_do_no_input_or_output() -> None:
    forbidden = {"os", "pathlib", "subprocess", "socket", "sqlite3", "shutil", "tempfile"}
    for layer in ("operators", "space"):
        for path in (SRC / layers.CORE / layer).rglob("*.py"):
            used = {
                alias.name.split(".")[0]
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, (ast.Import, ast.ImportFrom))
                for alias in (node.names if isinstance(node, ast.Import) else [ast.alias(node.module or "")])
            }
            assert not used & forbidden, f"{path} imports {used & forbidden}"
