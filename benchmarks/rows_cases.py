"""Operators on rows and elements for any_rows: each as an expression and as the corresponding torch call."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import deepgen as dg
from deepgen.operators.expr.nodes import Expression
from deepgen.vocabulary import dtype
from harness.cases import size

DTYPES, LARGEST, WIDE = ("f32", "bf16", "f16"), 1 << 30, "f32"
# For each kind: its group, and its ranks.
KINDS: dict[str, tuple[str, tuple[int, ...]]] = {
    "relu": ("elements", (1, 2, 3, 4)), "silu": ("elements", (1, 2, 3, 4)), "gelu": ("elements", (1, 2, 3, 4)),
    "exp": ("elements", (1, 2)), "cut": ("elements", (1, 2, 3)), "cast": ("elements", (1, 2, 3, 4)),
    "add": ("broadcast", (1, 2, 3, 4)), "mul": ("broadcast", (2, 3, 4)), "gated": ("elements", (1, 2, 3)),
    "sum": ("reductions", (1, 2, 3, 4)), "mean": ("reductions", (1, 2, 3, 4)), "max": ("reductions", (1, 2, 3, 4)),
    "var": ("reductions", (1, 2, 3, 4)), "argmax": ("reductions", (1, 2, 3)),
    "softmax": ("rows", (1, 2, 3, 4)), "log_softmax": ("rows", (2, 3)), "layer_norm": ("rows", (2, 3)),
    "rms_norm": ("rows", (2, 3)), "batch_norm": ("norms", (4,)), "group_norm": ("norms", (4,)),
    "instance_norm": ("norms", (4,)), "cumsum": ("scans", (1, 2, 3)), "permute": ("layouts", (2, 3, 4)),
    "max_pool": ("pooling", (4,)), "avg_pool": ("pooling", (4,)),
}  # fmt: skip
OVER = {"layer_norm": (-1,), "rms_norm": (-1,), "batch_norm": (0, 2, 3), "group_norm": (2, 3), "instance_norm": (2, 3)}
CAST = {"f32": "bf16", "bf16": "f32", "f16": "f32"}


@dataclass(frozen=True)
class Case:
    """`axes`: those that are reduced, scanned or broadcast, or the order of a permutation; the window of a pool."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    axes: tuple[int, ...] = ()

    @property
    def group(self) -> str:
        return KINDS[self.kind][0]

    @property
    def name(self) -> str:
        axes = f" {','.join(map(str, self.axes))}" if self.axes else ""
        return f"{self.kind}{axes} {self.dtype} {'x'.join(map(str, self.shape))}"


def make(chance: random.Random, least: int = 0) -> Case:
    """A case whose x has at least this many bytes."""
    while True:
        case = _made(chance)
        if prod(case.shape) * dtype(case.dtype).bytes >= least:
            return case


def _made(chance: random.Random) -> Case:
    kind, of = chance.choice([*KINDS]), chance.choice(DTYPES)
    rank = chance.choice(KINDS[kind][1])
    count, cuts = size(chance, 1, LARGEST // dtype(of).bytes), sorted(chance.random() for _ in range(rank - 1))
    shares = [after - before for before, after in zip((0.0, *cuts), (*cuts, 1.0), strict=True)]
    least, even = (4 if rank == 4 and kind not in ("relu", "silu") else 1), chance.random() < 0.5
    shape = [max(least, round(count**share)) for share in shares]
    if even:
        shape = [n // 8 * 8 if n >= 16 else n for n in shape]
    if kind == "gated":
        shape[-1] += shape[-1] % 2
    return Case(kind, of, tuple(shape), _axes(chance, kind, rank))


def _axes(chance: random.Random, kind: str, rank: int) -> tuple[int, ...]:
    if kind in OVER:
        return tuple(axis % rank for axis in OVER[kind])
    if kind in ("sum", "mean", "max", "var"):
        ways = [(rank - 1,), (0,), tuple(range(rank)), *([(1,), (0, rank - 1)] if rank > 2 else [])]
        return chance.choice(ways)
    if kind == "permute":
        return chance.choice([tuple(chance.sample(range(rank), rank)), (*range(rank - 2), rank - 1, rank - 2)])
    if kind in ("max_pool", "avg_pool"):
        return chance.choice([(2, 2), (3, 2), (3, 1)])
    if kind in ("add", "mul"):  # axes along which the second operand has size one
        return tuple(n for n in range(rank) if chance.random() < 0.4 and rank > 1)
    some = {"softmax": [rank - 1, rank - 1, 0], "log_softmax": [rank - 1], "cumsum": [rank - 1, rank - 1, 0]}
    return (chance.choice(some[kind]),) if kind in some else (rank - 1,) if kind == "argmax" else ()


def expression_of(case: Case) -> Expression:
    x = dg.tensor("x", case.shape, case.dtype)
    return dg.expression(_COMPUTED[case.kind](case, x), name=case.kind)


def _each(function: Callable[[Any], Any]) -> Callable[[Case, Any], Any]:
    return lambda case, x: dg.compute("y", x.shape, lambda *at: function(x[at].cast(WIDE)).cast(case.dtype))


def _moved(at: tuple[Any, ...], by: int) -> tuple[Any, ...]:
    """The index moved along the last axis."""
    return (*at[:-1], at[-1] + by)


def _cut(case: Case, x: Any) -> Any:
    """All but the first element of each row."""
    shape = (*case.shape[:-1], max(1, case.shape[-1] - 1))
    first = min(1, case.shape[-1] - 1)
    return dg.compute("y", shape, lambda *at: dg.maximum(x[_moved(at, first)], 0.0))


def _two(function: Callable[[Any, Any], Any]) -> Callable[[Case, Any], Any]:
    def computed(case: Case, x: Any) -> Any:
        other = dg.tensor("z", [1 if n in case.axes else size for n, size in enumerate(case.shape)], case.dtype)

        def element(*at: Any) -> Any:
            there = other[tuple(0 if n in case.axes else i for n, i in enumerate(at))]
            return function(x[at].cast(WIDE), there.cast(WIDE)).cast(case.dtype)

        return dg.compute("y", case.shape, element)

    return computed


def _gated(case: Case, x: Any) -> Any:
    half = case.shape[-1] // 2

    def element(*at: Any) -> Any:
        one, other = x[at].cast(WIDE), x[_moved(at, half)].cast(WIDE)
        return (one * dg.sigmoid(one) * other).cast(case.dtype)

    return dg.compute("y", (*case.shape[:-1], half), element)


class _Along:
    """A case's reduction: the reduced axes, and the others."""

    def __init__(self, case: Case, x: Any) -> None:
        self.case, self.x = case, x
        self.kept = [n for n in range(len(case.shape)) if n not in case.axes]
        self.shape = tuple(case.shape[n] for n in self.kept) or (1,)
        self.count = prod(case.shape[n] for n in case.axes)

    def reduced(self, how: Any, value: Callable[..., Any], at: Sequence[Any]) -> Any:
        """`value` is a function of the index in x."""
        over = {n: dg.reduce_axis(f"k{n}", self.case.shape[n]) for n in self.case.axes}
        place = tuple(over[n] if n in over else at[self.kept.index(n)] for n in range(len(self.case.shape)))
        return how(value(place), *over.values())

    def stage(self, name: str, element: Callable[..., Any]) -> Any:
        return dg.compute(name, self.shape, element)

    def own(self, at: Sequence[Any]) -> tuple[Any, ...]:
        """The index of an element's results."""
        return tuple(at[n] for n in self.kept) or (0,)

    def wide(self, place: tuple[Any, ...]) -> Any:
        return self.x[place].cast(WIDE)


def _reduction(how: Any, mean: bool = False) -> Callable[[Case, Any], Any]:
    def computed(case: Case, x: Any) -> Any:
        a = _Along(case, x)
        over = a.count if mean else 1
        return a.stage("y", lambda *at: (a.reduced(how, a.wide, at) / over).cast(case.dtype))

    return computed


def _spread(a: _Along, mean: Any, at: Sequence[Any]) -> Any:
    def square(place: tuple[Any, ...]) -> Any:
        away = a.wide(place) - mean[at]
        return away * away

    return a.reduced(dg.sum, square, at) / a.count


def _mean(a: _Along) -> Any:
    return a.stage("mean", lambda *at: a.reduced(dg.sum, a.wide, at) / a.count)


def _variance(case: Case, x: Any) -> Any:
    a = _Along(case, x)
    mean = _mean(a)
    return a.stage("y", lambda *at: _spread(a, mean, at).cast(case.dtype))


def _argmax(case: Case, x: Any) -> Any:
    a, last = _Along(case, x), case.shape[-1]
    most = a.stage("most", lambda *at: a.reduced(dg.max, lambda place: x[place], at))

    def element(*at: Any) -> Any:
        return a.reduced(dg.min, lambda place: dg.where(x[place] == most[at], place[-1].cast("i64"), last), at)

    return a.stage("y", element)


def _softmax(case: Case, x: Any) -> Any:
    a = _Along(case, x)
    most = a.stage("most", lambda *at: a.reduced(dg.max, a.wide, at))
    total = a.stage("total", lambda *at: a.reduced(dg.sum, lambda place: dg.exp(a.wide(place) - most[at]), at))

    def element(*at: Any) -> Any:
        own = a.own(at)
        if case.kind == "softmax":
            return (dg.exp(a.wide(at) - most[own]) * (1 / total[own])).cast(case.dtype)
        return (a.wide(at) - most[own] - dg.log(total[own])).cast(case.dtype)

    return dg.compute("y", case.shape, element)


def _norm(case: Case, x: Any) -> Any:
    """Norms with weights; all but rms_norm also with a mean and a bias."""
    a, rank, rms = _Along(case, x), len(case.shape), case.kind == "rms_norm"
    along = {"batch_norm": [1], "group_norm": [1, 2], "instance_norm": [1]}.get(case.kind, [rank - 1])
    weight, bias = (dg.tensor(name, [case.shape[n] for n in along], case.dtype) for name in ("weight", "bias"))
    if rms:
        square = a.stage("square", lambda *at: a.reduced(dg.sum, lambda p: a.wide(p) * a.wide(p), at) / a.count)
        scale = a.stage("scale", lambda *at: dg.rsqrt(square[at] + 1e-5))
    else:
        mean = _mean(a)
        scale = a.stage("scale", lambda *at: dg.rsqrt(_spread(a, mean, at) + 1e-5))

    def element(*at: Any) -> Any:
        own, there = a.own(at), tuple(at[n] for n in along)
        value = a.wide(at) if rms else a.wide(at) - mean[own]
        value = value * scale[own] * weight[there].cast(WIDE)
        return (value if rms else value + bias[there].cast(WIDE)).cast(case.dtype)

    return dg.compute("y", case.shape, element)


def _cumsum(case: Case, x: Any) -> Any:
    plain = case.dtype == WIDE
    total = dg.scan("y" if plain else "total", case.shape, lambda *at: x[at].cast(WIDE), axis=case.axes[0])
    return total if plain else dg.compute("y", case.shape, lambda *at: total[at].cast(case.dtype))


def _permute(case: Case, x: Any) -> Any:
    shape = tuple(case.shape[n] for n in case.axes)
    return dg.compute("y", shape, lambda *at: x[tuple(at[case.axes.index(n)] for n in range(len(at)))])


def _pool(case: Case, x: Any) -> Any:
    window, step = case.axes
    shape = (*case.shape[:2], *((n - window) // step + 1 for n in case.shape[2:]))

    def element(n: Any, c: Any, h: Any, w: Any) -> Any:
        dh, dw = dg.reduce_axis("dh", window), dg.reduce_axis("dw", window)
        value = x[n, c, h * step + dh, w * step + dw].cast(WIDE)
        return (dg.max(value, dh, dw) if case.kind == "max_pool" else dg.sum(value, dh, dw) / window**2).cast(
            case.dtype
        )

    return dg.compute("y", shape, element)


_COMPUTED: dict[str, Callable[[Case, Any], Any]] = {
    "relu": _each(lambda e: dg.maximum(e, 0.0)), "silu": _each(lambda e: e * dg.sigmoid(e)),
    "gelu": _each(lambda e: 0.5 * e * (1 + dg.erf(e * sqrt(0.5)))), "exp": _each(dg.exp),
    "cast": lambda case, x: dg.compute("y", x.shape, lambda *at: x[at].cast(CAST[case.dtype])), "cut": _cut,
    "add": _two(lambda a, b: a + b), "mul": _two(lambda a, b: a * b), "gated": _gated,
    "sum": _reduction(dg.sum), "mean": _reduction(dg.sum, mean=True), "max": _reduction(dg.max), "var": _variance,
    "argmax": _argmax, "softmax": _softmax, "log_softmax": _softmax, "cumsum": _cumsum, "permute": _permute,
    "max_pool": _pool, "avg_pool": _pool, **dict.fromkeys(OVER, _norm),
}  # fmt: skip


def torch_call(torch: Any, case: Case) -> Callable[..., Any]:
    """torch's call, as a function of the expression's tensors in order."""
    f, axes, shape = torch.nn.functional, case.axes, case.shape
    calls: dict[str, Callable[..., Any]] = {
        "relu": torch.relu, "silu": f.silu, "gelu": f.gelu, "exp": torch.exp,
        "cut": lambda x: torch.relu(x[..., min(1, shape[-1] - 1) :]),
        "cast": lambda x: x.to({"bf16": torch.bfloat16, "f32": torch.float32}[CAST[case.dtype]]),
        "add": torch.add, "mul": torch.mul,
        "gated": lambda x: f.silu(x[..., : shape[-1] // 2]) * x[..., shape[-1] // 2 :],
        "sum": lambda x: torch.sum(x, axes), "mean": lambda x: torch.mean(x, axes),
        "max": lambda x: torch.amax(x, axes), "var": lambda x: torch.var(x, axes, correction=0),
        "argmax": lambda x: torch.argmax(x, -1), "softmax": lambda x: torch.softmax(x, axes[0]),
        "log_softmax": lambda x: torch.log_softmax(x, axes[0]),
        "layer_norm": lambda x, w, b: f.layer_norm(x, shape[-1:], w, b),
        "rms_norm": lambda x, w: f.rms_norm(x, shape[-1:], w, 1e-5),
        "batch_norm": lambda x, w, b: f.batch_norm(x, None, None, w, b, training=True),
        "group_norm": lambda x, w, b: f.group_norm(x.flatten(1, 2), shape[1], w.flatten(), b.flatten()),
        "instance_norm": lambda x, w, b: f.instance_norm(x, weight=w, bias=b),
        "cumsum": lambda x: torch.cumsum(x, axes[0]),
        # A clone: a permutation that moves nothing would return its input.
        "permute": lambda x: torch.clone(x.permute(axes), memory_format=torch.contiguous_format),
        "max_pool": lambda x: f.max_pool2d(x, *axes), "avg_pool": lambda x: f.avg_pool2d(x, *axes),
    }  # fmt: skip
    return calls[case.kind]
