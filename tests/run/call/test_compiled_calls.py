"""The compiled path to a kernel: like the Python path in everything but time, and absent if it cannot be built."""

from __future__ import annotations

import gc
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from fuzzed_calls import OnlyDlpack, compare
from plain_operators import CPU, GEMM, Add, add, plain, tensors

from deepgen.operators import gemm
from deepgen.run.call import compiled
from deepgen.run.call.loaded import Loaded, load
from deepgen.vocabulary import BadInput, Missing, ScalarArg


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


@pytest.fixture(scope="module")
def core() -> Any:
    """The extension. Only a missing compiler or headers justify a skip, not a mistake in its sources."""
    made = compiled.core()
    if made is None:
        there = shutil.which("gcc") and Path(sysconfig.get_path("include"), "Python.h").exists()
        assert not there, "it cannot be built"
        pytest.skip("there is no compiler here, or no headers of Python's")
    return made


@pytest.fixture(scope="module")
def multiply() -> Loaded:
    return load(GEMM, gemm(8, 8, 8), CPU)


@pytest.fixture
def fresh() -> Iterator[None]:
    """Clear the cache, so that the extension is looked up again."""
    compiled.core.cache_clear()
    yield
    compiled.core.cache_clear()


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize("with_torch", [False, True])
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_drawn_calls_end_as_in_python(with_torch: bool) -> None:
    torch = pytest.importorskip("torch") if with_torch else None
    counted = compare(300, 7, torch)
    assert counted["computed"] > 100 and counted["BadInput"] > 60
    assert counted["left to Python"] < 260, "some are of kinds that were met before"


@pytest.mark.usefixtures("core")
def test_a_kind_that_was_met_stays_in_c(multiply: Loaded) -> None:
    a, b, out = ones(4, 4), ones(4, 4), ones(4, 4)
    torch = pytest.importorskip("torch")
    three = [torch.from_numpy(array) for array in (a, b, out)]
    capsules = [OnlyDlpack(array) for array in (a, b, out)]
    calls = (
        lambda: multiply(a, b),
        lambda: multiply(a, b, out=out),
        lambda: multiply(B=b, A=a),
        lambda: multiply(a, b, C=out),
        lambda: multiply(a, b, out=(out,), stream=None),
        lambda: multiply(*three[:2]),
        lambda: multiply(*three[:2], out=three[2]),
        lambda: multiply(torch.nn.Parameter(three[0]), three[1]),
        lambda: multiply(*capsules[:2], out=capsules[2]),
    )
    for call in calls:
        call()
    with patch.object(multiply, "_call", None):  # the Python path is disabled
        for call in calls:
            out[:] = 0
            result = call()
            assert np.asarray(getattr(result, "array", result)).tolist() == [[4.0] * 4] * 4
        with pytest.raises(BadInput, match="out overlaps A"):
            multiply(a, b, out=a)
    assert type(multiply).__flags__ >> 11 & 1, "it is called without a tuple of its arguments"


@pytest.mark.usefixtures("core")
def test_nothing_is_left_behind(multiply: Loaded) -> None:
    a, b, out = ones(3, 4), ones(4, 5), ones(3, 5)
    add_in_place, wrong = load(add(), Add(), CPU), a.astype(np.float64)
    x = ones(4, 4)

    def work() -> None:
        for _ in range(300):
            multiply(a, b, out=out)
            multiply(a, b)
            multiply(OnlyDlpack(a), OnlyDlpack(b), out=OnlyDlpack(out))
            add_in_place(x, x[::-1].copy(), out=x)
            for bad in ({"A": wrong, "B": b}, {"A": a}, {"A": a, "B": b, "out": a}, {"A": a, "B": None}):
                with pytest.raises(BadInput):
                    multiply(**bad)

    work()
    objects = (a, b, out, x, None, multiply, a.dtype, OnlyDlpack, np.ndarray)
    gc.collect()
    before, blocks = [sys.getrefcount(one) for one in objects], sys.getallocatedblocks()
    work()
    gc.collect()
    after = [sys.getrefcount(one) for one in objects]
    assert all(abs(new - old) < 50 for new, old in zip(after, before, strict=True)), (before, after)
    assert sys.getallocatedblocks() - blocks < 300


@pytest.mark.usefixtures("core")
def test_a_kernel_that_nobody_holds_goes_with_all_it_holds() -> None:
    import weakref

    call = load(add(), Add(), CPU)
    call(ones(2, 3), ones(2, 3))
    call.again = call  # type: ignore[attr-defined]
    device = weakref.ref(call._device)
    del call
    gc.collect()
    assert device() is None


@pytest.mark.usefixtures("core")
def test_more_kinds_than_are_remembered_from_several_threads(multiply: Loaded) -> None:
    def wrong(number: int) -> bool:
        m, n = 1 + number % 60, 1 + number // 60
        return not (multiply(ones(m, 2), ones(2, n)) == 2).all()

    with ThreadPoolExecutor(3) as pool:
        assert not any(pool.map(wrong, [*range(1100)]))
    multiply.close()
    assert not wrong(7)


def test_arguments_of_every_kind_are_passed_in_their_order(core: Any) -> None:
    """Integers and floats, in registers and on the stack."""
    kinds = [("i64", "long"), ("i32", "int"), ("f32", "float"), ("i64", "long"), ("f64", "double"), ("i32", "int")]
    kinds = kinds * 4
    declared = ", ".join(f"{c} v{place}" for place, (_, c) in enumerate(kinds))
    total = " + ".join(f"{place + 1} * v{place}" for place in range(len(kinds)))
    text = f"void add({declared}, const float *x, const float *y, float *z) {{ z[0] = x[0] + y[0] + {total}; }}"
    passed = tuple(ScalarArg(kind, -place if "i" in kind else place / 4) for place, (kind, _) in enumerate(kinds))
    want = 2 + sum((place + 1) * (-place if "i" in k else place / 4) for place, (k, _) in enumerate(kinds))
    call = load(plain("add", text, *passed, *tensors("x", "y", "z")), Add(), CPU)
    for _ in range(2):
        assert call(ones(1, 1), ones(1, 1)).item() == want
    assert all(type(ready.fire) is core.Bound for ready in call._ready.values())


@pytest.mark.usefixtures("core")
def test_more_arguments_than_c_passes_go_through_python() -> None:
    names = [f"v{place}" for place in range(40)]
    text = f"void add({', '.join(f'long {n}' for n in names)}, float *x, float *y, float *z) {{ z[0] = v39 + x[0]; }}"
    passed = tuple(ScalarArg("i64", place) for place in range(40))
    call = load(plain("add", text, *passed, *tensors("x", "y", "z")), Add(), CPU)
    for _ in range(2):
        assert call(ones(1, 1), ones(1, 1)).item() == 40


def test_a_bound_kernel_takes_its_addresses_and_nothing_else(core: Any, multiply: Loaded) -> None:
    a, b = ones(2, 3), ones(3, 2)
    result, fire = multiply.meet(a, b)
    assert fire is not None and type(fire) is core.Bound
    out = np.zeros((2, 2), np.float32)
    fire((a.ctypes.data, b.ctypes.data, out.ctypes.data), 0)
    assert (out == result).all()
    with pytest.raises(BadInput, match="out overlaps A"):
        fire([a.ctypes.data, b.ctypes.data, a.ctypes.data], 0)
    for wrong in (((1, 2), 0), ((1, 2, 3, 4), 0), ((1, 2, None), 0), ((1, 2, -3), 0), (7, 0), ((1, 2, 3), "main")):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            fire(*wrong)  # type: ignore[arg-type]


@pytest.mark.usefixtures("core", "fresh")
def test_a_folder_that_cannot_be_written_may_hold_it_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "os", SimpleNamespace(access=lambda path, mode: False, W_OK=2))
    assert compiled.core() is not None
    compiled.core.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    assert compiled.core() is None


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("missing", ["compiler", "headers", "lock"])
def test_without_it_calls_are_made_in_python(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise Missing("a C compiler", blocks="nothing can be built", remedy="install one")

    if missing == "compiler":
        monkeypatch.setattr(compiled, "_artifact", none)
    elif missing == "headers":
        monkeypatch.setattr(sysconfig, "get_path", lambda name: "/nowhere")
    else:
        real = sysconfig.get_config_var
        monkeypatch.setattr(sysconfig, "get_config_var", lambda name: 1 if "GIL" in name else real(name))
    assert compiled.core() is None
    call = load(GEMM, gemm(8, 8, 8), CPU)
    assert "Compiled" not in type(call).__name__
    for _ in range(2):
        assert (call(ones(2, 3), ones(3, 4)) == 3).all()
    with pytest.raises(BadInput, match="needs B"):
        call(ones(2, 3))
