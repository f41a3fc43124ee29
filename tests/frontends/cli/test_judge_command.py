"""`deepgen judge`: one kernel on one page, whatever its source."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import deepgen as dg

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

_FILE = '''
import deepgen as dg

kernel = dg.kernel(
    """void scale(float *y, const float *x, float factor, int n) {
        for (int i = 0; i < n; i++) y[i] = factor * x[i];
        if (ODD && n % 2) y[n - 1] = 0;
    }""",
    language="c",
    entry="scale",
    arguments=[
        dg.output("y", ("n",), "f32"),
        dg.input("x", ("n",), "f32"),
        dg.scalar("factor", "f32", 2.0),
        dg.scalar("n", "i32"),
    ],
    sizes={"n": 1000},
    knobs={"ODD": [0, 1]},
    reference=lambda x, factor: factor * x,
)
'''


@pytest.fixture(autouse=True)
def described(project: Path) -> None:
    (project / "scale.py").write_text(_FILE)


def test_a_right_kernel_holds_and_a_page_says_what_was_tried(deepgen: Callable) -> None:
    said = deepgen("judge", "scale.py", "--seed", "4")
    assert said.code == 0, said.err
    assert "scale n=1000 from scale.py" in said.out and "correct in all" in said.out
    for part in ("usual inputs at scale n=999", "zeros inputs, seed 4", "more timed calls", "NaN ", "callers "):
        assert part in said.out
    assert max(map(len, said.out.splitlines())) <= 80


def test_a_wrong_one_is_named_with_all_that_it_is_wrong_at(deepgen: Callable) -> None:
    said = deepgen("judge", "scale.py", "--config", "ODD=1", "--json")
    assert said.code == 1
    result = said.json()
    wrong = [row["what"] for row in result["tried"] if row["verdict"] == "wrong"]
    assert not result["right"] and result["config"] == {"ODD": 1}
    assert wrong[:3] == ["usual inputs at scale n=999", "usual inputs at scale n=1001", "usual inputs at scale n=7"]
    assert f"wrong in {len(wrong)} of" in deepgen("judge", "scale.py", "--config", "ODD=1").out


def test_every_judgement_draws_inputs_of_its_own_and_can_be_repeated(deepgen: Callable) -> None:
    seeds = {deepgen("judge", "scale.py", "--json").json()["seed"] for _ in range(2)}
    assert len(seeds) == 2 and all(seed % 2 == 0 for seed in seeds)


def test_a_kernel_that_does_not_build_or_crashes_is_wrong(deepgen: Callable, project: Path) -> None:
    (project / "scale.py").write_text(_FILE.replace("int i = 0;", "int i = 0"))
    said = deepgen("judge", "scale.py")
    assert said.code == 1 and "build failed" in said.out and "wrong in 1 of 1 test" in said.out
    (project / "scale.py").write_text(
        _FILE.replace("if (ODD && n % 2)", "if (n == 1000) *(volatile int *)16 = 1; else")
    )
    assert deepgen("judge", "scale.py").code == 1


def test_what_is_no_kernel_is_refused(deepgen: Callable, project: Path) -> None:
    elsewhere = ["gemm", "MNK=64", "--target", "hip:gfx942"]
    odd = (["nosuch"], ["scale.py", "--config", "ODD=7"], ["scale.py", "--trial", "1"], [f"{project}:x"])
    for words in (*odd, elsewhere):
        said = deepgen("judge", *words)
        assert said.code == 2 and "bug" not in said.err, said.err


@pytest.mark.slow
def test_a_study_and_an_entry_of_a_library_are_judged_as_they_are(deepgen: Callable, project: Path) -> None:
    study = dg.tune(dg.gemm(24, 20, 16), target="cpu", trials=2, baselines=False, out=project / "studies")
    said = deepgen("judge", str(study.folder))
    assert said.code == 0 and f"of {study.folder.name}" in " ".join(said.out.split())
    assert deepgen("judge", str(study.folder), "--trial", "0").code == 0
    library = dg.library(project / "kernels", create=True)
    name = library.add(study, noisy=True)
    [entry] = [entry for entry in library.list() if entry.name == name] or library.list()[:1]
    said = deepgen("judge", f"kernels:{entry.name}", "--json")
    assert said.code == 0 and said.json()["kernel_id"] == entry.kernel_id


def test_from_python(project: Path) -> None:
    result = dg.judge(dg.gemm(24, 20, 16), target="cpu", seed=2)
    assert result.right and result.seed == 2 and result.seconds
