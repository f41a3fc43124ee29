"""Code asks a target what it can do, never which kind it is: a new kind is added, not threaded through."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import deepgen

ROOT = Path(deepgen.__file__).parent
CLASSES = {"X86", "Arm", "Cpu", "Gpu", "Cuda", "Hip", "Riscv", "Sim"}
ROOMS = ("targets", "kernels", "compiler", "testing")  # where facts are kept, and where kernels are made of them
# What is there for one kind of target only, and reads facts that no other has.
OF_ONE_KIND = {
    "toolchains/find.py",  # a C compiler is tried on a processor of its own kind
    "toolchains/find_gpu.py",
    "toolchains/compilers/c.py",
    "toolchains/compilers/hip_clang.py",
    "toolchains/compilers/nvrtc.py",
    "toolchains/compilers/riscv.py",
    "toolchains/compilers/sim.py",
    "toolchains/compilers/triton.py",
    "run/measure/peak.py",
    "run/riscv/qemu.py",
    "run/riscv/runner.py",
    "run/measure/sim.py",
    "extend.py",  # for generators outside the package
}


def asks_for_a_kind(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("deepgen.targets"):
            yield from (f"line {node.lineno} imports {a.name}" for a in node.names if a.name in CLASSES)
        if isinstance(node, (ast.Compare, ast.Subscript, ast.Match)):
            parts = ast.walk(node) if isinstance(node, ast.Compare) else ast.iter_child_nodes(node)
            if any(_is_kind(part) for part in parts):
                yield f"line {node.lineno} chooses by a target's kind"


def _is_kind(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute) or node.attr != "kind":
        return False
    return getattr(node.value, "attr", getattr(node.value, "id", "")) == "target"


def test_a_target_is_not_asked_for_its_kind() -> None:
    found = {
        name: [*asks_for_a_kind(path.read_text())]
        for path in ROOT.rglob("*.py")
        if (name := path.relative_to(ROOT).as_posix()).split("/")[0] not in ROOMS
    }
    asking = {name: lines for name, lines in found.items() if lines}
    assert {name: lines for name, lines in asking.items() if name not in OF_ONE_KIND} == {}
    assert set(asking) == OF_ONE_KIND, "a file of this list asks no longer"


def test_asking_is_seen() -> None:
    seen = [
        "from deepgen.targets import X86, Target",
        "if task.target.kind == 'x86': pass",
        "if self.task.target.kind in ('cuda', 'hip'): pass",
        "language = LANGUAGES[target.kind]",
    ]
    assert all([*asks_for_a_kind(text)] for text in seen)
    assert not [
        *asks_for_a_kind("from deepgen.targets import Target\nprint(target.kind)\nif word.kind == 'flag': pass")
    ]
