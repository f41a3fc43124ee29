"""Attention: o = softmax(scale * q k^T) v for each head, over the keys that a query sees.

Queries are aligned to the end of the keys: the last query sees the last key, so that a few queries may follow
a long KV cache. A query that sees no key yields zeros.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import isfinite, log2, sqrt
from typing import Any, ClassVar

from deepgen.operators import filling
from deepgen.operators.base import REFERENCE_ROWS, Answer, Array, Operator, Tolerance, Work, least_work
from deepgen.operators.expr.nodes import Expression
from deepgen.operators.signature import ANY, ROWS, Param, Signature
from deepgen.operators.words import Word, plain
from deepgen.vocabulary.dtypes import DType, narrow, our_name, widen
from deepgen.vocabulary.dtypes import dtype as dtype_named
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.json import JsonObject
from deepgen.vocabulary.kernel import Kernel

DTYPES = ("bf16", "f16", "f32")
LAYOUTS = ("bhsd", "bshd")
PROBES = ("normal", "zeros", "exact", "peak", "large")
_SIZES = {"B": "batch", "H": "heads", "HK": "kv_heads", "SQ": "queries", "SK": "keys", "D": "width", "DV": "v_width"}
_LARGE = (1.0, 8.0, 64.0)  # factors of successive queries: exp() overflows unless the maximum is subtracted
_PEAK = 40.0  # approximate difference between one key's score and all others
_SINGLE = 2.0**-23
OPTIONS = ("bias", "alibi", "sinks", "lse")
_HIDDEN = 3  # first key hidden by a bias; every seventh after it is hidden, too


@dataclass(frozen=True)
class Attention(Operator):
    """Sizes of q, k, v and o, their format and order, and which keys a query sees."""

    name: ClassVar[str] = "attention"
    reference_rows: ClassVar[int | None] = REFERENCE_ROWS
    words: ClassVar[tuple[Word, ...]] = (
        Word("B", "batch size", needed=True),
        Word("H", "heads of q and o", needed=True),
        Word("HK", "heads of k and v, each shared by H/HK heads of q; default: H"),
        Word("S", "number of queries and keys, if equal"),
        Word("SQ", "queries"),
        Word("SK", "keys"),
        Word("D", "width of q and k", needed=True),
        Word("DV", "width of v and o; default: D"),
        Word("dtype", "data type of q, k, v and o", "choice", "bf16", choices=DTYPES),
        Word("layout", "order of their dimensions", "choice", "bhsd", choices=LAYOUTS),
        Word("causal", "a query sees no later keys", "flag", False),
        Word("window", "a query sees only keys closer than this; 0: all", default=0, least=0),
        Word("scale", "scale of the scores; 0: 1 / sqrt(D)", "number", 0.0),
        Word("softcap", "soft cap c: scores become c * tanh(score / c); 0: none", "number", 0.0),
        Word("bias", "a tensor is added to scores", "flag", False),
        Word("alibi", "scores fall with distance, by a slope for each head", "flag", False),
        Word("sinks", "a score for each head that has no value", "flag", False),
        Word("lse", "the log of the sum of exp(score) is a result too", "flag", False),
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

    def __post_init__(self) -> None:
        for word, size in self.sizes().items():
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
        extras += self.options
        shape = f"batch {self.batch}, {heads} heads, {lengths}, width {width}"
        return " ".join([f"attention {self.dtype} {self.layout}", shape, *extras])

    def slug(self) -> str:
        sizes = "x".join(map(str, self.sizes().values()))
        extras = [word for word, holds in (("causal", self.causal), (f"w{self.window}", self.window)) if holds]
        extras += [f"{letter}{n:g}" for letter, n in (("s", self.scale), ("c", self.softcap)) if n]
        extras += self.options
        return "-".join(["attention", self.dtype, self.layout, sizes, *extras])

    def signature(self) -> Signature:
        def shape(heads: str, length: str, width: str) -> tuple[str, ...]:
            return ("B", heads, length, width) if self.layout == "bhsd" else ("B", length, heads, width)

        kinds = (("q", "H", "SQ", "D"), ("k", "HK", "SK", "D"), ("v", "HK", "SK", "DV"), ("o", "H", "SQ", "DV"))
        *inputs, o = (
            Param(n, "output" if n == "o" else "input", self.dtype, shape(*of), strides=ROWS) for n, *of in kinds
        )
        if self.bias:
            inputs.append(Param("bias", "input", self.dtype, ("B", "H", "SQ", "SK"), strides=ANY, broadcast=True))
        inputs += [Param(name, "input", "f32", ("H",)) for name in self._of_heads]
        return Signature((*inputs, o, *([Param("lse", "output", "f32", ("B", "H", "SQ"))] if self.lse else [])))

    @property
    def _of_heads(self) -> list[str]:
        return [name for name, holds in (("slopes", self.alibi), ("sinks", self.sinks)) if holds]

    def sizes(self) -> Mapping[str, int]:
        return {word: getattr(self, field) for word, field in _SIZES.items()}

    def scalars(self) -> Mapping[str, int | float]:
        own = {"scale": self.factor, "softcap": self.softcap, "window": self.window}
        return {**super().scalars(), **own}

    def resized(
        self, sizes: Mapping[str, int], dtypes: Mapping[str, str], values: Mapping[str, int | float]
    ) -> Attention:
        own: dict[str, Any] = {_SIZES[word]: size for word, size in sizes.items() if word in _SIZES}
        return replace(self, **own)

    def work(self) -> Work:
        return least_work(self, {self.dtype: 2 * self.batch * self.heads * self._seen * (self.width + self.v_width)})

    @property
    def _seen(self) -> int:
        """The number of keys that the queries of a head see."""
        shift, reach = self.keys - self.queries, self.window or self.keys + self.queries
        if not self.causal and not self.window:
            return self.queries * self.keys
        seen = 0
        for own in range(shift, shift + self.queries):
            end = min(self.keys, own + 1 if self.causal else own + reach)
            seen += max(0, end - max(0, own - reach + 1))
        return seen

    def probes(self) -> tuple[str, ...]:
        return PROBES

    def inputs(self, seed: int, probe: str = "normal") -> dict[str, Array]:
        """`exact`: queries are zero, so all visible keys have the same weight, and values are small integers: sums are
        exact, and a lost or doubled key is detected. `peak`: each query is close to one of the keys, and picks its
        value."""
        if probe not in PROBES:
            raise BadInput(f"attention: unknown probe {probe!r}", allowed="one of " + ", ".join(PROBES))
        import numpy as np

        of, shapes = self.format, {t.name: t.shape for t in self.tensors()}
        keys = {name: (seed, zlib.crc32(f"attention {name}".encode())) for name in "qkv"}
        more = self._more(seed, probe)
        if probe == "zeros":
            return {**{name: np.zeros(shapes[name], of.numpy()) for name in "qkv"}, **more}
        drawn = {name: filling.normal(shapes[name], of, keys[name]) for name in "qkv"}
        rng = np.random.default_rng([seed, zlib.crc32(probe.encode())])
        if probe == "exact":
            drawn["q"] = np.zeros(shapes["q"], of.numpy())
            whole = rng.choice(np.array([-2.0, -1.0, 1.0, 2.0], np.float32), shapes["v"])
            drawn["v"] = narrow(whole, of)
        elif probe == "large":
            times = np.resize(np.array(_LARGE, np.float32), self.queries)
            drawn["q"] = narrow(self.laid(self.laid(widen(drawn["q"], of)) * times[:, None]).astype(np.float32), of)
        elif probe == "peak":
            k = rng.choice(np.array([-1.0, 1.0], np.float32), shapes["k"])
            size = 2.0 ** round(min(8.0, max(-8.0, log2(_PEAK / (self.width * self.factor)))))
            low, high = self.ends()
            own = low + (rng.random(self.queries) * np.maximum(high - low, 1)).astype(np.int64)
            picked = self.laid(k)[:, :, np.minimum(own, self.keys - 1)]
            drawn["k"] = narrow(k, of)
            drawn["q"] = narrow(self.laid(np.repeat(picked, self.heads // self.kv_heads, 1)) * np.float32(size), of)
        return {**{name: np.ascontiguousarray(array) for name, array in drawn.items()}, **more}

    def _more(self, seed: int, probe: str) -> dict[str, Array]:
        """The inputs of options. A bias of minus infinity hides some keys, as masks do."""
        import numpy as np

        shapes, some = {t.name: t.shape for t in self.tensors()}, probe not in ("zeros", "exact")
        drawn: dict[str, Array] = {}
        if self.bias:
            numbers = filling.normal(shapes["bias"], self.format, (seed, zlib.crc32(b"attention bias")))
            drawn["bias"] = numbers if some else np.zeros_like(numbers)
            if some:
                drawn["bias"][..., _HIDDEN::7] = narrow(np.array([-np.inf], np.float32), self.format)
        at = np.arange(1, self.heads + 1, dtype=np.float32)
        for name, numbers in (("slopes", 2.0 ** (-8.0 * at / self.heads)), ("sinks", np.cos(at) * 4.0)):
            if name in self._of_heads:
                drawn[name] = (numbers if some else np.zeros_like(numbers)).astype(np.float32)
        return drawn

    @property
    def format(self) -> DType:
        return dtype_named(self.dtype)

    def laid(self, array: Array) -> Array:
        """Moves heads before queries or keys, or back."""
        import numpy as np

        return array if self.layout == "bhsd" else np.swapaxes(array, 1, 2)

    def ends(self) -> tuple[Array, Array]:
        """The first key that each query sees, and the one after the last."""
        import numpy as np

        own = np.arange(self.queries) + (self.keys - self.queries)
        low = np.maximum(0, own - self.window + 1) if self.window else np.zeros_like(own)
        ahead = 1 if self.causal else self.window or self.keys + self.queries
        return low, np.minimum(self.keys, own + ahead)

    def reference(self, inputs: Mapping[str, Array]) -> dict[str, Answer]:
        from deepgen.operators.attention_answers import reference

        return reference(self, inputs)

    def reference_at(self, inputs: Mapping[str, Array], output: str, places: Array) -> Answer:
        from deepgen.operators.attention_answers import reference_at

        return reference_at(self, inputs, output, places)

    def reference_kernel(self, language: str) -> Kernel | None:
        """None if the exponential in f64 needs a vendor's library, or if heads are too wide."""
        from deepgen.operators.attention_answers import reference_kernel

        return reference_kernel(self, language)

    def shares(self) -> tuple[float, float, float]:
        """The shares of errors: of the root of the sum of squared terms, of the sum of the terms' magnitudes, and of
        that sum times the largest possible score."""
        narrow = self.format.bits == 16
        cut = _SINGLE / 16 if narrow else 0.0  # tensor cores truncate bits: see operators/gemm.py
        quad = (2.0 * self.format.epsilon if narrow else 0.0) + cut * self.keys
        base = _SINGLE * (16.0 + sqrt(self.keys) + 8.0 * self.softcap)
        return quad, base, 2.0 * (_SINGLE * (4.0 + sqrt(self.width)) + cut * self.width)

    def tolerance(self, output: str = "o", probe: str = "normal") -> Tolerance:
        """In addition to the answer's scale: the rounding of o, and the common error of equal weights."""
        of = self.format
        if output == "lse":
            return Tolerance(1.0, 4.0 * _SINGLE)
        if probe == "exact":
            return Tolerance(0.0, 0.5 * of.epsilon + 16.0 * _SINGLE)
        cut = _SINGLE * self.keys / 16
        return Tolerance(1.0, (1.0 if of.bits == 16 else 0.5) * of.epsilon + 4.0 * _SINGLE + cut)

    def expression(self) -> Expression:
        from deepgen.operators.named.products import attention_expression

        return attention_expression(self)

    def to_json(self) -> JsonObject:
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"name": self.name, **{word: value for word, value in own.items() if value or word not in OPTIONS}}

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
            raise BadInput(
                f"attention needs a value for {' and '.join(missing)}", allowed="B, H, D, and S or SQ and SK"
            )
        defaults = {"HK": sizes["H"], "DV": sizes["D"]}
        own = {field: plain({**defaults, **sizes}[word]) for word, field in _SIZES.items()}
        return cls(**own, **{word: value for word, value in words.items() if value is not None and word not in _SIZES})

    def parameters(self) -> Mapping[str, Any]:
        options = ("dtype", "layout", "causal", "window", "scale", "softcap")
        return {**self.sizes(), **{word: getattr(self, word) for word in (*options, *self.options)}}


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
) -> Attention:
    """o = softmax(scale * q k^T) v for each head of each batch.

    kv_heads: heads of k and v, a divisor of `heads`: neighbouring heads share them.
    v_width: the width of v and o if it differs from that of q and k.
    layout: bhsd, or bshd with the heads of a position contiguous.
    causal: whether a query sees no later keys; the last query is aligned with the last key.
    window: a query sees keys that are fewer than this many positions away; 0: all.
    scale: the factor of scores; 0: one over the root of `width`.
    softcap: c if scores are c * tanh(score / c).
    bias: whether a tensor is added to scores: B x H x SQ x SK, where a size of 1 is broadcast.
    alibi: whether scores fall by `slopes[h]` for each position between the key and the query.
    sinks: whether `sinks[h]` is an additional score without a value: weights then sum to less than one.
    lse: whether there is a second result, the log of the sum of exp(score), including that of a sink.
    """
    shared, last = (heads if kv_heads is None else kv_heads), (width if v_width is None else v_width)
    sizes = dict(zip(_SIZES.values(), map(plain, (batch, heads, shared, queries, keys, width, last)), strict=True))
    options: dict[str, Any] = {"causal": causal, "window": plain(window), "scale": scale, "softcap": softcap}
    options |= {"bias": bias, "alibi": alibi, "sinks": sinks, "lse": lse}
    return Attention(**sizes, dtype=our_name(dtype), layout=layout, **options)
