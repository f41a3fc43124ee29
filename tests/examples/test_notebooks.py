"""The notebooks run from the first cell to the last, each in one process."""

from __future__ import annotations

import json
from pathlib import Path

import preloaded
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples/notebooks").glob("*.ipynb"))


def test_there_are_three() -> None:
    assert len(NOTEBOOKS) >= 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("altair")
    cells = json.loads(path.read_text())["cells"]
    assert cells[0]["cell_type"] == "markdown" and cells[0]["source"][0].startswith("# ")
    assert not any(cell.get("outputs") for cell in cells), "clear the outputs before a commit"
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    done = preloaded.python("\n\n".join(code), cwd=tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
