"""What attention is verified with: inputs of each kind, their exact results, and the error allowed for a kernel's.

Results are computed on the host, or by a kernel on a GPU. With pages, K and V are pools.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from importlib import resources
from math import ceil, log2
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from deepgen.operators import filling
from deepgen.operators.attention import PROBES
from deepgen.operators.base import Answer, Array
from deepgen.vocabulary.dtypes import dtype, narrow, widen
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.kernel import Arg, Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg

if TYPE_CHECKING:
    from deepgen.operators.attention import Attention

_LARGE = (1.0, 8.0, 64.0)  # factors of successive queries: exp() overflows unless the maximum is subtracted
_PEAK = 40.0  # approximate difference between one key's score and all others
_HIDDEN = 3  # first key hidden by a bias; every seventh after it is hidden, too
# Where the lengths of each probe begin in the list of lengths: a single batch has all keys, none, some, one, and some.
_BEGIN = dict(zip(PROBES, (0, 3, 1, 2, 4), strict=True))
_CHUNK = 1 << 22  # scores that are in memory at once
_FORMATS = {"f32": 0, "f16": 1, "bf16": 2, "f8e4m3": 3}
_WIDEST = 512  # width of the reference on a device


def inputs(operator: Attention, seed: int, probe: str) -> dict[str, Array]:
    """`exact`: queries are zero, so all visible keys have the same weight, and values are small integers: sums are
    exact, and a lost or doubled key is detected. `peak`: each query is close to one of the keys, and picks its value.
    `large`: rows after a batch's last key are no numbers.
    """
    if probe not in PROBES:
        raise BadInput(f"attention: unknown probe {probe!r}", allowed="one of " + ", ".join(PROBES))
    of, shapes = operator.format, {t.name: t.shape for t in operator.tensors()}
    keys = {name: (seed, zlib.crc32(f"attention {name}".encode())) for name in "qkv"}
    more = _more(operator, seed, probe)
    if probe == "zeros":
        return {**{name: np.zeros(shapes[name], of.numpy()) for name in "qkv"}, **more}
    drawn = {name: filling.normal(shapes[name], of, keys[name]) for name in "qkv"}
    rng = np.random.default_rng([seed, zlib.crc32(probe.encode())])
    if probe == "exact":
        drawn["q"] = np.zeros(shapes["q"], of.numpy())
        whole = rng.choice(np.array([-2.0, -1.0, 1.0, 2.0], np.float32), shapes["v"])
        drawn["v"] = narrow(whole, of)
    elif probe == "large":
        times = np.resize(np.array(_LARGE, np.float32), operator.queries)
        wide = operator.laid(widen(drawn["q"], of)) * times[:, None]
        drawn["q"] = narrow(operator.laid(wide).astype(np.float32), of)
    elif probe == "peak":
        k = rng.choice(np.array([-1.0, 1.0], np.float32), shapes["k"])
        size = 2.0 ** round(min(8.0, max(-8.0, log2(_PEAK / (operator.width * operator.factor)))))
        picked = _picked(operator, {**more, "k": k}, rng.random(operator.queries))
        drawn["k"] = narrow(k, of)
        whole = operator.laid(np.repeat(picked, operator.heads // operator.kv_heads, 1)) * np.float32(size)
        drawn["q"] = narrow(whole, of)
    drawn = {name: np.ascontiguousarray(array) for name, array in drawn.items()}
    if operator.lengths and not operator.page and probe == "large":  # pages may be shared
        for b in range(operator.batch):
            for name in "kv":
                operator.laid(drawn[name])[b, :, keys_of(operator, more, b) :] = narrow(np.float32(np.nan), of)
    return {**drawn, **more}


def _picked(operator: Attention, tensors: Mapping[str, Array], shares: Array) -> Array:
    """For each query of each head of K one of the keys that it sees: so far from the first as its share says."""
    picked = np.empty((operator.batch, operator.kv_heads, operator.queries, operator.width), np.float32)
    for b, g in np.ndindex(operator.batch, operator.kv_heads):
        low, high = operator.ends(keys_of(operator, tensors, b))
        own = low + (shares * np.maximum(high - low, 1)).astype(np.int64)
        every = rows_of_head(operator, tensors, "k", (b, g), operator.keys)
        picked[b, g] = every[np.clip(own, 0, operator.keys - 1)]
    return picked


def _more(operator: Attention, seed: int, probe: str) -> dict[str, Array]:
    """What options read. A bias of minus infinity hides some keys, as masks do."""
    shapes, some = {t.name: t.shape for t in operator.tensors()}, probe not in ("zeros", "exact")
    drawn: dict[str, Array] = {}
    if operator.scales:
        rng = np.random.default_rng([seed, zlib.crc32(b"attention scales")])
        for name in ("q_scales", "k_scales", "v_scales"):
            numbers = rng.uniform(0.5, 1.5, shapes[name]) if some else np.ones(shapes[name])
            drawn[name] = numbers.astype(np.float32)
    if operator.bias:
        of = dtype(operator.result)
        numbers = filling.normal(shapes["bias"], of, (seed, zlib.crc32(b"attention bias")))
        drawn["bias"] = numbers if some else np.zeros_like(numbers)
        if some:
            drawn["bias"][..., _HIDDEN::7] = narrow(np.array([-np.inf], np.float32), of)
    at = np.arange(1, operator.heads + 1, dtype=np.float32)
    for name, numbers in (("slopes", 2.0 ** (-8.0 * at / operator.heads)), ("sinks", np.cos(at) * 4.0)):
        if name in shapes:
            drawn[name] = (numbers if some else np.zeros_like(numbers)).astype(np.float32)
    if operator.lengths:
        drawn["lengths"] = np.array(lengths(operator, probe), np.int32)
    if operator.page:
        rng = np.random.default_rng([seed, zlib.crc32(f"attention pages {probe}".encode())])
        every = rng.permutation(shapes["k"][0]).astype(np.int32)
        drawn["pages"] = np.resize(every, shapes["pages"])  # with few pages, batches share them
    return drawn


def lengths(operator: Attention, probe: str = "normal") -> list[int]:
    """How many keys batches have: all, some, one, none, and some for the others. Each probe begins elsewhere.

    They do not depend on the seed, because the work of the operator is counted for those of `normal`, which is timed.
    """
    chance = Random(f"{operator.batch} {operator.keys}")
    first, *others = (1 + int(chance.random() * operator.keys) for _ in range(operator.batch + 1))
    every, begin = [operator.keys, first, 1, 0, *others], _BEGIN[probe]
    return (every[begin:] + every[:begin])[: operator.batch]


def keys_of(operator: Attention, tensors: Mapping[str, Array], b: int) -> int:
    """How many keys a batch has."""
    return int(tensors["lengths"][b]) if operator.lengths else operator.keys


def rows_of_head(operator: Attention, tensors: Mapping[str, Array], name: str, at: tuple[int, int], keys: int) -> Array:
    """So many rows of k or v, of a batch and a head."""
    (b, g), whole = at, operator.laid(tensors[name])
    if not operator.page:
        return whole[b, g, :keys]
    pages = tensors["pages"][b, : ceil(keys / operator.page)]
    rows: Array = whole[pages, g].reshape(-1, whole.shape[-1])[:keys]
    return rows


def check_inputs(operator: Attention, tensors: Mapping[str, Array]) -> None:
    """Raises BadInput where a length or a page is none that there is. Pages after the last key may be anything."""
    if not operator.lengths:
        return
    own = tensors["lengths"]
    for b in np.flatnonzero((own < 0) | (own > operator.keys)):
        raise BadInput(f"attention: lengths[{b}] is {own[b]}", allowed=f"0 to {operator.keys}, the number of keys (SK)")
    if operator.page:
        table, last = tensors["pages"], tensors["k"].shape[0] - 1
        used = np.arange(table.shape[1]) * operator.page < own[:, None]
        for b, i in np.argwhere(used & ((table < 0) | (table > last))):
            raise BadInput(f"attention: pages[{b}, {i}] is {table[b, i]}", allowed=f"0 to {last}, the pages of k and v")


def reference(operator: Attention, inputs: Mapping[str, Array]) -> dict[str, Answer]:
    check_inputs(operator, inputs)
    rows = (operator.batch, operator.heads, operator.queries)
    answers = {"o": Answer(np.empty((*rows, operator.v_width)), np.empty((*rows, operator.v_width), np.float32))}
    answers["lse"] = Answer(np.empty(rows), np.empty(rows, np.float32))
    step = max(1, _CHUNK // operator.keys)
    for b, h in np.ndindex(operator.batch, operator.heads):
        for first in range(0, operator.queries, step):
            some = np.arange(first, min(first + step, operator.queries))
            for name, one in _of_head(operator, inputs, b, h, some).items():
                answers[name].values[b, h, some], answers[name].scale[b, h, some] = one.values, one.scale
    o = (np.ascontiguousarray(operator.laid(part)) for part in (answers["o"].values, answers["o"].scale))
    return {"o": Answer(*o), **({"lse": answers["lse"]} if operator.lse else {})}


def reference_at(operator: Attention, inputs: Mapping[str, Array], output: str, places: Array) -> Answer:
    check_inputs(operator, inputs)
    shape = next(t.shape for t in operator.tensors() if t.name == output)
    one, two, three, *column = np.unravel_index(places, shape)
    head, query = (two, three) if output == "lse" or operator.layout == "bhsd" else (three, two)
    values, scale = np.empty(len(places)), np.empty(len(places), np.float32)
    for b, h, row in np.unique(np.stack([one, head, query]), axis=1).T:
        at = np.flatnonzero((one == b) & (head == h) & (query == row))
        answer = _of_head(operator, inputs, b, h, np.array([row]))[output]
        own, error = answer.values[0], answer.scale[0]
        values[at], scale[at] = (own[column[0][at]], error[column[0][at]]) if column else (own, error)
    return Answer(values, scale)


def _of_head(operator: Attention, inputs: Mapping[str, Array], b: int, h: int, places: Array) -> dict[str, Answer]:
    """The results of some queries of a head, and their allowed errors.

    A kernel rounds weights to the format of v. These errors are independent, so their squares add up: eight standard
    deviations are allowed, and in `tolerance` the common error of equal weights. Scores are off by some f32 steps of
    the largest possible products and added terms, and each weight by the same share.
    """
    of, count, own = operator.format, keys_of(operator, inputs, b), (b, h // (operator.heads // operator.kv_heads))
    k, v = (widen(rows_of_head(operator, inputs, name, own, count), of) for name in "kv")
    q = widen(operator.laid(inputs["q"])[b, h], of)[places]
    if operator.scales:
        q, k, v = (x * scale_of(operator, inputs, name, (b, h)) for name, x in (("q", q), ("k", k), ("v", v)))
    quad, base, score, faint = operator.shares()
    keys = np.arange(count)
    low, high = (end[places][:, None] for end in operator.ends(count))
    seen = (keys >= low) & (keys < high)
    with np.errstate(all="ignore"):
        scores = q @ k.T * operator.factor
        if operator.softcap:
            scores = operator.softcap * np.tanh(scores / operator.softcap)
        longest = np.sqrt(np.square(k).sum(1).max(initial=0.0))
        largest = operator.factor * np.sqrt(np.square(q).sum(1, keepdims=True)) * longest
        for added in _added(operator, inputs, (b, h), places, count):
            scores = scores + added
            seen = seen & (added > -np.inf)
            largest = largest + np.where(seen, np.abs(added), 0.0).max(1, keepdims=True, initial=0.0)
        most = np.where(seen, scores, -np.inf).max(1, keepdims=True, initial=-np.inf)
        if operator.sinks:
            most = np.maximum(most, np.float64(inputs["sinks"][h]))
        weights = np.where(seen, np.exp(scores - most), 0.0)
        total = weights.sum(1, keepdims=True)
        if operator.sinks:
            total = total + np.exp(np.float64(inputs["sinks"][h]) - most)
        lse = (np.log(total) + most)[:, 0]
        total = np.where(total > 0, total, 1.0)
        values = weights @ v / total  # sums of small integers stay exact
        weights /= total
        share = base + score * largest
        steps = np.square(weights)
        if faint:
            steps += np.where(seen, np.square(faint * weights.max(1, keepdims=True, initial=0.0)), 0.0)
        error = quad * np.sqrt(steps @ np.square(v)) + share * (weights @ np.abs(v))
        lse = np.where(np.isnan(lse), -np.inf, lse)  # for a query that sees no key
    return {"o": Answer(values, error), "lse": Answer(lse, np.broadcast_to(share, (len(places), 1))[:, 0])}


def scale_of(operator: Attention, tensors: Mapping[str, Array], name: str, at: tuple[int, int]) -> float:
    """What q, k or v of a batch and a head of q is multiplied by."""
    b, h = at
    heads = operator.heads if name == "q" else operator.kv_heads
    whole = np.broadcast_to(tensors[f"{name}_scales"], (operator.batch, heads))
    return float(whole[b, h // (operator.heads // heads)])


def _added(
    operator: Attention, inputs: Mapping[str, Array], at: tuple[int, int], places: Array, count: int
) -> Iterator[Array]:
    """What is added to scores of a batch's and a head's so many keys."""
    b, h = at
    if operator.alibi:
        apart = places[:, None] + (count - operator.queries) - np.arange(count)
        yield np.abs(apart) * -np.float64(inputs["slopes"][h])
    if operator.bias:
        whole = np.broadcast_to(inputs["bias"], (operator.batch, operator.heads, operator.queries, operator.keys))
        yield widen(np.ascontiguousarray(whole[b, h, places, :count]), dtype(operator.result))


def reference_kernel(operator: Attention, language: str) -> Kernel | None:
    """None if the exponential in f64 needs a vendor's library, or if heads are too wide."""
    if language != "cuda" or max(operator.width, operator.v_width) > _WIDEST:
        return None
    row, head = (2, 1) if operator.layout == "bhsd" else (1, 2)
    nothing = ScalarArg("i64", 0)

    def read(name: str, holds: bool) -> Arg:
        return TensorArg(name) if holds else nothing

    step = Step(
        "attention_reference",
        (
            *(TensorArg(name) for name in ("q", "k", "v", "want_o", "scale_o")),
            *(ScalarArg("i64", f"stride_{name}_{place}") for name in "qkvo" for place in (row, head, 0)),
            *(ScalarArg("i32", size) for size in ("H", "H // HK", "SQ", "SK", int(operator.causal), "window")),
            *(ScalarArg("f64", number) for number in ("scale", "softcap", *operator.shares()[:3])),
            read("bias", operator.bias),
            *(ScalarArg("i64", f"stride_bias_{place}" if operator.bias else 0) for place in range(4)),
            read("slopes", operator.alibi),
            read("sinks", operator.sinks),
            *(read(f"{part}_lse", operator.lse) for part in ("want", "scale")),
            read("lengths", operator.lengths),
            read("pages", operator.page > 0),
            ScalarArg("i64", "stride_pages_0" if operator.page else 0),
            *(
                arg
                for name in ("q_scales", "k_scales", "v_scales")
                for arg in (
                    read(name, operator.scales),
                    *(ScalarArg("i64", f"stride_{name}_{place}" if operator.scales else 0) for place in range(2)),
                )
            ),
            ScalarArg("f64", operator.shares()[3]),
        ),
        grid=("ceil_div(SQ, 16) * B * H", 1, 1),
        block=(256, 1, 1),
        shared_bytes=16 * 8 * (2 * operator.width + operator.v_width + 16),
    )
    room = resources.files("deepgen.operators")
    names = ("attention_reference.cu", "attention_reference.h", "reference_device.h")
    sources = tuple(Source(n, (room / n).read_text()) for n in names)
    flags = {
        "FORMAT": _FORMATS[operator.dtype], "D": operator.width, "DV": operator.v_width,
        "SOFTCAP": int(operator.softcap > 0), "LENGTHS": int(operator.lengths), "PAGE": operator.page,
    }  # fmt: skip
    name = "_".join(["attention_reference", *map(str, flags.values())])
    return Kernel(name, language, sources, tuple(f"-D{n}={x}" for n, x in flags.items()), LaunchPlan((step,)))
