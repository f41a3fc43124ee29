"""Calls of typical user kernels, and numpy's expected results."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import user_kernels as k
from compiled_kernels import BF16, Case

rng = np.random.default_rng(2)
F32, F16 = np.float32, np.float16
LOG2E = 1.4426950408889634


def draw(*shape: int, of: Any = F32) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(of)


def _attention() -> Case:
    heads, length, depth, scale = 2, 64, 16, 0.25
    q, key, v, do = (draw(heads, length, depth, of=F16) * F16(0.5) for _ in range(4))
    q64, k64, v64, do64 = (x.astype(np.float64) for x in (q, key, v, do))
    scores = np.where(np.tri(length, dtype=bool), q64 @ k64.transpose(0, 2, 1) * scale, -np.inf)
    most = scores.max(axis=2, keepdims=True)
    total = np.exp(scores - most).sum(axis=2, keepdims=True)
    shares = np.exp(scores - most) / total
    delta = ((shares @ v64) * do64).sum(axis=2)
    changed = shares * (do64 @ v64.transpose(0, 2, 1) - delta[..., None])
    want = {"DK": changed.transpose(0, 2, 1) @ q64 * scale, "DV": shares.transpose(0, 2, 1) @ do64}
    given = {
        "Q": q, "K": (k64 * scale * LOG2E).astype(F16), "V": v, "DO": do, "DK": np.zeros(q.shape, F32),
        "DV": np.zeros(q.shape, F32), "M": ((most + np.log(total))[..., 0] * LOG2E).astype(F32),
        "DELTA": delta.astype(F32), "scale": scale, "N": length,
    }  # fmt: skip
    constants = {"BLOCK_M": 16, "BLOCK_N": 32, "D": depth}
    return Case(k.attention_backward, (2, heads), given, lambda **_: want, constants, 5e-3)


def _gated(a: Any, b: Any, c: Any, n: int) -> dict[str, Any]:
    x = a.astype(np.float64)
    return {"c": (x / (1 + np.exp(-x))).astype(a.dtype).astype(F32) * b.astype(F32)}


def _four_bits() -> Case:
    m, n, kk, group = 20, 32, 64, 32
    bits, zero = rng.integers(0, 16, (kk, n)), rng.integers(0, 16, (kk // group, n))
    scale = (rng.random((kk // group, n)) * 0.1).astype(F16)
    packed = sum(bits[j::8] << 4 * j for j in range(8)).astype(np.uint32).view(np.int32)
    x = draw(m, kk, of=F16)
    wide = (bits - zero.repeat(group, 0)).astype(F16) * scale.repeat(group, 0)
    given = {"x": x, "packed": packed, "scale": scale, "zero": zero.astype(np.int32), "y": np.zeros((m, n), F32)}
    want = {"y": x.astype(np.float64) @ wide.astype(np.float64)}
    sizes = {"M": m, "N": n, "K": kk}
    return Case(k.four_bits, (2, 2), given | sizes, lambda **_: want, {"GROUP": group, "B": 16, "BLOCK_K": 32}, 1e-4)


def _convolution() -> Case:
    h, w, c, co = 9, 7, 16, 20
    x, filters = draw(h, w, c), draw(3, 3, c, co)
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0))).astype(np.float64)
    want = sum(padded[i : i + h, j : j + w] @ filters[i, j].astype(np.float64) for i in range(3) for j in range(3))
    given = {"x": x, "w": filters, "y": np.zeros((h, w, co), F32), "H": h, "W": w, "CO": co}
    constants = {"C": c, "KH": 3, "KW": 3, "BM": 32, "BN": 32}
    return Case(k.convolution, (2, 1), given, lambda **_: {"y": want}, constants, 1e-4)


def _embedding(of: Any) -> Case:
    ids, g = rng.integers(0, 10, 50).astype(np.int32), rng.integers(-3, 4, (50, 16)).astype(of)
    want = np.zeros((10, 16))
    np.add.at(want, ids, g.astype(np.float64))
    given = {"g": g, "ids": ids, "dw": np.zeros((10, 16), of), "n": 50}
    return Case(k.embedding_backward, (4,), given, lambda **_: {"dw": want}, {"D": 16, "B": 16})


def _group_norm(x: Any, y: Any, w: Any, b: Any, SIZE: int, eps: float) -> dict[str, Any]:
    wide = x.astype(np.float64).reshape(2, 2, -1)
    normal = (wide - wide.mean(axis=2, keepdims=True)) / np.sqrt(wide.var(axis=2, keepdims=True) + eps)
    return {"y": normal.reshape(x.shape) * w[:, None] + b[:, None]}


def _paged() -> Case:
    q, pages, lengths = draw(3, 32), draw(10, 16, 32), np.array([5, 40, 64], np.int32)
    table = np.stack([rng.permutation(10)[:4] for _ in range(3)]).astype(np.int32)
    want = []
    for query, chosen, length in zip(q, table, lengths, strict=True):
        held = pages[chosen].reshape(-1, 32)[:length].astype(np.float64)
        shares = np.exp(held @ query - (held @ query).max())
        want.append(shares / shares.sum() @ held)
    given = {"q": q, "pages": pages, "table": table, "out": np.zeros((3, 32), F32), "lengths": lengths}
    constants = {"MOST": 4, "PAGE": 16, "D": 32}
    return Case(k.paged_attention, (3,), given, lambda **_: {"out": np.array(want)}, constants, 1e-5)


def _quantised(x: Any, scale: Any, y: Any, back: Any) -> dict[str, Any]:
    by = np.abs(x).max(axis=1).astype(F32) / F32(448)
    small = (x / by[:, None]).astype(ml_dtypes.float8_e4m3fn)
    return {"scale": by, "y": small, "back": small.astype(F32) * by[:, None]}


def _hash(x: Any, y: Any, z: Any) -> dict[str, Any]:
    h = x.view(np.uint32).copy()
    h ^= h >> 16
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> 13
    wide = h.astype(np.uint64)
    high = ((wide * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) + (wide * wide >> np.uint64(32))
    return {"y": h.view(np.int32), "z": high.view(np.int64)}


CASES = [
    _attention(),
    *(
        Case(
            k.gated, (3,), {"a": draw(3, 50, of=of), "b": draw(3, 50, of=of), "c": np.zeros((3, 50), of), "n": 50},
            _gated, {"B": block}, tolerance,
        )
        for of, block, tolerance in ((F32, 64, 1e-5), (BF16, 128, 1e-2))
    ),
    _four_bits(),
    _convolution(),
    *map(_embedding, (F32, F16, BF16)),
    Case(
        k.group_norm,
        (4,),
        {"x": draw(2, 4, 35), "y": np.zeros((2, 4, 35), F32), "w": draw(4), "b": draw(4), "SIZE": 35, "eps": 1e-5},
        _group_norm,
        {"GROUPS": 2, "C": 2, "B": 16},
        1e-5,
    ),
    _paged(),
    Case(
        k.split_product,
        (2, 2, 4),
        {
            "a": draw(32, 64), "b": draw(64, 32), "c": np.zeros((32, 32), F32), "lock": np.zeros(1, np.int32),
            "M": 32, "N": 32, "K": 64,
        },
        lambda a, b, **_: {"c": a.astype(np.float64) @ b},
        {"SPLIT": 4, "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 8},
        1e-4,
    ),
    Case(
        k.quantised,
        (2,),
        {
            "x": draw(2, 64), "scale": np.zeros(2, F32), "y": np.zeros((2, 64), ml_dtypes.float8_e4m3fn),
            "back": np.zeros((2, 64), F32),
        },
        _quantised,
        {"B": 64},
        1e-6,
    ),
    Case(
        k.mixed_hash,
        (1,),
        {
            "x": rng.integers(-(2**31), 2**31, 32).astype(np.int32), "y": np.zeros(32, np.int32),
            "z": np.zeros(32, np.int64),
        },
        _hash,
        {"B": 32},
    ),
]  # fmt: skip
