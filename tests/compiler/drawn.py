"""Random expressions of kinds that users write, in ranks 1 to 5, with sizes from 1 and all dtypes.

A view is a tensor, or a part of one, as a function of indices: views are transposed, sliced, padded, reversed,
broadcast, concatenated and reshaped before a stage computes them. Stages are elementwise, reductions along any axes,
normalisations, scans, windows, contractions and convolutions; their results are read by other stages, and may be
outputs as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from random import Random
from typing import Any

import deepgen as dg
from deepgen.operators.expr.elements import Element, Operand
from deepgen.operators.expr.nodes import Expression
from deepgen.operators.expr.operator import ExpressionOperator
from deepgen.vocabulary.errors import BadInput

FLOATS, WHOLE = ("f32", "f32", "f32", "f16", "bf16", "f64"), ("i8", "u8", "i16", "i32", "i64")
EIGHT_BITS = ("f8e4m3", "f8e4m3", "f8e5m2", "f32", "bf16")
SUMS = {"f32": "f32", "f64": "f64", "f16": "f32", "bf16": "f32", "f8e4m3": "f32", "f8e5m2": "f32", "i64": "i64"}
# Others are summed in i32.
LARGEST, MOST_READ = 4096, 1 << 16  # elements of a stage, and of its inputs


@dataclass(frozen=True)
class View:
    """Elements as a function of indices."""

    shape: tuple[int, ...]
    dtype: str
    at: Callable[..., Element]


def random_eight_bits(random: Random) -> Expression:
    """A legal expression with 8-bit floats among its tensors and results."""
    return random_expression(random, EIGHT_BITS)


def random_expression(random: Random, kinds: Sequence[str] = ()) -> Expression:
    """A legal expression whose integers do not overflow for any inputs."""
    while True:
        try:
            expression = _Drawing(random, kinds).expression()
            ExpressionOperator(expression)
            return expression
        except BadInput:  # such as empty reads, overflowing integers, or elements of constants
            continue


class _Drawing:
    def __init__(self, random: Random, kinds: Sequence[str] = ()) -> None:
        self.random, self.tensors, self.stages = random, 0, list[Operand]()
        self.kinds = kinds or (FLOATS if random.random() < 0.7 else WHOLE)
        self.casts: tuple[str, ...] = EIGHT_BITS if kinds else ("f32", "f16", "bf16")

    def expression(self) -> Expression:
        makers = [self.convolution, self.contraction, self.elementwise, self.reduction, self.normalised, self.scan]
        makers += [self.window, self.convolution]
        for _ in range(self.random.choice((1, 1, 1, 2, 2, 3))):
            self.random.choice(makers)()
        results = self.stages[-1:]
        results += self.random.sample(self.stages[:-1], min(len(self.stages) - 1, self.random.choice((0, 0, 1, 2))))
        return dg.expression(*results)

    # -- views

    def size(self) -> int:
        return self.random.choice((1, 2, 3, 3, 4, 5, 7, 8, 9, 13, 16, 17, 21, 33))

    def shape(self, ranks: Sequence[int] = (1, 2, 2, 3, 3, 4, 5)) -> tuple[int, ...]:
        while True:
            shape = tuple(self.size() for _ in range(self.random.choice(ranks)))
            if prod(shape) <= LARGEST:
                return shape

    def tensor(self, shape: tuple[int, ...], dtype: str | None = None) -> View:
        self.tensors += 1
        operand = dg.tensor(f"T{self.tensors}", shape, dtype or self.random.choice(self.kinds))
        return _viewed(operand)

    def source(self) -> View:
        """A stage, or a new tensor; sometimes seen through further views."""
        fresh = not self.stages or self.random.random() < 0.4
        view = self.tensor(self.shape()) if fresh else _viewed(self.random.choice(self.stages[-2:]))
        for _ in range(self.random.choice((0, 0, 1, 1, 2, 3))):
            way = self.random.choice((self.transposed, self.cut, self.padded, self.turned, self.flat, self.parted))
            seen = way(view)
            view = seen if len(seen.shape) <= 5 and prod(seen.shape) <= LARGEST else view
        return view

    def like(self, shape: tuple[int, ...], dtype: str) -> View:
        """Another operand for elements of a shape: broadcast along some axes, or with fewer."""
        if self.stages and self.stages[-1].shape == shape and self.random.random() < 0.5:
            return _viewed(self.stages[-1])
        kept = [n for n in range(len(shape)) if self.random.random() < 0.7] or [0]
        ones = self.random.random() < 0.5  # numpy's broadcasting: with size 1
        sizes = tuple(size if n in kept else 1 for n, size in enumerate(shape) if ones or n in kept)
        of = self.tensor(sizes, dtype if self.random.random() < 0.7 else None)
        return View(
            shape, of.dtype, lambda *at: of.at(*(i if n in kept else 0 for n, i in enumerate(at) if ones or n in kept))
        )

    def transposed(self, view: View) -> View:
        order = self.random.sample(range(len(view.shape)), len(view.shape))
        shape = tuple(view.shape[n] for n in order)
        return replace(view, shape=shape, at=lambda *at: view.at(*(at[order.index(n)] for n in range(len(order)))))

    def cut(self, view: View) -> View:
        """Every n-th element along an axis, from some start."""
        axis = self.random.randrange(len(view.shape))
        start, step = self.random.randrange(view.shape[axis]), self.random.choice((1, 1, 2, 3))
        size = -(-(view.shape[axis] - start) // step)
        return self.along(view, axis, self.random.randint(1, size), lambda i: i * step + start)

    def turned(self, view: View) -> View:
        """An axis reversed, rotated, with every element doubled, or repeated twice."""
        axis = self.random.randrange(len(view.shape))
        size = view.shape[axis]
        way = self.random.randrange(4)
        if way == 0:
            return self.along(view, axis, size, lambda i: size - 1 - i)
        if way == 1:
            return self.along(view, axis, size, lambda i: (i + size // 2) % size)
        return self.along(view, axis, 2 * size, (lambda i: i // 2) if way == 2 else (lambda i: i % size))

    def flat(self, view: View) -> View:
        """Two axes merged into one."""
        if len(view.shape) < 2:
            return view
        axis = self.random.randrange(len(view.shape) - 1)
        inner = view.shape[axis + 1]
        shape = (*view.shape[:axis], view.shape[axis] * inner, *view.shape[axis + 2 :])
        return replace(
            view, shape=shape, at=lambda *at: view.at(*at[:axis], at[axis] // inner, at[axis] % inner, *at[axis + 1 :])
        )

    def parted(self, view: View) -> View:
        """One axis split into two."""
        axis = self.random.randrange(len(view.shape))
        parts = [n for n in range(1, view.shape[axis] + 1) if view.shape[axis] % n == 0]
        inner = self.random.choice(parts)
        shape = (*view.shape[:axis], view.shape[axis] // inner, inner, *view.shape[axis + 1 :])
        return replace(
            view, shape=shape, at=lambda *at: view.at(*at[:axis], at[axis] * inner + at[axis + 1], *at[axis + 2 :])
        )

    def padded(self, view: View) -> View:
        """Zeros, or a number, before and after an axis, or only after it."""
        axis, before, after = (
            self.random.randrange(len(view.shape)),
            *self.random.choice(((1, 1), (0, 2), (3, 0), (2, 1))),
        )
        size, filled = view.shape[axis], self.random.choice((0, 0, 0, 1))

        def at(*place: Any) -> Element:
            i = place[axis] - before
            inside = [one for one in ((i >= 0) if before else None, (i < size) if after else None) if one is not None]
            return dg.where(reduce(lambda a, b: a & b, inside), view.at(*place[:axis], i, *place[axis + 1 :]), filled)

        return replace(view, shape=(*view.shape[:axis], size + before + after, *view.shape[axis + 1 :]), at=at)

    def along(self, view: View, axis: int, size: int, place: Callable[[Any], Any]) -> View:
        shape = (*view.shape[:axis], size, *view.shape[axis + 1 :])
        return replace(view, shape=shape, at=lambda *at: view.at(*at[:axis], place(at[axis]), *at[axis + 1 :]))

    # -- stages

    def stage(self, shape: tuple[int, ...], element: Callable[..., Element]) -> Operand:
        self.stages.append(dg.compute(f"S{len(self.stages)}", shape or (1,), element))
        return self.stages[-1]

    def finished(self, value: Element) -> Element:
        """Some steps after a sum, and another dtype."""
        floats = value.dtype.startswith("f") or value.dtype == "bf16"
        ways: list[Callable[[Any], Any]] = [lambda x: dg.maximum(x, 0), abs, lambda x: x + 3, lambda x: -x]
        if floats:
            ways += [
                dg.tanh,
                dg.sigmoid,
                lambda x: x / (1 + abs(x)),
                lambda x: dg.exp(-abs(x)),
                lambda x: dg.sqrt(abs(x)),
            ]
            ways += [dg.erf, dg.sin, lambda x: x * 0.5]
        else:
            ways += [lambda x: x // 3, lambda x: dg.where(x < 2, x, 2 - x), lambda x: dg.minimum(x, 5)]
        for _ in range(self.random.choice((0, 0, 1, 2))):
            value = self.random.choice(ways)(value)
        if floats and self.random.random() < 0.4:
            return value.cast(self.random.choice(self.casts) if value.dtype != "f64" else "f64")
        return value

    def joined(self, left: Element, right: Element) -> Element:
        ways = [lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, dg.maximum, dg.minimum]
        if not left.dtype.startswith(("f", "b")):
            ways.append(lambda a, b: dg.where(a < b, a, b + 1))
        return self.random.choice(ways)(left, right)

    def elementwise(self) -> None:
        view = self.source()
        others = [self.like(view.shape, view.dtype) for _ in range(self.random.choice((0, 1, 1, 2)))]
        wide = _wide(view.dtype, *(other.dtype for other in others))

        def element(*at: Any) -> Element:
            return self.finished(reduce(self.joined, (one.at(*at).cast(wide) for one in (view, *others))))

        self.stage(view.shape, element)

    def reduction(self) -> None:
        view = self.source()
        axes = self.random.sample(range(len(view.shape)), self.random.randint(1, len(view.shape)))
        kept, wide = [n for n in range(len(view.shape)) if n not in axes], _wide(view.dtype)
        op = self.random.choice(("sum", "sum", "max", "min", *(["prod"] if wide.startswith("f") else [])))
        if op == "prod" and prod(view.shape[n] for n in axes) > 16:
            op = "sum"  # more factors would exceed the range of f32, but not that of the reference in f64
        squared = self.random.random() < 0.3
        self.random.shuffle(kept)

        def element(*at: Any) -> Element:
            over = {n: dg.reduce_axis(f"k{n}", view.shape[n]) for n in axes}
            one = view.at(*(over[n] if n in over else at[kept.index(n)] for n in range(len(view.shape)))).cast(wide)
            return self.finished(getattr(dg, op)(one * one if squared else one, *over.values()))

        self.stage(tuple(view.shape[n] for n in kept), element)

    def normalised(self) -> None:
        """A softmax, or the mean is subtracted, or the elements are divided by the root of the sum of squares."""
        view = self.source()
        axes = self.random.sample(range(len(view.shape)), self.random.randint(1, min(2, len(view.shape))))
        count, wide = prod(view.shape[n] for n in axes), _wide(view.dtype)
        way = self.random.randrange(3) if wide.startswith("f") else 1

        def element(*at: Any) -> Element:
            over = {n: dg.reduce_axis(f"k{n}", view.shape[n]) for n in axes}
            here = view.at(*at).cast(wide)
            there = view.at(*(over.get(n, i) for n, i in enumerate(at))).cast(wide)
            if way == 0:
                most = dg.max(there, *over.values())
                return dg.exp(here - most) / dg.sum(dg.exp(there - most), *over.values())
            total = dg.sum(there, *over.values())
            if way == 1:
                return here - (total / count if wide.startswith("f") else total // count)
            return here * dg.rsqrt(dg.sum(there * there, *over.values()) / count + 1e-5)

        self.stage(view.shape, element)

    def scan(self) -> None:
        view = self.source()
        wide = _wide(view.dtype)
        op = self.random.choice(("sum", "sum", "max", "min"))
        axis, name = self.random.randrange(len(view.shape)), f"S{len(self.stages)}"
        self.stages.append(dg.scan(name, view.shape, lambda *at: view.at(*at).cast(wide), axis=axis, op=op))

    def window(self) -> None:
        """The sum, the maximum or the minimum of windows along one or two axes."""
        view = self.source()
        axes = self.random.sample(range(len(view.shape)), self.random.randint(1, min(2, len(view.shape))))
        step, reach = self.random.choice((1, 1, 2, 3)), {n: self.random.randint(1, min(4, view.shape[n])) for n in axes}
        shape = tuple((s - reach[n]) // step + 1 if n in reach else s for n, s in enumerate(view.shape))
        op, wide = self.random.choice(("sum", "max", "min")), _wide(view.dtype)

        def element(*at: Any) -> Element:
            over = {n: dg.reduce_axis(f"k{n}", reach[n]) for n in axes}
            place = (i * step + over[n] if n in over else i for n, i in enumerate(at))
            return self.finished(getattr(dg, op)(view.at(*place).cast(wide), *over.values()))

        self.stage(shape, element)

    def contraction(self) -> None:
        """Products of two tensors with axes in any order, summed over the axes that are not in the result."""
        roles = self.random.choice(
            ("ik kj", "ik jk", "ki kj", "bik bkj", "bik kj", "ik k", "k k", "abik abkj", "iak akj")
        )
        sizes = {axis: self.size() for axis in "abijk"}
        if prod(sizes[axis] for axis in set(roles) - {" "}) > MOST_READ:
            raise BadInput("much to compute")
        axes = ["".join(self.random.sample(part, len(part))) for part in roles.split()]
        summed = "ak" if roles == "iak akj" else "k"
        kept = [axis for axis in dict.fromkeys(axes[0] + axes[-1]) if axis not in summed]
        self.random.shuffle(kept)
        of = self.random.choice(self.kinds)
        operands = [self.tensor(tuple(sizes[axis] for axis in part), of) for part in axes]
        wide = _wide(of)

        def element(*at: Any) -> Element:
            over = {axis: dg.reduce_axis(axis, sizes[axis]) for axis in summed}
            place = {**dict(zip(kept, at, strict=False)), **over}
            both = (view.at(*(place[n] for n in part)).cast(wide) for view, part in zip(operands, axes, strict=True))
            used = [over[axis] for axis in summed if any(axis in part for part in axes)]
            return self.finished(dg.sum(reduce(lambda a, b: a * b, both), *used))

        self.stage(tuple(sizes[axis] for axis in kept), element)

    def convolution(self) -> None:
        """In one to three dimensions, odd sizes, channels first or last, with groups; padding inline or as a stage."""
        r = self.random
        count = r.choice((1, 1, 1, 2, 2, 3))
        space = [r.randint(1, (40, 11, 6)[count - 1]) for _ in range(count)]
        taps, step, gap = [r.randint(1, 4) for _ in range(count)], r.choice((1, 1, 2, 3)), r.choice((1, 1, 1, 2))
        pads = r.choice((0, 0, 1, 2))
        groups = r.choice((1, 1, 1, 2, 3))
        own, each, batch = r.choice((1, 1, 2, 3, 4, 8)), r.choice((1, 2, 3, 5, 8, 16)), r.choice((0, 0, 1, 2, 3))
        outputs = [(s + 2 * pads - (k - 1) * gap - 1) // step + 1 for s, k in zip(space, taps, strict=True)]
        last, of = r.random() < 0.5, r.choice(self.kinds)
        depthwise = own == each == 1 and groups > 1
        if min(outputs) < 1 or prod((*outputs, *taps, own, each * groups, batch or 1)) > MOST_READ:
            raise BadInput("a filter that is larger than its input, or much to compute")

        def laid(channel: Any, places: Sequence[Any]) -> tuple[Any, ...]:
            return (*places, channel) if last else (channel, *places)

        front = (batch,) if batch else ()
        x = self.tensor((*front, *laid(own * groups, space)), of)
        order = r.sample(range(count + 2), count + 2) if r.random() < 0.3 else [*range(count + 2)]
        sizes = (*taps, own, each * groups) if last else (each * groups, own, *taps)
        weight = self.tensor(tuple(sizes[n] for n in order), of)
        wide, first = _wide(of), len(front) + (0 if last else 1)
        if pads and r.random() < 0.3:  # a separate stage
            for n in range(count):
                x = self.bordered(x, first + n, pads)
            x, space, pads = _viewed(self.stage(x.shape, x.at)), [s + 2 * pads for s in space], 0

        def element(*at: Any) -> Element:
            inner = at[len(front) :]
            channel, places = (inner[-1], inner[:-1]) if last else (inner[0], inner[1:])
            over = [dg.reduce_axis(f"k{n}", k) for n, k in enumerate(taps)]
            through = dg.reduce_axis("c", own)
            met = [p * step + k * gap - pads for p, k in zip(places, over, strict=True)]
            source = through if groups == 1 else channel if depthwise else channel // each * own + through
            read = x.at(*at[: len(front)], *laid(source, met))
            if pads:
                inside = (one for p, s in zip(met, space, strict=True) for one in (p >= 0, p < s))
                read = dg.where(reduce(lambda a, b: a & b, inside), read, 0)
            filters = (*over, through, channel) if last else (channel, through, *over)
            product = read.cast(wide) * weight.at(*(filters[n] for n in order)).cast(wide)
            return self.finished(dg.sum(product, *over, through))

        self.stage((*front, *laid(each * groups, outputs)), element)

    def bordered(self, view: View, axis: int, pads: int) -> View:
        size = view.shape[axis]
        shape = (*view.shape[:axis], size + 2 * pads, *view.shape[axis + 1 :])

        def at(*place: Any) -> Element:
            i = place[axis] - pads
            return dg.where((i >= 0) & (i < size), view.at(*place[:axis], i, *place[axis + 1 :]), 0)

        return replace(view, shape=shape, at=at)


def _viewed(operand: Operand) -> View:
    return View(operand.shape, operand.dtype, lambda *at: operand[at])


def _wide(*dtypes: str) -> str:
    """The format in which elements of these dtypes are computed."""
    for one in ("f64", "f32", "f16", "bf16", "i64"):
        if one in dtypes:
            return SUMS[one]
    return "i32"
