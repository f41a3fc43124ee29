"""What the backward pass of attention is verified with: inputs, exact results, and the error allowed for a kernel's."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from math import log2, sqrt
from typing import TYPE_CHECKING

import numpy as np

from deepgen.operators import filling
from deepgen.operators.attention_backward import PROBES
from deepgen.operators.base import Answer, Array
from deepgen.vocabulary.dtypes import narrow, widen
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.kernel import Arg, Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg

if TYPE_CHECKING:
    from deepgen.operators.attention_backward import AttentionBackward

_LARGE = (1.0, 8.0, 64.0)  # factors of successive queries
_PEAK = 40.0  # approximate difference between one key's score and all others
_FEW = 8  # columns of dout that are not zero in `exact`: products with v stay small integers
_WIDEST = 256  # width of the reference on a device
_CHUNK = 1 << 22  # pairs of a query and a key that are in memory at once
_SINGLE = 2.0**-23
_TINY = 2.0**-24  # of f16: the step between its smallest numbers


def inputs(operator: AttentionBackward, seed: int, probe: str) -> dict[str, Array]:
    """`normal`: weights of a query sum to about one, as its scores are normal too. `exact`: queries and keys have no
    column in common, and log-sum-exps are zero: all weights are one, all others small integers, all sums exact. `peak`:
    each query has one key, whose weight is one. `large`: scores for which exp() overflows unless lse is subtracted."""
    if probe not in PROBES:
        raise BadInput(f"{operator.name}: unknown probe {probe!r}", allowed="one of " + ", ".join(PROBES))
    of, shapes = operator.format, {t.name: t.shape for t in operator.tensors()}
    names = ("q", "k", "v", "o", "dout")
    low, high = operator.forward.ends(operator.keys)
    count = np.maximum(high - low, 0)
    rows = np.broadcast_to(_log(count), shapes["lse"]).astype(np.float64)
    if probe == "zeros":
        return {
            **{name: np.zeros(shapes[name], of.numpy()) for name in names},
            "lse": np.ascontiguousarray(rows, np.float32),
        }
    wide = {n: filling.normal_floats(shapes[n], np.float32, (seed, zlib.crc32(n.encode()))) for n in names}
    laid = operator.forward.laid
    laid(wide["o"])[...] /= np.sqrt(np.maximum(count, 1))[:, None].astype(np.float32)
    rng = np.random.default_rng([seed, zlib.crc32(probe.encode())])
    if probe == "exact":
        for name in ("q", "k", "v", "dout"):
            wide[name] = rng.choice(np.array([-2.0, -1.0, 1.0, 2.0], np.float32), shapes[name])
        half = max(operator.width // 2, 1)
        wide["q"][..., half:] = wide["k"][..., :half] = wide["o"][...] = wide["dout"][..., _FEW:] = 0.0
        rows = np.where(np.isfinite(rows), 0.0, rows)
    elif probe == "large":
        laid(wide["q"])[...] *= np.resize(np.array(_LARGE, np.float32), operator.queries)[:, None]
    elif probe == "peak":
        wide["k"] = np.sign(wide["k"])
        factor = operator.forward.factor
        size = 2.0 ** round(min(8.0, max(-8.0, log2(_PEAK / (operator.width * factor)))))
        picked = np.clip(low + (rng.random(operator.queries) * count).astype(np.int64), 0, operator.keys - 1)
        near = np.repeat(laid(wide["k"])[:, :, picked], operator.per_group, 1) * np.float32(size)
        wide["q"] = np.ascontiguousarray(laid(near))
        top = factor * size * operator.width
        rows = np.where(
            np.isfinite(rows), operator.softcap * np.tanh(top / operator.softcap) if operator.softcap else top, rows
        )
    drawn = {name: narrow(np.ascontiguousarray(array), of) for name, array in wide.items()}
    if probe == "normal":
        length = operator.forward.factor * np.sqrt(np.square(laid(wide["q"]), dtype=np.float64).sum(-1))
        rows = np.minimum(rows + length**2 / 2, np.maximum(rows, 1.0) + length * np.sqrt(2 * np.maximum(rows, 0)))
    elif probe == "large":
        rows = _sums(operator, drawn)
    return {**drawn, "lse": np.ascontiguousarray(rows, np.float32)}


def _log(count: Array) -> Array:
    with np.errstate(divide="ignore"):
        logarithms: Array = np.log(count.astype(np.float64))
    return logarithms


def _sums(operator: AttentionBackward, tensors: Mapping[str, Array]) -> Array:
    """The log-sum-exps of the forward pass."""
    rows = np.empty((operator.batch, operator.heads, operator.queries))
    for b, h in np.ndindex(operator.batch, operator.heads):
        for some in _chunks(operator):
            _, scores, seen = _scores(_Head.of(operator, tensors, b, h), some, slice(None))
            scores = np.where(seen, scores, -np.inf)
            most = np.maximum(scores.max(1), -1e300)
            rows[b, h, some] = _log(np.exp(scores - most[:, None]).sum(1)) + most
    return rows


def _chunks(operator: AttentionBackward) -> Iterator[slice]:
    step = max(1, _CHUNK // operator.keys)
    for first in range(0, operator.queries, step):
        yield slice(first, min(first + step, operator.queries))


@dataclass(frozen=True)
class _Head:
    """The inputs of a head, in f64."""

    operator: AttentionBackward
    q: Array
    k: Array
    v: Array
    out: Array
    dout: Array
    lse: Array

    @staticmethod
    def of(operator: AttentionBackward, tensors: Mapping[str, Array], b: int, h: int) -> _Head:
        group = h // operator.per_group

        def head(name: str, at: int) -> Array:
            return widen(operator.forward.laid(tensors[name])[b, at], operator.format).astype(np.float64)

        q, k, v, out, dout = (head(name, group if name in "kv" else h) for name in ("q", "k", "v", "o", "dout"))
        lse = tensors["lse"][b, h].astype(np.float64) if "lse" in tensors else np.zeros(operator.queries)
        return _Head(operator, q, k, v, out, dout, lse)


def _scores(head: _Head, rows: slice | Array, columns: slice | Array) -> tuple[Array, Array, Array]:
    """Scores of some queries and keys before the soft cap as a share of it, scores, and which are seen."""
    operator = head.operator
    every = np.arange(operator.keys)[columns]
    low, high = (end[rows][:, None] for end in operator.forward.ends(operator.keys))
    scores = head.q[rows] @ head.k[columns].T * operator.forward.factor
    if operator.softcap:
        share = np.tanh(scores / operator.softcap)
        return share, operator.softcap * share, (every >= low) & (every < high)
    return np.zeros((1, 1)), scores, (every >= low) & (every < high)


@dataclass(frozen=True)
class _Pairs:
    """Of some queries and keys of a head: weights, their gradients, and errors of both (but for roundings to 16
    bits)."""

    p: Array
    ds: Array
    p_error: Array
    ds_error: Array

    @staticmethod
    def of(head: _Head, rows: slice | Array, columns: slice | Array) -> _Pairs:
        operator = head.operator
        _, base, by_score, by_product = operator.shares()
        q, dout = head.q[rows], head.dout[rows]
        share, scores, seen = _scores(head, rows, columns)
        with np.errstate(all="ignore"):
            p = np.where(seen, np.exp(scores - head.lse[rows][:, None]), 0.0)
        terms = dout * head.out[rows]
        delta = terms.sum(1, keepdims=True)
        dp = dout @ head.v[columns].T
        slope = 1.0 - np.square(share)
        length = np.sqrt(np.square(q).sum(1, keepdims=True)) * _longest(head.k) * operator.forward.factor
        # lse is rounded to f32, and the exponent is a difference of two such numbers.
        own = (
            base
            + by_score * length
            + _SINGLE * np.abs(np.where(np.isfinite(head.lse[rows]), head.lse[rows], 0))[:, None]
        )
        products = np.sqrt(np.square(dout).sum(1, keepdims=True)) * _longest(head.v)
        off = by_product * (products + np.abs(terms).sum(1, keepdims=True))
        return _Pairs(p, p * (dp - delta) * slope, own * p, p * (own * (np.abs(dp) + np.abs(delta)) + off))


def _longest(rows: Array) -> float:
    return sqrt(float(np.square(rows).sum(1).max(initial=0.0)))


def _gathered(weights: Array, errors: Array, other: Array, tiny: float) -> tuple[Array, Array, Array]:
    """A sum over the last axis of weights, the squares of its terms, and the sum of errors."""
    squares = np.square(other)
    return weights @ other, (np.square(weights) + np.square(tiny) * (errors > 0)) @ squares, errors @ np.abs(other)


def _answer(operator: AttentionBackward, parts: Sequence[Array], factor: float) -> Answer:
    values, squares, errors = parts
    scale = operator.shares()[0] * np.sqrt(squares) + errors
    return Answer(factor * values, (factor * scale).astype(np.float32))


def _tiny(operator: AttentionBackward) -> float:
    """What a weight near zero may be off by, as `quad` has it."""
    return _TINY / operator.shares()[0] if operator.dtype == "f16" else 0.0


def reference(operator: AttentionBackward, tensors: Mapping[str, Array]) -> dict[str, Answer]:
    laid, factor, tiny = operator.forward.laid, operator.forward.factor, _tiny(operator)
    shapes = {
        "dq": (operator.heads, operator.queries, operator.width),
        "dk": (operator.kv_heads, operator.keys, operator.width),
    }
    shapes["dv"] = (operator.kv_heads, operator.keys, operator.v_width)
    sums = {name: [np.zeros((operator.batch, *shape)) for _ in range(3)] for name, shape in shapes.items()}
    for b, h in np.ndindex(operator.batch, operator.heads):
        head, group = _Head.of(operator, tensors, b, h), h // operator.per_group
        for some in _chunks(operator):
            pairs = _Pairs.of(head, some, slice(None))
            places = {"dq": (b, h, some), "dk": (b, group), "dv": (b, group)}
            of = {
                "dq": _gathered(pairs.ds, pairs.ds_error, head.k, tiny),
                "dk": _gathered(pairs.ds.T, pairs.ds_error.T, head.q[some], tiny),
                "dv": _gathered(pairs.p.T, pairs.p_error.T, head.dout[some], tiny),
            }
            for name, parts in of.items():
                for i, part in enumerate(parts):
                    sums[name][i][places[name]] += part
    results = {name: _answer(operator, parts, 1.0 if name == "dv" else factor) for name, parts in sums.items()}
    return {
        name: Answer(*(np.ascontiguousarray(laid(part)) for part in (one.values, one.scale)))
        for name, one in results.items()
    }


def reference_at(operator: AttentionBackward, tensors: Mapping[str, Array], output: str, places: Array) -> Answer:
    shape = next(t.shape for t in operator.tensors() if t.name == output)
    one, two, three, column = np.unravel_index(places, shape)
    head, row = (two, three) if operator.layout == "bhsd" else (three, two)
    values, scale = np.empty(len(places)), np.empty(len(places), np.float32)
    for b, h in np.unique(np.stack([one, head]), axis=1).T:
        at = np.flatnonzero((one == b) & (head == h))
        rows, which = np.unique(row[at], return_inverse=True)
        answer = _rows_of(operator, tensors, output, (int(b), int(h)), rows)
        values[at], scale[at] = (part[which.reshape(-1), column[at]] for part in (answer.values, answer.scale))
    return Answer(values, scale)


def _rows_of(
    operator: AttentionBackward, tensors: Mapping[str, Array], output: str, at: tuple[int, int], rows: Array
) -> Answer:
    """Some rows of a result: of a head of q, or of one of k with all heads that share it."""
    (b, h), per, tiny = at, operator.per_group, _tiny(operator)
    if output == "dq":
        head = _Head.of(operator, tensors, b, h)
        pairs = _Pairs.of(head, rows, slice(None))
        return _answer(operator, _gathered(pairs.ds, pairs.ds_error, head.k, tiny), operator.forward.factor)
    width = operator.width if output == "dk" else operator.v_width
    sums = (np.zeros((len(rows), width)),) * 3
    for own in range(h * per, (h + 1) * per):
        head = _Head.of(operator, tensors, b, own)
        pairs = _Pairs.of(head, slice(None), rows)
        dk = output == "dk"
        weights, errors, other = (pairs.ds, pairs.ds_error, head.q) if dk else (pairs.p, pairs.p_error, head.dout)
        first, squares, magnitudes = _gathered(weights.T, errors.T, other, tiny)
        sums = (sums[0] + first, sums[1] + squares, sums[2] + magnitudes)
    return _answer(operator, sums, operator.forward.factor if output == "dk" else 1.0)


def reference_kernel(operator: AttentionBackward, language: str) -> Kernel | None:
    """None if the exponential in f64 needs a vendor's library, or if heads are too wide."""
    if language != "cuda" or max(operator.width, operator.v_width) > _WIDEST:
        return None
    row, head = (2, 1) if operator.layout == "bhsd" else (1, 2)

    def strides(name: str) -> tuple[Arg, ...]:
        return tuple(ScalarArg("i64", f"stride_{name}_{place}") for place in (row, head, 0))

    inputs = (arg for name in ("q", "k", "v", "o", "dout") for arg in (TensorArg(name), *strides(name)))
    shared = (
        *inputs,
        TensorArg("lse"),
        *(ScalarArg("i32", size) for size in ("H", "H // HK", "SQ", "SK", int(operator.causal), "window")),
        *(ScalarArg("f64", number) for number in ("scale", "softcap", *operator.shares(), _tiny(operator))),
    )
    steps = []
    for entry, results, size, heads in (("keys", ("dk", "dv"), "SK", "HK"), ("queries", ("dq",), "SQ", "H")):
        written = ((TensorArg(f"want_{name}"), TensorArg(f"scale_{name}"), *strides(name)) for name in results)
        steps.append(
            Step(
                f"reference_{entry}",
                (*shared, *(arg for one in written for arg in one)),
                grid=(f"ceil_div({size}, 16) * B * {heads}", 1, 1),
                block=(256, 1, 1),
                shared_bytes=16 * 8 * (2 * operator.width + 3 * operator.v_width + 4 * 16),
            )
        )
    room = resources.files("deepgen.operators")
    names = ("attention_backward_reference.cu", "attention_reference.h", "reference_device.h")
    sources = tuple(Source(n, (room / n).read_text()) for n in names)
    flags = {
        "FORMAT": {"f32": 0, "f16": 1, "bf16": 2}[operator.dtype], "D": operator.width, "DV": operator.v_width,
        "SOFTCAP": int(operator.softcap > 0),
    }  # fmt: skip
    name = "_".join(["attention_backward_reference", *map(str, flags.values())])
    return Kernel(name, language, sources, tuple(f"-D{n}={x}" for n, x in flags.items()), LaunchPlan(tuple(steps)))
