"""A GPU kernel as a function on any device array, with a driver on host memory in place of the real one."""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from fake_gpu import ARGUMENTS, OnDevice, build_driver, image, kernel
from plain_operators import Norm

from deepgen.operators import Operator, gemm
from deepgen.run.call import calling, compiled
from deepgen.run.call.arrays import stream_handle, view
from deepgen.run.call.loaded import Loaded, load
from deepgen.targets import gpu_driver, resolve
from deepgen.targets.gpu_driver import DriverError
from deepgen.vocabulary import BadInput, ConstantCopy, LaunchPlan, ScalarArg, Step, TensorArg, WorkspaceArg

SQUARE = gemm(8, 8, 8, layout="nt")
TARGET = resolve("cuda:sm_90a")


class OnlyDlpack:
    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self) -> Any:
        return self.array.__dlpack__()


@pytest.fixture(params=["compiled", "in Python"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with the compiled path, if available, and with the Python path."""
    if request.param != "compiled":
        monkeypatch.setattr(compiled, "core", lambda: None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the fake driver, which processes find from here on."""
    if build_driver(tmp_path) is None:
        pytest.skip("there is no C compiler to build the fake driver with")
    fake = replace(gpu_driver.CUDA, libraries=(str(tmp_path / "libcuda.so.1"),))
    monkeypatch.setitem(gpu_driver.APIS, "cuda", fake)
    return tmp_path


@pytest.fixture
def call(folder: Path) -> Iterator[Loaded]:
    made, artifact = kernel(folder, "right")
    loaded = load(made, SQUARE, TARGET, Path(artifact.binary))
    yield loaded
    loaded.close()


@pytest.fixture
def as_if_on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch tensors in host memory, which is the fake driver's memory, are treated as tensors of its device."""
    monkeypatch.setattr(calling, "view", lambda array, name: replace(view(array, name), device="gpu:0"))


def aligned(rows: int, columns: int) -> Any:
    raw = np.random.default_rng(rows).standard_normal(rows * columns + 16).astype(np.float32)
    skip = -raw.ctypes.data % 64 // 4
    return raw[skip : skip + rows * columns].reshape(rows, columns)


@pytest.mark.parametrize(("m", "n", "k"), [(8, 8, 8), (3, 5, 16), (1, 33, 7)])
def test_one_kernel_serves_many_shapes(call: Loaded, m: int, n: int, k: int) -> None:
    for _ in range(2):
        a, b, out = aligned(m, k), aligned(n, k), aligned(m, n)
        call(OnDevice(a), OnDevice(b), out=OnDevice(out))
        np.testing.assert_allclose(out, a @ b.T, rtol=1e-4, atol=1e-5)


def test_threads_that_are_new_to_the_device_are_served(call: Loaded) -> None:
    a, b = aligned(4, 8), aligned(4, 8)
    for _ in range(3):
        with ThreadPoolExecutor(1) as pool:
            for stream in (None, 7, 0, 7):
                out = aligned(4, 4)
                out[:] = 0
                pool.submit(call, OnDevice(a), OnDevice(b), out=OnDevice(out), stream=stream).result()
                np.testing.assert_allclose(out, a @ b.T, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("as_if_on_device")
def test_what_the_driver_says_is_told(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    made, artifact = kernel(folder, "faulty", "return 700;")
    call = load(made, SQUARE, TARGET, Path(artifact.binary))
    a, b = torch.ones(4, 8), torch.ones(4, 8)
    assert (call(a, b, stream=0) == 8).all()
    for _ in range(2):
        with pytest.raises(DriverError, match=r"cuLaunchKernelEx failed: an illegal memory access .*\(700\)"):
            call(a, b, stream=0)


def test_rows_may_lie_apart(call: Loaded) -> None:
    wide, b, out = aligned(6, 32), aligned(4, 16), aligned(6, 4)
    call(OnDevice(wide[:, :16]), OnDevice(b), out=OnDevice(out), stream=0)
    np.testing.assert_allclose(out, wide[:, :16] @ b.T, rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_is_told(call: Loaded) -> None:
    a, b, out = aligned(8, 16), aligned(8, 16), aligned(8, 8)
    with pytest.raises(BadInput, match=r"B has K=12 .* but A has K=16"):
        call(OnDevice(a), OnDevice(aligned(8, 12)), out=OnDevice(out))
    with pytest.raises(BadInput, match=r"C has N=16 .* but B has N=8"):
        call(OnDevice(a), OnDevice(b), out=OnDevice(aligned(8, 16)))
    with pytest.raises(BadInput, match="f64"):
        call(OnDevice(a.astype(np.float64)), OnDevice(b), out=OnDevice(out))
    with pytest.raises(BadInput, match="not row-major"):
        call(OnDevice(aligned(16, 8).T), OnDevice(b), out=OnDevice(out))
    with pytest.raises(BadInput, match="A is not 16-byte aligned"):
        call(OnDevice(aligned(1, 129)[0, 1:].reshape(8, 16)), OnDevice(b), out=OnDevice(out))
    with pytest.raises(BadInput, match="pass it as out="):
        call(OnDevice(a), OnDevice(b))
    with pytest.raises(BadInput, match="A is not an array"):
        call([1, 2], OnDevice(b), out=OnDevice(out))


def test_a_result_that_overlaps_what_is_read_is_refused(call: Loaded) -> None:
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


def test_slices_of_one_buffer_may_lie_between_each_other(call: Loaded) -> None:
    buffer, b = aligned(8, 64), aligned(8, 16)
    a = buffer[:, :16]
    for start in (16, 32, 56):
        for _ in range(2):
            out = buffer[:, start : start + 8]
            call(OnDevice(a), OnDevice(b), out=OnDevice(out))
            np.testing.assert_allclose(out, a @ b.T, rtol=1e-4, atol=1e-5)
        with pytest.raises(BadInput, match="out overlaps A"):
            call(OnDevice(a), OnDevice(b), out=OnDevice(buffer[:, 12:20]))


def test_a_bias_that_the_kernel_does_not_add_is_refused(call: Loaded) -> None:
    a, b, out, bias = aligned(8, 8), aligned(8, 8), aligned(8, 8), aligned(1, 8)[0]
    with pytest.raises(BadInput, match="the kernel has no parameter bias"):
        call(OnDevice(a), OnDevice(b), out=OnDevice(out), bias=OnDevice(bias))


@pytest.mark.quiet
@pytest.mark.usefixtures("as_if_on_device")
def test_a_call_costs_little_more_than_its_launch(call: Loaded) -> None:
    """Through torch tensors: a few microseconds. Compared with a workload in Python, so that any machine will do."""
    torch = pytest.importorskip("torch")
    a, b, out = (torch.zeros(1, 1) for _ in range(3))

    def each(work: Callable[[], Any]) -> float:
        return min(timeit.repeat(work, number=500, repeat=5)) / 500

    taken = each(lambda: call(a, b, out=out, stream=0))
    attributes = each(lambda: [(t.shape, t.stride(), t.dtype, t.get_device(), t.data_ptr()) for t in (a, b, out)])
    assert taken < 8 * attributes, "about twice what asking the tensors takes; it was four times that with loops"


@pytest.mark.usefixtures("as_if_on_device")
def test_outputs_are_made_in_every_format(call: Loaded, folder: Path) -> None:
    torch = pytest.importorskip("torch")
    a, b = torch.randn(3, 8), torch.randn(5, 8)
    for _ in range(2):
        assert torch.allclose(call(a, b, stream=0), a @ b.T, atol=1e-4)
    nothing, artifact = kernel(folder, "nothing")  # it must not write floats to results with fewer bytes
    image(folder, "nothing", "int entry(void** p, const unsigned* grid, const unsigned* block) { return 0; }")
    for of, given, wanted in (("i8", "int8", "int32"), ("f8e4m3", "float8_e4m3fn", "bfloat16"), ("f16",) * 2 + ("",)):
        theirs, made = getattr(torch, given, torch.float16), getattr(torch, wanted, torch.float16)
        small = load(nothing, gemm(8, 8, 8, dtype=of, layout="nt"), TARGET, Path(artifact.binary))
        got = small(torch.zeros(4, 16).to(theirs), torch.zeros(4, 16).to(theirs), stream=0)
        assert (got.dtype, tuple(got.shape)) == (made, (4, 4))


def test_arrays_that_are_elsewhere_are_refused(call: Loaded) -> None:
    out = OnDevice(aligned(8, 8))
    with pytest.raises(BadInput, match=r"A is on the device cpu \(an array on the gpu\)"):
        call(aligned(8, 8), OnDevice(aligned(8, 8)), out=out)
    torch = pytest.importorskip("torch")
    with pytest.raises(BadInput, match="A is on the device cpu"):
        call(torch.zeros(8, 8), torch.zeros(8, 8), out=torch.zeros(8, 8), stream=0)
    assert view(OnlyDlpack(aligned(4, 4))).device == "cpu"


def test_arrays_of_cupy_are_made_by_cupy(call: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    class Device:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    class ndarray(OnDevice):
        device = Device()

    ndarray.__module__ = "cupy"
    cupy = ModuleType("cupy")
    cupy.empty = lambda shape, dtype: ndarray(aligned(*shape))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    a, b = aligned(8, 8), aligned(4, 8)
    np.testing.assert_allclose(call(ndarray(a), ndarray(b)).array, a @ b.T, rtol=1e-4, atol=1e-5)


def test_zero_sizes_launch_nothing(call: Loaded) -> None:
    out = OnDevice(np.empty((0, 4), np.float32))
    assert call(OnDevice(np.empty((0, 8), np.float32)), OnDevice(aligned(4, 8)), out=out) is out


_CONSTANT = "float scales[8];\n"


def test_a_tensor_may_lie_in_constant_memory(folder: Path) -> None:
    scaled = "for (int i = 0; i < M; i++) for (int j = 0; j < N; j++) C[i * ldc + j] *= scales[j];"
    made, artifact = kernel(
        folder, "scaled", scaled, numbers=f"typedef float number;\n#define value(x) (x)\n{_CONSTANT}"
    )
    plan = replace(made.plan, constants=(ConstantCopy("scales", "scale"),))
    call = load(replace(made, plan=plan), gemm(8, 8, 8, layout="nt", scales="column"), TARGET, Path(artifact.binary))
    a, b, out = aligned(8, 8), aligned(8, 8), aligned(8, 8)
    for factor in (2.0, 3.0):  # the same shapes, other addresses
        scale = np.ascontiguousarray(aligned(1, 8)[0] * np.float32(factor))
        scale = scale if scale.ctypes.data % 16 == 0 else aligned(2, 8)[0]
        call(OnDevice(a), OnDevice(b), scale=OnDevice(scale), out=OnDevice(out))
        np.testing.assert_allclose(out, a @ b.T * scale, rtol=1e-4, atol=1e-5)
    with pytest.raises(BadInput, match="scale takes 64 bytes, but scales has 32"):
        call(OnDevice(a), OnDevice(aligned(16, 8)), scale=OnDevice(aligned(1, 16)[0]), out=OnDevice(aligned(8, 16)))


def test_workspaces_steps_and_optional_tensors(folder: Path) -> None:
    source = """
int first(void** p, const unsigned* grid, const unsigned* block) {
    const float* x = *(float**)p[0];
    float* sums = *(float**)p[1];
    for (int i = 0; i < *(int*)p[2]; i++)
        for (int j = 0; j < *(int*)p[3]; j++) sums[i] += x[i * *(int*)p[3] + j] / *(int*)p[3];
    return 0;
}
int second(void** p, const unsigned* grid, const unsigned* block) {
    const float *x = *(float**)p[0], *shift = *(float**)p[1], *sums = *(float**)p[2];
    float *y = *(float**)p[3], *mean = *(float**)p[4], eps = *(float*)p[7];
    int rows = *(int*)p[5], cols = *(int*)p[6];
    for (int i = 0; i < rows; i++) {
        mean[i] = sums[i];
        for (int j = 0; j < cols; j++) y[i * cols + j] = x[i * cols + j] - sums[i] + eps + (shift ? shift[j] : 0);
    }
    return 0;
}
"""
    made, artifact = kernel(folder, "norm", numbers=source + "typedef float number;\n#define value(x) (x)\n")
    sums = WorkspaceArg("sums", "4 * rows", zeroed=True)
    sizes = (ScalarArg("i32", "rows"), ScalarArg("i32", "cols"))
    x, shift, y, mean = (TensorArg(name) for name in ("x", "shift", "y", "mean"))
    steps = Step("first", (x, sums, *sizes)), Step("second", (x, shift, sums, y, mean, *sizes, ScalarArg("f32", "eps")))
    operator: Operator = Norm()
    call = load(replace(made, plan=LaunchPlan(steps)), operator, TARGET, Path(artifact.binary))
    given, moved = aligned(3, 8), aligned(1, 8)[0]
    for _ in range(2):
        out = aligned(3, 8), aligned(1, 3)[0]
        call(OnDevice(given), out={"y": OnDevice(out[0]), "mean": OnDevice(out[1])})
        np.testing.assert_allclose(out[0], given - given.mean(1, keepdims=True) + 0.5, atol=1e-5)
        call(OnDevice(given), shift=OnDevice(moved), eps=0.0, out=tuple(map(OnDevice, out)), stream=7)
        np.testing.assert_allclose(out[0], given - given.mean(1, keepdims=True) + moved, atol=1e-5)
        np.testing.assert_allclose(out[1], given.mean(1), atol=1e-6)
    assert call.workspace_bytes(OnDevice(given)) == 12
    assert "norm" in repr(call) and "on the gpu" in repr(call)
    call.close()


def test_strides_that_the_kernel_is_not_told_of_are_refused(folder: Path) -> None:
    made, artifact = kernel(folder, "dense")
    dense = tuple(replace(arg, value="K") if getattr(arg, "value", "") in ("lda", "ldb") else arg for arg in ARGUMENTS)
    plan = LaunchPlan((replace(made.plan.steps[0], args=dense),))
    call = load(replace(made, plan=plan), SQUARE, TARGET, Path(artifact.binary))
    wide, b, out = aligned(6, 32), aligned(4, 16), aligned(6, 4)
    with pytest.raises(BadInput, match="A has a stride of 32 along dimension 0, which kernel dense does not take"):
        call(OnDevice(wide[:, :16]), OnDevice(b), out=OnDevice(out))


def test_streams_of_any_library_are_taken() -> None:
    class Torch:
        cuda_stream = 17

    class Standard:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 23

    assert (stream_handle(5), stream_handle(Torch()), stream_handle(Standard())) == (5, 17, 23)
    with pytest.raises(BadInput, match="is not a stream"):
        stream_handle("main")
