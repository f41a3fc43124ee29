"""A study of an expression: the expression is data, so it is found again anywhere without the user's code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import preloaded
import pytest

import deepgen as dg
from deepgen.operators import is_built_in
from deepgen.operators.expr.operator import ExpressionOperator, as_operator
from deepgen.run.measure.base import Task
from deepgen.targets import resolve
from deepgen.tuning import Request, Study
from deepgen.tuning.bundles import archive as bundle_archive
from deepgen.tuning.bundles.exchange import merge, pack


def centred() -> ExpressionOperator:
    """Rows minus their mean: two stages, the first of them a reduction inside the second."""
    x, k = dg.tensor("x", (6, 40)), dg.reduce_axis("k", 40)
    made = as_operator(dg.compute("y", (6, 40), lambda i, j: x[i, j] - dg.sum(x[i, k], k) / 40))
    assert isinstance(made, ExpressionOperator)
    return made


def test_another_process_goes_on_with_it(tmp_path: Path) -> None:
    study = dg.tune(centred().definition, target="sim", trials=6, out=tmp_path, progress=False)
    assert not (study.folder / "code").exists(), "nothing of the user's own is kept"
    done = preloaded.deepgen("resume", str(study.folder), "--trials", "9", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trials"] == {"correct": 9}
    again = Study.open(study.folder)
    assert again.operator == centred() and again.describe() == centred().describe()


@pytest.mark.slow
def test_a_worker_and_a_bundle_make_it_from_its_data(tmp_path: Path) -> None:
    operator = centred()
    assert is_built_in(operator)
    task = Task(operator, resolve("sim"))
    assert Task.from_json(json.loads(json.dumps(task.to_json()))) == task
    archive, results = tmp_path / "b.tar.gz", tmp_path / "b.results.jsonl"
    request = Request(operator=operator, target=resolve("sim"), out=tmp_path / "studies", trials=4, strategy="random")
    packed = pack(request, archive)
    folder = bundle_archive.unpack(archive, tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(folder / "run.py"), "-o", str(results)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    merge(Study.open(packed.study), results)
    assert len(Study.open(packed.study).trials()) == 4
