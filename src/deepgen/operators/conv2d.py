"""2-D convolution: y[n, p, q, co] = sum of x[n, p * stride - pad + r, q * stride - pad + s, ci] * weight[r, s, ci, co].

The filter is k x k; terms outside the image are zero. In layout `nhwc` x is N x H x W x CI and weight k x k x CI x CO;
in `nchw` x is N x CI x H x W and weight CO x CI x k x k. y is laid out like x. k, stride and pad are one number for
both dimensions, or a pair. The weight may be packed, for example as OIhw4i16o4i. With dilation, groups or an epilogue
the operator is `dilated_conv2d`.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, overload

from deepgen.operators.base import Answer, Array, Operator, Tolerance, Work
from deepgen.operators.expr.layouts import WEIGHT_LAYOUT, filter_layout
from deepgen.operators.expr.nodes import Expression
from deepgen.operators.gemm import gemm
from deepgen.operators.products import TINY, cancelling, distinct, integer_range, largest_factor, signs
from deepgen.operators.signature import Param, Signature, Size, Solved, TensorFacts
from deepgen.operators.words import FORMATS, NONE, Word, of_sides, plain, shown
from deepgen.vocabulary.dtypes import DType, dtype, narrow, our_name, widen
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.json import JsonObject
from deepgen.vocabulary.kernel import Kernel

LAYOUTS = ("nhwc", "nchw")
_EACH = ("k", "stride", "pad")  # may differ by dimension
_SIDES = ("h", "w")
_ELSE = {"dilation": 1, "groups": 1, "epilogue": NONE}  # words of `dilated_conv2d`, with their values here


def _out(side: str, k: str, stride: str, pad: str) -> str:
    return f"({side} + 2 * {pad} - {k}) // {stride} + 1"


OUT_H, OUT_W = (_out(side, *_EACH) for side in "HW")  # if one number serves both dimensions

_PROBES = ("normal", "large", "denormal", "zeros", "special", "exact")
_LARGE = {"f16": 8.0}  # instead of 2**40, which would overflow: the sums must stay finite


@dataclass(frozen=True)
class Conv2d(Operator):
    """A 2-D convolution; its parameters are its fields."""

    name: ClassVar[str] = "conv2d"
    weights: ClassVar[tuple[str, ...]] = ("weight",)
    words: ClassVar[tuple[Word, ...]] = (
        Word("N", "batch size (images)", needed=True),
        Word("H", "image height", needed=True),
        Word("W", "image width", needed=True),
        Word("CI", "input channels", needed=True),
        Word("CO", "output channels", needed=True),
        Word("k", "filter height and width: 3, or 1x7", needed=True, sides=_SIDES, aliases=("kernel",)),
        Word("stride", "stride in pixels", default=1, sides=_SIDES),
        Word("pad", "zero padding on each side, in pixels", default=0, least=0, sides=_SIDES),
        Word("dtype", "data type of x and weight; the result of i8 is i32", "choice", "f32", choices=(*FORMATS,)),
        Word("layout", "order of the dimensions", "choice", "nhwc", choices=LAYOUTS),
        WEIGHT_LAYOUT,
        Word("dilation", "distance between the filter's elements", default=1, sides=_SIDES),
        Word("groups", "groups of channels", default=1),
        Word("epilogue", "operations on the result, such as bias,relu", "choice", NONE),
    )

    n: int
    h: int
    w: int
    ci: int
    co: int
    k: int | tuple[int, int]
    stride: int | tuple[int, int] = 1
    pad: int | tuple[int, int] = 0
    layout: str = "nhwc"
    dtype: str = "f32"
    weight_layout: str = NONE

    def __post_init__(self) -> None:
        for word in self._own():
            if word.kind == "size":
                try:
                    size = word.check(getattr(self, word.name.lower()))
                except BadInput as error:
                    raise BadInput(f"conv2d: {error.what}", allowed=error.allowed) from error
                object.__setattr__(self, word.name.lower(), size)
        for name, value, allowed in (("layout", self.layout, LAYOUTS), ("dtype", self.dtype, (*FORMATS,))):
            if value not in allowed:
                raise BadInput(f"conv2d: {name} {value!r} is unknown", allowed="one of " + ", ".join(allowed))
        packed = filter_layout(WEIGHT_LAYOUT.check(self.weight_layout), 2)
        object.__setattr__(self, "weight_layout", NONE if packed is None else packed.text)
        self._check_filter(self.sizes())

    @classmethod
    def _own(cls) -> tuple[Word, ...]:
        """The words that are fields."""
        return tuple(word for word in cls.words if word.name not in _ELSE)

    @property
    def dtypes(self) -> tuple[DType, DType, DType]:
        """The formats of x and weight, of sums, and of y."""
        acc, out = FORMATS[self.dtype]
        return dtype(self.dtype), dtype(acc), dtype(out)

    @property
    def kernel(self) -> tuple[int, int]:
        return both(self.k)

    @property
    def strides(self) -> tuple[int, int]:
        return both(self.stride)

    @property
    def pads(self) -> tuple[int, int]:
        return both(self.pad)

    @property
    def is_plain(self) -> bool:
        """Whether one number serves both dimensions and the weight is not packed, as hand-written families require."""
        uneven = any(isinstance(size, tuple) for size in (self.k, self.stride, self.pad))
        return not uneven and self.weight_layout == NONE

    @property
    def out_h(self) -> int:
        return (self.h + 2 * self.pads[0] - self.kernel[0]) // self.strides[0] + 1

    @property
    def out_w(self) -> int:
        return (self.w + 2 * self.pads[1] - self.kernel[1]) // self.strides[1] + 1

    @property
    def reduced(self) -> int:
        """The number of products in one output."""
        return self.ci * self.kernel[0] * self.kernel[1]

    def describe(self) -> str:
        image = f"{self.n}x{self.h}x{self.w}x{self.ci}"
        return f"conv2d {self._formats()} {self.layout} {image} to {self.co} by {self._filter(' ')}"

    def slug(self) -> str:
        image = f"{self.n}x{self.h}x{self.w}x{self.ci}x{self.co}"
        return f"conv2d-{self._formats()}-{self.layout}-{image}-{self._filter('-')}"

    def _filter(self, between: str) -> str:
        apart = [f"stride{between}{shown(self.stride)}"] if self.stride != 1 else []
        around = [f"pad{between}{shown(self.pad)}"] if self.pad else []
        packed = [self.weight_layout] if self.weight_layout != NONE else []
        return between.join([shown(self.kernel), *apart, *around, *packed])

    def _shapes(self) -> tuple[tuple[Size, ...], ...]:
        """The shapes of x, weight and y."""
        k, stride, pad = ((*of_sides(word, getattr(self, word.name)),) for word in self._own() if word.sides)
        k, stride, pad = ((one * 2)[:2] for one in (k, stride, pad))
        outs = tuple(_out(*names) for names in zip("HW", k, stride, pad, strict=True))
        packed = filter_layout(self.weight_layout, 2)
        filters = () if packed is None else packed.symbols(("CO", "CI", *k))
        if self.layout == "nhwc":
            return ("N", "H", "W", "CI"), filters or (*k, "CI", "CO"), ("N", *outs, "CO")
        return ("N", "CI", "H", "W"), filters or ("CO", "CI", *k), ("N", "CO", *outs)

    def signature(self) -> Signature:
        image, weight, result = self._shapes()
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
        words = (word for word in self._own() if word.kind == "size")
        each = (of_sides(word, getattr(self, word.name.lower())) for word in words)
        return {name: size for sizes in each for name, size in sizes.items()}

    def solve(self, arrays: Mapping[str, TensorFacts]) -> Solved:
        """A filter larger than the padded image is an error, not an empty result, even if some size is zero."""
        solved = super().solve(arrays)
        self._check_filter(solved.sizes)
        return solved

    def _check_filter(self, sizes: Mapping[str, int]) -> None:
        """`sizes`: of this convolution or of another shape of it."""
        k, pad = (both(sizes.get(name) or tuple(sizes.get(f"{name}_{s}", 0) for s in _SIDES)) for name in ("k", "pad"))
        images = [sizes[side] + 2 * around for side, around in zip("HW", pad, strict=True)]
        if any(own > image for own, image in zip(k, images, strict=True)):
            even, padded = k[0] == k[1], shown((*images,))
            words = f"conv2d: a filter with k={k[0] if even else shown(k)} on a padded image of {padded}"
            raise BadInput(words, allowed=f"k <= {min(images) if even else padded}")

    def resized(self, sizes: Mapping[str, int], dtypes: Mapping[str, str], values: Mapping[str, int | float]) -> Conv2d:
        new: dict[str, Any] = {}
        for word in self._own():
            names = [*of_sides(word, getattr(self, word.name.lower()))] if word.kind == "size" else []
            if any(name in sizes for name in names):
                own = [sizes[name] for name in names]
                new[word.name.lower()] = own[0] if len(own) == 1 else (*own,)
        other = replace(self, **new)
        if not sizes.keys() <= other.sizes().keys():  # kernels refer to the sizes that they were compiled with
            what = f"conv2d: k={shown(other.k)} stride={shown(other.stride)} pad={shown(other.pad)}"
            raise BadInput(what, allowed="the same form as before: one number for both dimensions, or two")
        return other

    def work(self) -> Work:
        """Counts products with real pixels, and pixels that are needed: a stride larger than k skips some."""
        of, _, out = self.dtypes
        rows, rows_met = self._taps(0, self.h, self.out_h)
        columns, columns_met = self._taps(1, self.w, self.out_w)
        products = self.n * self.ci * self.co * rows * columns
        pixels = self.n * self.ci * rows_met * columns_met
        return Work(
            {self.dtype: 2 * products},
            read=(pixels + self.reduced * self.co) * of.bytes,
            written=self.n * self.out_h * self.out_w * self.co * out.bytes,
        )

    def _taps(self, side: int, size: int, outputs: int) -> tuple[int, int]:
        """How often the filter touches rows (or columns) of the image, and how many it touches at all."""
        stride, pad, kernel = self.strides[side], self.pads[side], self.kernel[side]
        touches = 0
        for tap in range(kernel):  # the outputs for which this row of the filter lies within the image
            first, last = max(0, -((tap - pad) // stride)), min(outputs - 1, (size - 1 + pad - tap) // stride)
            touches += max(0, last - first + 1)
        # Filters that do not overlap touch a row once; others leave none out.
        return touches, touches if kernel <= stride else min(size, (outputs - 1) * stride - pad + kernel)

    def probes(self) -> tuple[str, ...]:
        return super().probes() if self.dtypes[0].integer else _PROBES

    def inputs(self, seed: int, probe: str = "normal") -> dict[str, Array]:
        """Special values are only in x: a kernel may multiply weights by the zeros of the padding."""
        import numpy as np

        packed = filter_layout(self.weight_layout, 2)
        if packed is not None:  # in the order O, I, h, w
            drawn_plain = replace(self, layout="nchw", weight_layout=NONE).inputs(seed, probe)
            x, weight = drawn_plain["x"], packed.packed(drawn_plain["weight"])
            return {"x": np.ascontiguousarray(np.moveaxis(x, 1, -1)) if self.layout == "nhwc" else x, "weight": weight}
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
        if probe == "denormal":  # one filter, for the same reasons as in GEMM
            drawn_inputs["x"][:] = drawn_inputs["x"][:1]
            filters = drawn_inputs["weight"] if self.layout == "nhwc" else np.moveaxis(drawn_inputs["weight"], 0, -1)
            filters[..., -1] = narrow(widen(filters[..., -1], of) * TINY[of.name], of)
        return drawn_inputs

    def _exact_inputs(self, seed: int) -> dict[str, Array]:
        """All products are 1 or -1, and those of most channels cancel: see `cancelling`. This also holds at the border,
        because both terms of a pair use the same pixel."""
        import numpy as np

        rng = np.random.default_rng([seed, zlib.crc32(b"exact")])
        of, _, out = self.dtypes
        pairs = cancelling(rng, self.ci, max(1, int(1.0 / out.epsilon) // (self.reduced // self.ci)))
        image = rng.integers(2, size=(2, self.h, self.w, self.ci), dtype=bool)  # whether a number is -1
        weight = rng.integers(2, size=(*self.kernel, self.ci, self.co), dtype=bool)
        image[..., pairs.second] = image[..., pairs.first]
        weight[:, :, pairs.second] = ~weight[:, :, pairs.first]
        if self.layout == "nchw":
            image, weight = np.moveaxis(image, -1, 1), weight.transpose(3, 2, 0, 1)
        return {"x": signs(image[np.arange(self.n) % 2], of), "weight": signs(weight, of)}

    def reference(self, inputs: Mapping[str, Array]) -> dict[str, Answer]:
        """By its expression, once for images that are equal."""
        from deepgen.operators.expr.interpret import answers

        kept, kind = distinct(inputs["x"])
        own = {name: widen(x, self.dtypes[0]) for name, x in {**inputs, "x": inputs["x"][kept]}.items()}
        answer = answers(replace(self, n=len(kept)).expression(), own)["y"]
        return {"y": Answer(answer.values[kind], answer.scale[kind] if answer.scale.ndim else answer.scale)}

    def reference_at(self, inputs: Mapping[str, Array], output: str, places: Array) -> Answer:
        from deepgen.operators.expr.interpret_at import answer_at

        return answer_at(self.expression(), inputs, output, places)

    def reference_kernel(self, language: str) -> Kernel | None:
        from deepgen.operators.expr.reference_kernels import reference_kernel

        return reference_kernel(self.expression(), language)

    def expression(self) -> Expression:
        from deepgen.operators.named.convolutions import DilatedConv2d

        return replace(DilatedConv2d.make({**self.parameters(), "dilation": 1}).expression(), name=self.name)

    def tolerance(self, output: str = "y", probe: str = "normal") -> Tolerance:
        """That of a GEMM whose K is the number of products per output: the sums are the same."""
        return gemm(1, 1, self.reduced, dtype=self.dtype).tolerance(probe=probe)

    @classmethod
    def make(cls, parameters: Mapping[str, Any]) -> Any:
        """This operator, or `dilated_conv2d` if the words require it."""
        return conv2d(**{word.lower(): value for word, value in parameters.items()})

    def parameters(self) -> Mapping[str, Any]:
        return {word.name: getattr(self, word.name.lower()) for word in self._own()}

    def to_json(self) -> JsonObject:
        """Without the fields for packed weights if there are none, as in files written before these existed."""
        own = {name: [*value] if isinstance(value, tuple) else value for name, value in super().to_json().items()}
        return {name: value for name, value in own.items() if (name, value) != ("weight_layout", NONE)}


def both(size: int | tuple[int, ...]) -> tuple[int, int]:
    """The number for each dimension."""
    height, width = size if isinstance(size, tuple) else (size, size)
    return height, width


@overload
def conv2d(
    n: int,
    h: int,
    w: int,
    ci: int,
    co: int,
    k: int | tuple[int, int] = ...,
    *,
    kernel: int | tuple[int, int] = ...,
    stride: int | tuple[int, int] = ...,
    pad: int | tuple[int, int] = ...,
    dtype: str = ...,
    layout: str = ...,
    weight_layout: str = ...,
) -> Conv2d: ...


@overload
def conv2d(
    n: int,
    h: int,
    w: int,
    ci: int,
    co: int,
    k: int | tuple[int, int] = ...,
    *,
    kernel: int | tuple[int, int] = ...,
    stride: int | tuple[int, int] = ...,
    pad: int | tuple[int, int] = ...,
    dilation: int | tuple[int, int] = ...,
    groups: int = ...,
    dtype: str = ...,
    layout: str = ...,
    weight_layout: str = ...,
    epilogue: str = ...,
) -> Operator: ...


def conv2d(
    n: int,
    h: int,
    w: int,
    ci: int,
    co: int,
    k: Any = None,
    *,
    kernel: Any = None,
    stride: int | tuple[int, int] = 1,
    pad: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    dtype: str = "f32",
    layout: str = "nhwc",
    weight_layout: str = NONE,
    epilogue: str = NONE,
) -> Operator:
    """A convolution of N images of H x W x CI by CO filters of k x k; y has x's dtype, or i32 for i8.

    `k` (also `kernel`), `stride`, `pad` and `dilation` may be pairs: for rows and for columns. `groups`: of channels.
    `weight_layout`: how the weight is packed, such as OIhw4i16o4i. `epilogue`: steps applied to the result, such as
    "bias,relu".
    """
    if (k is None) == (kernel is None):
        raise BadInput(f"conv2d: k is given {'twice' if k is not None else 'nowhere'}", allowed="k=3, or k=(1, 7)")
    layout, of = layout.lower() if isinstance(layout, str) else layout, our_name(dtype)
    n, h, w, ci, co, groups = map(plain, (n, h, w, ci, co, groups))
    k = kernel if k is None else k
    more = {word.name: word for word in Conv2d.words if word.name in _ELSE}
    others = {name: more[name].check(value) for name, value in zip(more, (dilation, groups, epilogue), strict=True)}
    if others == _ELSE:
        return Conv2d(n, h, w, ci, co, k, stride, pad, layout, of, weight_layout)
    from deepgen.operators.named.convolutions import DilatedConv2d

    sizes = {"N": n, "H": h, "W": w, "CI": ci, "CO": co, "k": k, "stride": stride, "pad": pad}
    return DilatedConv2d.make({**sizes, **others, "dtype": of, "layout": layout, "weight_layout": weight_layout})
