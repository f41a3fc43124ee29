"""The exact results of attention, and the error allowed for a kernel's: on the host, and by a kernel on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np

from deepgen.operators.attention_inputs import check_inputs, keys_of, rows_of_head
from deepgen.operators.base import Answer, Array
from deepgen.vocabulary.dtypes import widen
from deepgen.vocabulary.kernel import Arg, Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg

if TYPE_CHECKING:
    from deepgen.operators.attention import Attention

_CHUNK = 1 << 22  # scores that are in memory at once
_FORMATS = {"f32": 0, "f16": 1, "bf16": 2}
_WIDEST = 512  # width of the reference on a device


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
    quad, base, score = operator.shares()
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
        error = quad * np.sqrt(np.square(weights) @ np.square(v)) + share * (weights @ np.abs(v))
        lse = np.where(np.isnan(lse), -np.inf, lse)  # for a query that sees no key
    return {"o": Answer(values, error), "lse": Answer(lse, np.broadcast_to(share, (len(places), 1))[:, 0])}


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
        yield widen(np.ascontiguousarray(whole[b, h, places, :count]), operator.format)


def reference_kernel(operator: Attention, language: str) -> Kernel | None:
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
            *(ScalarArg("f64", number) for number in ("scale", "softcap", *operator.shares())),
            read("bias", operator.bias),
            *(ScalarArg("i64", f"stride_bias_{place}" if operator.bias else 0) for place in range(4)),
            read("slopes", operator.alibi),
            read("sinks", operator.sinks),
            *(read(f"{part}_lse", operator.lse) for part in ("want", "scale")),
            read("lengths", operator.lengths),
            read("pages", operator.page > 0),
            ScalarArg("i64", "stride_pages_0" if operator.page else 0),
        ),
        grid=("ceil_div(SQ, 16) * B * H", 1, 1),
        block=(256, 1, 1),
        shared_bytes=16 * 8 * (2 * operator.width + operator.v_width + 16),
    )
    room = resources.files("deepgen.operators")
    sources = tuple(Source(n, (room / n).read_text()) for n in ("attention_reference.cu", "reference_device.h"))
    flags = {
        "FORMAT": _FORMATS[operator.dtype], "D": operator.width, "DV": operator.v_width,
        "SOFTCAP": int(operator.softcap > 0), "LENGTHS": int(operator.lengths), "PAGE": operator.page,
    }  # fmt: skip
    name = "_".join(["attention_reference", *map(str, flags.values())])
    return Kernel(name, language, sources, tuple(f"-D{n}={x}" for n, x in flags.items()), LaunchPlan((step,)))
