"""2-D convolution: y[n, p, q, co] = sum of x[n, p * stride - pad + r, q * stride - pad + s, ci] * weight[r, s, ci, co].

The filter is k x k; terms outside the image are left out. In layout `nhwc` x is N x H x W x CI and weight
k x k x CI x CO; in `nchw` x is N x CI x H x W and weight CO x CI x k x k. y is laid out like x.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from deepgen.operators.base import Answer, Array, Operator, Tolerance, Work, plain
from deepgen.operators.expr.nodes import Expression
from deepgen.operators.gemm import gemm
from deepgen.operators.products import TINY, cancelling, integer_range, largest_factor, signs
from deepgen.operators.signature import Param, Signature, Size, Solved, TensorFacts
from deepgen.operators.words import Word
from deepgen.vocabulary.dtypes import DType, dtype, narrow, our_name, widen
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.kernel import Kernel

# Format of x and weight -> that of sums, that of y.
FORMATS = {"f32": ("f32", "f32"), "f64": ("f64", "f64"), "f16": ("f32", "f16"), "bf16": ("f32", "bf16"),
           "i8": ("i32", "i32")}  # fmt: skip
OUT_H, OUT_W = (f"({side} + 2 * pad - k) // stride + 1" for side in "HW")
_SHAPES: dict[str, tuple[tuple[Size, ...], ...]] = {  # of x, weight and y
    "nhwc": (("N", "H", "W", "CI"), ("k", "k", "CI", "CO"), ("N", OUT_H, OUT_W, "CO")),
    "nchw": (("N", "CI", "H", "W"), ("CO", "CI", "k", "k"), ("N", "CO", OUT_H, OUT_W)),
}
LAYOUTS = (*_SHAPES,)

_PROBES = ("normal", "large", "denormal", "zeros", "special", "exact")
_LARGE = {"f16": 8.0}  # where 2**40 would overflow: the sums must stay finite


@dataclass(frozen=True)
class Conv2d(Operator):
    """The fields of a convolution, listed once."""

    name: ClassVar[str] = "conv2d"
    weights: ClassVar[tuple[str, ...]] = ("weight",)
    words: ClassVar[tuple[Word, ...]] = (
        Word("N", "batch size (images)", needed=True),
        Word("H", "image height", needed=True),
        Word("W", "image width", needed=True),
        Word("CI", "input channels", needed=True),
        Word("CO", "output channels", needed=True),
        Word("k", "filter height and width", needed=True),
        Word("stride", "stride in pixels", default=1),
        Word("pad", "zero padding on each side, in pixels", default=0, least=0),
        Word("dtype", "data type of x and weight; i8 gives i32", "choice", "f32", choices=(*FORMATS,)),
        Word("layout", "order of the dimensions", "choice", "nhwc", choices=LAYOUTS),
    )

    n: int
    h: int
    w: int
    ci: int
    co: int
    k: int
    stride: int = 1
    pad: int = 0
    layout: str = "nhwc"
    dtype: str = "f32"

    def __post_init__(self) -> None:
        for word, size in self.sizes().items():
            least = 0 if word == "pad" else 1
            if isinstance(size, bool) or not isinstance(size, int) or size < least:
                raise BadInput(f"conv2d: {word} is {size!r}", allowed=f"must be an integer of at least {least}")
        for word, value, allowed in (("layout", self.layout, LAYOUTS), ("dtype", self.dtype, (*FORMATS,))):
            if value not in allowed:
                raise BadInput(f"conv2d: {word} {value!r} is unknown", allowed="one of " + ", ".join(allowed))
        _check_filter(self.sizes())

    @property
    def dtypes(self) -> tuple[DType, DType, DType]:
        """Of x and weight, of sums, of y."""
        acc, out = FORMATS[self.dtype]
        return dtype(self.dtype), dtype(acc), dtype(out)

    @property
    def out_h(self) -> int:
        return (self.h + 2 * self.pad - self.k) // self.stride + 1

    @property
    def out_w(self) -> int:
        return (self.w + 2 * self.pad - self.k) // self.stride + 1

    @property
    def reduced(self) -> int:
        """The number of products in one output."""
        return self.ci * self.k * self.k

    def describe(self) -> str:
        image = f"{self.n}x{self.h}x{self.w}x{self.ci}"
        return f"conv2d {self._formats()} {self.layout} {image} to {self.co} by {self._filter(' ')}"

    def slug(self) -> str:
        image = f"{self.n}x{self.h}x{self.w}x{self.ci}x{self.co}"
        return f"conv2d-{self._formats()}-{self.layout}-{image}-{self._filter('-')}"

    def _filter(self, between: str) -> str:
        apart = [f"stride{between}{self.stride}"] if self.stride != 1 else []
        around = [f"pad{between}{self.pad}"] if self.pad else []
        return between.join([f"{self.k}x{self.k}", *apart, *around])

    def signature(self) -> Signature:
        image, weight, result = _SHAPES[self.layout]
        of = self.dtypes[0]
        whole = integer_range(of, largest_factor(self.reduced, 2**31 - 1)) if of.integer else None
        return Signature(
            (
                Param("x", "input", self.dtype, image, range=whole),
                Param("weight", "input", self.dtype, weight, range=whole),
                Param("y", "output", FORMATS[self.dtype][1], result),
            )
        )

    def sizes(self) -> Mapping[str, int]:
        return {
            "N": self.n,
            "H": self.h,
            "W": self.w,
            "CI": self.ci,
            "CO": self.co,
            "k": self.k,
            "stride": self.stride,
            "pad": self.pad,
        }

    def solve(self, arrays: Mapping[str, TensorFacts]) -> Solved:
        """A filter that fits nowhere is an error, not an empty result, even if some size is zero."""
        solved = super().solve(arrays)
        _check_filter(solved.sizes)
        return solved

    def resized(self, sizes: Mapping[str, int], dtypes: Mapping[str, str], values: Mapping[str, int | float]) -> Conv2d:
        new: dict[str, Any] = {word.lower(): size for word, size in sizes.items()}
        return replace(self, **new)

    def work(self) -> Work:
        """Counts products with real pixels, and pixels that some output needs: a stride beyond k skips others."""
        import numpy as np

        of, _, out = self.dtypes
        rows, columns = self._taps(self.h, self.out_h), self._taps(self.w, self.out_w)
        products = self.n * self.ci * self.co * rows.size * columns.size
        pixels = self.n * self.ci * np.unique(rows).size * np.unique(columns).size
        return Work(
            {self.dtype: 2 * products},
            read=(pixels + self.reduced * self.co) * of.bytes,
            written=self.n * self.out_h * self.out_w * self.co * out.bytes,
        )

    def _taps(self, size: int, outputs: int) -> Array:
        """The rows (or columns) of the image that the filter meets, one for each output and row of the filter."""
        import numpy as np

        places = np.add.outer(np.arange(outputs) * self.stride - self.pad, np.arange(self.k))
        real: Array = places[(places >= 0) & (places < size)]
        return real

    def probes(self) -> tuple[str, ...]:
        return super().probes() if self.dtypes[0].integer else _PROBES

    def inputs(self, seed: int, probe: str = "normal") -> dict[str, Array]:
        """Special values are only in x: a kernel may multiply weights by the zeros of the padding."""
        import numpy as np

        if probe not in self.probes():
            raise BadInput(f"conv2d: unknown probe {probe!r}", allowed="one of " + ", ".join(self.probes()))
        if probe == "exact":
            return self._exact_inputs(seed)
        of = self.dtypes[0]
        drawn_inputs = super().inputs(seed, "normal" if probe in ("large", "denormal", "special") else probe)
        if probe == "large":
            return {name: narrow(widen(x, of) * _LARGE.get(of.name, 2.0**40), of) for name, x in drawn_inputs.items()}
        if probe == "special":
            flat = drawn_inputs["x"].reshape(-1)
            special = narrow(np.array([np.nan, np.inf, -np.inf]), of)[: flat.size]
            flat[np.random.default_rng(seed).choice(flat.size, special.size, replace=False)] = special
        if probe == "denormal":  # one filter, for the reasons that GEMM has
            drawn_inputs["x"][:] = drawn_inputs["x"][:1]
            filters = drawn_inputs["weight"] if self.layout == "nhwc" else np.moveaxis(drawn_inputs["weight"], 0, -1)
            filters[..., -1] = narrow(widen(filters[..., -1], of) * TINY[of.name], of)
        return drawn_inputs

    def _exact_inputs(self, seed: int) -> dict[str, Array]:
        """All products are 1 or -1, and those of most channels cancel: see `cancelling`. This holds at the border too,
        because both terms of a pair use the same pixel."""
        import numpy as np

        rng = np.random.default_rng([seed, zlib.crc32(b"exact")])
        of, _, out = self.dtypes
        pairs = cancelling(rng, self.ci, max(1, int(1.0 / out.epsilon) // self.k**2))
        image = rng.integers(2, size=(2, self.h, self.w, self.ci), dtype=bool)  # whether a number is -1
        weight = rng.integers(2, size=(self.k, self.k, self.ci, self.co), dtype=bool)
        image[..., pairs.second] = image[..., pairs.first]
        weight[:, :, pairs.second] = ~weight[:, :, pairs.first]
        if self.layout == "nchw":
            image, weight = np.moveaxis(image, -1, 1), weight.transpose(3, 2, 0, 1)
        return {"x": signs(image[np.arange(self.n) % 2], of), "weight": signs(weight, of)}

    def reference(self, inputs: Mapping[str, Array]) -> dict[str, Answer]:
        from deepgen.operators import references

        return references.conv2d_reference(self, inputs)

    def reference_at(self, inputs: Mapping[str, Array], output: str, places: Array) -> Answer:
        from deepgen.operators.expr.interpret_at import answer_at

        return answer_at(self.expression(), inputs, output, places)

    def reference_kernel(self, language: str) -> Kernel | None:
        from deepgen.operators.expr.reference_kernels import reference_kernel

        return reference_kernel(self.expression(), language)

    def expression(self) -> Expression:
        from deepgen.operators.named.convolutions import DilatedConv2d

        parameters = {**self.parameters(), "dilation": 1}
        return replace(DilatedConv2d.make(parameters).expression(), name=self.name)

    def tolerance(self, output: str = "y", probe: str = "normal") -> Tolerance:
        """That of a GEMM whose K is the number of products of one output: the sums are the same."""
        return gemm(1, 1, self.reduced, dtype=self.dtype).tolerance(probe=probe)

    @classmethod
    def make(cls, parameters: Mapping[str, Any]) -> Conv2d:
        return conv2d(**{word.lower(): value for word, value in parameters.items()})

    def parameters(self) -> Mapping[str, Any]:
        return {**self.sizes(), "dtype": self.dtype, "layout": self.layout}


def _check_filter(sizes: Mapping[str, int]) -> None:
    height, width = (sizes[side] + 2 * sizes["pad"] for side in "HW")
    if sizes["k"] > min(height, width):
        words = f"conv2d: a filter with k={sizes['k']} on a padded image of {height}x{width}"
        raise BadInput(words, allowed=f"k <= {min(height, width)}")


def conv2d(
    n: int,
    h: int,
    w: int,
    ci: int,
    co: int,
    k: int,
    *,
    stride: int = 1,
    pad: int = 0,
    dtype: str = "f32",
    layout: str = "nhwc",
) -> Conv2d:
    """A convolution of N images of H x W x CI by CO filters of k x k; i8 gives i32, other formats give themselves."""
    sizes = (n, h, w, ci, co, k, stride, pad)
    n, h, w, ci, co, k, stride, pad = map(plain, sizes)
    layout = layout.lower() if isinstance(layout, str) else layout
    return Conv2d(n, h, w, ci, co, k, stride, pad, layout, our_name(dtype))
