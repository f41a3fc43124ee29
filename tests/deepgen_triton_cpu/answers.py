"""The expected results of the small kernels, computed by numpy: arrays by parameter name."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
from compiled_kernels import BF16

F32 = np.float32


def strided(x: Any, y: Any, n: int, step: int) -> dict[str, Any]:
    out = y.copy()
    out[: 3 * n : 3] = x[: n * step : step]
    return {"y": out}


def window(x: Any, y: Any, n: int, low: int) -> dict[str, Any]:
    out, i = y.copy(), np.arange(len(y))
    inside = (i >= low) & (i < n) & (i != low + 2)
    out[low:] = np.where(inside, x[np.minimum(i, len(x) - 1)], 5)[low:]
    return {"y": out}


def scatter(x: Any, at: Any, y: Any, n: int) -> dict[str, Any]:
    out = y.copy()
    out[at[:n]] = x[at[:n]] + np.arange(n)
    return {"y": out}


def joined(x: Any, y: Any, z: Any) -> dict[str, Any]:
    a, b = np.split(x, 2)
    return {"y": np.stack([a, b], 1).ravel(), "z": np.concatenate([2 * a - 2 * b, b, a])}


def extremes(x: Any, y: Any) -> dict[str, Any]:
    rows = [np.nanmax(x, 1), np.nanmin(x, 1), np.nanargmax(x, 1), np.nanargmin(x, 1)]
    return {"y": np.concatenate([*rows, np.nanargmax(x, 0), np.nanmax(x, 0)]).astype(F32)}


def scans(x: Any, y: Any) -> dict[str, Any]:
    last = x.copy()
    for j in range(1, x.shape[1]):
        last[:, j] = np.where(x[:, j] > 0.5, x[:, j], last[:, j - 1])
    products = np.cumprod((x * 0.5)[:, ::-1], axis=1)[:, ::-1]
    return {"y": np.stack([np.cumsum(x, 1), np.cumsum(x, 0), products, last])}


def functions(x: Any, y: Any) -> dict[str, Any]:
    v = x.astype(np.float64)
    size = np.abs(v)
    erf = np.vectorize(math.erf)(v)
    rows = [
        np.exp(v), np.exp2(v), np.log(size), np.log2(size), np.sin(v), np.cos(v), np.sqrt(size), 1 / np.sqrt(size), erf,
        np.tanh(v), np.floor(v), np.ceil(v), 1 / (1 + np.exp(-v)), v * v + v, np.sqrt(size), v / (v + 20), size**v,
        np.arctan2(v, v + 1),
    ]  # fmt: skip
    return {"y": np.stack(rows)}


def integers(x: Any, y: Any, z: Any) -> dict[str, Any]:
    a, b = x.astype(np.int64), y.astype(np.int64)
    ua, ub = x.astype(np.uint32).astype(np.uint64), y.astype(np.uint32).astype(np.uint64)
    quotient = (np.abs(a) // np.abs(b)) * np.sign(a) * np.sign(b)
    rows = [
        quotient, a - quotient * b, a << (b & 7), a >> 3, (a & b) ^ (a | 5), ~a, a * b * 1000003, (ua * ub) >> 32,
        np.abs(a), np.minimum(a, b), np.maximum(a, b), ua // 7, ua >> 3, (a < b) + (ua < ub) * 2, -a,
    ]  # fmt: skip
    return {"z": np.stack([row.astype(np.int64).astype(np.int32) for row in rows])}


def casts(x: Any, y: Any, whole: Any) -> dict[str, Any]:
    cut = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(F32)
    rows = [
        x.astype(np.float16), x.astype(BF16), x.astype(np.int8), x.astype(np.int64), x > 1, x, x, cut
    ]  # fmt: skip
    wholes = [x.astype(np.float16).view(np.int16), x.astype(np.int8).view(np.uint8), x != 0]
    return {"y": np.stack([row.astype(F32) for row in rows]), "whole": np.stack([w.astype(np.int32) for w in wholes])}


def eight_bits(x: Any, y: Any, z: Any) -> dict[str, Any]:
    stored = _within(x, y).astype(y.dtype)
    return {"y": stored.view(y.dtype), "z": stored.astype(F32)}


def _within(x: Any, y: Any) -> Any:
    """Clipped to the largest number of the other's type."""
    most = float(ml_dtypes.finfo(y.dtype).max)
    return x.clip(-most, most)


def half(x: Any, y: Any, z: Any) -> dict[str, Any]:
    wide = [v.astype(F32) for v in (x, y)]
    rounded = (wide[0] * wide[1]).astype(x.dtype).astype(F32)
    rows = [rounded + wide[0], np.maximum(*wide) / wide[1], np.where(wide[0] > wide[1], wide[0], -wide[1])]
    return {"z": np.stack([row.astype(x.dtype) for row in rows])}


def blocks(x: Any, y: Any, n: int, times: int) -> dict[str, Any]:
    size = y.shape[1]
    padded = np.zeros((-(-n // size)) * size, F32)
    padded[:n] = x
    rows = padded.reshape(-1, size)
    return {"y": np.stack([rows.sum(0) * times, rows.max(0) + (len(rows) - 1) * size])}


def swapped(x: Any, y: Any, n: int) -> dict[str, Any]:
    a, b = x, x + 1
    for _ in range(n):
        a, b = b, a + b
    return {"y": np.stack([a, b])}


def turned(x: Any, y: Any, n: int) -> dict[str, Any]:
    for step in range(n):
        x = x.T + step
    return {"y": x}


def halving(x: Any, y: Any) -> dict[str, Any]:
    steps = 0
    while x.max() > 1:
        x, steps = x * F32(0.5), steps + 1
    return {"y": np.append(x, F32(steps))}


def branches(x: Any, y: Any, n: int) -> dict[str, Any]:
    out = y.copy()
    for program in (0, 1, 2, 4):
        v = (x + n) * (2 if n > 5 else 1) if program % 2 == 0 else x - n
        out[program] = v if n > 3 else v * 3
    return {"y": out}


def atomics(x: Any, y: Any, old: Any) -> dict[str, Any]:
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


def float_atomics(x: Any, y: Any) -> dict[str, Any]:
    out = y.copy()
    out[:2] += [x[::2].sum() * 3, x[1::2].sum() * 3]
    out[2], out[3] = max(out[2], x.max()), min(out[3], x.min())
    out[4:] = x
    return {"y": out}


def philox(seed: int, places: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Philox with ten rounds, as defined by Triton's random numbers."""
    words = [places.astype(np.uint64), *(np.zeros(len(places), np.uint64) for _ in range(3))]
    low, high, mask, half = np.uint64(seed), np.uint64(0), np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        a, b = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [(b >> half) ^ words[1] ^ low, b & mask, (a >> half) ^ words[3] ^ high, a & mask]
        low, high = low + np.uint64(0x9E3779B9) & mask, high + np.uint64(0xBB67AE85) & mask
    return [word.astype(np.uint32).view(np.int32) for word in words]


def uniform(word: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.where(word < 0, -(word + 1), word).astype(F32) * F32(4.6566127342e-10)


def randoms(y: Any, whole: Any, seed: int) -> dict[str, Any]:
    words = philox(seed, np.arange(y.shape[1]))
    u, v = np.maximum(uniform(words[0]), F32(1e-7)), uniform(words[1])
    return {
        "y": np.stack([uniform(words[0]), np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v)]),
        "whole": np.stack(words),
    }


def programs(y: Any) -> dict[str, Any]:
    out = np.zeros_like(y)
    for z in range(2):
        for j in range(3):
            for i in range(4):
                ij = i * 3 + j
                group = ij // 6 * 2
                rows = min(4 - group, 2)
                out[z, j, i] = 100 * z + 10 * (group + ij % rows) + ij % 6 // rows
    return {"y": out}


def unrolled(x: Any, y: Any) -> dict[str, Any]:
    for step in range(5):
        x = (x + step * (step + 1)) * (2 if step % 2 == 0 else 1)
    return {"y": x}


def wrapped(x: Any, y: Any, M: int, N: int) -> dict[str, Any]:
    return {"y": x[np.arange(y.shape[0]) % M][:, np.arange(y.shape[1]) % N]}


def kept(x: Any, y: Any) -> dict[str, Any]:
    w = np.exp(x - x.max(1, keepdims=True))
    u = w / w.sum(1, keepdims=True)
    return {"x": u * 2, "y": u + x + w}


def calling(x: Any, y: Any, z: Any) -> dict[str, Any]:
    one, other = x * 2 + 3 * y, x - y
    return {"z": np.concatenate([one, other * 2 + 3 * one])}


def squared(x: Any, y: Any) -> dict[str, Any]:
    return {"y": np.stack([x @ x + x, x.T @ x + x * F32(0.5)])}


def small_offsets(x: Any, y: Any) -> dict[str, Any]:
    return {"y": x[256 + np.arange(256).astype(np.int8).astype(np.int64)]}


def device_functions(x: Any, y: Any, z: Any) -> dict[str, Any]:
    wide, bits = x.astype(np.float64), x.view(np.int32).astype(np.int64)
    normal = [0.5 * math.erfc(-v / math.sqrt(2)) for v in wide]
    after = np.nextafter(x, np.float32(100)).astype(np.float64)
    floats = [
        wide / 3, np.sin(np.pi * wide) + np.cos(np.pi * wide), np.abs(wide), np.clip(wide, 0, 1) + normal, after - 0.25,
    ]  # fmt: skip
    raw = x.view(np.uint32).astype(np.int64)
    count = [int(b).bit_count() + (32 - int(b).bit_length()) * 64 + (int(b & -b)).bit_length() * 4096 for b in raw]
    ways = np.floor(wide) + np.ceil(wide) * 100 + np.rint(wide) * 10000
    high = (bits * bits >> 32) + (bits + 3 >> 1) + (wide < 0)
    return {"y": np.stack(floats), "z": np.stack([count, ways, high]).astype(np.int32)}


def towards_zero(x: Any, y: Any) -> dict[str, Any]:
    near = _within(x, y).astype(y.dtype)
    low = (near.view(f"i{y.itemsize}") - 1).view(y.dtype)
    return {"y": np.where(np.abs(near.astype(F32)) > np.abs(x), low, near)}


def scaled_products(a: Any, a_scales: Any, b: Any, b_scales: Any, c: Any) -> dict[str, Any]:
    four = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    bits = np.stack([a & 15, a >> 4], -1).reshape(len(a), -1)
    left, right = four[bits & 7] * np.where(bits & 8, -1, 1), b.astype(np.float64).T
    scaled = [
        side * np.repeat(2.0 ** (scales.astype(int) - 127), 32, 1)
        for side, scales in ((left, a_scales), (right, b_scales))
    ]
    return {"c": scaled[1] @ (scaled[0] + left).T}
