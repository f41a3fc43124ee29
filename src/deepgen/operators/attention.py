"""Attention: o = softmax(scale * q k^T) v for each head, over the keys that a query sees.

Queries are aligned to the end of the keys: the last query sees the last key, so that a few queries may follow
a long KV cache. A query that sees no key yields zeros. Batches may have fewer keys than there is space for (`lengths`),
and their keys may be in pages (`page`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from math import ceil, isfinite, sqrt
from typing import Any, ClassVar

from deepgen.operators.base import REFERENCE_ROWS, Array, ReferenceApart, Tolerance, Work
from deepgen.operators.expr.nodes import Expression
from deepgen.operators.signature import ANY, INPUT, ROWS, Param, Signature, Solved, TensorFacts
from deepgen.operators.words import Word, listed, plain
from deepgen.vocabulary.dtypes import DType, our_name
from deepgen.vocabulary.dtypes import dtype as dtype_named
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.json import JsonObject

DTYPES = ("bf16", "f16", "f32", "f8e4m3")
LAYOUTS = ("bhsd", "bshd")
PROBES = ("normal", "zeros", "exact", "peak", "large")
_SIZES = {"B": "batch", "H": "heads", "HK": "kv_heads", "SQ": "queries", "SK": "keys", "D": "width", "DV": "v_width"}
_FIELDS = {**_SIZES, "POOL": "pool"}
_SINGLE = 2.0**-23
_FAST = 2.0**-13  # of sums of 8-bit floats in tensor cores
_FAINT = 2.0**-10  # weights of 8 bits below this share of the largest are rounded like it: they are denormals
OPTIONS = ("bias", "alibi", "sinks", "lse", "lengths", "scales")
_PAGE_SIZES = (16, 32, 64, 128, 256)  # keys of a page
_LATER = (*OPTIONS, "page", "pool")  # omitted from files unless used: older files do not have them


@dataclass(frozen=True)
class Attention(ReferenceApart):
    """Sizes of q, k, v and o, their format and order, and which keys a query sees."""

    name: ClassVar[str] = "attention"
    strided_on_processors: ClassVar[bool] = True  # caches are longer than what they hold
    general_last: ClassVar[bool] = True
    reference_rows: ClassVar[int | None] = REFERENCE_ROWS
    words: ClassVar[tuple[Word, ...]] = (
        Word("B", "batch size", needed=True, usual=4),
        Word("H", "heads of q and o", needed=True, usual=16),
        Word("HK", "heads of k and v, each shared by H/HK heads of q; default: H"),
        Word("S", "number of queries and keys, if equal", usual=4096),
        Word("SQ", "queries"),
        Word("SK", "keys"),
        Word("D", "width of q and k", needed=True, usual=128),
        Word("DV", "width of v and o; default: D"),
        Word("dtype", "data type of q, k, v and o; f8e4m3: o is bf16", "choice", "bf16", choices=DTYPES),
        Word("layout", "order of their dimensions", "choice", "bhsd", choices=LAYOUTS),
        Word("causal", "a query sees no later keys", "flag", False),
        Word("window", "a query sees only keys closer than this; 0: all keys", default=0, least=0),
        Word("scale", "scale of the scores; 0: 1 / sqrt(D)", "number", 0.0),
        Word("softcap", "soft cap c: scores become c * tanh(score / c); 0: none", "number", 0.0),
        Word("bias", "add a tensor to the scores", "flag", False),
        Word("alibi", "subtract distance times a slope for each head from the scores (ALiBi)", "flag", False),
        Word("sinks", "a further score for each head, without a value (attention sinks)", "flag", False),
        Word("lse", "return the log-sum-exp of the scores as well", "flag", False),
        Word("lengths", "a number of keys for each batch, up to SK", "flag", False),
        Word("scales", "a factor for each head of q, k and v in f8e4m3", "flag", False),
        Word("page", "keys per page, if a table lists the pages of k and v; 0: no pages", default=0, least=0),
        Word("POOL", "number of pages of k and v; default: as many as the table lists"),
    )

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int
    v_width: int
    dtype: str = "bf16"
    layout: str = "bhsd"
    causal: bool = False
    window: int = 0
    scale: float = 0.0
    softcap: float = 0.0
    bias: bool = False
    alibi: bool = False
    sinks: bool = False
    lse: bool = False
    lengths: bool = False
    scales: bool = False
    page: int = 0
    pool: int = 0  # of k and v; 0: as many as the table has places

    def __post_init__(self) -> None:
        for word, size in ((word, getattr(self, field)) for word, field in _SIZES.items()):
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise BadInput(f"attention: {word} is {size!r}", allowed="must be an integer of at least 1")
        if self.heads % self.kv_heads:
            raise BadInput(f"attention: HK={self.kv_heads} with H={self.heads}", allowed="a divisor of H")
        for word, choice, allowed in (("dtype", self.dtype, DTYPES), ("layout", self.layout, LAYOUTS)):
            if choice not in allowed:
                raise BadInput(f"attention: {word} {choice!r}", allowed="one of " + ", ".join(allowed))
        if isinstance(self.window, bool) or not isinstance(self.window, int) or self.window < 0:
            raise BadInput(f"attention: window is {self.window!r}", allowed="an integer; 0 for all keys")
        for word, number in (("scale", self.scale), ("softcap", self.softcap)):
            if not isinstance(number, (int, float)) or not isfinite(number) or number < 0:
                raise BadInput(f"attention: {word} is {number!r}", allowed="a number of at least 0")
        if self.scales and self.dtype != "f8e4m3":
            raise BadInput(f"attention: scales with dtype {self.dtype}", allowed="f8e4m3, whose numbers are scaled")
        self._check_pages()

    def _check_pages(self) -> None:
        if isinstance(self.page, bool) or self.page not in (0, *_PAGE_SIZES):
            raise BadInput(f"attention: page is {self.page!r}", allowed="one of " + ", ".join(map(str, _PAGE_SIZES)))
        if self.page and not self.lengths:
            raise BadInput(
                f"attention: page={self.page} without lengths", allowed="both: pages are of batches' own keys"
            )
        if isinstance(self.pool, bool) or not isinstance(self.pool, int) or self.pool < 0:
            raise BadInput(f"attention: POOL is {self.pool!r}", allowed="an integer; 0 for a page for each place")
        if self.pool and not self.page:
            raise BadInput(f"attention: POOL={self.pool} without page", allowed="page too, the keys of each")
        if self.page and self.pool == self._places:
            object.__setattr__(self, "pool", 0)  # the same operator, however it was asked for

    @property
    def _places(self) -> int:
        """How many pages the table lists."""
        return self.batch * ceil(self.keys / self.page)

    @property
    def options(self) -> list[str]:
        """The options that add a tensor."""
        return [word for word in OPTIONS if getattr(self, word)]

    @property
    def factor(self) -> float:
        """The factor of scores."""
        return self.scale or 1.0 / sqrt(self.width)

    def sees(self, query: Any, key: Any) -> list[Any]:
        """Conditions under which a query sees a key: numbers, arrays or places of an expression."""
        apart, conditions = query + (self.keys - self.queries) - key, []
        if self.causal:
            conditions.append(apart >= 0)
        if self.window:
            conditions.append(apart < self.window)
        if self.window and not self.causal:
            conditions.append(apart > -self.window)
        return conditions

    def describe(self) -> str:
        heads = f"{self.heads}" + (f"/{self.kv_heads}" if self.kv_heads != self.heads else "")
        lengths = f"{self.queries}" + (f"x{self.keys}" if self.keys != self.queries else "")
        width = f"{self.width}" + (f"/{self.v_width}" if self.v_width != self.width else "")
        extras = [word for word, holds in (("causal", self.causal), (f"window={self.window}", self.window)) if holds]
        extras += [f"{word}={n:g}" for word, n in (("scale", self.scale), ("softcap", self.softcap)) if n]
        extras += [*self.options, *(f"{word}={n}" for word, n in (("page", self.page), ("POOL", self.pool)) if n)]
        shape = f"batch {self.batch}, {heads} heads, {lengths}, width {width}"
        return " ".join([f"attention {self.dtype} {self.layout}", shape, *extras])

    def slug(self) -> str:
        sizes = "x".join(map(str, self.sizes().values()))
        extras = [word for word, holds in (("causal", self.causal), (f"w{self.window}", self.window)) if holds]
        extras += [f"{letter}{n:g}" for letter, n in (("s", self.scale), ("c", self.softcap)) if n]
        extras += [*self.options, *([f"page{self.page}"] if self.page else [])]
        return "-".join(["attention", self.dtype, self.layout, sizes, *extras])

    def signature(self) -> Signature:
        return self._signature("SK")

    def _signature(self, keys: int | str) -> Signature:
        def shape(*sizes: int | str) -> tuple[int | str, ...]:
            batch, heads, length, width = sizes
            return sizes if self.layout == "bhsd" else (batch, length, heads, width)

        kept = ("POOL", "HK", self.page) if self.page else ("B", "HK", keys)
        shapes = {"q": ("B", "H", "SQ", "D"), "k": (*kept, "D"), "v": (*kept, "DV"), "o": ("B", "H", "SQ", "DV")}
        *inputs, o = (
            Param(name, role, self.result if role == "output" else self.dtype, shape(*shapes[name]), strides=ROWS)
            for name, role in (("q", "input"), ("k", "input"), ("v", "input"), ("o", "output"))
        )
        more = {f"{name}_scales": ("B", of) for name, of in (("q", "H"), ("k", "HK"), ("v", "HK")) if self.scales}
        kind = partial(Param, role="input", strides=ANY, broadcast=True)
        inputs += [kind(name, dtype="f32", shape=sizes) for name, sizes in more.items()]
        inputs += [kind("bias", dtype=self.result, shape=("B", "H", "SQ", keys))] if self.bias else []
        inputs += [Param(name, "input", "f32", ("H",)) for name in self._of_heads]
        if self.lengths:
            inputs.append(Param("lengths", "input", "i32", ("B",), range=(0, keys)))
        if self.page:
            of_batch = ("B", f"ceil_div({keys}, {self.page})")
            inputs.append(Param("pages", "input", "i32", of_batch, range=(0, "POOL - 1"), strides=ROWS))
        return Signature((*inputs, o, *([Param("lse", "output", "f32", ("B", "H", "SQ"))] if self.lse else [])))

    def solve(self, arrays: Mapping[str, TensorFacts]) -> Solved:
        """With pages, only a bias may have SK as a dimension. Without one SK is the number of keys that the table has
        room for, or the operator's own where its table is as large."""
        if not self.page or "pages" not in arrays:
            return super().solve(arrays)
        columns, bias = arrays["pages"].shape[-1], arrays.get("bias")
        keys = self.keys if columns == ceil(self.keys / self.page) else columns * self.page
        if bias is not None and bias.shape and bias.shape[-1] > 1:
            keys = bias.shape[-1]
        return self._signature(keys).solve(arrays, {**self.sizes(), "SK": keys})

    @property
    def _of_heads(self) -> list[str]:
        return [name for name, holds in (("slopes", self.alibi), ("sinks", self.sinks)) if holds]

    def sizes(self) -> Mapping[str, int]:
        pool = {"POOL": self.pool or self._places} if self.page else {}
        return {**{word: getattr(self, field) for word, field in _SIZES.items()}, **pool}

    def scalars(self) -> Mapping[str, int | float]:
        own = {"scale": self.factor, "softcap": self.softcap, "window": self.window}
        return {**super().scalars(), **own}

    def resized(
        self, sizes: Mapping[str, int], dtypes: Mapping[str, str], values: Mapping[str, int | float]
    ) -> Attention:
        own: dict[str, Any] = {_FIELDS[word]: size for word, size in sizes.items() if word in _FIELDS}
        return replace(self, **own)

    def work(self) -> Work:
        """With lengths, of those that normal inputs have: keys after them are not read."""
        from deepgen.operators import attention_reference

        lengths = attention_reference.lengths(self) if self.lengths else [self.keys] * self.batch
        seen = sum(_seen(self.queries, keys, self.causal, self.window) for keys in lengths)
        width, tensors = self.width + self.v_width, self.tensors()
        read = sum(t.bytes for t in tensors if t.role == INPUT and t.name not in ("k", "v", "pages"))
        read += sum(lengths) * self.kv_heads * width * self.format.bytes
        read += sum(4 * ceil(keys / self.page) for keys in lengths if self.page)  # of the table
        written = sum(t.bytes for t in tensors if t.role != INPUT)
        return Work({self.dtype: 2 * self.heads * seen * width}, read, written)

    def probes(self) -> tuple[str, ...]:
        return PROBES

    @staticmethod
    def reference_module() -> Any:
        from deepgen.operators import attention_reference

        return attention_reference

    @property
    def format(self) -> DType:
        return dtype_named(self.dtype)

    @property
    def result(self) -> str:  # of o, and of a bias
        return "bf16" if self.dtype == "f8e4m3" else self.dtype

    def laid(self, array: Array) -> Array:
        """Moves heads before queries or keys, or back."""
        import numpy as np

        return array if self.layout == "bhsd" else np.swapaxes(array, 1, 2)

    def ends(self, keys: int) -> tuple[Array, Array]:
        """The first key that each query sees, and the one after the last, in a batch that has so many keys."""
        import numpy as np

        own = np.arange(self.queries) + (keys - self.queries)
        low = np.maximum(0, own - self.window + 1) if self.window else np.zeros_like(own)
        ahead = 1 if self.causal else self.window or keys + self.queries
        return low, np.minimum(keys, own + ahead)

    def shares(self) -> tuple[float, float, float, float]:
        """The shares of errors: of the root of the sum of squared terms, of the sum of the terms' magnitudes, and of
        that sum times the largest possible score. Then the least share of the largest weight that counts in it."""
        bits = self.format.bits
        cut = {8: _FAST / 32, 16: _SINGLE / 16}.get(bits, 0.0)  # tensor cores truncate bits: see operators/gemm.py
        quad = (2.0 * self.format.epsilon if bits < 32 else 0.0) + cut * self.keys
        base = _SINGLE * (16.0 + sqrt(self.keys) + 8.0 * self.softcap)
        product = _SINGLE * (4.0 + sqrt(self.width)) + (cut / 4 if bits == 8 else cut) * self.width
        return quad, base, 2.0 * product, _FAINT if bits == 8 else 0.0

    def tolerance(self, output: str = "o", probe: str = "normal") -> Tolerance:
        """In addition to the answer's scale: the rounding of o, and the common error of equal weights."""
        of, bits = dtype_named(self.result), self.format.bits
        if output == "lse":
            return Tolerance(1.0, 4.0 * _SINGLE)
        if probe == "exact":
            return Tolerance(0.0, 0.5 * of.epsilon + 16.0 * _SINGLE)
        cut = _FAST * self.keys / 128 if bits == 8 else _SINGLE * self.keys / 16
        return Tolerance(1.0, (1.0 if of.bits == 16 else 0.5) * of.epsilon + 4.0 * _SINGLE + cut)

    def expression(self) -> Expression:
        from deepgen.operators.named.products import attention_expression

        return attention_expression(self)

    def to_json(self) -> JsonObject:
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"name": self.name, **{word: value for word, value in own.items() if value or word not in _LATER}}

    @classmethod
    def make(cls, parameters: Mapping[str, Any]) -> Attention:
        words = dict(parameters)
        unknown = next((word for word in words if word not in {one.name for one in cls.words}), None)
        if unknown is not None:
            raise BadInput(f"attention has no parameter {unknown!r}", allowed=", ".join(w.name for w in cls.words))
        both = words.pop("S", None)
        sizes = {
            **({} if both is None else {"SQ": both, "SK": both}),
            **{word: words.pop(word) for word in _SIZES if words.get(word) is not None},
        }
        if missing := [word for word in ("B", "H", "SQ", "SK", "D") if word not in sizes]:
            raise BadInput(f"attention needs a value for {listed(missing)}", allowed="B, H, D, and S or SQ and SK")
        defaults = {"HK": sizes["H"], "DV": sizes["D"]}
        own = {field: plain({**defaults, **sizes}[word]) for word, field in _SIZES.items()}
        own |= {"pool": plain(words.pop("POOL", None) or 0)}
        return cls(**own, **{word: value for word, value in words.items() if value is not None and word not in _SIZES})

    def parameters(self) -> Mapping[str, Any]:
        options = ("dtype", "layout", "causal", "window", "scale", "softcap", *self.options)
        pages = {"page": self.page, **({"POOL": self.pool} if self.pool else {})} if self.page else {}
        sizes = {word: getattr(self, field) for word, field in _SIZES.items()}
        return {**sizes, **{word: getattr(self, word) for word in options}, **pages}


@lru_cache(maxsize=4096)  # of the lengths of batches, many are equal
def _seen(queries: int, keys: int, causal: bool, window: int) -> int:
    """How many keys the queries of a head see."""
    shift, reach = keys - queries, window or keys + queries
    if not causal and not window:
        return queries * keys
    seen = 0
    for own in range(shift, shift + queries):
        end = min(keys, own + 1 if causal else own + reach)
        seen += max(0, end - max(0, own - reach + 1))
    return seen


def attention(
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    width: int,
    *,
    kv_heads: int | None = None,
    v_width: int | None = None,
    dtype: str = "bf16",
    layout: str = "bhsd",
    causal: bool = False,
    window: int = 0,
    scale: float = 0.0,
    softcap: float = 0.0,
    bias: bool = False,
    alibi: bool = False,
    sinks: bool = False,
    lse: bool = False,
    lengths: bool = False,
    scales: bool = False,
    page: int = 0,
    pool: int = 0,
) -> Attention:
    """o = softmax(scale * q k^T) v for each head of each batch.

    kv_heads: heads of k and v, a divisor of `heads`: neighbouring heads share them.
    v_width: the width of v and o if it differs from that of q and k.
    layout: bhsd, or bshd with the heads of a position contiguous.
    causal: whether a query sees no later keys; the last query is aligned with the last key.
    window: a query sees keys that are fewer than this many positions away; 0: all.
    scale: the factor of scores; 0: one over the root of `width`.
    softcap: c where scores are c * tanh(score / c).
    bias: whether a tensor is added to scores: B x H x SQ x SK, of which a size of 1 stands for any.
    alibi: whether scores fall by `slopes[h]` for each place that a key is away from the query's own.
    sinks: whether `sinks[h]` is one more score, of no value: weights sum to less than one.
    lse: whether there is a second result, the log of the sum of exp(score), a sink's among them.
    lengths: whether `lengths[b]` is the number of keys that batch b has, up to `keys`.
    scales: whether q, k and v of f8e4m3 are multiplied by `q_scales[b, h]` and so on; a size of 1 stands for any.
    page: how many keys a page of k and v has, where `pages[b, i]` is the page of the keys from i * page on; 0: none.
    pool: how many pages k and v have; 0: as many as the table has places.
    """
    shared, last = (heads if kv_heads is None else kv_heads), (width if v_width is None else v_width)
    sizes = dict(zip(_SIZES.values(), map(plain, (batch, heads, shared, queries, keys, width, last)), strict=True))
    options: dict[str, Any] = {"causal": causal, "window": plain(window), "scale": scale, "softcap": softcap}
    options |= {"bias": bias, "alibi": alibi, "sinks": sinks, "lse": lse, "lengths": lengths, "scales": scales}
    options |= {"page": plain(page), "pool": plain(pool)}
    return Attention(**sizes, dtype=our_name(dtype), layout=layout, **options)
