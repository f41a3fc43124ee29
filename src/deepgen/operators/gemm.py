"""GEMM: C = activation(alpha * op(A) op(B) * scale + beta * C + bias), or C = epilogue(alpha * op(A) op(B)) with an
epilogue as a text; row-major, optionally batched.

With scales of blocks, op(A) op(B) is the sum over blocks of K of the block's products times both factors.
Layout letters: A is `n` M x K or `t` K x M; B is `n` K x N or `t` N x K. So `nt` is the usual weight layout.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import isfinite, sqrt
from typing import Any, ClassVar

from deepgen.operators import epilogue as epilogues
from deepgen.operators import gemm_inputs
from deepgen.operators.base import Answer, Array, Operator, Tolerance, Work, least_work
from deepgen.operators.expr.nodes import Expression
from deepgen.operators.products import BLOCK, EXACT_SHARE, tiny_floor
from deepgen.operators.signature import ANY, DENSE, ROWS, Param, Signature, Size, Solved, TensorFacts
from deepgen.operators.words import Word, plain
from deepgen.vocabulary.dtypes import DTYPES, DType, dtype, our_name
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.json import JsonObject
from deepgen.vocabulary.kernel import Kernel

LAYOUTS = ("nn", "nt", "tn", "tt")
ACTIVATIONS = ("none", "relu", "gelu", "silu")
# Of 8-bit floats A and B may have factors of blocks: for so many rows of A and columns of B, and `BLOCK` steps of K.
BLOCK_SCALES = {"1x128,128x128": (1, 128), "128x128,128x128": (128, 128), "1x128,1x128": (1, 1)}
SCALES = ("none", "tensor", "row", "column", *BLOCK_SCALES)
_FIELDS = {"M": "m", "N": "n", "K": "k", "B": "batch"}  # parameters whose names differ from their field's

# Tensor cores keep some 14 bits of sums of 8-bit floats. Without fast sums at most this many products are added up
# there, then f32 takes over, as in cuBLASLt. A bf16 result is off by up to 0.2 %: if all products are positive, an
# H200's sums are off by 0.07 % after 128, 0.24 % after 256, 0.7 % after 512, and 7 % if 4,096 are all fast.
EXACT_SUMS = 128
_FAST_EPSILON = 2.0**-13
_BLOCKS_OF_K = f"(K + {BLOCK - 1}) // {BLOCK}"


@dataclass(frozen=True)
class Gemm(Operator):
    """A GEMM; its parameters are its fields."""

    name: ClassVar[str] = "gemm"
    weights: ClassVar[tuple[str, ...]] = ("B",)
    words: ClassVar[tuple[Word, ...]] = (
        Word("M", "rows of A and C", needed=True),
        Word("N", "columns of B and C", needed=True),
        Word("K", "columns of A and rows of B", needed=True),
        Word("B", "batch size", aliases=("batch",)),
        Word("dtype", "data type of A and B; results of 8-bit types are wider", "choice", "f32", choices=(*DTYPES,)),
        Word("layout", "which of A and B is transposed", "choice", "nn", choices=LAYOUTS),
        Word("epilogue", "bias,relu or a formula such as gelu(x + bias[n]) + residual[m, n]", "choice", "none"),
        Word(
            "pair",
            "a second product y, for the epilogue: its B is part of B (joined) or a parameter B2 (two)",
            "choice",
            "none",
            choices=epilogues.PAIRS,
            later=True,
        ),
        Word("fast_sums", "allow 8-bit floats to accumulate below f32 precision", "flag", False),
        Word("scales", "f32 factors of C, or of blocks of A and B", "choice", "none", choices=SCALES, later=True),
    )

    m: int
    n: int
    k: int
    batch: int = 1
    a: str = "f32"
    b: str = "f32"
    c: str = "f32"
    acc: str = "f32"
    layout: str = "nn"
    alpha: float = 1.0
    beta: float = 0.0
    bias: bool = False  # one number per column, in C's dtype
    activation: str = "none"  # gelu is the tanh form
    scales: str = "none"  # of C, or of blocks of A and B
    fast_sums: bool = False  # 8-bit floats may be accumulated with fewer bits than f32 has
    epilogue: str = ""  # in its one spelling; empty where bias, activation and scales say all
    pair: str = "none"  # where the epilogue has y

    def __post_init__(self) -> None:
        for letter, size in (("M", self.m), ("N", self.n), ("K", self.k), ("batch", self.batch)):
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise BadInput(f"gemm: {letter} is {size!r}", allowed="must be an integer of at least 1")
        for name, factor in (("alpha", self.alpha), ("beta", self.beta)):
            if not isinstance(factor, (int, float)) or not isfinite(factor):
                raise BadInput(f"gemm: {name} is {factor!r}", allowed="a finite number")
        for name in (self.a, self.b, self.c, self.acc):
            dtype(name)
        for word, value, allowed in (
            ("layout", self.layout, LAYOUTS),
            ("activation", self.activation, ACTIVATIONS),
            ("scales", self.scales, SCALES),
        ):
            if value not in allowed:
                raise BadInput(f"gemm: {word} {value!r} is unknown", allowed="one of " + ", ".join(allowed))
        if not isinstance(self.fast_sums, bool):
            raise BadInput(f"gemm: fast_sums is {self.fast_sums!r}", allowed="True or False")
        if self.fast_sums and not self._eight_bit_floats:
            words = f"gemm: fast_sums with {self.a} and {self.b}: only 8-bit floats have fast sums"
            raise BadInput(words, allowed="fast_sums=False, or f8e4m3 and f8e5m2 as A and B")
        if self.blocks and (self.fast_sums or not self._eight_bit_floats):
            words = f"gemm: scales {self.scales} with {self.a} and {self.b}{' and fast_sums' * self.fast_sums}"
            raise BadInput(words, allowed="f8e4m3 or f8e5m2 as A and B, without fast_sums: blocks are added up in f32")
        epilogues.check(self)

    @property
    def blocks(self) -> tuple[int, int] | None:
        """Rows of A, and columns of B, that share a factor for each `BLOCK` steps of K; None: blocks have none."""
        return BLOCK_SCALES.get(self.scales)

    @property
    def operands(self) -> tuple[epilogues.EpilogueOperand, ...]:
        """Those that the epilogue names."""
        return epilogues.operands(self.epilogue)

    def format_of(self, operand: epilogues.EpilogueOperand) -> str:
        return epilogues.format_of(operand, self.a, self.c)

    @property
    def _eight_bit_floats(self) -> bool:
        return self.a.startswith("f8") and self.b.startswith("f8")

    @property
    def dtypes(self) -> tuple[DType, DType, DType, DType]:
        return dtype(self.a), dtype(self.b), dtype(self.c), dtype(self.acc)

    def describe(self) -> str:
        batch = f"batch {self.batch} of " if self.batch > 1 else ""
        extras = [self.activation] if self.activation != "none" else []
        extras += ["bias"] if self.bias else []
        extras += [f"alpha={self.alpha:g}"] if self.alpha != 1.0 else []
        extras += [f"beta={self.beta:g}"] if self.beta != 0.0 else []
        extras += [f"scales={self.scales}"] if self.scales != "none" else []
        extras += ["fast sums"] if self.fast_sums else []
        extras += [self.epilogue] if self.epilogue else []
        return " ".join([f"gemm {self._dtype_word()} {self.layout}", f"{batch}{self.m}x{self.n}x{self.k}", *extras])

    def slug(self) -> str:
        batch = f"{self.batch}x" if self.batch > 1 else ""
        sums = "-fast" if self.fast_sums else f"-{self.scales.replace(',', '-')}" if self.blocks else ""
        after = "-" + re.sub(r"[^a-z0-9]+", "_", self.epilogue).strip("_")[:40] if self.epilogue else ""
        return f"gemm-{self._dtype_word()}-{self.layout}-{batch}{self.m}x{self.n}x{self.k}{sums}{after}"

    def _dtype_word(self) -> str:
        names = dict.fromkeys((self.a, self.b, self.c))
        return "_".join(names)

    def work(self) -> Work:
        return least_work(self, {self.a: (4 if self.pair != "none" else 2) * self.batch * self.m * self.n * self.k})

    def signature(self) -> Signature:
        outer = ("batch",) if self.batch > 1 else ()
        a_shape = ("M", "K") if self.layout[0] == "n" else ("K", "M")
        n = "2 * N" if self.pair == "joined" else "N"
        b_shape = ("K", n) if self.layout[1] == "n" else (n, "K")
        ranges = gemm_inputs.ranges(self)
        params = [
            Param("A", "input", self.a, outer + a_shape, range=ranges.get("A"), strides=ROWS),
            Param("B", "input", self.b, outer + b_shape, range=ranges.get("B"), strides=ROWS),
        ]
        params += [Param("B2", "input", self.b, b_shape, strides=ROWS)] if self.pair == "two" else []
        if self.bias:
            params.append(Param("bias", "input", self.c, ("N",), range=ranges.get("bias")))
        for name, side, rows in zip(("scale_a", "scale_b"), "MN", self.blocks or (), strict=False):
            shape: tuple[Size, ...] = (side if rows == 1 else f"({side} + {rows - 1}) // {rows}", _BLOCKS_OF_K)
            params.append(Param(name, "input", "f32", outer + shape, strides=ANY))
        if self.scales != "none" and not self.blocks:
            lengths: dict[str, Size] = {"tensor": 1, "row": "M", "column": "N"}
            params.append(Param("scale", "input", "f32", (lengths[self.scales],)))
        shapes: dict[str, tuple[Size, ...]] = {"n": ("N",), "m": ("M",), "mn": (*outer, "M", "N"), "0": (1,)}
        for one in self.operands:
            strides = ROWS if one.kind == "mn" else DENSE
            params.append(Param(one.name, "input", self.format_of(one), shapes[one.kind], strides=strides))
        role = "inout" if self.beta != 0.0 else "output"
        params.append(Param("C", role, self.c, (*outer, "M", "N"), range=ranges.get("C"), strides=ROWS))
        return Signature(tuple(params))

    def sizes(self) -> Mapping[str, int]:
        return {"M": self.m, "N": self.n, "K": self.k, "batch": self.batch}

    def scalars(self) -> Mapping[str, int | float]:
        """Strides have their BLAS names in addition to the general ones."""
        return {**super().scalars(), "alpha": self.alpha, "beta": self.beta}

    def aliases(self) -> Mapping[str, str]:
        """The strides of rows and of batches; a single matrix is a batch of one, with any stride."""
        batched, out = self.batch > 1, {}
        for name, whole in (("A", "M * K"), ("B", "K * N"), ("C", "M * N")):
            letter = name.lower()
            out[f"ld{letter}"] = f"stride_{name}_{int(batched)}"
            out[f"stride_{letter}"] = f"stride_{name}_0" if batched else whole
        for name in ("scale_a", "scale_b") if self.blocks else ():
            out[f"{name}_matrix"] = f"stride_{name}_0" if batched else "0"
            out |= {f"{name}_row": f"stride_{name}_{int(batched)}", f"{name}_step": f"stride_{name}_{batched + 1}"}
        out |= {"ldb2": "stride_B2_0"} if self.pair == "two" else {}
        for one in self.operands:
            if one.kind == "mn":
                out[f"ld_{one.name}"] = f"stride_{one.name}_{int(batched)}"
                out[f"stride_{one.name}"] = f"stride_{one.name}_0" if batched else "M * N"
        return out

    def solve(self, arrays: Mapping[str, TensorFacts]) -> Solved:
        """Accepts matrices and batches of them, whichever of these the kernel was tuned for."""
        dims = [len(arrays[name].shape) for name in ("A", "B") if name in arrays]
        if len(set(dims)) != 1 or dims[0] not in (2, 3):
            raise BadInput(f"A has {dims[0]} and B {dims[-1]} dimensions", allowed="2 each, or 3 with a batch")
        shaped = replace(self, batch=2 if dims[0] == 3 else 1)
        return shaped.signature().solve(arrays, shaped.sizes())

    def resized(self, sizes: Mapping[str, int], dtypes: Mapping[str, str], values: Mapping[str, int | float]) -> Gemm:
        return replace(self, m=sizes["M"], n=sizes["N"], k=sizes["K"], batch=sizes["batch"])

    def probes(self) -> tuple[str, ...]:
        return gemm_inputs.probes(self)

    def inputs(self, seed: int, probe: str = "normal") -> dict[str, Array]:
        return gemm_inputs.inputs(self, seed, probe)

    def reference(self, inputs: Mapping[str, Array]) -> dict[str, Answer]:
        from deepgen.operators import references

        return references.gemm_reference(self, inputs)

    def reference_at(self, inputs: Mapping[str, Array], output: str, places: Array) -> Answer:
        from deepgen.operators import references

        return references.reference_at(self, inputs, places)

    def reference_kernel(self, language: str) -> Kernel | None:
        from deepgen.operators import references

        return references.reference_kernel(self, language)

    def expression(self) -> Expression:
        from deepgen.operators.named.products import gemm_expression

        return gemm_expression(self)

    def tolerance(self, output: str = "C", probe: str = "normal") -> Tolerance:
        """Rounding grows like a random walk: each of K additions rounds a partial sum of size up to sqrt(K).

        The root mean square of that is 0.15 epsilon * K, but its tail is exponential: the larger a result, the larger
        were the partial sums on the way to it. Given the result, the error's standard deviation is 0.21 epsilon *
        sqrt(K) * sqrt(K / 6 + want^2 / 3), so a term relative to the result, which grows like sqrt(K), is added to the
        absolute one. Where sums are rounded it leaves more than ten standard deviations; a single lost product is of
        size 1 and stays far above it (benchmarks/tolerance.py).

        Where bits are truncated instead of rounded, every sum is too small, and these errors add up. Tensor cores do
        that with 16-bit inputs once in 8 products or more: half an epsilon of the partial sum each time. On an H200
        cuBLASLt's errors take 0.30 of the tolerance at K = 16384; without this term they would exceed it by half or
        more (benchmarks/h200/open_spine.json). Sums of 8-bit floats are random walks over all of K, or over groups
        whose errors add up like those of independent numbers. For each instruction of 32 products up to an ulp is
        truncated, a quarter of one on average.

        For 16-bit results a single lost product is often within the rounding of the result: the probe `exact` has
        inputs on which it is not. Denormals must be correct for the formats in `products.DENORMALS`.
        """
        if self.epilogue:  # the answer's scale is the whole error: that of the product, through all that follows
            return Tolerance(1.0, self.dtypes[2].epsilon)
        return self.product_tolerance(probe)

    def product_tolerance(self, probe: str = "normal") -> Tolerance:
        a, b, c, acc = self.dtypes
        if c.integer:
            return Tolerance(0.0, 0.0)
        if probe == "exact":
            return Tolerance(EXACT_SHARE, 0.0)
        # tf32 rounds the inputs themselves: the errors of K products, each up to its epsilon, add up like sqrt(K).
        inputs = 6.0 * a.epsilon * sqrt(self.k) if a.name == "tf32" else 0.0
        cut = 0.0
        if self._eight_bit_floats:
            group = self.k if self.fast_sums else min(self.k, EXACT_SUMS)
            inputs, cut = 2.0 * _FAST_EPSILON * sqrt(self.k * group), _FAST_EPSILON * group / (4 * 32)
        elif a.bits == 16:
            cut = acc.epsilon * self.k / (2 * 8)
            inputs = cut * sqrt(self.k)
        absolute = 2.0 * acc.epsilon * self.k + inputs + 4.0 * acc.epsilon
        gain = abs(self.alpha) * gemm_inputs.largest_gain(self)
        floor = tiny_floor(self.k, gain, (a, b), acc, c)
        return Tolerance(absolute, 2.0 * c.epsilon + acc.epsilon * sqrt(self.k) + cut, floor)

    def to_json(self) -> JsonObject:
        """`fast_sums` and `epilogue` are included only if there is a choice, so that studies without keep their
        names."""
        values = {name: getattr(self, name) for name in _NAMES}
        if not self._eight_bit_floats:
            del values["fast_sums"]
        if not self.epilogue:
            del values["epilogue"]
        if self.pair == "none":
            del values["pair"]
        return {"name": self.name, **values}

    @classmethod
    def make(cls, parameters: Mapping[str, Any]) -> Gemm:
        arguments = {_FIELDS.get(word, word): value for word, value in parameters.items()}
        if epilogues.is_text(arguments.get("epilogue", "none")):
            return gemm(**arguments)
        if "epilogue" in arguments:
            follows = _follows(arguments.pop("epilogue"))
            if both := sorted(follows.keys() & arguments.keys()):
                raise BadInput(f"gemm: an epilogue beside {' and '.join(both)}", allowed="only one of them")
            arguments.update(follows)
        return gemm(**arguments)

    def parameters(self) -> Mapping[str, Any]:
        batch = {"B": self.batch} if self.batch > 1 else {}
        sums: dict[str, Any] = {"fast_sums": True} if self.fast_sums else {}
        steps = [*(["bias"] if self.bias else []), *([self.activation] if self.activation != "none" else [])]
        then = {"epilogue": self.epilogue or ",".join(steps)} if steps or self.epilogue else {}
        sums |= {"scales": self.scales} if self.blocks else {}
        sums |= {"pair": self.pair} if self.pair != "none" else {}
        return {"M": self.m, "N": self.n, "K": self.k, **batch, "dtype": self.a, "layout": self.layout, **then, **sums}


_NAMES = tuple(field.name for field in fields(Gemm))


def gemm(
    m: int,
    n: int,
    k: int,
    *,
    dtype: str = "f32",
    a: str | None = None,
    b: str | None = None,
    c: str | None = None,
    acc: str | None = None,
    batch: int = 1,
    layout: str = "nn",
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: bool = False,
    activation: str = "none",
    scales: str = "none",
    fast_sums: bool = False,
    epilogue: str = "none",
    pair: str = "none",
) -> Gemm:
    """C = activation(alpha * op(A) op(B) * scale + beta * C + bias), of M x N, with sums over K products.

    Or C = epilogue(x), where x is alpha * op(A) op(B).

    dtype: the dtype of A, B and C; but C is i32 for 8-bit integers and bf16 for 8-bit floats, as in vendor libraries.
    a, b, c, acc: the dtypes of A, B, C and the accumulator, if they differ from what `dtype` implies. Accumulation is
        in f32, in f64 for f64, in i32 for integers.
    batch: the number of independent products.
    layout: nn, nt, tn or tt: A is M x K (n) or K x M (t), B is K x N (n) or N x K (t), row-major.
    alpha, beta: factors of the product and of the previous C. With beta C is read, and passed to calls as `out=`.
    bias: whether a vector of N elements in C's dtype is added to every row.
    activation: none, relu, gelu (by tanh) or silu.
    scales: none, tensor, row or column: an f32 scale for all of C, for each row or for each column. Of 8-bit floats
        also 1x128,128x128 and others in BLOCK_SCALES: one for each row of A and 128 steps of K (`scale_a`, M x K / 128,
        with any strides), and one for each 128 columns of B and 128 steps of K (`scale_b`, N / 128 x K / 128).
    fast_sums: whether 8-bit floats may be accumulated below f32 precision, as tensor cores do.
    epilogue: a formula in place of beta, bias, activation and scales, such as "gelu(x + bias[n]) + residual[m, n]". Its
        operands are arguments of calls, in their order in the formula, by the names that they have there.
    pair: with y in the formula, an element of the product with a second B: `joined` if B holds both, the second after
        the first N rows or columns (the default then), or `two` if it is an argument B2.
    """
    m, n, k, batch = map(plain, (m, n, k, batch))
    dtype = our_name(dtype)
    wide = {"i8": "i32", "u8": "i32", "f64": "f64"}.get(dtype, "f32")
    result = {"i8": "i32", "u8": "i32", "f8e4m3": "bf16", "f8e5m2": "bf16"}.get(dtype, dtype)
    formats = ((a, dtype), (b, dtype), (c, result), (acc, wide))
    a, b, c, acc = (implied if name is None else our_name(name) for name, implied in formats)
    layout = layout.lower() if isinstance(layout, str) else layout
    text = ""
    if epilogues.is_text(epilogue):
        words = epilogues.words_of_text(epilogue)
        if words is not None and c in epilogues.FORMATS and (bias, activation, scales) == (False, "none", "none"):
            bias, activation, scales = words
        else:
            text = epilogues.canonical(epilogue)
            pair = "joined" if pair == "none" and epilogues.has_second(text) else pair
    elif epilogue != "none":
        raise BadInput(f"gemm: epilogue {epilogue!r}", allowed="a formula with x, such as relu(x + bias[n])")
    return Gemm(m, n, k, batch, a, b, c, acc, layout, alpha, beta, bias, activation, scales, fast_sums, text, pair)


def _follows(epilogue: str) -> dict[str, Any]:
    """The fields that an epilogue stands for."""
    steps = [] if epilogue == "none" else epilogue.split(",")
    bias = steps[:1] == ["bias"]
    after = steps[1:] if bias else steps
    if len(after) > 1 or not set(after) <= set(ACTIVATIONS):
        words = f"bias, one of {', '.join(ACTIVATIONS[1:])}, or bias and one of them; or a formula: relu(x + bias[n])"
        raise BadInput(f"gemm: epilogue {epilogue!r}", allowed=words)
    return {"bias": bias, "activation": after[0] if after else "none"}
