"""Overlapping runs of a GPU kernel on separate streams: use of its module's memory is detected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import fake_gpu
import numpy as np
import pytest
from fake_gpu import OnDevice, kernel, supervised

from deepgen.operators import gemm
from deepgen.run.call.loaded import load
from deepgen.run.measure.base import SEVERAL_THREADS
from deepgen.targets import gpu_driver, resolve
from deepgen.vocabulary import Verdict

SIZE = 48
GEMM = gemm(SIZE, SIZE, 8, layout="nt")
THROUGH = f"""
    static volatile float scratch[{SIZE * SIZE}];
    for (int i = 0; i < M * N; i++) scratch[i] = C[i];
    usleep(300);  // however busy the cores are, others come to this
    for (int i = 0; i < M * N; i++) C[i] = scratch[i];
"""


@pytest.mark.parametrize("more", ["", THROUGH], ids=["right", "scratch of the module"])
def test_what_overlapping_runs_share_is_found_out(more: str, tmp_path: Path) -> None:
    with supervised(GEMM, tmp_path) as runner:
        built, artifact = kernel(tmp_path, "product", more)
        assert runner.verify(built, artifact, 0, "normal").ok
        tried = runner.verify(built, artifact, 0, SEVERAL_THREADS)
    if more:
        assert tried.verdict is Verdict.WRONG and "when called from several threads at once" in tried.detail
    else:
        assert tried.ok, tried.detail


def test_calls_that_must_not_overlap_wait_for_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On any combination of streams."""
    if fake_gpu.build_driver(tmp_path) is None:
        pytest.skip("needs a C compiler")
    api = replace(gpu_driver.CUDA, libraries=(str(tmp_path / "libcuda.so.1"),))
    monkeypatch.setitem(gpu_driver.APIS, "cuda", api)
    order: list[tuple[str, int]] = []
    for name in ("wait", "record"):
        original = getattr(gpu_driver.Driver, name)

        def noted(self: object, event: int, stream: int = 0, name: str = name, original: object = original) -> None:
            order.append((name, stream))
            original(self, event, stream)  # type: ignore[operator]

        monkeypatch.setattr(gpu_driver.Driver, name, noted)
    built, artifact = kernel(tmp_path, "product", THROUGH)
    loaded = load(built, GEMM, resolve("cuda:sm_90a"), Path(artifact.binary), exclusive=True)
    a, b, c = np.ones((SIZE, 8), np.float32), np.ones((SIZE, 8), np.float32), np.zeros((SIZE, SIZE), np.float32)
    for stream in (7, 9, 9):
        c[...] = 0
        loaded(OnDevice(a), OnDevice(b), out=OnDevice(c), stream=stream)
        assert (c == 8).all()
    assert order == [(what, stream) for stream in (7, 9, 9) for what in ("wait", "record")]
    order.clear()
    load(built, GEMM, resolve("cuda:sm_90a"), Path(artifact.binary))(OnDevice(a), OnDevice(b), out=OnDevice(c))
    assert not order
