"""What is written in several places about the package is the same everywhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import deepgen

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_one() -> None:
    (cited,) = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert PROJECT["version"] == deepgen.__version__ == cited
    assert f"## {deepgen.__version__} " in (ROOT / "CHANGELOG.md").read_text()


def test_every_supported_python_is_tested_by_ci() -> None:
    workflow = ROOT / ".github/workflows/ci.yml"
    if not workflow.exists():
        pytest.skip("not a checkout")
    (matrix,) = re.findall(r"python-version: (\[.+\])", workflow.read_text())
    tested = re.findall(r'"([\d.]+)"', matrix)
    claimed = [name.split(" :: ")[-1] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)]
    assert tested == claimed and PROJECT["requires-python"] == f">={tested[0]}"
