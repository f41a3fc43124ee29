"""Calls of the small kernels, and numpy's expected results."""

from __future__ import annotations

from typing import Any

import answers as want
import ml_dtypes
import numpy as np
from compiled_kernels import BF16, Case

import kernels as k

rng = np.random.default_rng(1)
F32 = np.float32


def draw(*shape: int, of: Any = F32) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(of)


def whole(*shape: int, low: int = -1000, high: int = 1000, of: Any = np.int32) -> np.ndarray[Any, Any]:
    return rng.integers(low, high, shape).astype(of)


def zeros(*shape: int, of: Any = F32) -> np.ndarray[Any, Any]:
    return np.zeros(shape, of)


def _products(of: Any, m: int, n: int, kk: int, into: Any = F32, tolerance: float = 1e-5) -> Case:
    a = whole(m, kk, low=-128, high=128).astype(of) if of is np.int8 else draw(m, kk, of=of)
    b = whole(kk, n, low=-128, high=128).astype(of) if of is np.int8 else draw(kk, n, of=of)
    wide = np.int64 if of is np.int8 else np.float64
    return Case(
        k.product, (1,), {"a": a, "b": b, "c": zeros(m, n, of=into)},
        lambda a, b, c: {"c": a.astype(wide) @ b.astype(wide)}, {"M": m, "N": n, "K": kk}, tolerance,
    )  # fmt: skip


AT = rng.permutation(16).astype(np.int32)
WIDE = np.concatenate([draw(120) * 5, [0.5, -0.5, 1e-3, -1e-3, 80.0, -80.0, 3e4, 1e-30]]).astype(F32)
MIXED = np.concatenate([draw(28) * 20, [0.0, 1.0, 65504.0, 1e-5]]).astype(F32)
TABLE = draw(16)
HOLES = np.where(rng.random((8, 32)) < 0.3, np.nan, draw(8, 32)).astype(F32)
CASES = [
    Case(
        k.add, (4,), {"x": draw(50), "y": draw(50), "z": zeros(50), "n": 50}, lambda x, y, z, n: {"z": x + y}, {"B": 16}
    ),
    Case(
        k.add,
        (1,),
        {"x": draw(16, of=np.float64), "y": draw(16, of=np.float64), "z": zeros(16, of=np.float64), "n": 16},
        lambda x, y, z, n: {"z": x + y},
        {"B": 32},
    ),
    Case(k.strided, (1,), {"x": draw(100), "y": draw(100), "n": 20, "step": 5}, want.strided, {"B": 32}),
    Case(
        k.backwards,
        (1,),
        {"x": draw(20), "y": zeros(32), "n": 20},
        lambda x, y, n: {"y": np.append(x[::-1], np.full(12, 7, F32))},
        {"B": 32},
    ),
    Case(k.window, (2,), {"x": draw(50), "y": draw(64), "n": 50, "low": 9}, want.window, {"B": 32}),
    Case(
        k.copy_2d,
        (2, 3),
        {"x": draw(13, 21), "y": zeros(21, 13), "M": 13, "N": 21},
        lambda x, y, M, N: {"y": 2 * x.T},
        {"B": 8, "C": 8},
    ),
    Case(k.gather_scatter, (1,), {"x": draw(16), "at": AT, "y": draw(16), "n": 11}, want.scatter, {"B": 16}),
    Case(
        k.outer,
        (1,),
        {"x": draw(8), "y": draw(32), "z": zeros(8, 32)},
        lambda x, y, z: {"z": np.outer(x, y) + x[:, None]},
        {"B": 8, "C": 32},
        1e-6,
    ),
    Case(
        k.shapes,
        (1,),
        {"x": draw(32), "y": zeros(32), "z": zeros(4, 8)},
        lambda x, y, z: {"y": x.reshape(2, 8, 2).transpose(2, 0, 1).ravel(), "z": x.reshape(8, 4).T},
        {"B": 8},
    ),
    Case(k.joined, (1,), {"x": draw(32), "y": zeros(32), "z": zeros(48)}, want.joined, {"B": 16}),
    Case(
        k.sums,
        (1,),
        {"x": draw(8, 32), "rows": zeros(8), "columns": zeros(32), "both": zeros(1)},
        lambda x, rows, columns, both: {"rows": x.sum(1), "columns": (x * x).sum(0), "both": [x.sum()]},
        {"B": 8, "C": 32},
        1e-5,
    ),
    Case(
        k.sums,
        (1,),
        {"x": draw(4, 4, of=np.float16), "rows": zeros(4), "columns": zeros(4), "both": zeros(1)},
        lambda x, rows, columns, both: {"rows": x.sum(1), "columns": (x * x).sum(0), "both": [x.sum()]},
        {"B": 4, "C": 4},
        1e-2,
    ),
    Case(
        k.extremes,
        (1,),
        {"x": whole(8, 16, low=-9, high=9).astype(F32), "y": zeros(4 * 8 + 32)},
        want.extremes,
        {"B": 8, "C": 16},
    ),
    Case(
        k.whole_extremes,
        (1,),
        {"x": whole(32), "y": zeros(4, of=np.int32)},
        lambda x, y: {"y": [x.max(), x.min(), np.bitwise_xor.reduce(x), x.sum()]},
        {"B": 32},
    ),
    Case(
        k.spread,
        (1,),
        {"x": draw(4, 32), "y": zeros(2, 4)},
        lambda x, y: {"y": np.stack([x.mean(1), x.var(1)])},
        {"B": 4, "C": 32},
        1e-5,
    ),
    Case(k.scans, (1,), {"x": draw(8, 16), "y": zeros(4, 8, 16)}, want.scans, {"B": 8, "C": 16}, 1e-5),
    Case(
        k.sorted_rows,
        (1,),
        {"x": draw(4, 16), "y": zeros(4, 16), "z": zeros(4, 4)},
        lambda x, y, z: {"y": np.sort(x, 1), "z": np.sort(x, 1)[:, ::-1][:, :4]},
        {"B": 4, "C": 16},
    ),
    Case(  # each step of a sort reads the one before twice: ways to the address are not to be followed one by one
        k.sorted_places,
        (1,),
        {"x": draw(512), "at": whole(512, low=0, high=512), "y": zeros(512)},
        lambda x, at, y: {"y": x[np.sort(at)]},
        {"B": 512},
    ),
    Case(
        k.counted,
        (1,),
        {"x": whole(50, low=0, high=8), "y": zeros(8, of=np.int32), "n": 50},
        lambda x, y, n: {"y": np.bincount(x, minlength=8)},
        {"B": 64},
    ),
    Case(
        k.gathered,
        (1,),
        {"x": draw(8, 16), "at": whole(8, 16, low=0, high=16), "y": zeros(8, 16)},
        lambda x, at, y: {"y": np.take_along_axis(x + 1, at, 1)},
        {"B": 8, "C": 16},
    ),
    _products(F32, 16, 32, 16),
    _products(F32, 4, 2, 16),
    _products(F32, 1, 16, 8),
    _products(F32, 32, 4, 8),
    _products(np.float64, 16, 16, 16, np.float64, 1e-12),
    _products(np.float16, 16, 32, 32),
    _products(BF16, 16, 16, 16),
    _products(np.int8, 16, 16, 32, np.int32, 0.0),
    _products(np.float16, 16, 16, 16, np.float16, 2e-3),
    Case(
        k.product_turned,
        (1,),
        {"a": draw(16, 8), "b": draw(32, 16), "c": zeros(8, 32)},
        lambda a, b, c: {"c": 2 * a.T @ b.T},
        {"M": 8, "N": 32, "K": 16},
        2e-5,
    ),
    Case(
        k.products,
        (1,),
        {"a": draw(2, 16, 16), "b": draw(2, 16, 16), "c": zeros(2, 16, 16)},
        lambda a, b, c: {"c": a @ b},
        {"S": 2, "M": 16, "N": 16, "K": 16},
        1e-5,
    ),
    Case(k.functions, (1,), {"x": WIDE, "y": zeros(18, 128)}, want.functions, {"B": 128}, 4e-7),
    Case(
        k.integers,
        (1,),
        {
            "x": whole(32, low=-(2**31), high=2**31),
            "y": whole(32, low=1, high=999) * rng.choice([-1, 1], 32).astype(np.int32),
            "z": zeros(15, 32, of=np.int32),
        },
        want.integers,
        {"B": 32},
    ),
    Case(
        k.casts,
        (1,),
        {"x": np.where(np.abs(MIXED) > 120, F32(100), MIXED), "y": zeros(8, 32), "whole": zeros(3, 32, of=np.int32)},
        want.casts,
        {"B": 32},
    ),
    Case(
        k.eight_bits,
        (1,),
        {"x": MIXED, "y": zeros(32, of=ml_dtypes.float8_e4m3fn), "z": zeros(32)},
        want.eight_bits,
        {"B": 32},
        1e-9,
    ),
    Case(
        k.eight_bits,
        (1,),
        {
            "x": np.append(MIXED[:-2], [np.inf, -70000]).astype(F32),
            "y": zeros(32, of=ml_dtypes.float8_e5m2),
            "z": zeros(32),
        },
        want.eight_bits,
        {"B": 32},
        1e-9,
    ),
    Case(
        k.half_sums,
        (1,),
        {"x": draw(32, of=np.float16), "y": draw(32, of=np.float16), "z": zeros(3, 32, of=np.float16)},
        want.half,
        {"B": 32},
    ),
    Case(
        k.half_sums,
        (1,),
        {"x": draw(32, of=BF16), "y": draw(32, of=BF16), "z": zeros(3, 32, of=BF16)},
        want.half,
        {"B": 32},
        1e-9,
    ),
    Case(
        k.flags,
        (1,),
        {"x": whole(16, low=0, high=2), "y": whole(16, low=0, high=2), "z": zeros(2, 16, of=np.int8), "n": 7},
        lambda x, y, z, n: {"z": np.stack([(x & y) | ((1 - x) & (np.arange(16) < n)), x ^ y])},
        {"B": 16},
    ),
    Case(
        k.clamped,
        (1,),
        {"x": np.append(draw(31), F32(np.nan)), "y": zeros(3, 32)},
        lambda x, y: {
            "y": np.stack([np.append(x[:-1].clip(-1, 1), F32(-1)), np.maximum(x, F32(0.25)), np.fmin(x, F32(0.25))])
        },
        {"B": 32},
    ),
    Case(
        k.blocks,
        (1,),
        {"x": whole(70, low=-9, high=9).astype(F32), "y": zeros(2, 16), "n": 70, "times": 3},
        want.blocks,
        {"B": 16},
    ),
    Case(k.swapped, (1,), {"x": whole(16).astype(F32), "y": zeros(2, 16), "n": 7}, want.swapped, {"B": 16}),
    Case(k.turned_in_loop, (1,), {"x": draw(16, 16), "y": zeros(16, 16), "n": 3}, want.turned, {"B": 16}),
    Case(k.halving, (1,), {"x": draw(16) * 9, "y": zeros(17)}, want.halving, {"B": 16}),
    Case(k.branches, (5,), {"x": whole(16).astype(F32), "y": draw(5, 16), "n": 7}, want.branches, {"B": 16}),
    Case(k.branches, (5,), {"x": whole(16).astype(F32), "y": draw(5, 16), "n": 2}, want.branches, {"B": 16}),
    *(
        Case(
            k.stored_if,
            (1,),
            {"x": whole(16).astype(F32), "y": zeros(16), "n": n},
            lambda x, y, n: {"y": 2 * x if n else y},
            {"B": 16},
        )
        for n in (7, 0)
    ),
    Case(
        k.swapped_halves,
        (4,),
        {"x": whole(4).astype(np.float16), "y": zeros(4, of=np.float16)},
        lambda x, y: {"x": x + 1, "y": x},
        {"B": 1},
    ),
    Case(k.early, (1,), {"x": whole(16).astype(F32), "y": zeros(16), "n": -1}, lambda x, y, n: {"y": x}, {"B": 16}),
    Case(
        k.early,
        (1,),
        {"x": whole(16).astype(F32), "y": zeros(16), "n": 4},
        lambda x, y, n: {"y": 2 * x + x.sum()},
        {"B": 16},
    ),
    Case(
        k.atomics,
        (5,),
        {"x": whole(16), "y": np.append(whole(10), np.int32(0)), "old": zeros(20, of=np.int32)[:5]},
        want.atomics,
        {"B": 16},
    ),
    Case(k.float_atomics, (3,), {"x": whole(16).astype(F32), "y": draw(20)}, want.float_atomics, {"B": 16}, 1e-5),
    Case(k.locked, (40,), {"lock": zeros(1, of=np.int32), "y": zeros(64)}, lambda lock, y: {"y": y + 40}, {"B": 64}),
    Case(
        k.randoms,
        (1,),
        {"y": zeros(2, 64), "whole": zeros(4, 64, of=np.int32), "seed": 7},
        want.randoms,
        {"B": 64},
        2e-6,
    ),
    Case(
        k.described,
        (2, 2),
        {"x": draw(20, 28), "y": zeros(28, 20), "M": 20, "N": 28},
        lambda x, y, M, N: {"y": x.T + 1},
        {"B": 16},
    ),
    Case(k.programs, (4, 3, 2), {"y": zeros(2, 3, 4, of=np.int32)}, want.programs),
    Case(
        k.addresses,
        (1,),
        {"table": np.array([TABLE.ctypes.data]), "y": zeros(16)},
        lambda table, y: {"y": TABLE * 2},
        {"B": 16},
    ),
    Case(k.unrolled, (1,), {"x": whole(16).astype(F32), "y": zeros(16)}, want.unrolled, {"B": 16, "TIMES": 5}),
    Case(
        k.one,
        (1,),
        {"x": np.abs(draw(8)), "y": zeros(4), "n": 5},
        lambda x, y, n: {"y": [2 * x[5], 3, np.sqrt(x[1]), x[5]]},
    ),
    Case(k.wrapped, (2, 2), {"x": draw(20, 24), "y": zeros(32, 32), "M": 20, "N": 24}, want.wrapped, {"B": 16}),
    Case(k.kept, (1,), {"x": draw(4, 32), "y": zeros(4, 32)}, want.kept, {"B": 4, "C": 32}, 1e-6),
    Case(k.overwritten, (1,), {"x": whole(16).astype(F32)}, lambda x: {"x": x[::-1] * 10 + x}, {"B": 16}),
    Case(k.calling, (1,), {"x": whole(1).astype(F32), "y": whole(1).astype(F32), "z": zeros(2)}, want.calling),
    Case(k.speaking, (2,), {"x": whole(4).astype(F32), "y": zeros(4)}, lambda x, y: {"y": x + 1}, {"B": 4}),
    Case(k.squared, (1,), {"x": draw(16, 16), "y": zeros(2, 16, 16)}, want.squared, {"B": 16}, 1e-4),
    Case(k.small_offsets, (1,), {"x": draw(512), "y": zeros(256)}, want.small_offsets, {"B": 256}),
    Case(
        k.device_functions,
        (1,),
        {"x": draw(16) * 3, "y": zeros(5, 16), "z": zeros(3, 16, of=np.int32)},
        want.device_functions,
        {"B": 16},
        2e-6,
    ),
    Case(k.extremes, (1,), {"x": HOLES, "y": zeros(96)}, want.extremes, {"B": 8, "C": 32}),
    *(
        Case(k.towards_zero, (1,), {"x": MIXED, "y": zeros(32, of=of)}, want.towards_zero, {"B": 32})
        for of in (np.float16, BF16, ml_dtypes.float8_e5m2)
    ),
    Case(
        k.scaled_products,
        (1,),
        {
            "a": whole(16, 32, low=0, high=256, of=np.uint8),
            "a_scales": whole(16, 2, low=120, high=134, of=np.uint8),
            "b": draw(64, 32, of=ml_dtypes.float8_e4m3fn),
            "b_scales": whole(32, 2, low=120, high=134, of=np.uint8),
            "c": zeros(32, 16),
        },
        want.scaled_products,
        {"M": 16, "N": 32, "K": 64},
        1e-5,
    ),
    Case(
        k.in_turn,
        (9,),
        {"flag": zeros(1, of=np.int32), "y": zeros(9, of=np.int32)},
        lambda flag, y: {"flag": flag + 9, "y": y + 1},
    ),
    Case(
        k.described_products,
        (3,),
        {"x": draw(3, 16, 32), "y": draw(3, 32, 8), "z": zeros(3, 16, 8), "P": 3},
        lambda x, y, z, P: {"z": x @ y},
        {"M": 16, "N": 8, "K": 32},
        1e-5,
    ),
    Case(k.shifted, (1,), {"x": draw(17)}, lambda x: {"x": np.append(x[:1], x[:-1] * 2)}, {"B": 16}),
]

# Whole AMX tiles, partial ones, several along each side; vectors; and shapes that are too small for both.
_SHAPES = ((16, 32, 4), (64, 64, 128), (16, 64, 32), (8, 16, 8), (4, 4, 4), (32, 64, 64))
NARROW_PRODUCTS = {
    "bf16": [_products(BF16, *shape, tolerance=1e-4) for shape in _SHAPES],
    "i8": [_products(np.int8, *shape, into=np.int32, tolerance=0.0) for shape in _SHAPES],
}
