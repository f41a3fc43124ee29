"""The layers of the packages according to their imports: `python tests/layers.py --write` draws docs/layers.svg.

A layer is a package of the core, or a module at its top. Imports count wherever they are, and so do strings: arguments
of `import_module`, and the `module:attribute` of a registry. `deepgen/__init__.py` is left out: it resolves names
lazily, and every layer may ask it for the version.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from xml.sax.saxutils import escape

SRC = Path(__file__).parents[1] / "src"
CORE = "deepgen"
PICTURE = Path(__file__).parents[1] / "docs" / "layers.svg"
_PLACE = re.compile(r"(deepgen(?:_\w+)?(?:\.\w+)*):[\w.]+")
_WIDTH, _HEIGHT, _GAP, _STEP = 146, 40, 18, 74


def layer(module: str) -> str | None:
    """The layer of a module: the second part of its name in the core, the package's own name for a plug-in."""
    package, *parts = module.split(".")
    if package != CORE:
        return package if package in packages() else None
    return parts[0] if parts and parts[0] in core() else None


@cache
def packages() -> tuple[str, ...]:
    return tuple(sorted(path.name for path in SRC.iterdir() if (path / "__init__.py").is_file()))


@cache
def core() -> tuple[str, ...]:
    """The layers of the core by name."""
    here = (path for path in (SRC / CORE).iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file())
    return tuple(sorted({path.stem for path in here} - {"__init__"}))


def mentioned(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The modules that a module imports or names in a string."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and (place := _PLACE.fullmatch(node.value)):
            yield place[1]
        elif isinstance(node, ast.Call) and "import_module" in (vars(node.func).get("id"), vars(node.func).get("attr")):
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant))


@cache
def graph() -> Mapping[str, frozenset[str]]:
    """The imports of each layer."""
    out: dict[str, set[str]] = {}
    for path in sorted(SRC.rglob("*.py")):
        module = ".".join(path.relative_to(SRC).with_suffix("").parts)
        own = layer(module)
        if own is None:
            continue
        other = {one for name in mentioned(ast.walk(ast.parse(path.read_text()))) if (one := layer(name)) is not None}
        out.setdefault(own, set()).update(other - {own})
    return {name: frozenset(others) for name, others in out.items()}


def circle() -> list[str]:
    """Layers that import each other in a cycle; empty if there is none."""
    edges, done = graph(), set[str]()

    def walk(name: str, path: tuple[str, ...]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in sorted(edges.get(name, ())):
            if ring := walk(other, (*path, name)):
                return ring
        done.add(name)
        return []

    return next((ring for name in sorted(edges) if (ring := walk(name, ()))), [])


def heights() -> dict[str, int]:
    """The height of each layer, above everything that it imports."""

    @cache
    def height(name: str) -> int:
        return 1 + max((height(other) for other in graph().get(name, ())), default=-1)

    return {name: height(name) for name in graph()}


def needed() -> Iterator[tuple[str, str]]:
    """The arrows of the picture: imports that are not implied by a path of other imports."""

    @cache
    def below(name: str) -> frozenset[str]:
        edges = graph().get(name, frozenset())
        return edges.union(*(below(other) for other in edges))

    for name, others in sorted(graph().items()):
        yield from ((name, other) for other in sorted(others) if not any(other in below(o) for o in others))


def picture() -> str:
    rows: dict[int, list[str]] = {}
    for name, height in sorted(heights().items()):
        rows.setdefault(height, []).append(name)
    across = max(len(row) for row in rows.values()) * (_WIDTH + _GAP) + _GAP
    down = len(rows) * _STEP + _GAP
    at: dict[str, tuple[float, float]] = {}
    for height, row in rows.items():
        left = (across - len(row) * (_WIDTH + _GAP) + _GAP) / 2
        for place, name in enumerate(row):
            at[name] = (left + place * (_WIDTH + _GAP), down - (height + 1) * _STEP + _GAP)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {across} {down}" font-family="sans-serif">',
        "<style>rect{fill:#eef3fa;stroke:#3b6ea5}.plugin{fill:#fbf1e3;stroke:#b07a2a}text{fill:#1d2733}"
        "line{stroke:#8a97a6;stroke-width:1.2}"
        "@media(prefers-color-scheme:dark){rect{fill:#22303f}.plugin{fill:#3c3122}text{fill:#e8eef4}}</style>",
    ]
    for name, other in needed():
        (x, y), (u, v) = at[name], at[other]
        out.append(f'<line x1="{x + _WIDTH / 2}" y1="{y + _HEIGHT}" x2="{u + _WIDTH / 2}" y2="{v}"/>')
    for name, (x, y) in sorted(at.items()):
        plugin = ' class="plugin"' if name in packages() else ""
        out.append(f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"{plugin}/>')
        out.append(f'<text x="{x + _WIDTH / 2}" y="{y + 25}" text-anchor="middle" font-size="13">{escape(name)}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="The layers of the packages, from the top down.")
    parser.add_argument("--write", action="store_true", help="write docs/layers.svg")
    if parser.parse_args().write:
        PICTURE.write_text(picture())
    if ring := circle():
        sys.exit("a circle: " + " -> ".join(ring))
    for name, height in sorted(heights().items(), key=lambda item: (-item[1], item[0])):
        print(f"{height:3} {name:20} {', '.join(sorted(graph()[name]))}")


if __name__ == "__main__":
    main()
