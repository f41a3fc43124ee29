"""Scratch memory that is cleared once: if every run restores its counters, no run has to clear them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_gpu import ARGUMENTS, build_driver, kernel

from deepgen.operators import gemm
from deepgen.run.call.gpu_kernel import GpuKernel
from deepgen.targets import gpu_driver
from deepgen.targets.gpu_driver import Driver
from deepgen.vocabulary import Kernel, LaunchPlan, Step, WorkspaceArg

COUNT = "**(int**)p[9] += 1;"


@pytest.mark.parametrize(("lasting", "want"), [(True, 3), (False, 1)])
def test_it_is_zeroed_before_the_first_run_only(lasting: bool, want: int, tmp_path: Path) -> None:
    if build_driver(tmp_path) is None:
        pytest.skip("there is no C compiler to build the fake driver with")
    driver = Driver(replace(gpu_driver.CUDA, libraries=(str(tmp_path / "libcuda.so.1"),)))
    made, artifact = kernel(tmp_path, "counting", COUNT)
    arg = WorkspaceArg("runs", 4, zeroed=True, lasting=lasting)
    counting = replace(made, plan=LaunchPlan((replace(made.plan.steps[0], args=(*ARGUMENTS, arg)),)))
    runs = np.full(1, -1, np.int32)
    tensors = {name: np.zeros((8, 8), np.float32) for name in "ABC"}
    addresses = {name: t.ctypes.data for name, t in tensors.items()}
    bound = GpuKernel.read(driver, counting, artifact.binary).bind(
        addresses, gemm(8, 8, 8, layout="nt").scalars(), lambda _arg, _size: runs.ctypes.data
    )
    for _ in range(3):
        bound.run.run()
    assert runs[0] == want
    assert ("runs" in bound.prepared) == lasting  # such memory is not scratch: it must not be overwritten between runs


def test_other_kernels_keep_their_json() -> None:
    step = Step("entry", (WorkspaceArg("a", 8), WorkspaceArg("b", 8, zeroed=True, lasting=True)))
    told = Kernel("k", "cuda", (), (), LaunchPlan((step,)))
    plan: Any = told.to_json()["plan"]
    first, second = plan["steps"][0]["args"]
    assert "lasting" not in first and second["lasting"] is True
    assert Kernel.from_json(told.to_json()) == told
