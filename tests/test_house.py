"""The code base stays small enough to keep in mind: few packages, few files, one subject and one name each."""

from __future__ import annotations

import ast
import re
import statistics
from collections import Counter
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
CORE = SRC / "deepgen"
CLASS = r"(?m)^\s*class\s+(\w+)"
PACKAGES, FILES, LONGEST = 14, 500, 400
BENCHMARKS = 9_000
COMPILER = 16_550  # lines of Python; 11,500 with its headers are the aim
OF_WHEELS = CORE / "libraries/c/python_package.py"  # the `__init__.py` of exported wheels, which only they import


def files(folder: Path) -> dict[Path, int]:
    """The lines of each file; the suites in `deepgen.testing` are tests."""
    paths = (path for path in sorted(folder.rglob("*.py")) if CORE / "testing" not in path.parents)
    return {path: len(path.read_text().splitlines()) for path in paths}


def test_few_packages_and_files() -> None:
    packages = [path for path in CORE.iterdir() if (path / "__init__.py").is_file()]
    assert len(packages) <= PACKAGES, sorted(path.name for path in packages)
    assert len(files(CORE)) <= FILES


def test_benchmarks_stay_few() -> None:
    assert sum(files(SRC.parent / "benchmarks").values()) <= BENCHMARKS


def test_the_compiler_does_not_grow() -> None:
    assert sum(files(CORE / "compiler").values()) <= COMPILER


def test_a_file_has_one_subject() -> None:
    long = {str(path.relative_to(SRC)): lines for path, lines in files(SRC).items() if lines > LONGEST}
    assert not long
    assert 100 <= statistics.median(files(CORE).values()) <= 200


def test_a_class_has_a_name_of_its_own() -> None:
    texts = [path.read_text() for path in files(CORE) if path != OF_WHEELS]
    lines = Counter(name for text in texts for name in re.findall(CLASS, text))
    twice = {name for name, count in lines.items() if count > 1}  # some of them in emitted text
    classes = Counter(
        node.name
        for text in texts
        if twice & {*re.findall(CLASS, text)}
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    )
    assert not {name: count for name, count in classes.items() if count > 1}
