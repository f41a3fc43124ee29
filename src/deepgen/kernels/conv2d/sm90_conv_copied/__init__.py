"""Convolution on Hopper's tensor cores by copies of tensors that the copy engine cannot load directly.

If channels come first, or their number is not a multiple of 8, the image and the filters are copied to nhwc with padded
channels, `sm90_conv` computes, and the result is copied back to its layout.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from deepgen.kernels import FirstRanked, Rank
from deepgen.kernels.conv2d.sm90_conv import Sm90Conv
from deepgen.kernels.shared import defines, served, sources
from deepgen.operators import Conv2d, Operator
from deepgen.operators.words import NONE
from deepgen.space import Space
from deepgen.targets import Cuda, Target
from deepgen.vocabulary import Arg, DescriptorArg, Kernel, ScalarArg, Step, TensorArg, WorkspaceArg

_INNER = Sm90Conv()
_THREADS, _CHUNK, _SIDE = 256, 8, 64  # as in copies.h
_SIZE = 2  # bytes of an element
_COPIES = {"x": "images", "weight": "filters", "y": "result"}
_MATRIX_BYTES, _FILTERS = 32, 16  # channels and filters per product of matrix units: others are no work for rules
_ENOUGH, _FOR_A_COPY = 2e8, 100  # products that take longer than launches, and products per copied element
_LAUNCH = 1.5e-6  # of an additional step
_RATE = 0.6  # share of the memory's bandwidth that copies reach


class Sm90ConvCopied(FirstRanked):
    """`sm90_conv` with copies around it: channels first, and any number of channels, f16 and bf16 on sm_90a."""

    name = "sm90_conv_copied"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(operator, Conv2d):
            return "it supports conv2d only"
        if operator.weight_layout != NONE:
            return "it supports weights that are not packed"
        if operator.layout == "nhwc" and (operator.ci % _CHUNK, operator.co % _CHUNK) == (0, 0):
            return "sm90_conv handles this without copies"
        return _INNER.refuses(_inside(operator), target)

    def rank(self, operator: Operator, target: Target) -> Rank:
        """Kernels by rules read planes in place, but their tensor cores take whole products of channels only, and are
        then faster where there is less to multiply than to copy."""
        conv, _ = served(operator, target, Conv2d, Cuda)
        if conv.layout == "nhwc" or conv.ci * _SIZE % _MATRIX_BYTES or conv.co < _FILTERS:
            return Rank.SPECIALISED
        products = conv.n * conv.out_h * conv.out_w * conv.co * conv.reduced
        numbers = conv.n * (conv.h * conv.w * conv.ci + conv.out_h * conv.out_w * conv.co) + conv.co * conv.reduced
        return Rank.SPECIALISED if products >= max(_ENOUGH, _FOR_A_COPY * numbers) else Rank.SURPASSED

    def space(self, operator: Operator, target: Target) -> Space:
        conv, gpu = served(operator, target, Conv2d, Cuda)
        space = _INNER.space(_inside(conv), gpu)
        space.name = self.name
        return space

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        conv, gpu = served(operator, target, Conv2d, Cuda)
        inside = _inside(conv)
        kernel = _INNER.emit(inside, gpu, config)
        (step,) = kernel.plan.steps
        kept = {name for name in ("x", "y") if not _copied(conv, name)}
        args = tuple(_argument(conv, inside, arg, kept) for arg in step.args)
        product = replace(step, args=args, grid=tuple(_fixed(inside, size) for size in step.grid), overlaps=True)
        after = () if "y" in kept else (_scatter(conv, inside),)
        fixed = {"CI": conv.ci, "CO": conv.co}
        asked = [(text, words) for text, words in kernel.plan.requires if "CI" not in text and "CO" not in text]
        requires = (
            *asked,
            *((f"{name} == {n}", f"{name} = {n}, for which it was made") for name, n in fixed.items()),
        )
        plan = replace(kernel.plan, steps=(_gather(conv, inside), product, *after), requires=requires)
        own = sources(__name__, ("copies.cu", "copies.h"))
        return replace(
            kernel,
            name=self.name,
            sources=(*own, *kernel.sources),
            flags=(*kernel.flags, *defines(_macros(conv, inside))),
            plan=plan,
        )

    def ranked(self, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
        conv, gpu = served(operator, target, Conv2d, Cuda)
        return _INNER.ranked(_inside(conv), gpu)

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        conv, gpu = served(operator, target, Conv2d, Cuda)
        inside = _inside(conv)
        alone = _INNER.modelled_seconds(inside, gpu, config)
        moved = 2 * inside.ci * inside.co * prod(conv.kernel)
        moved += _copied(conv, "x") * 2 * conv.n * conv.h * conv.w * inside.ci
        moved += _copied(conv, "y") * 2 * conv.n * conv.out_h * conv.out_w * inside.co
        steps = 1 + _copied(conv, "y")
        return None if alone is None else alone + steps * _LAUNCH + moved * _SIZE / (gpu.bandwidth_gbs * 1e9 * _RATE)

    def least_seconds(self, operator: Operator, target: Target) -> float:
        return _INNER.least_seconds(operator, target) + _LAUNCH


def _inside(conv: Conv2d) -> Conv2d:
    """The convolution of the copies."""
    return replace(conv, layout="nhwc", ci=-(-conv.ci // _CHUNK) * _CHUNK, co=-(-conv.co // _CHUNK) * _CHUNK)


def _copied(conv: Conv2d, name: str) -> bool:
    channels = conv.ci if name == "x" else conv.co
    return conv.layout != "nhwc" or channels % _CHUNK != 0


def _macros(conv: Conv2d, inside: Conv2d) -> dict[str, int]:
    return {
        "PLANES": int(conv.layout != "nhwc"), "SOURCE_CI": conv.ci, "SOURCE_CO": conv.co, "STORED_CI": inside.ci,
        "STORED_CO": inside.co, "IMAGE_AREA": conv.h * conv.w, "RESULT_AREA": conv.out_h * conv.out_w,
        "FILTER_TAPS": prod(conv.kernel),
        "COPIES_X": int(_copied(conv, "x")),
    }  # fmt: skip


def _space(conv: Conv2d, inside: Conv2d, name: str) -> WorkspaceArg:
    sizes: dict[str, int | str] = {
        "x": f"N * {conv.h * conv.w * inside.ci * _SIZE}",
        "weight": prod(conv.kernel) * inside.ci * inside.co * _SIZE,
        "y": f"N * {conv.out_h * conv.out_w * inside.co * _SIZE}",
    }
    return WorkspaceArg(_COPIES[name], sizes[name], align=128)


def _argument(conv: Conv2d, inside: Conv2d, arg: Arg, kept: set[str]) -> Arg:
    """An argument of the convolution, referring to copies if there are any."""
    if isinstance(arg, DescriptorArg):
        spec = arg.spec
        sizes, strides = (own and tuple(_fixed(inside, n) for n in own) for own in (spec.sizes, spec.strides))
        fixed = replace(spec, sizes=sizes, strides=strides)
        return DescriptorArg(arg.tensor, fixed, None if arg.tensor in kept else _COPIES[arg.tensor])
    if isinstance(arg, TensorArg):
        return arg if arg.tensor in kept else _space(conv, inside, arg.tensor)
    if isinstance(arg, WorkspaceArg):
        return replace(arg, bytes=_fixed(inside, arg.bytes))
    return replace(arg, value=_fixed(inside, arg.value)) if isinstance(arg.value, str) else arg


def _fixed(inside: Conv2d, size: Any) -> Any:
    """An expression with CO replaced by that of the copies."""
    return re.sub(r"\bCO\b", str(inside.co), size) if isinstance(size, str) else size


def _gather(conv: Conv2d, inside: Conv2d) -> Step:
    copy = _space(conv, inside, "x") if _copied(conv, "x") else ScalarArg("i64", 0)
    args: tuple[Arg, ...] = (
        TensorArg("x"), TensorArg("weight"), copy, _space(conv, inside, "weight"), ScalarArg("i32", "N")
    )  # fmt: skip
    rows = prod(conv.kernel) * inside.ci
    if conv.layout != "nhwc":
        filters = -(-rows // _SIDE) * -(-inside.co // _SIDE)
        grid = f"ceil_div(N * {conv.h * conv.w}, {_SIDE}) * {-(-inside.ci // _SIDE)} + {filters}"
    else:
        images = f"ceil_div(N * {conv.h * conv.w * (inside.ci // _CHUNK)}, {_THREADS})" if _copied(conv, "x") else "0"
        grid = f"{images} + {-(-rows * (inside.co // _CHUNK) // _THREADS)}"
    return Step("gather", args, (grid, 1, 1), (_THREADS, 1, 1))


def _scatter(conv: Conv2d, inside: Conv2d) -> Step:
    area = conv.out_h * conv.out_w
    grid = f"ceil_div(N * {area * conv.co}, {_THREADS * _CHUNK})"
    if conv.layout != "nhwc":
        grid = f"ceil_div(N * {area}, {_SIDE}) * {-(-inside.co // _SIDE)}"
    args: tuple[Arg, ...] = (_space(conv, inside, "y"), TensorArg("y"), ScalarArg("i32", "N"))
    return Step("scatter", args, (grid, 1, 1), (_THREADS, 1, 1), overlaps=True)
