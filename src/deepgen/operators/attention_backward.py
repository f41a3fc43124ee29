"""The backward pass of attention: dq, dk and dv from q, k, v, the result and its gradient, and log-sum-exps.

    p = exp(s - lse)       ds = p * (dout v^T - rowsum(dout * o))
    dv = p^T dout          dq = scale * ds k          dk = scale * ds^T q

It is a function of its six inputs: `o` and `lse` are what the forward pass gives, but need not be. Of a query that
sees no key `lse` may be anything, minus infinity too: it has no part in any sum, and its dq is zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from math import sqrt
from typing import Any, ClassVar

from deepgen.operators.attention import LAYOUTS, Attention, attention
from deepgen.operators.base import REFERENCE_ROWS, ReferenceApart, Tolerance, Work, least_work
from deepgen.operators.signature import ROWS, Param, Signature
from deepgen.operators.words import Word
from deepgen.vocabulary.dtypes import DType
from deepgen.vocabulary.dtypes import dtype as dtype_named
from deepgen.vocabulary.errors import BadInput

DTYPES = ("bf16", "f16", "f32")  # gradients have no 8-bit formats
PROBES = ("normal", "zeros", "exact", "peak", "large")
_SHARED = ("B", "H", "HK", "S", "SQ", "SK", "D", "DV", "layout", "causal", "window", "scale", "softcap")
_SIZES = {"B": "batch", "H": "heads", "HK": "kv_heads", "SQ": "queries", "SK": "keys", "D": "width", "DV": "v_width"}
_SINGLE = 2.0**-23


@dataclass(frozen=True)
class AttentionBackward(ReferenceApart):
    """Sizes of q, k, v and o, their format and order, and which keys a query sees: as in `Attention`."""

    name: ClassVar[str] = "attention_backward"
    reference_rows: ClassVar[int | None] = REFERENCE_ROWS
    words: ClassVar[tuple[Word, ...]] = (
        *(word for word in Attention.words if word.name in _SHARED[:8]),
        Word("dtype", "data type of all tensors but lse, which is f32", "choice", "bf16", choices=DTYPES),
        Word("layout", "order of their dimensions", "choice", "bhsd", choices=LAYOUTS),
        *(word for word in Attention.words if word.name in _SHARED[9:]),
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

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise BadInput(f"attention_backward: dtype {self.dtype!r}", allowed="one of " + ", ".join(DTYPES))
        _ = self.forward  # which checks all others

    @cached_property
    def forward(self) -> Attention:
        """The forward pass with the same inputs, that gives log-sum-exps too."""
        return Attention(**{f.name: getattr(self, f.name) for f in fields(self)}, lse=True)

    @property
    def format(self) -> DType:
        return dtype_named(self.dtype)

    @property
    def per_group(self) -> int:
        """Heads of q that share one of k and v."""
        return self.heads // self.kv_heads

    def describe(self) -> str:
        return self.forward.describe().replace("attention", self.name, 1).removesuffix(" lse")

    def slug(self) -> str:
        return self.forward.slug().replace("attention", self.name, 1).removesuffix("-lse")

    def signature(self) -> Signature:
        forward = self.forward.signature()
        of = {param.name: param for param in forward.params}
        like = (("q", "q"), ("k", "k"), ("v", "v"), ("o", "o"), ("dout", "o"))
        read = (Param(name, "input", self.dtype, of[one].shape, strides=ROWS) for name, one in like)
        written = (Param(f"d{name}", "output", self.dtype, of[name].shape, strides=ROWS) for name in "qkv")
        return Signature((*read, Param("lse", "input", "f32", of["lse"].shape), *written))

    def sizes(self) -> Mapping[str, int]:
        return {word: getattr(self, field) for word, field in _SIZES.items()}

    def scalars(self) -> Mapping[str, int | float]:
        own = {"scale": self.forward.factor, "softcap": self.softcap, "window": self.window}
        return {**super().scalars(), **own}

    def resized(
        self, sizes: Mapping[str, int], dtypes: Mapping[str, str], values: Mapping[str, int | float]
    ) -> AttentionBackward:
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return AttentionBackward(**{**own, **{_SIZES[word]: size for word, size in sizes.items() if word in _SIZES}})

    def work(self) -> Work:
        """Five products for each pair of a query and a key that it sees."""
        pairs = self.forward.flops() // (2 * (self.width + self.v_width))
        return least_work(self, {self.dtype: 2 * pairs * (3 * self.width + 2 * self.v_width)})

    def probes(self) -> tuple[str, ...]:
        return PROBES

    @staticmethod
    def reference_module() -> Any:
        from deepgen.operators import attention_backward_reference

        return attention_backward_reference

    def shares(self) -> tuple[float, float, float, float]:
        """The shares of errors: of the root of the sum of squared terms, of the sum of the terms' magnitudes, of that
        sum times the largest possible score, and of a product of two rows of v's width."""
        narrow = self.format.bits == 16
        cut = _SINGLE / 16 if narrow else 0.0  # tensor cores truncate bits: see operators/gemm.py
        longest = max(self.keys, self.queries * self.per_group)
        quad = (2.0 * self.format.epsilon if narrow else 0.0) + cut * longest
        base = _SINGLE * (32.0 + sqrt(longest) + 16.0 * self.softcap)
        row, product = (2.0 * (_SINGLE * (4.0 + sqrt(w)) + cut * w) for w in (self.width, self.v_width))
        return quad, base, row, product

    def tolerance(self, output: str = "dq", probe: str = "normal") -> Tolerance:
        """In addition to the answer's scale, the rounding of the result. `exact`: all sums are exact, but a weight of
        one may be off by an ulp of f32."""
        of = self.format
        if probe == "exact":
            return Tolerance(2.0**-10 if of.bits == 16 else 1.0, 0.5 * of.epsilon + 16.0 * _SINGLE)
        return Tolerance(1.0, (1.0 if of.bits == 16 else 0.5) * of.epsilon + 8.0 * _SINGLE)

    @classmethod
    def make(cls, parameters: Mapping[str, Any]) -> AttentionBackward:
        own = [word.name for word in cls.words]
        if (unknown := next((word for word in parameters if word not in own), None)) is not None:
            raise BadInput(f"{cls.name} has no parameter {unknown!r}", allowed=", ".join(own))
        forward = Attention.make(parameters)
        return cls(**{f.name: getattr(forward, f.name) for f in fields(cls)})

    def parameters(self) -> Mapping[str, Any]:
        whole = self.forward.parameters()
        return {word.name: whole[word.name] for word in self.words if word.name in whole}


def attention_backward(
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
) -> AttentionBackward:
    """dq, dk and dv from q, k, v, o, dout and lse; parameters are those of `attention`."""
    forward = attention(
        batch, heads, queries, keys, width, kv_heads=kv_heads, v_width=v_width, dtype=dtype, layout=layout,
        causal=causal, window=window, scale=scale, softcap=softcap,
    )  # fmt: skip
    return AttentionBackward(**{f.name: getattr(forward, f.name) for f in fields(AttentionBackward)})
