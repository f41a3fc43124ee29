"""Calls of the small kernels, and what numpy says that they compute."""

from __future__ import annotations

import math
from typing import Any

import kernels as k
import ml_dtypes
import numpy as np
from harness import BF16, Case

rng = np.random.default_rng(1)
F32 = np.float32


def draw(*shape: int, of: Any = F32) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(of)


def whole(*shape: int, low: int = -1000, high: int = 1000, of: Any = np.int32) -> np.ndarray[Any, Any]:
    return rng.integers(low, high, shape).astype(of)


def zeros(*shape: int, of: Any = F32) -> np.ndarray[Any, Any]:
    return np.zeros(shape, of)


def _strided(x: Any, y: Any, n: int, step: int) -> dict[str, Any]:
    out = y.copy()
    out[: 3 * n : 3] = x[: n * step : step]
    return {"y": out}


def _window(x: Any, y: Any, n: int, low: int) -> dict[str, Any]:
    out, i = y.copy(), np.arange(len(y))
    inside = (i >= low) & (i < n) & (i != low + 2)
    out[low:] = np.where(inside, x[np.minimum(i, len(x) - 1)], 5)[low:]
    return {"y": out}


def _scatter(x: Any, at: Any, y: Any, n: int) -> dict[str, Any]:
    out = y.copy()
    out[at[:n]] = x[at[:n]] + np.arange(n)
    return {"y": out}


def _joined(x: Any, y: Any, z: Any) -> dict[str, Any]:
    a, b = np.split(x, 2)
    return {"y": np.stack([a, b], 1).ravel(), "z": np.concatenate([2 * a - 2 * b, b, a])}


def _extremes(x: Any, y: Any) -> dict[str, Any]:
    rows = [x.max(1), x.min(1), x.argmax(1), x.argmin(1)]
    return {"y": np.concatenate([*rows, x.argmax(0), x.max(0)]).astype(F32)}


def _scans(x: Any, y: Any) -> dict[str, Any]:
    last = x.copy()
    for j in range(1, x.shape[1]):
        last[:, j] = np.where(x[:, j] > 0.5, x[:, j], last[:, j - 1])
    products = np.cumprod((x * 0.5)[:, ::-1], axis=1)[:, ::-1]
    return {"y": np.stack([np.cumsum(x, 1), np.cumsum(x, 0), products, last])}


def _functions(x: Any, y: Any) -> dict[str, Any]:
    v = x.astype(np.float64)
    size = np.abs(v)
    erf = np.vectorize(math.erf)(v)
    rows = [
        np.exp(v), np.exp2(v), np.log(size), np.log2(size), np.sin(v), np.cos(v), np.sqrt(size), 1 / np.sqrt(size), erf,
        np.tanh(v), np.floor(v), np.ceil(v), 1 / (1 + np.exp(-v)), v * v + v, np.sqrt(size), v / (v + 20), size**v,
        np.arctan2(v, v + 1),
    ]  # fmt: skip
    return {"y": np.stack(rows)}


def _integers(x: Any, y: Any, z: Any) -> dict[str, Any]:
    a, b = x.astype(np.int64), y.astype(np.int64)
    ua, ub = x.astype(np.uint32).astype(np.uint64), y.astype(np.uint32).astype(np.uint64)
    quotient = (np.abs(a) // np.abs(b)) * np.sign(a) * np.sign(b)
    rows = [
        quotient, a - quotient * b, a << (b & 7), a >> 3, (a & b) ^ (a | 5), ~a, a * b * 1000003, (ua * ub) >> 32, np.abs(a),
        np.minimum(a, b), np.maximum(a, b), ua // 7, ua >> 3, (a < b) + (ua < ub) * 2, -a,
    ]  # fmt: skip
    return {"z": np.stack([row.astype(np.int64).astype(np.int32) for row in rows])}


def _casts(x: Any, y: Any, whole: Any) -> dict[str, Any]:
    cut = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(F32)
    rows = [
        x.astype(np.float16), x.astype(BF16), x.astype(np.int8), x.astype(np.int64), x > 1, x, x, cut
    ]  # fmt: skip
    wholes = [x.astype(np.float16).view(np.int16), x.astype(np.int8).view(np.uint8), x != 0]
    return {"y": np.stack([row.astype(F32) for row in rows]), "whole": np.stack([w.astype(np.int32) for w in wholes])}


def _eight_bits(x: Any, y: Any, z: Any) -> dict[str, Any]:
    stored = x.astype(y.dtype)
    return {"y": stored.view(y.dtype), "z": stored.astype(F32)}


def _half(x: Any, y: Any, z: Any) -> dict[str, Any]:
    wide = [v.astype(F32) for v in (x, y)]
    rounded = (wide[0] * wide[1]).astype(x.dtype).astype(F32)
    rows = [rounded + wide[0], np.maximum(*wide) / wide[1], np.where(wide[0] > wide[1], wide[0], -wide[1])]
    return {"z": np.stack([row.astype(x.dtype) for row in rows])}


def _blocks(x: Any, y: Any, n: int, times: int) -> dict[str, Any]:
    size = y.shape[1]
    padded = np.zeros((-(-n // size)) * size, F32)
    padded[:n] = x
    rows = padded.reshape(-1, size)
    return {"y": np.stack([rows.sum(0) * times, rows.max(0) + (len(rows) - 1) * size])}


def _swapped(x: Any, y: Any, n: int) -> dict[str, Any]:
    a, b = x, x + 1
    for _ in range(n):
        a, b = b, a + b
    return {"y": np.stack([a, b])}


def _turned(x: Any, y: Any, n: int) -> dict[str, Any]:
    for step in range(n):
        x = x.T + step
    return {"y": x}


def _halving(x: Any, y: Any) -> dict[str, Any]:
    steps = 0
    while x.max() > 1:
        x, steps = x * F32(0.5), steps + 1
    return {"y": np.append(x, F32(steps))}


def _branches(x: Any, y: Any, n: int) -> dict[str, Any]:
    out = y.copy()
    for program in (0, 1, 2, 4):
        v = (x + n) * (2 if n > 5 else 1) if program % 2 == 0 else x - n
        out[program] = v if n > 3 else v * 3
    return {"y": out}


def _atomics(x: Any, y: Any, old: Any) -> dict[str, Any]:
    out, times = y.copy(), 5
    for place in range(4):
        out[place] += x[place:-1:4].sum() * times
    out[4] = max(out[4], x.max())
    out[5], out[6] = min(out[5], x[::2].min()), min(out[6], x[1::2].min())
    out[7] |= 2**times - 1
    out[8] ^= 2**times - 1
    out[9] &= ~(2**times - 1)
    out[10] += times
    return {"y": out, "old": np.ones_like(old)}


def _float_atomics(x: Any, y: Any) -> dict[str, Any]:
    out = y.copy()
    out[:2] += [x[::2].sum() * 3, x[1::2].sum() * 3]
    out[2], out[3] = max(out[2], x.max()), min(out[3], x.min())
    out[4:] = x
    return {"y": out}


def philox(seed: int, places: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Philox with ten rounds, as Triton's random numbers are defined."""
    words = [places.astype(np.uint64), *(np.zeros(len(places), np.uint64) for _ in range(3))]
    low, high, mask, half = np.uint64(seed), np.uint64(0), np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        a, b = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [(b >> half) ^ words[1] ^ low, b & mask, (a >> half) ^ words[3] ^ high, a & mask]
        low, high = low + np.uint64(0x9E3779B9) & mask, high + np.uint64(0xBB67AE85) & mask
    return [word.astype(np.uint32).view(np.int32) for word in words]


def _uniform(word: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.where(word < 0, -(word + 1), word).astype(F32) * F32(4.6566127342e-10)


def _randoms(y: Any, whole: Any, seed: int) -> dict[str, Any]:
    words = philox(seed, np.arange(y.shape[1]))
    u, v = np.maximum(_uniform(words[0]), F32(1e-7)), _uniform(words[1])
    return {
        "y": np.stack([_uniform(words[0]), np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v)]),
        "whole": np.stack(words),
    }


def _programs(y: Any) -> dict[str, Any]:
    out = np.zeros_like(y)
    for z in range(2):
        for j in range(3):
            for i in range(4):
                ij = i * 3 + j
                group = ij // 6 * 2
                rows = min(4 - group, 2)
                out[z, j, i] = 100 * z + 10 * (group + ij % rows) + ij % 6 // rows
    return {"y": out}


def _unrolled(x: Any, y: Any) -> dict[str, Any]:
    for step in range(5):
        x = (x + step * (step + 1)) * (2 if step % 2 == 0 else 1)
    return {"y": x}


def _wrapped(x: Any, y: Any, M: int, N: int) -> dict[str, Any]:
    return {"y": x[np.arange(y.shape[0]) % M][:, np.arange(y.shape[1]) % N]}


def _kept(x: Any, y: Any) -> dict[str, Any]:
    w = np.exp(x - x.max(1, keepdims=True))
    u = w / w.sum(1, keepdims=True)
    return {"x": u * 2, "y": u + x + w}


def _calling(x: Any, y: Any, z: Any) -> dict[str, Any]:
    one, other = x * 2 + 3 * y, x - y
    return {"z": np.concatenate([one, other * 2 + 3 * one])}


def _products(of: Any, m: int, n: int, kk: int, into: Any = F32, tolerance: float = 1e-5) -> Case:
    a = whole(m, kk, low=-9, high=9).astype(of) if of is np.int8 else draw(m, kk, of=of)
    b = whole(kk, n, low=-9, high=9).astype(of) if of is np.int8 else draw(kk, n, of=of)
    wide = np.int64 if of is np.int8 else np.float64
    return Case(
        k.product, (1,), {"a": a, "b": b, "c": zeros(m, n, of=into)},
        lambda a, b, c: {"c": a.astype(wide) @ b.astype(wide)}, {"M": m, "N": n, "K": kk}, tolerance,
    )  # fmt: skip


AT = rng.permutation(16).astype(np.int32)
WIDE = np.concatenate([draw(120) * 5, [0.5, -0.5, 1e-3, -1e-3, 80.0, -80.0, 3e4, 1e-30]]).astype(F32)
MIXED = np.concatenate([draw(28) * 20, [0.0, 1.0, 65504.0, 1e-5]]).astype(F32)
TABLE = draw(16)
CASES = [
    Case(k.add, (4,), {"x": draw(50), "y": draw(50), "z": zeros(50), "n": 50}, lambda x, y, z, n: {"z": x + y}, {"B": 16}),
    Case(k.add, (1,), {"x": draw(16, of=np.float64), "y": draw(16, of=np.float64), "z": zeros(16, of=np.float64), "n": 16},
         lambda x, y, z, n: {"z": x + y}, {"B": 32}),
    Case(k.strided, (1,), {"x": draw(100), "y": draw(100), "n": 20, "step": 5}, _strided, {"B": 32}),
    Case(k.backwards, (1,), {"x": draw(20), "y": zeros(32), "n": 20},
         lambda x, y, n: {"y": np.append(x[::-1], np.full(12, 7, F32))}, {"B": 32}),
    Case(k.window, (2,), {"x": draw(50), "y": draw(64), "n": 50, "low": 9}, _window, {"B": 32}),
    Case(k.copy_2d, (2, 3), {"x": draw(13, 21), "y": zeros(21, 13), "M": 13, "N": 21},
         lambda x, y, M, N: {"y": 2 * x.T}, {"B": 8, "C": 8}),
    Case(k.gather_scatter, (1,), {"x": draw(16), "at": AT, "y": draw(16), "n": 11}, _scatter, {"B": 16}),
    Case(k.outer, (1,), {"x": draw(8), "y": draw(32), "z": zeros(8, 32)},
         lambda x, y, z: {"z": np.outer(x, y) + x[:, None]}, {"B": 8, "C": 32}, 1e-6),
    Case(k.shapes, (1,), {"x": draw(32), "y": zeros(32), "z": zeros(4, 8)},
         lambda x, y, z: {"y": x.reshape(2, 8, 2).transpose(2, 0, 1).ravel(), "z": x.reshape(8, 4).T}, {"B": 8}),
    Case(k.joined, (1,), {"x": draw(32), "y": zeros(32), "z": zeros(48)}, _joined, {"B": 16}),
    Case(k.sums, (1,), {"x": draw(8, 32), "rows": zeros(8), "columns": zeros(32), "both": zeros(1)},
         lambda x, rows, columns, both: {"rows": x.sum(1), "columns": (x * x).sum(0), "both": [x.sum()]},
         {"B": 8, "C": 32}, 1e-5),
    Case(k.sums, (1,), {"x": draw(4, 4, of=np.float16), "rows": zeros(4), "columns": zeros(4), "both": zeros(1)},
         lambda x, rows, columns, both: {"rows": x.sum(1), "columns": (x * x).sum(0), "both": [x.sum()]},
         {"B": 4, "C": 4}, 1e-2),
    Case(k.extremes, (1,), {"x": whole(8, 16, low=-9, high=9).astype(F32), "y": zeros(4 * 8 + 32)}, _extremes,
         {"B": 8, "C": 16}),
    Case(k.whole_extremes, (1,), {"x": whole(32), "y": zeros(4, of=np.int32)},
         lambda x, y: {"y": [x.max(), x.min(), np.bitwise_xor.reduce(x), x.sum()]}, {"B": 32}),
    Case(k.spread, (1,), {"x": draw(4, 32), "y": zeros(2, 4)},
         lambda x, y: {"y": np.stack([x.mean(1), x.var(1)])}, {"B": 4, "C": 32}, 1e-5),
    Case(k.scans, (1,), {"x": draw(8, 16), "y": zeros(4, 8, 16)}, _scans, {"B": 8, "C": 16}, 1e-5),
    Case(k.sorted_rows, (1,), {"x": draw(4, 16), "y": zeros(4, 16), "z": zeros(4, 4)},
         lambda x, y, z: {"y": np.sort(x, 1), "z": np.sort(x, 1)[:, ::-1][:, :4]}, {"B": 4, "C": 16}),
    Case(k.counted, (1,), {"x": whole(50, low=0, high=8), "y": zeros(8, of=np.int32), "n": 50},
         lambda x, y, n: {"y": np.bincount(x, minlength=8)}, {"B": 64}),
    Case(k.gathered, (1,), {"x": draw(8, 16), "at": whole(8, 16, low=0, high=16), "y": zeros(8, 16)},
         lambda x, at, y: {"y": np.take_along_axis(x + 1, at, 1)}, {"B": 8, "C": 16}),
    _products(F32, 16, 32, 16), _products(F32, 4, 2, 16), _products(F32, 1, 16, 8), _products(F32, 32, 4, 8),
    _products(np.float64, 16, 16, 16, np.float64, 1e-12), _products(np.float16, 16, 32, 32),
    _products(BF16, 16, 16, 16), _products(np.int8, 16, 16, 32, np.int32, 0.0),
    _products(np.float16, 16, 16, 16, np.float16, 2e-3),
    Case(k.product_turned, (1,), {"a": draw(16, 8), "b": draw(32, 16), "c": zeros(8, 32)},
         lambda a, b, c: {"c": 2 * a.T @ b.T}, {"M": 8, "N": 32, "K": 16}, 2e-5),
    Case(k.products, (1,), {"a": draw(2, 16, 16), "b": draw(2, 16, 16), "c": zeros(2, 16, 16)},
         lambda a, b, c: {"c": a @ b}, {"S": 2, "M": 16, "N": 16, "K": 16}, 1e-5),
    Case(k.functions, (1,), {"x": WIDE, "y": zeros(18, 128)}, _functions, {"B": 128}, 4e-7),
    Case(k.integers, (1,), {"x": whole(32, low=-(2**31), high=2**31), "y": whole(32, low=1, high=999) * rng.choice([-1, 1], 32).astype(np.int32),
         "z": zeros(15, 32, of=np.int32)}, _integers, {"B": 32}),
    Case(k.casts, (1,), {"x": np.where(np.abs(MIXED) > 120, F32(100), MIXED), "y": zeros(8, 32), "whole": zeros(3, 32, of=np.int32)}, _casts, {"B": 32}),
    Case(k.eight_bits, (1,), {"x": MIXED.clip(-440, 440), "y": zeros(32, of=ml_dtypes.float8_e4m3fn), "z": zeros(32)}, _eight_bits, {"B": 32}, 1e-9),
    Case(k.eight_bits, (1,), {"x": MIXED, "y": zeros(32, of=ml_dtypes.float8_e5m2), "z": zeros(32)}, _eight_bits, {"B": 32}, 1e-9),
    Case(k.half_sums, (1,), {"x": draw(32, of=np.float16), "y": draw(32, of=np.float16), "z": zeros(3, 32, of=np.float16)}, _half, {"B": 32}),
    Case(k.half_sums, (1,), {"x": draw(32, of=BF16), "y": draw(32, of=BF16), "z": zeros(3, 32, of=BF16)}, _half, {"B": 32}, 1e-9),
    Case(k.flags, (1,), {"x": whole(16, low=0, high=2), "y": whole(16, low=0, high=2), "z": zeros(2, 16, of=np.int8), "n": 7},
         lambda x, y, z, n: {"z": np.stack([(x & y) | ((1 - x) & (np.arange(16) < n)), x ^ y])}, {"B": 16}),
    Case(k.clamped, (1,), {"x": np.append(draw(31), F32(np.nan)), "y": zeros(3, 32)},
         lambda x, y: {"y": np.stack([np.append(x[:-1].clip(-1, 1), F32(-1)), np.maximum(x, F32(0.25)), np.fmin(x, F32(0.25))])}, {"B": 32}),
    Case(k.blocks, (1,), {"x": whole(70, low=-9, high=9).astype(F32), "y": zeros(2, 16), "n": 70, "times": 3}, _blocks, {"B": 16}),
    Case(k.swapped, (1,), {"x": whole(16).astype(F32), "y": zeros(2, 16), "n": 7}, _swapped, {"B": 16}),
    Case(k.turned_in_loop, (1,), {"x": draw(16, 16), "y": zeros(16, 16), "n": 3}, _turned, {"B": 16}),
    Case(k.halving, (1,), {"x": draw(16) * 9, "y": zeros(17)}, _halving, {"B": 16}),
    Case(k.branches, (5,), {"x": whole(16).astype(F32), "y": draw(5, 16), "n": 7}, _branches, {"B": 16}),
    Case(k.branches, (5,), {"x": whole(16).astype(F32), "y": draw(5, 16), "n": 2}, _branches, {"B": 16}),
    Case(k.early, (1,), {"x": whole(16).astype(F32), "y": zeros(16), "n": -1}, lambda x, y, n: {"y": x}, {"B": 16}),
    Case(k.early, (1,), {"x": whole(16).astype(F32), "y": zeros(16), "n": 4}, lambda x, y, n: {"y": 2 * x + x.sum()}, {"B": 16}),
    Case(k.atomics, (5,), {"x": whole(16), "y": np.append(whole(10), np.int32(0)), "old": zeros(20, of=np.int32)[:5]}, _atomics, {"B": 16}),
    Case(k.float_atomics, (3,), {"x": whole(16).astype(F32), "y": draw(20)}, _float_atomics, {"B": 16}, 1e-5),
    Case(k.locked, (40,), {"lock": zeros(1, of=np.int32), "y": zeros(64)}, lambda lock, y: {"y": y + 40}, {"B": 64}),
    Case(k.randoms, (1,), {"y": zeros(2, 64), "whole": zeros(4, 64, of=np.int32), "seed": 7}, _randoms, {"B": 64}, 2e-6),
    Case(k.described, (2, 2), {"x": draw(20, 28), "y": zeros(28, 20), "M": 20, "N": 28}, lambda x, y, M, N: {"y": x.T + 1}, {"B": 16}),
    Case(k.programs, (4, 3, 2), {"y": zeros(2, 3, 4, of=np.int32)}, _programs),
    Case(k.addresses, (1,), {"table": np.array([TABLE.ctypes.data]), "y": zeros(16)}, lambda table, y: {"y": TABLE * 2}, {"B": 16}),
    Case(k.unrolled, (1,), {"x": whole(16).astype(F32), "y": zeros(16)}, _unrolled, {"B": 16, "TIMES": 5}),
    Case(k.one, (1,), {"x": np.abs(draw(8)), "y": zeros(4), "n": 5},
         lambda x, y, n: {"y": [2 * x[5], 3, np.sqrt(x[1]), x[5]]}),
    Case(k.wrapped, (2, 2), {"x": draw(20, 24), "y": zeros(32, 32), "M": 20, "N": 24}, _wrapped, {"B": 16}),
    Case(k.kept, (1,), {"x": draw(4, 32), "y": zeros(4, 32)}, _kept, {"B": 4, "C": 32}, 1e-6),
    Case(k.overwritten, (1,), {"x": whole(16).astype(F32)}, lambda x: {"x": x[::-1] * 10 + x}, {"B": 16}),
    Case(k.calling, (1,), {"x": whole(1).astype(F32), "y": whole(1).astype(F32), "z": zeros(2)}, _calling),
    Case(k.speaking, (2,), {"x": whole(4).astype(F32), "y": zeros(4)}, lambda x, y: {"y": x + 1}, {"B": 4}),
]  # fmt: skip
