"""A GPU kernel as a function on any device array, with a driver over host memory in place of the real one."""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deepgen.runtime.device_arrays import View, stream_handle, view
from deepgen.runtime.loaded_gpu import LoadedGpuKernel

from deepgen.operators import gemm
from deepgen.runtime import gpu_driver
from deepgen.runtime import loaded_gpu as gpu
from deepgen.vocabulary import BadInput

sys.path.insert(0, str(Path(__file__).parents[1] / "measure"))
from fake_gpu import build_driver, kernel


class OnDevice:
    """A numpy array that says it lies on a device: to the fake driver it does."""

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.array.__array_interface__


class OnlyDlpack:
    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self) -> Any:
        return self.array.__dlpack__()


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoadedGpuKernel]:
    if build_driver(tmp_path) is None:
        pytest.skip("there is no C compiler to build the fake driver with")
    fake = replace(gpu_driver.CUDA, libraries=(str(tmp_path / "libcuda.so.1"),))
    monkeypatch.setitem(gpu_driver.APIS, "cuda", fake)
    made, artifact = kernel(tmp_path, "right")
    loaded = LoadedGpuKernel(made, gemm(8, 8, 8, layout="nt"), Path(artifact.binary))
    yield loaded
    loaded.close()


def aligned(rows: int, columns: int) -> Any:
    raw = np.random.default_rng(rows).standard_normal(rows * columns + 16).astype(np.float32)
    skip = -raw.ctypes.data % 64 // 4
    return raw[skip : skip + rows * columns].reshape(rows, columns)


@pytest.mark.parametrize(("m", "n", "k"), [(8, 8, 8), (3, 5, 16), (1, 33, 7)])
def test_one_kernel_serves_many_shapes(call: LoadedGpuKernel, m: int, n: int, k: int) -> None:
    for _ in range(2):
        a, b, out = aligned(m, k), aligned(n, k), aligned(m, n)
        call(OnDevice(a), OnDevice(b), out=OnDevice(out))
        np.testing.assert_allclose(out, a @ b.T, rtol=1e-4, atol=1e-5)


def test_rows_may_lie_apart(call: LoadedGpuKernel) -> None:
    wide, b, out = aligned(6, 32), aligned(4, 16), aligned(6, 4)
    call(OnDevice(wide[:, :16]), OnDevice(b), out=OnDevice(out), stream=0)
    np.testing.assert_allclose(out, wide[:, :16] @ b.T, rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_is_told(call: LoadedGpuKernel) -> None:
    a, b, out = aligned(8, 16), aligned(8, 16), aligned(8, 8)
    with pytest.raises(BadInput, match="the same K"):
        call(OnDevice(a), OnDevice(aligned(8, 12)), out=OnDevice(out))
    with pytest.raises(BadInput, match=r"C is f32 \(8, 16\)"):
        call(OnDevice(a), OnDevice(b), out=OnDevice(aligned(8, 16)))
    with pytest.raises(BadInput, match="f64"):
        call(OnDevice(a.astype(np.float64)), OnDevice(b), out=OnDevice(out))
    with pytest.raises(BadInput, match="not row-major"):
        call(OnDevice(aligned(16, 8).T), OnDevice(b), out=OnDevice(out))
    with pytest.raises(BadInput, match="multiple of 16"):
        call(OnDevice(aligned(1, 129)[0, 1:].reshape(8, 16)), OnDevice(b), out=OnDevice(out))
    with pytest.raises(BadInput, match="pass it as out="):
        call(OnDevice(a), OnDevice(b))
    with pytest.raises(BadInput, match="no device array"):
        call([1, 2], OnDevice(b), out=OnDevice(out))


def test_a_result_that_overlaps_what_is_read_is_refused(call: LoadedGpuKernel) -> None:
    buffer, apart = aligned(40, 16), aligned(8, 16)
    a, b = buffer[:8], buffer[16:24]
    call(OnDevice(a), OnDevice(b), out=OnDevice(buffer[32:36].reshape(8, 8)))  # the shapes are known from here on
    for start, name in ((0, "A"), (4, "A"), (7, "A"), (14, "B"), (16, "B"), (20, "B"), (23, "B")):
        out = buffer[start : start + 4].reshape(8, 8)
        with pytest.raises(BadInput, match=f"out overlaps {name}, which is read"):
            call(OnDevice(a), OnDevice(b), out=OnDevice(out))
    for start in (8, 12, 24):  # right behind A, right before B and right behind it
        out = buffer[start : start + 4].reshape(8, 8)
        for first in (a, apart):
            call(OnDevice(first), OnDevice(b), out=OnDevice(out))
            np.testing.assert_allclose(out, first @ b.T, rtol=1e-4, atol=1e-5)


def test_slices_of_one_buffer_may_lie_between_each_other(call: LoadedGpuKernel) -> None:
    buffer, b = aligned(8, 64), aligned(8, 16)
    a = buffer[:, :16]
    for start in (16, 32, 56):
        for _ in range(2):
            out = buffer[:, start : start + 8]
            call(OnDevice(a), OnDevice(b), out=OnDevice(out))
            np.testing.assert_allclose(out, a @ b.T, rtol=1e-4, atol=1e-5)
        with pytest.raises(BadInput, match="out overlaps A"):
            call(OnDevice(a), OnDevice(b), out=OnDevice(buffer[:, 12:20]))


def test_a_bias_that_the_kernel_does_not_add_is_refused(call: LoadedGpuKernel) -> None:
    a, b, out, bias = aligned(8, 8), aligned(8, 8), aligned(8, 8), aligned(1, 8)[0]
    with pytest.raises(BadInput, match="bias is given to a kernel that adds none"):
        call(OnDevice(a), OnDevice(b), out=OnDevice(out), bias=OnDevice(bias))


def test_a_call_costs_little_more_than_its_launch(call: LoadedGpuKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through torch's tensors: a few microseconds. Against a workload of Python's own, so that any machine will do."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(gpu, "view", lambda t: View(t.data_ptr(), tuple(t.shape), tuple(t.stride()), "f32"))
    a, b, out = (torch.zeros(1, 1) for _ in range(3))

    def each(work: Callable[[], Any]) -> float:
        return min(timeit.repeat(work, number=500, repeat=5)) / 500

    taken = each(lambda: call(a, b, out=out, stream=0))
    attributes = each(lambda: [(t.shape, t.stride(), t.dtype, t.get_device(), t.data_ptr()) for t in (a, b, out)])
    assert taken < 8 * attributes, "about twice what asking the tensors takes; it was four times that with loops"


def test_arrays_that_are_not_on_a_gpu_are_refused() -> None:
    with pytest.raises(BadInput, match="not in GPU memory"):
        view(OnlyDlpack(aligned(4, 4)))
    torch = pytest.importorskip("torch")
    with pytest.raises(BadInput, match="a tensor on cpu"):
        view(torch.zeros(2, 2))


def test_streams_of_any_library_are_taken() -> None:
    class Torch:
        cuda_stream = 17

    class Standard:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 23

    assert (stream_handle(5), stream_handle(Torch()), stream_handle(Standard())) == (5, 17, 23)
    with pytest.raises(BadInput, match="no stream"):
        stream_handle("main")
