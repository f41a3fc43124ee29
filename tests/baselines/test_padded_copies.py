"""If cuBLASLt has no kernel it multiplies padded copies, and its name says so: on a device emulated in numpy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from own_baseline import Copied

import deepgen as dg
from deepgen.baselines import cublaslt
from deepgen.baselines.base import OnCopies
from deepgen.baselines.cublaslt import Copy3D, CublasLt, Heuristic
from deepgen.baselines.products import padded_forms, stored
from deepgen.frontends.cli.result import print_result
from deepgen.operators import Gemm, gemm
from deepgen.report.facts import facts_of
from deepgen.tuning.study.finals import Finals
from deepgen.vocabulary import DeepgenError, Missing

NUMPY = {3: np.int8, 10: np.int32}  # by cuBLASLt's numbers of formats


class HostDriver:
    """A device whose memory is the host's."""

    def __init__(self, api: object = None) -> None:
        self.held: dict[int, Any] = {}
        self.copies: list[tuple[int, int]] = []  # row strides in bytes, before and after
        self.library = {"cuMemcpy3DAsync_v2": self._copy}

    def alloc(self, size: int) -> int:
        raw = np.full(size, 0x5A, np.uint8)
        self.held[raw.ctypes.data] = raw
        return int(raw.ctypes.data)

    def free(self, address: int) -> None:
        del self.held[address]

    def fill(self, address: int, byte: int, size: int, stream: int = 0) -> None:
        ctypes.memset(address, byte, size)

    def synchronize(self) -> None: ...

    def check(self, call: str, code: int) -> None:
        assert code == 0

    def _copy(self, what: Any, stream: Any) -> int:
        one: Copy3D = what._obj
        assert one.source.kind == one.to.kind == 2
        self.copies.append((one.source.pitch, one.to.pitch))
        for matrix in range(one.depth):
            for row in range(one.rows):
                source, to = (s.device + (matrix * s.height + row) * s.pitch for s in (one.source, one.to))
                ctypes.memmove(to, source, one.width)
        return 0


class PickyHandle:
    """A cuBLASLt with kernels only for aligned rows, and only for sums over a multiple of 16."""

    sums = 16

    def __init__(self, path: Path) -> None: ...

    def product(self, compute: str, transposed: tuple[bool, bool], fast_sums: bool = False) -> tuple[bool, bool]:
        return transposed

    def layout(self, *facts: Any) -> tuple[Any, ...]:
        kind, *sizes = facts
        return (cublaslt.TYPES[kind], *sizes)

    def algorithms(self, product: Any, layouts: Any, count: int, workspace: int) -> list[Heuristic]:
        depth = layouts[0][1] if product[0] else layouts[0][2]
        for kind, _, _, leading, _, stride in layouts:
            size = np.dtype(NUMPY[kind]).itemsize
            if leading * size % 16 or stride * size % 16 or depth % self.sums:
                raise DeepgenError("cublasLtMatmulAlgoGetHeuristic failed with status 1")
        return [Heuristic(), Heuristic()]

    def call(
        self, product: Any, alpha: Any, b: Any, first: Any, a: Any, second: Any, beta: Any, c: Any, of: Any, *rest: Any
    ) -> int:
        (tb, ta), left, right, result = product, _array(a, second), _array(b, first), _array(c, of)
        left, right = (left.swapaxes(1, 2) if ta else left), (right.swapaxes(1, 2) if tb else right)
        terms = left.astype(np.int32) @ right.astype(np.int32)
        result[...] = alpha._obj.value * terms + (beta._obj.value * result if beta._obj.value else 0)
        return 0


def _array(address: Any, layout: Any) -> Any:
    """The matrices at an address as rows, according to the column-major layout."""
    kind, columns, rows, leading, batch, stride = layout
    size = np.dtype(NUMPY[kind]).itemsize
    raw = (ctypes.c_char * (((batch - 1) * stride + (rows - 1) * leading + columns) * size)).from_address(address.value)
    steps = (stride * size, leading * size, size)
    return np.ndarray((batch, rows, columns), NUMPY[kind], raw, strides=steps)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> HostDriver:
    one = HostDriver()
    monkeypatch.setattr(cublaslt, "Driver", lambda api: one)
    monkeypatch.setattr(cublaslt, "Handle", PickyHandle)
    monkeypatch.setattr(cublaslt, "find", lambda: Path("libcublasLt.so.13"))

    def no_torch() -> None:
        raise Missing("torch", blocks="copies", remedy="")

    monkeypatch.setattr("deepgen.baselines.torch_gpu.gpu_torch", no_torch)
    return one


def seconds(run: Callable[[], None]) -> float:
    run()
    return 1e-6


def computed(operator: Gemm) -> tuple[Any, Callable[[], None]]:
    """The result, and the call."""
    inputs = operator.inputs(seed=5)
    inputs |= {name: one % 1000 for name, one in inputs.items() if name == "C"}  # three times as much must not overflow
    shape = (operator.batch, operator.m, operator.n) if operator.batch > 1 else (operator.m, operator.n)
    arrays = {"C": np.full(shape, 7, np.int32), **{name: np.array(one) for name, one in inputs.items()}}
    tensors = {name: SimpleNamespace(address=array.ctypes.data) for name, array in arrays.items()}
    call = CublasLt().choose(operator, tensors, 1, seconds)
    for name in {"C"} & {*inputs}:
        arrays[name][...] = inputs[name]
    call()
    np.testing.assert_array_equal(arrays["C"], operator.reference(inputs)["C"].values)
    call()  # with the copies as they are now
    if not operator.beta:
        np.testing.assert_array_equal(arrays["C"], operator.reference(inputs)["C"].values)
    return arrays["C"], call


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("batch", [1, 3])
def test_odd_rows_are_multiplied_on_padded_copies(driver: HostDriver, layout: str, batch: int) -> None:
    _, call = computed(gemm(9, 19, 21, dtype="i8", layout=layout, batch=batch))
    assert isinstance(call, OnCopies) and call.form == "padded copies"
    assert driver.copies and all(min(a % 16, b % 16) == 0 for a, b in driver.copies)
    del call
    assert not driver.held, "the copies go with the call"


def test_a_result_that_is_added_to_is_copied_both_ways(driver: HostDriver) -> None:
    computed(gemm(9, 19, 21, dtype="i8", layout="nt", alpha=2.0, beta=3.0))
    assert (76, 128) in driver.copies and (128, 76) in driver.copies


def test_only_what_is_not_aligned_is_copied(driver: HostDriver) -> None:
    _, call = computed(gemm(9, 16, 21, dtype="i8", layout="nt"))
    assert isinstance(call, OnCopies) and {*driver.copies} == {(21, 32)}
    driver.copies.clear()
    _, plain = computed(gemm(9, 16, 32, dtype="i8", layout="nt"))
    assert not isinstance(plain, OnCopies) and not driver.copies


def test_without_any_kernel_the_library_is_quoted(driver: HostDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PickyHandle, "sums", 1 << 20)
    with pytest.raises(DeepgenError, match="cublasLtMatmulAlgoGetHeuristic failed with status 1"):
        computed(gemm(9, 19, 21, dtype="i8", layout="nt"))


def test_forms_of_copies() -> None:
    odd = gemm(100, 63, 267, dtype="f8e4m3", layout="nt")
    forms = [(form.m, form.n, form.k, matrices["C"]) for form, matrices in padded_forms(odd)]
    assert forms == [(100, 63, 267, (100, 63, 64)), (100, 64, 272, (100, 64, 64)), (112, 64, 272, (112, 64, 64))]
    eight = gemm(96, 24, 267, dtype="f8e4m3", layout="nt")  # rows of C have 48 bytes, but not a multiple of 16 elements
    assert [(form.n, form.k) for form, _ in padded_forms(eight)] == [(24, 267), (24, 272), (32, 272)]
    assert not list(padded_forms(gemm(112, 64, 272, dtype="f8e4m3", layout="nt")))
    assert stored(odd) == {"A": (100, 267, 267), "B": (63, 267, 267), "C": (100, 63, 63)}


def test_results_and_reports_name_the_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = {"trials": 2, "baselines": [Copied], "engine": dg.LocalEngine(), "out": tmp_path}
    study = dg.tune(dg.gemm(37, 29, 23), target="cpu", **words)
    finals = study.finals()
    assert finals is not None and Finals.from_json(finals.to_json()) == finals
    [row] = finals.baselines
    assert (row.name, row.form, row.title) == ("copied", "padded copies", "copied, padded copies")
    [shown] = study.summary()["baselines"]
    assert (shown["name"], shown["form"]) == ("copied, padded copies", "padded copies")
    print_result(study)
    assert "copied, padded copies: " in " ".join(capsys.readouterr().out.split())
    assert "copied, padded copies" in [one["name"] for one in facts_of(study)["ratios"]]


def test_torch_is_imported_ahead_where_it_may_make_the_copies() -> None:
    wanted = {
        ("f8e4m3", 83): ("torch",),
        ("i8", 83): ("torch",),
        ("f8e4m3", 96): (),
        ("bf16", 83): (),  # cuBLASLt has kernels for it
    }
    for (kind, n), modules in wanted.items():
        assert CublasLt.imports(gemm(64, n, 80, dtype=kind, layout="nt")) == modules
