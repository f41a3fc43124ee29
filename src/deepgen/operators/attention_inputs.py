"""Inputs of attention: tensors of each probe, and what options read. With pages, K and V are pools."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from math import ceil, log2
from random import Random
from typing import TYPE_CHECKING

from deepgen.operators import filling
from deepgen.operators.base import Array
from deepgen.vocabulary.dtypes import narrow, widen
from deepgen.vocabulary.errors import BadInput

if TYPE_CHECKING:
    from deepgen.operators.attention import Attention

PROBES = ("normal", "zeros", "exact", "peak", "large")
_LARGE = (1.0, 8.0, 64.0)  # times usual, of each query in turn: exp() of its scores overflows without their maximum
_PEAK = 40.0  # about how far one key's score is above all others
_HIDDEN = 3  # and each seventh key after it, by a bias
# The place in the list of lengths where those of a probe begin: a single batch has all keys, none, some, one, and some.
_BEGIN = dict(zip(PROBES, (0, 3, 1, 2, 4), strict=True))


def inputs(operator: Attention, seed: int, probe: str) -> dict[str, Array]:
    """`exact`: queries of zeros weigh all that they see alike, and values are small integers: sums are exact, and a
    lost or doubled key shows. `peak`: each query is as one of the keys, whose value it picks."""
    if probe not in PROBES:
        raise BadInput(f"attention: unknown probe {probe!r}", allowed="one of " + ", ".join(PROBES))
    import numpy as np

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
    return {**{name: np.ascontiguousarray(array) for name, array in drawn.items()}, **more}


def _picked(operator: Attention, tensors: Mapping[str, Array], shares: Array) -> Array:
    """For each query of each head of K one of the keys that it sees: so far from the first as its share says."""
    import numpy as np

    picked = np.empty((operator.batch, operator.kv_heads, operator.queries, operator.width), np.float32)
    for b, g in np.ndindex(operator.batch, operator.kv_heads):
        low, high = operator.ends(keys_of(operator, tensors, b))
        own = low + (shares * np.maximum(high - low, 1)).astype(np.int64)
        every = rows_of_head(operator, tensors, "k", (b, g), operator.keys)
        picked[b, g] = every[np.clip(own, 0, operator.keys - 1)]
    return picked


def _more(operator: Attention, seed: int, probe: str) -> dict[str, Array]:
    """What options read. A bias of minus infinity hides some keys, as masks do."""
    import numpy as np

    shapes, some = {t.name: t.shape for t in operator.tensors()}, probe not in ("zeros", "exact")
    drawn: dict[str, Array] = {}
    if operator.bias:
        numbers = filling.normal(shapes["bias"], operator.format, (seed, zlib.crc32(b"attention bias")))
        drawn["bias"] = numbers if some else np.zeros_like(numbers)
        if some:
            drawn["bias"][..., _HIDDEN::7] = narrow(np.array([-np.inf], np.float32), operator.format)
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
    import numpy as np

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
