"""The house stays small enough to be held in a head: few packages, few files, one subject and one name each."""

from __future__ import annotations

import ast
import statistics
from collections import Counter
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
CORE = SRC / "deepgen"
PACKAGES, FILES, LONGEST = 14, 500, 400
OF_WHEELS = CORE / "libraries/c/python_package.py"  # the `__init__.py` of exported wheels: a text that only they import


def files(folder: Path) -> dict[Path, int]:
    """The lines of each file; the suites in `deepgen.testing` are tests."""
    paths = (path for path in sorted(folder.rglob("*.py")) if CORE / "testing" not in path.parents)
    return {path: len(path.read_text().splitlines()) for path in paths}


def test_few_packages_and_files() -> None:
    packages = [path for path in CORE.iterdir() if (path / "__init__.py").is_file()]
    assert len(packages) <= PACKAGES, sorted(path.name for path in packages)
    assert len(files(CORE)) <= FILES


def test_a_file_has_one_subject() -> None:
    long = {str(path.relative_to(SRC)): lines for path, lines in files(SRC).items() if lines > LONGEST}
    assert not long
    assert 100 <= statistics.median(files(CORE).values()) <= 200


def test_a_class_has_a_name_of_its_own() -> None:
    classes = Counter(
        node.name
        for path in files(CORE)
        if path != OF_WHEELS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert not {name: count for name, count in classes.items() if count > 1}
