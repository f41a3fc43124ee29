"""A cache that cannot be written: the study succeeds, and the user is warned once."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

import deepgen as dg
from deepgen.tuning.engines import local


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_an_unwritable_cache_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(local, "peak_gflops", lambda *_, **__: None)  # it would be remeasured, for seconds
    engine = dg.LocalEngine(jobs=1, cache=tmp_path / "file" / "cache")
    words = {"trials": 1, "baselines": False, "keep_top": 1, "out": tmp_path}
    with caplog.at_level(logging.WARNING):
        study = dg.tune(dg.gemm(32, 32, 32), target="cpu", engine=engine, **words)  # type: ignore[arg-type]
    assert study.best().seconds > 0.0
    told = [record.getMessage() for record in caplog.records if "cannot be written" in record.getMessage()]
    assert len(told) == 1 and "Not a directory" in told[0]
