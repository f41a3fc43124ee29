"""Code asks a target what it can do, never which kind it is: adding a kind must not require changes elsewhere.

A file named after a kind of target, its runner or its language, or in a folder of that name, exists only for such
targets, and may read facts that no other has.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path, PurePath

import pytest

import deepgen
from deepgen.targets import Target

ROOT = Path(deepgen.__file__).parent
ROOMS = ("targets", "kernels", "compiler", "testing")  # where facts are stored, and where kernels are built from them


def below(base: type[Target]) -> Iterator[type[Target]]:
    for child in base.__subclasses__():
        if child.__module__.startswith("deepgen."):
            yield from (child, *below(child))


def words(target: type[Target]) -> set[str]:
    """Names of files that are only for such targets."""
    return {word for one in (target, *below(target)) for word in (one.__name__.lower(), one.runner, *one.languages)}


WORDS = {target.__name__: words(target) for target in below(Target)}


def asks_for_a_kind(text: str, place: str = "anywhere.py") -> Iterator[str]:
    tree = ast.parse(text)
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}  # unused names are only re-exported
    of = {*PurePath(place).with_suffix("").parts}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("deepgen"):
            names = [alias.name for alias in node.names if (alias.asname or alias.name) in read]
            yield from (f"line {node.lineno} imports {name}" for name in names if not of & WORDS.get(name, of))
        if isinstance(node, (ast.Compare, ast.Subscript, ast.Match)):
            parts = ast.walk(node) if isinstance(node, ast.Compare) else ast.iter_child_nodes(node)
            if any(_is_kind(part) for part in parts):
                yield f"line {node.lineno} chooses by a target's kind"


def _is_kind(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute) or node.attr != "kind":
        return False
    return getattr(node.value, "attr", getattr(node.value, "id", "")) == "target"


def test_a_target_is_not_asked_for_its_kind() -> None:
    places = {path.relative_to(ROOT).as_posix(): path for path in ROOT.rglob("*.py")}
    asking = {
        place: lines
        for place, path in places.items()
        if place.split("/")[0] not in ROOMS and (lines := [*asks_for_a_kind(path.read_text(), place)])
    }
    assert asking == {}


def test_the_kinds_are_those_of_targets() -> None:
    assert {"X86", "Arm", "Cpu", "Gpu", "Cuda", "Hip", "Riscv", "Sim"} <= set(WORDS)
    assert {"gpu", "cuda", "hip", "triton"} <= WORDS["Gpu"]
    assert "c" not in WORDS["Cuda"]


NAMED = "from deepgen.targets import X86, Target\nassert isinstance(target, X86)"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (NAMED, "tuning/tuner.py"),
        (NAMED, "toolchains/compilers/nvrtc.py"),
        (NAMED, "run/riscv/runner.py"),
        ("from deepgen.extend import Cpu\ndef f(target: Cpu): pass", "tuning/tuner.py"),
        ("if task.target.kind == 'x86': pass", "run/cpu.py"),
        ("if self.task.target.kind in ('cuda', 'hip'): pass", "tuning/tuner.py"),
        ("language = LANGUAGES[target.kind]", "tuning/tuner.py"),
    ],
)
def test_asking_is_seen(text: str, place: str) -> None:
    assert [*asks_for_a_kind(text, place)]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("from deepgen.targets import Target\nprint(target.kind)\nif word.kind == 'flag': pass", "tuning/tuner.py"),
        ("from deepgen.targets import Cpu, Gpu", "extend.py"),
        ("from deepgen.targets import Riscv\nassert isinstance(target, Riscv)", "run/riscv/runner.py"),
        ("from deepgen.targets import Gpu\ndef f(target: Gpu): pass", "toolchains/compilers/triton.py"),
    ],
)
def test_what_is_not_asking(text: str, place: str) -> None:
    assert not [*asks_for_a_kind(text, place)]
