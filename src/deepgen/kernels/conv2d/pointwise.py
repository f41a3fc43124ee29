"""Convolutions by 1 x 1 filters without strides and padding: they are matrix products, which GEMM families compute.

With channels last, rows are pixels and columns are filters. With channels first, rows are filters, columns are an
image's pixels, and each image is a matrix of the batch, whose filters are the same. No tensor is copied, and rows may
begin anywhere: what a GEMM family does about that, it does here too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from deepgen.kernels import Rank, Ranked
from deepgen.kernels.conv2d import plain_conv
from deepgen.kernels.conv2d.sm90_conv import Sm90Conv
from deepgen.kernels.gemm.mma_gemm import MmaGemm
from deepgen.kernels.gemm.simt_gemm import SimtGemm
from deepgen.kernels.gemm.sm90_gemm import Sm90Gemm
from deepgen.kernels.gemm.sm90_gemm.defaults import KINDS, ranked
from deepgen.kernels.gemm.sm90_gemm.model import Gathered, seconds
from deepgen.kernels.shared import defines, of_several_kinds
from deepgen.operators import Gemm, Operator, gemm
from deepgen.operators.words import NONE
from deepgen.space import Space
from deepgen.targets import Cuda, Gpu, Target
from deepgen.vocabulary import (
    Arg,
    DescriptorArg,
    Kernel,
    LaunchPlan,
    ScalarArg,
    Size,
    Step,
    TensorArg,
    WorkspaceArg,
    dtype,
)

_FORMATS = ("f16", "bf16")
_PLAIN = ((1, 1), (1, 1), (0, 0))  # filters, strides and padding
_ACTIVATIONS = {"relu": "relu", "silu": "silu", "gelu_tanh": "gelu"}  # of an epilogue, under a GEMM's names
_OPEN = ("N", "H", "W", "CI", "CO")  # sizes for which a kernel need not be made
# Sizes and tensors of a matrix product under a convolution's names.
_AREA = "(H * W)"
_LAST = {
    "M": "(N * H * W)", "N": "CO", "K": "CI", "batch": "1", "lda": "CI", "ldb": "CO", "ldc": "CO",
    "stride_a": "0", "stride_b": "0", "stride_c": "0", "A": "x", "B": "weight", "C": "y",
}  # fmt: skip
_FIRST = {
    "M": "CO", "N": _AREA, "K": "CI", "batch": "N", "lda": "CI", "ldb": _AREA, "ldc": _AREA,
    "stride_a": "0", "stride_b": "(CI * H * W)", "stride_c": "(CO * H * W)", "A": "weight", "B": "x", "C": "y",
}  # fmt: skip
_FACTORS = {"alpha": 1.0, "beta": 0.0}


@dataclass(frozen=True)
class Product:
    """A convolution as a matrix product."""

    gemm: Gemm
    last: bool  # channels
    named: tuple[tuple[str, int], ...]  # sizes that the kernel is made for, under the operator's names

    @property
    def names(self) -> Mapping[str, str]:
        return _LAST if self.last else _FIRST


@lru_cache(64)
def product_of(operator: Operator) -> Product | str:
    """The matrix product of a convolution, or the reason why it is none."""
    conv = plain_conv(operator)
    if isinstance(conv, str):
        return conv
    if conv.dtype not in _FORMATS:
        return "it multiplies f16 and bf16"
    if (conv.kernel, conv.strides, conv.pads) != _PLAIN:
        return "it supports 1 x 1 filters with stride 1 and no padding"
    steps, last = conv.epilogue, conv.layout == "nhwc"
    biased = steps[:1] == ("bias",)
    activation = steps[biased:] or (NONE,)
    if len(activation) > 1 or activation[0] not in (NONE, *_ACTIVATIONS) or (biased and not last):
        return f"epilogues add a bias, with channels last, and then have one of {', '.join(_ACTIVATIONS)}"
    pixels = conv.h * conv.w
    rows, columns, batch = (conv.n * pixels, conv.co, 1) if last else (conv.co, pixels, conv.n)
    plain = gemm(rows, columns, conv.ci, dtype=conv.dtype, layout="nn", batch=batch)
    product = replace(plain, bias=biased, activation=_ACTIVATIONS.get(activation[0], "none"))
    named = tuple((name, size) for name, size in operator.sizes().items() if name not in _OPEN)
    return Product(product, last, named)


class Pointwise:
    """Convolutions by 1 x 1 filters as the matrix products of a GEMM family: f16 and bf16, both layouts."""

    def __init__(self, name: str, family: Sm90Gemm | MmaGemm | SimtGemm) -> None:
        self.name, self._family = name, family

    def refuses(self, operator: Operator, target: Target) -> str | None:
        own = product_of(operator)
        return own if isinstance(own, str) else self._family.refuses(own.gemm, target)

    def space(self, operator: Operator, target: Target) -> Space:
        space = self._family.space(_served(operator).gemm, target)
        space.name = self.name
        return space

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        own = _served(operator)
        kernel = self._family.emit(own.gemm, target, config)
        implied = tuple((_text(own, condition), words) for condition, words in kernel.implied)
        return replace(kernel, name=self.name, plan=_renamed(own, kernel.plan), implied=implied)

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return self._family.default(_served(operator).gemm, target)

    def ranked(self, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
        product = _served(operator).gemm
        yield from self._family.ranked(product, target) if isinstance(self._family, Ranked) else ()

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        return self._family.modelled_seconds(_served(operator).gemm, target, config)

    def least_seconds(self, operator: Operator, target: Target) -> float:
        return self._family.least_seconds(_served(operator).gemm, target)


class Sm90Pointwise(Pointwise):
    """By `sm90_gemm`, unless `sm90_conv` does the same with the image's sizes compiled in."""

    def __init__(self) -> None:
        super().__init__("sm90_pointwise", Sm90Gemm())

    def rank(self, operator: Operator, target: Target) -> Rank:
        conv = Sm90Conv()
        same = conv.refuses(operator, target) is None and conv.rank(operator, target) == Rank.SPECIALISED
        return Rank.SURPASSED if same else Rank.SPECIALISED

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        kernel = super().emit(operator, target, config)
        shared = {} if _served(operator).last else {"SHARED_A": 1}
        return replace(kernel, flags=(*kernel.flags, *defines(shared)))

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return next(self.ranked(operator, target))

    def ranked(self, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
        own = _served(operator)
        assert isinstance(target, Cuda), "ask refuses() first"
        timed = sorted(
            ((_seconds(own, target, config), config) for _, config in ranked(own.gemm, target)), key=lambda row: row[0]
        )
        return of_several_kinds(timed, self.space(operator, target), KINDS)

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        assert isinstance(target, Cuda), "ask refuses() first"
        return _seconds(_served(operator), target, config)


class MmaPointwise(Pointwise):
    """By `mma_gemm`."""

    def __init__(self) -> None:
        super().__init__("mma_pointwise", MmaGemm())


class SimtPointwise(Pointwise):
    """By `simt_gemm`."""

    def __init__(self) -> None:
        super().__init__("simt_pointwise", SimtGemm())

    def rank(self, operator: Operator, target: Target) -> Rank:
        """Small products take it no longer than tensor cores. Where these are not `mma_gemm`'s, rules have them."""
        return Rank.SURPASSED if MmaGemm().refuses(_served(operator).gemm, target) else Rank.SPECIALISED


def _served(operator: Operator) -> Product:
    own = product_of(operator)
    assert isinstance(own, Product), "ask refuses() first"
    return own


def _seconds(own: Product, gpu: Gpu, config: Mapping[str, Any]) -> float:
    """All images have the same filters: they are read from memory once."""
    product = own.gemm
    size = dtype(product.a).bytes
    filters = Gathered(product.m * product.k * size, product.k * size, 1.0)
    return seconds(product, gpu, config, None if own.last else filters)


def _text(own: Product, expression: str) -> str:
    """An expression over a product's sizes as one over a convolution's."""
    return re.sub(r"\b[A-Za-z_]\w*\b", lambda word: own.names.get(word[0], word[0]), expression)


def _renamed(own: Product, plan: LaunchPlan) -> LaunchPlan:
    def size(value: Any) -> Any:
        text = _text(own, value) if isinstance(value, str) else value
        return int(text) if isinstance(text, str) and text.isdigit() else text

    def sizes(values: tuple[Size, ...] | None) -> tuple[Size, ...] | None:
        return None if values is None else tuple(size(value) for value in values)

    def argument(arg: Arg) -> Arg:
        if isinstance(arg, ScalarArg):
            factor = _FACTORS.get(arg.value) if isinstance(arg.value, str) else None
            return replace(arg, value=size(arg.value) if factor is None else factor)
        if isinstance(arg, WorkspaceArg):
            return replace(arg, bytes=size(arg.bytes))
        name = own.names.get(arg.tensor, arg.tensor)
        if isinstance(arg, TensorArg):
            return TensorArg(name)
        spec = replace(arg.spec, sizes=sizes(arg.spec.sizes), strides=sizes(arg.spec.strides))
        if arg.tensor == "A" and not own.last:  # the copy engine gets the only matrix that there is
            assert spec.sizes and spec.strides, "as for all matrices"
            line = spec.strides[0]
            spec = replace(spec, sizes=(*spec.sizes[:2], 1), strides=(line, f"CO * ({line})"))
        return DescriptorArg(name, spec, arg.copy)

    def step(one: Step) -> Step:
        args, grid = tuple(argument(arg) for arg in one.args), tuple(size(n) for n in one.grid)
        return replace(one, args=args, grid=grid, shared_bytes=size(one.shared_bytes))

    requires = (
        *((_text(own, condition), words) for condition, words in plan.requires),
        *((f"{name} == {n}", f"{name} = {n}, for which it was made") for name, n in own.named),
    )
    return replace(plan, steps=tuple(step(one) for one in plan.steps), requires=requires)
