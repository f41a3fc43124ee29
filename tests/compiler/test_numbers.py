"""The arithmetic of emitted C: vector functions within two units in the last place, small floats bit by bit."""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled import COMPILERS, NO_COMPILER

from deepgen.compiler import text
from deepgen.compiler.intrinsics.vectors import BYTES, vector_types
from deepgen.vocabulary.dtypes import dtype, narrow, widen

pytestmark = pytest.mark.skipif(not COMPILERS, reason=NO_COMPILER)
EMIT = Path(text.__file__).parent
FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "log": np.log,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf),
    "sin": np.sin,
    "cos": np.cos,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "floor": np.floor,
}
SMALL = {"f16": 16, "bf16": 16, "f8e4m3": 8, "f8e5m2": 8}  # bits
SMALLEST = np.finfo(np.float32).tiny
LARGEST = np.finfo(np.float32).max


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    each = "for (i64 n = 0; n < count; n += 4)"
    types = vector_types(frozenset({("f32", 4), ("u16", 4), (BYTES, 4)}))
    lines = ['#include "numbers.h"', '#include "eight_bits.h"', *types]
    for name in FUNCTIONS:
        head = f"void v_{name}(f32 *x, f32 *y, i64 count)"
        lines.append(f"{head} {{ {each} *(f32x4_at *)&y[n] = {name}_f32x4(*(f32x4_at *)&x[n]); }}")
    for kind, bits in SMALL.items():
        text = (
            f"void widen_all_{kind}(u16 *x, f32 *y, i64 count) "
            f"{{ {each} *(f32x4_at *)&y[n] = widen_{kind}x4(*(u16x4_at *)&x[n]); }}\n"
            f"void narrow_all_{kind}(f32 *x, u16 *y, i64 count) "
            f"{{ {each} *(u16x4_at *)&y[n] = narrow_{kind}x4(*(f32x4_at *)&x[n]); }}\n"
            f"void widen_each_{kind}(u16 *x, f32 *y, i64 count) "
            f"{{ for (i64 n = 0; n < count; n++) y[n] = widen_{kind}(x[n]); }}\n"
            f"void narrow_each_{kind}(f32 *x, u16 *y, i64 count) "
            f"{{ for (i64 n = 0; n < count; n++) y[n] = narrow_{kind}(x[n]); }}"
        )
        lines.append(text.replace("u16", f"u{bits}"))
    folder = tmp_path_factory.mktemp("numbers")
    (folder / "all.c").write_text("\n".join(lines))
    command = [COMPILERS[0], "-O2", "-std=gnu11", "-Wall", "-Wno-unused", "-Wno-psabi", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*command, f"-I{EMIT}", "all.c", "-o", "all.so", "-lm"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "all.so"))


def called(library: ctypes.CDLL, name: str, x: Any, result: type[Any]) -> Any:
    y = np.zeros(x.shape, result)
    getattr(library, name)(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_int64(x.size))
    return y


@pytest.mark.parametrize("name", FUNCTIONS)
def test_vector_functions_are_off_by_at_most_two_units(name: str, library: ctypes.CDLL) -> None:
    numbers = np.random.default_rng(0)
    ranges = [numbers.uniform(-size, size, 20_000) for size in (0.001, 0.7, 1, 4, 20, 104)]
    sizes = 10.0 ** numbers.uniform(-37, 38, 20_000)
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, LARGEST, -LARGEST, 1e-45, 8191.5, 123456.0]
    x = np.concatenate([*ranges, sizes, -sizes, special]).astype(np.float32)
    x = np.abs(x) if name in ("log", "sqrt", "rsqrt") else x
    with np.errstate(all="ignore"):
        want = FUNCTIONS[name](x.astype(np.float64))
        got = called(library, f"v_{name}", x, np.float32).astype(np.float64)
        unit = np.spacing(np.clip(np.abs(want), SMALLEST, LARGEST).astype(np.float32)).astype(np.float64)
        off = np.abs(got - want) / unit
    normal = (np.abs(want) >= SMALLEST) & (np.abs(want) <= LARGEST)
    assert off[normal].max() <= 2, x[normal][off[normal].argmax()]
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert (np.abs(got[~normal & (np.abs(want) < SMALLEST)]) <= SMALLEST).all()
    assert np.isinf(got[np.isinf(want)]).all()


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("way", ["all", "each"])
def test_stored_floats_are_converted_as_numpy_does(kind: str, way: str, library: ctypes.CDLL) -> None:
    bits, of = np.dtype(f"uint{SMALL[kind]}"), dtype(kind)
    codes = np.arange(1 << SMALL[kind]).astype(bits)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        want = widen(codes.view(of.numpy()), of).astype(np.float32)
    got = called(library, f"widen_{way}_{kind}", codes, np.float32)
    assert np.array_equal(got, want, equal_nan=True)
    numbers = np.random.default_rng(1)
    near = np.sort(want[np.isfinite(want)])
    between = (near[:-1].astype(np.float64) + near[1:]) / 2
    x = np.concatenate([near, between, numbers.uniform(-7e4, 7e4, 999), [np.inf, -np.inf, 1e30, 0.0]])
    x = np.resize(x.astype(np.float32), (x.size + 3) // 4 * 4)
    with np.errstate(over="ignore"):
        stored = narrow(x, of).view(bits)
    assert np.array_equal(called(library, f"narrow_{way}_{kind}", x, bits.type), stored)
    nan = np.full(4, np.nan, np.float32)
    assert np.isnan(widen(called(library, f"narrow_{way}_{kind}", nan, bits.type).view(of.numpy()), of)).all()
