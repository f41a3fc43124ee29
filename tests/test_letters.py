"""Only operator modules may know operators: any other module that names GEMM's letters would not work for the next one.

Operator modules are those registered as an operator with letters or as a baseline, files and folders with the name of
such an operator or of the module of products in their path, and modules imported only by these. A module that only
re-exports names does not count.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import deepgen
import layers
from deepgen.baselines import BASELINES
from deepgen.operators import OPERATORS

ROOT = Path(deepgen.__file__).parent
SUITES = "deepgen.testing"  # has problems of its own, like tests
NAME = re.compile(r"gemm|^(ld|stride_)[abc]$", re.IGNORECASE)
TEXT = re.compile(r"^([ABCMNK]|MNK?|ABC?|gemm|(ld|stride_)[abc]|nn|nt|tn|tt)$")
PLACE = re.compile(r"[\w.]+:\w+")
FIELDS = ("m", "n", "k", "a", "b", "c", "acc")
ARRAYS = ("array", "tensor")  # their `layout` is dense or sparse


@dataclass(frozen=True)
class Seen:
    """The facts needed about a module. Keeping the trees of all modules would fill memory."""

    letters: list[tuple[int, str]]
    mentioned: set[str]
    products: bool  # whether it reads the name of GEMM's class


@cache
def modules() -> Mapping[str, Seen]:
    paths = {".".join(path.relative_to(ROOT.parent).with_suffix("").parts): path for path in ROOT.rglob("*.py")}
    return {name.removesuffix(".__init__"): seen(path.read_text()) for name, path in sorted(paths.items())}


def seen(text: str) -> Seen:
    nodes = [*ast.walk(ast.parse(text))]
    read = {node.id for node in nodes if isinstance(node, ast.Name)}
    return Seen([*letters(nodes, read)], {*layers.mentioned(nodes)}, "Gemm" in read)


@cache
def rooms() -> frozenset[str]:
    lettered = {name: place for name in OPERATORS.own if modules()[place := OPERATORS.place(name)].letters}
    registered = {*lettered.values(), *map(BASELINES.place, BASELINES.own)}
    products = {place for place in lettered.values() if modules()[place].products}
    words = {*lettered, *(place.rpartition(".")[2] for place in products)}
    named = {name for name in modules() if words & set(re.split(r"[._]", name)) or name.startswith(SUITES)}
    importers = defaultdict[str, set[str]](set)
    for name, module in modules().items():
        for other in module.mentioned:
            importers[other if other in modules() else other.rpartition(".")[0]].add(name)
    inside = registered | named
    while helpers := {name for name in modules() if importers[name] and importers[name] <= inside} - inside:
        inside |= helpers
    return frozenset(inside)


def letters(nodes: Sequence[ast.AST], read: Collection[str]) -> Iterator[tuple[int, str]]:
    """Lines that know GEMM: an identifier, a string that is one of its letters, or a field of an operator."""
    handed = {id(inner) for node in nodes for part in handed_on(node, read) for inner in ast.walk(part)}
    for node in nodes:
        if id(node) in handed:
            continue
        line = getattr(node, "lineno", 0)
        yield from ((line, name) for name in identifiers(node) if NAME.search(name))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and TEXT.match(node.value):
            yield line, repr(node.value)
        if isinstance(node, ast.Attribute) and of_operator(node.value, node.attr):
            yield line, f".{node.attr}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            field = getattr(node.args[1], "value", None)
            if of_operator(node.args[0], field):
                yield line, f".{field}"


def handed_on(node: ast.AST, read: Collection[str]) -> Iterator[ast.AST]:
    """Imported but unused names, those in `__all__`, and those of a table of object locations."""
    if isinstance(node, ast.ImportFrom) and not any((alias.asname or alias.name) in read for alias in node.names):
        yield node
    if isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == ["__all__"]:
        yield node.value
    if isinstance(node, ast.Dict):
        places = [getattr(value, "value", None) for value in node.values]
        yield from (key for key, place in zip(node.keys, places, strict=True) if key and PLACE.fullmatch(str(place)))


def identifiers(node: ast.AST) -> list[str]:
    names = [getattr(node, kind, None) for kind in ("id", "attr", "arg", "name", "module")]
    return [name for name in names if isinstance(name, str)]


def of_operator(owner: ast.AST, field: object) -> bool:
    if field != "layout" and field not in FIELDS:
        return False
    called = ast.unparse(owner).split(".")[-1]
    return called not in ARRAYS if field == "layout" else called in ("op", "operator")


def test_no_letters_of_gemm_outside_the_rooms_of_operators() -> None:
    knowing = [
        f"{name}:{line}: {what}"
        for name, module in modules().items()
        if name not in rooms()
        for line, what in module.letters
    ]
    assert not knowing, "these know GEMM: ask the operator's signature, sizes, scalars, work or words\n" + "\n".join(
        knowing
    )


def test_rooms_are_those_of_operators() -> None:
    assert {"deepgen.operators.references", "deepgen.baselines.cblas", "deepgen.kernels.gemm.x86_gemm"} <= rooms()
    others = ("operators.base", "baselines.base", "kernels.base", "frontends.torch.calls", "run.measure.bench")
    assert not rooms() & {f"deepgen.{name}" for name in others}
    assert not {name for name in rooms() if name.split(".")[1] in ("tuning", "report", "run", "space", "toolchains")}


@pytest.mark.parametrize(
    ("text", "whats"),
    [
        ("from deepgen.operators import Gemm\nisinstance(operator, Gemm)", ["Gemm", "Gemm"]),
        ("from deepgen.operators.gemm import LAYOUTS\nprint(LAYOUTS)", ["deepgen.operators.gemm"]),
        ("def f(operator): return operator.k", [".k"]),
        ("x = task.operator.a", [".a"]),
        ("x = getattr(task.operator, 'a', 'f32')", [".a"]),
        ("x = thing.layout[0]", [".layout"]),
        ("c = arrays['C']", ["'C'"]),
        ("rows = scalars['lda']", ["'lda'"]),
        ("def f(lda): pass", ["lda"]),
        ("run(gemm=1)", ["gemm"]),
        ("sizes = {'gemm': 'M N K'}", ["'gemm'"]),
        ("'Such as: gemm MNK=1024'", []),
        ("a, b, c, m, n, k = six", []),
        ("window.k = options.layout_of(target)", []),
        ("dense = array.layout", []),
        ("from deepgen.operators.gemm import Gemm, gemm\n__all__ = ['Gemm', 'gemm']", []),
        ("own = {'gemm': 'deepgen.operators.gemm:Gemm'}", []),
    ],
)
def test_what_counts_as_a_letter(text: str, whats: list[str]) -> None:
    assert sorted(what for _, what in seen(text).letters) == sorted(whats)
