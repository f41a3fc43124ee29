"""Matrix and vector products as expressions, including GEMM with its epilogue."""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, ClassVar

from deepgen.operators.epilogue import built, parse
from deepgen.operators.expr.builder import (
    compute,
    exp,
    expression,
    log,
    max,
    reduce_axis,
    sqrt,
    sum,
    tanh,
    tensor,
    where,
)
from deepgen.operators.expr.elements import Element, Operand, Position
from deepgen.operators.expr.nodes import Expression
from deepgen.operators.named import ACTIVATIONS, DTYPE, EPILOGUE, Named, Result
from deepgen.operators.products import BLOCK
from deepgen.operators.words import Word
from deepgen.vocabulary.errors import BadInput

if TYPE_CHECKING:
    from deepgen.operators.attention import Attention
    from deepgen.operators.gemm import Gemm
    from deepgen.operators.gemm_w4 import GemmW4

_LOW = -(2.0**100)  # below all scores


class Bmm(Named):
    """C[b] = A[b] B[b]: A is B x M x K. In layout `nt` the second is B x N x K, in `nn` B x K x N."""

    name: ClassVar[str] = "bmm"
    weights: ClassVar[tuple[str, ...]] = ("B",)
    words: ClassVar[tuple[Word, ...]] = (
        Word("B", "number of products", needed=True),
        Word("M", "rows of A and C", needed=True),
        Word("N", "columns of C", needed=True),
        Word("K", "columns of A", needed=True),
        DTYPE,
        Word("layout", "whether B is transposed", "choice", "nt", choices=("nn", "nt")),
        EPILOGUE,
    )

    def build(self) -> Operand:
        (of, wide, out), (b, m, n, k) = self.formats, (self[size] for size in "BMNK")
        nt = self["layout"] == "nt"
        left, right = tensor("A", (b, m, k), of), tensor("B", (b, n, k) if nt else (b, k, n), of)
        over = reduce_axis("k", k)

        def element(i: Position, row: Position, column: Position) -> Element:
            second = right[i, column, over] if nt else right[i, over, column]
            total = sum(left[i, row, over].cast(wide) * second.cast(wide), over)
            return self.finished(total, Result((b, m, n), (i, row, column), 2, out))

        return compute("C", (b, m, n), element)


class Gemv(Named):
    """y = A x: A is M x K."""

    name: ClassVar[str] = "gemv"
    words: ClassVar[tuple[Word, ...]] = (
        Word("M", "rows of A, and length of y", needed=True),
        Word("K", "columns of A, and length of x", needed=True),
        DTYPE,
        EPILOGUE,
    )

    def build(self) -> Operand:
        (of, wide, out), m, k = self.formats, self["M"], self["K"]
        matrix, vector, over = tensor("A", (m, k), of), tensor("x", (k,), of), reduce_axis("k", k)

        def element(row: Position) -> Element:
            total = sum(matrix[row, over].cast(wide) * vector[over].cast(wide), over)
            return self.finished(total, Result((m,), (row,), 0, out))

        return compute("y", (m,), element)


def gemm_expression(gemm: Gemm) -> Expression:
    """Raises BadInput for what an expression cannot represent: a result that is read before it is written, tf32."""
    if gemm.beta != 0.0:
        raise BadInput(f"gemm: beta={gemm.beta:g} reads C", allowed="beta=0 in an expression")
    if "tf32" in (gemm.a, gemm.b, gemm.c):
        raise BadInput("gemm: tf32 is a way to multiply", allowed="f32 in an expression")
    shapes = {one.name: one.shape for one in gemm.tensors()}
    tensors = {one.name: tensor(one.name, one.shape, one.dtype.name) for one in gemm.tensors() if one.name != "C"}
    over, also = reduce_axis("k", gemm.k), reduce_axis("k", gemm.k)

    def second_sum(row: Position, column: Position) -> Element:
        """Of a pair's second B, which may follow the first in one tensor."""
        at = column if gemm.pair == "two" else column + gemm.n
        second = tensors["B2" if gemm.pair == "two" else "B"]
        left = tensors["A"][(row, also) if gemm.layout[0] == "n" else (also, row)]
        value = sum(
            left.cast(gemm.acc) * second[(also, at) if gemm.layout[1] == "n" else (at, also)].cast(gemm.acc), also
        )
        return value * gemm.alpha if gemm.alpha != 1.0 else value

    def element(*at: Position) -> Element:
        *batch, row, column = at
        left = tensors["A"][(*batch, row, over) if gemm.layout[0] == "n" else (*batch, over, row)]
        right = tensors["B"][(*batch, over, column) if gemm.layout[1] == "n" else (*batch, column, over)]
        product = left.cast(gemm.acc) * right.cast(gemm.acc)
        for name, line, rows in zip(("scale_a", "scale_b"), (row, column), gemm.blocks or (), strict=False):
            place = (*batch, line // rows, over // BLOCK)
            product = product * tensors[name][place].cast(gemm.acc)
        value = sum(product, over)
        if gemm.alpha != 1.0:
            value = value * gemm.alpha
        if gemm.scales != "none" and not gemm.blocks:
            value = value * tensors["scale"][{"row": row, "column": column}.get(gemm.scales, 0)].cast(gemm.acc)
        if gemm.bias:
            value = value + tensors["bias"][column].cast(gemm.acc)
        if gemm.epilogue:
            value = value if gemm.acc == "f32" else value.cast("f32")
            at_of = {"n": column, "m": row, "mn": at, "0": 0}
            value = built(
                parse(gemm.epilogue),
                value,
                lambda one: tensors[one.name][at_of[one.kind]].cast("f32"),
                lambda: second_sum(row, column),
            )
        # GEMM's gelu is the tanh approximation.
        activation = {"gelu": "gelu_tanh"}.get(gemm.activation, gemm.activation)
        if activation in ACTIVATIONS:
            value = ACTIVATIONS[activation](value)
        return value.cast(gemm.c)

    return expression(compute("C", shapes["C"], element), name="gemm", inputs=list(tensors.values()))


def attention_expression(attention: Attention) -> Expression:
    """Of operators/attention.py: scores, their maximum, weights and their sum are stages.

    With lengths all scores are computed, and those of keys that a batch does not have are masked.
    """
    if attention.page:
        why = "an expression cannot read k and v through a table"
        raise BadInput(f"attention: page={attention.page}: {why}", allowed="k and v without pages")
    of, shapes = attention.dtype, {one.name: one.shape for one in attention.tensors()}
    q, k, v = (tensor(name, shapes[name], of) for name in "qkv")
    formats = {**{f"{name}_scales": "f32" for name in "qkv"}, "bias": attention.result, "slopes": "f32"}
    formats |= {"sinks": "f32", "lengths": "i32"}
    more = {name: tensor(name, shapes[name], kind) for name, kind in formats.items() if name in shapes}
    first, per = attention.layout == "bhsd", attention.heads // attention.kv_heads
    rows = (attention.batch, attention.heads, attention.queries)
    width, keys = reduce_axis("d", attention.width), reduce_axis("j", attention.keys)

    def laid(batch: Position, head: Position, place: Position, column: Position) -> tuple[Position, ...]:
        return (batch, head, place, column) if first else (batch, place, head, column)

    def seen(b: Position, query: Position, key: Position, value: Element, otherwise: float) -> Element:
        conditions = attention.sees(query, key)
        if attention.lengths:  # a batch's last query is at its own last key
            back, own, window = (key - query + attention.queries).cast("i32"), more["lengths"][b], attention.window
            conditions = [key.cast("i32") < own, *([own >= back] if attention.causal else [])]
            conditions += [own < back + window] if window else []
            conditions += [own > back - window] if window and not attention.causal else []
        return where(reduce(and_, conditions), value, otherwise) if conditions else value

    def distance(b: Position, query: Position, key: Position) -> Element:
        if attention.lengths:
            return abs((more["lengths"][b] - (key - query + attention.queries).cast("i32")).cast("f32"))
        apart = query + (attention.keys - attention.queries) - key
        return where(apart < 0, (0 - apart).cast("f32"), apart.cast("f32"))

    def score(b: Position, h: Position, i: Position, j: Position) -> Element:
        total = sum(q[laid(b, h, i, width)].cast("f32") * k[laid(b, h // per, j, width)].cast("f32"), width)
        total = total * attention.factor
        total = total * (more["q_scales"][b, h] * more["k_scales"][b, h // per]) if attention.scales else total
        total = tanh(total * (1.0 / attention.softcap)) * attention.softcap if attention.softcap else total
        if attention.alibi:
            total = total - more["slopes"][h] * distance(b, i, j)
        return total + more["bias"][b, h, i, j].cast("f32") if attention.bias else total

    scores = compute("scores", (*rows, attention.keys), score)
    seen_most = compute(
        "seen_most" if attention.sinks else "most",
        rows,
        lambda b, h, i: max(seen(b, i, keys, scores[b, h, i, keys], _LOW), keys),
    )

    def with_sink(b: Position, h: Position, i: Position) -> Element:
        return where(seen_most[b, h, i] > more["sinks"][h], seen_most[b, h, i], more["sinks"][h])

    most = compute("most", rows, with_sink) if attention.sinks else seen_most

    def weight(b: Position, h: Position, i: Position, j: Position) -> Element:
        return seen(b, i, j, exp(scores[b, h, i, j] - most[b, h, i]), 0.0)

    weights = compute("weights", (*rows, attention.keys), weight)

    def add_up(b: Position, h: Position, i: Position) -> Element:
        all_keys = sum(weights[b, h, i, keys], keys)
        return all_keys + exp(more["sinks"][h] - most[b, h, i]) if attention.sinks else all_keys

    total = compute("total", rows, add_up)

    def element(*at: Position) -> Element:
        b, h, i, column = laid(*at)
        product = weights[b, h, i, keys] * v[laid(b, h // per, keys, column)].cast("f32")
        if attention.lengths:  # a weight of zero would keep a NaN that happens to be there
            product = where(keys.cast("i32") < more["lengths"][b], product, 0.0)
        by = 1 / where(total[b, h, i] > 0.0, total[b, h, i], 1.0)
        by = by * more["v_scales"][b, h // per] if attention.scales else by
        return (sum(product, keys) * by).cast(attention.result)

    results = [compute("o", shapes["o"], element)]
    if attention.lse:
        results.append(compute("lse", rows, lambda b, h, i: log(total[b, h, i]) + most[b, h, i]))
    return expression(*results, name="attention", inputs=[q, k, v, *more.values()])


def gemm_w4_expression(gemm: GemmW4, scaled: bool = False) -> Expression:
    """Of operators/gemm_w4.py. `scaled`: the reference, in f64, with the stage `scale`: both norms over K."""
    m, n, k, kind = gemm.m, gemm.n, gemm.k, "f64" if scaled else "f32"
    tensors = {one.name: tensor(one.name, one.shape, one.dtype.name) for one in gemm.tensors() if one.name != "y"}
    over, per = reduce_axis("k", k), gemm.group or k

    def of_group(name: str, row: Position, place: Position) -> Element:
        at = (place // per, row) if gemm.packed else (row, place // per)
        return tensors[name][at]

    def weight(row: Position, place: Position) -> Element:
        if gemm.packed:  # as `pack_w4` says
            lane = row % 8 * 4 + place % 32 // 8
            at = place % 64 // 32 * 8 + place % 8 // 4 * 4 + place % 2 * 2 + place % 4 // 2
            byte, first = tensors["w"][row // 16, place // 64, lane, at].cast("i32"), row % 16 < 8
        else:
            byte, first = tensors["w"][row, place // 2].cast("i32"), place % 2 < 1
        q = where(first, byte - byte // 16 * 16, byte // 16)
        whole = q - (of_group("zeros", row, place).cast("i32") if gemm.zeros else 8)
        return whole.cast(kind) * of_group("scales", row, place).cast(kind)

    def element(row: Position, column: Position) -> Element:
        total = sum(tensors["x"][row, over].cast(kind) * weight(column, over), over)
        return total if scaled else total.cast(gemm.dtype)

    y = compute("y", (m, n), element)
    if not scaled:
        return expression(y, name=gemm.name, inputs=list(tensors.values()))

    def of_x(row: Position) -> Element:
        return sqrt(sum(tensors["x"][row, over].cast(kind) ** 2, over))

    def of_weights(row: Position) -> Element:
        return sqrt(sum(weight(row, over) ** 2, over))

    norms = compute("norms", (m,), of_x), compute("weight_norms", (n,), of_weights)

    def both(row: Position, column: Position) -> Element:
        size = norms[0][row] * norms[1][column] * (1.0 / k)
        return where(size < 2.0**100, size, 0.0)  # neither for infinities nor for NaN

    size = compute("scale", (m, n), both)
    return expression(y, size, name=gemm.name, inputs=list(tensors.values()))
