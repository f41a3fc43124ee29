"""deepgen names no plug-in, its own plug-ins use only the public interface, and plug-ins are found in every process."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import deepgen
from deepgen.vocabulary.registry import metadata_files, own_plugins

SOURCE = Path(deepgen.__file__).parents[1]
PLUGINS = ("deepgen_cluster", "deepgen_formats", "deepgen_triton_cpu", "deepgen_vta")
# What users import, and what our own programs import too.
PUBLIC = {"deepgen", "deepgen.extend", "deepgen.torch", "deepgen.jax", "deepgen.triton"}


def modules(path: Path) -> Iterator[str]:
    """The modules that a file imports, including inside functions, or names in a string."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module == "deepgen")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("deepgen"):
            yield node.value.partition(":")[0]


def test_the_core_names_no_plug_in() -> None:
    naming = {
        str(path.relative_to(SOURCE)): named
        for path in (SOURCE / "deepgen").rglob("*.py")
        if any(name in path.read_text() for name in PLUGINS)
        and (named := [name for name in modules(path) if name.partition(".")[0] in PLUGINS])
    }
    assert not naming


@pytest.mark.parametrize("package", PLUGINS)
def test_a_plug_in_uses_what_extend_offers(package: str) -> None:
    public = {*PUBLIC, *(f"deepgen.{name}" for name in deepgen.__all__)}
    beyond = {
        str(path.relative_to(SOURCE)): names
        for path in (SOURCE / package).rglob("*.py")
        if (names := [n for n in modules(path) if n.startswith("deepgen.") and n not in public])
    }
    assert not beyond


def test_a_plug_in_knows_no_other() -> None:
    for package in PLUGINS:
        others = {name for path in (SOURCE / package).rglob("*.py") for name in modules(path)}
        assert not {name.partition(".")[0] for name in others} & {*PLUGINS} - {package}


def doctor(folder: Path, *paths: Path) -> set[tuple[str, str]]:
    """The plug-ins that are ready when only these paths are searched for our packages."""
    site = [Path(p) for p in sys.path if p.endswith("site-packages")]
    links = folder / "packages"
    links.mkdir(parents=True)
    for path in (one for each in reversed(site) for one in each.iterdir()):
        ours = path.name.startswith(("deepgen", "__editable__")) or path.suffix == ".pth"
        if not ours and not (links / path.name).exists():
            (links / path.name).symlink_to(path)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*paths, links)))}
    words = [sys.executable, "-S", "-B", "-m", "deepgen", "doctor", "--json"]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {(row["kind"], row["name"]) for row in json.loads(done.stdout)["plugins"] if row["problem"] is None}


OURS = {("kind of target", "vta"), ("kernel family", "vta"), ("runner", "vta"), ("toolchain", "vta")}


def copied(folder: Path) -> Path:
    shutil.copytree(SOURCE, folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return folder / "src"


def test_a_source_tree_needs_no_installation(tmp_path: Path) -> None:
    source = copied(tmp_path / "tree")
    shutil.copy(SOURCE.parent / "pyproject.toml", tmp_path / "tree")
    assert doctor(tmp_path / "run", source) >= OURS


def test_copies_of_the_packages_need_their_entry_points(tmp_path: Path) -> None:
    source = copied(tmp_path / "host").rename(tmp_path / "code")
    assert not doctor(tmp_path / "without", source) & OURS
    for name, text in metadata_files(own_plugins(), deepgen.__version__).items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(text)
    assert doctor(tmp_path / "with", source) >= OURS
