"""How studies, winners and kernels are displayed in Python, and kernels that are sent to another process."""

from __future__ import annotations

import multiprocessing
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deepgen as dg
from deepgen.operators import gemm
from deepgen.run.call.loaded import load
from deepgen.tuning import Study


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Study:
    out = tmp_path_factory.mktemp("studies")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(out / "config"))  # where the key that signs the winner is
        return dg.tune(gemm(24, 16, 8), target="cpu", family="c_gemm", trials=2, baselines=False, out=out / "studies")


@pytest.mark.slow
def test_a_study_tells_what_it_is_of_and_how_far(tuned: Study) -> None:
    text = repr(tuned)
    assert text.startswith(f"<deepgen study of gemm f32 nn 24x16x8 on {tuned.target.name}: 2 trials, best ")
    assert "B/s (" in text and str(tuned.folder) in text


def test_a_winner_and_its_kernel_tell_how_fast_and_how_to_call(tuned: Study) -> None:
    best = tuned.best()
    assert repr(best).startswith("<deepgen winner of gemm f32 nn 24x16x8 on ") and "B/s (" in repr(best)
    assert repr(best.load()).endswith("for gemm f32 nn 24x16x8 on the cpu: kernel(A, B) -> C>")


def test_notebooks_show_tables(tuned: Study) -> None:
    for one in (tuned, tuned.best(), tuned.best().load()):
        html = one._repr_html_()
        assert html.count("<table>") == 1 and "24x16x8" in html


def test_text_of_others_is_escaped(tuned: Study, tmp_path: Path) -> None:
    folder = tmp_path / "<script>alert(1)<"
    shutil.copytree(tuned.folder, folder)
    assert "<script>" not in Study.open(folder)._repr_html_()


def test_a_study_whose_folder_is_gone_can_still_be_printed(tuned: Study, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tuned.folder, folder)
    study = Study.open(folder)
    shutil.rmtree(folder)
    assert "cannot be read" in repr(study)


def _elsewhere(kernel: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return kernel(a, b)


def test_a_kernel_goes_to_another_process(tuned: Study) -> None:
    a, b = np.ones((24, 8), np.float32), np.full((8, 16), 2, np.float32)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        c = pool.apply(_elsewhere, (tuned.best().load(), a, b))
    assert (c == 16).all()


def test_unpickling_runs_no_binary_of_others(tuned: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tuned.folder.parents[1] / "config"))
    data = pickle.dumps(Study.open(tuned.folder, trust=True).best().load())  # trust is not passed on to another process
    used: list[Path | None] = []

    def spy(kernel: Any, operator: Any, target: Any, binary: Path | None = None, *rest: Any, **more: Any) -> Any:
        used.append(binary)
        return load(kernel, operator, target, binary, *rest, **more)

    monkeypatch.setattr("deepgen.tuning.study.best.load", spy)
    pickle.loads(data)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another"))
    pickle.loads(data)
    # The stored binary belongs to the user whose key signed it; for anyone else the kernel is emitted and rebuilt.
    assert [binary is None for binary in used] == [False, True]


def test_a_kernel_that_no_study_holds_says_so(tuned: Study) -> None:
    best = tuned.best()
    kernel = load(best.kernel, tuned.operator, tuned.target)
    with pytest.raises(dg.BadInput, match="cannot be pickled"):
        pickle.dumps(kernel)
