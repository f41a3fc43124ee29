"""Functions in place of torch's: the same arguments and results, by a kernel of a library where that is faster.

What costs nothing extra: they are called once for each layer of a model, and torch's own take a few microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from deepgen.torch.ops import OPS, TORCHS
from deepgen.torch.routes import PLAIN, Route, Router, Table, capturing

GRADIENT = 50e-6  # seconds that a call with gradients costs more, which torch computes in C++

_NEW = object()
_MOST_FACTORS = 256

_is_grad_enabled = torch.is_grad_enabled
_is_autocast = getattr(torch._C, "_is_any_autocast_enabled", torch.is_autocast_enabled)

LINEAR, SCALED_MM = TORCHS["linear"], TORCHS["scaled_mm"]


class _Weight:
    """What is known of a parameter: its routes by what it is multiplied with and what is added."""

    __slots__ = ("address", "elements", "itself", "routes")

    def __init__(self, weight: Any, forget: Callable[[Any], object]) -> None:
        self.itself: Any = ref(weight, forget)
        self.address, self.elements = weight.data_ptr(), weight.numel()
        self.routes: Table = {}


def linear_of(router: Router) -> Callable[..., Any]:
    """Parameters live long, so each is looked at once; `data` may still be given to it, and then it is another.

    It and the input must be contiguous. Rows of both are equally long, so that all elements tell how many rows it has.
    """
    weights: dict[int, _Weight] = {}

    def linear(input: Any, weight: Any, bias: Any = None) -> Any:
        known = weights.get(id(weight)) or look(input, weight)
        if known is None:
            return LINEAR(input, weight, bias)
        key: Any = (input.shape, input.dtype)
        if bias is not None:
            if type(bias) not in PLAIN:
                return LINEAR(input, weight, bias)
            key = (*key, bias.shape, bias.stride(), bias.dtype, bias.get_device())
        route: Any = known.routes.get(key, _NEW)
        if route is None or type(input) is not Tensor or not input.is_contiguous():
            return LINEAR(input, weight, bias)
        if (
            known.itself() is not weight
            or weight.data_ptr() != known.address
            or weight.numel() != known.elements
            or not weight.is_contiguous()
        ):
            known, route = look(input, weight), _NEW
            if known is None:
                return LINEAR(input, weight, bias)
        if route is _NEW:
            route = known.routes[key] = router.route("linear", (input, weight, bias), LINEAR)
        if route is None or _is_autocast() or input.get_device() != route.device:
            return LINEAR(input, weight, bias)
        if _is_grad_enabled() and (
            input.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
        ):
            return (OPS.linear if route.gain > GRADIENT else LINEAR)(input, weight, bias)
        if bias is None:
            out = route.run_two(input, weight, None, known.address)
        else:
            out = route.run_biased(input, weight, bias, known.address)
        return LINEAR(input, weight, bias) if out is None else out

    def look(input: Any, weight: Any) -> _Weight | None:
        """None: not a plain call, or while a compiler traces."""
        if type(input) is not Tensor or type(weight) not in PLAIN or not weight.is_contiguous():
            return None
        number = id(weight)
        made = weights[number] = _Weight(weight, lambda gone: weights.pop(number, None))
        return made

    return linear


def product_of(router: Router, kind: str, torchs: Callable[..., Any]) -> Callable[..., Any]:
    """mm, bmm and matmul."""
    table: Table = {}

    own = getattr(OPS, kind)

    def product(a: Any, b: Any, *rest: Any, out: Any = None, **named: Any) -> Any:
        if type(a) not in PLAIN or type(b) not in PLAIN or rest or named:
            return torchs(a, b, *rest, out=out, **named)
        key = (a.shape, a.stride(), a.dtype, a.get_device(), b.shape, b.stride(), b.dtype, b.get_device())
        route: Any = table.get(key, _NEW)
        if route is _NEW:
            route = table[key] = _first(router, kind, (a, b), torchs)
        if route is None or _is_autocast():
            return torchs(a, b, out=out)
        if _is_grad_enabled() and (a.requires_grad or b.requires_grad):
            return own(a, b) if route.gain > GRADIENT and out is None else torchs(a, b, out=out)
        made = route.run_two(a, b, out)
        return torchs(a, b, out=out) if made is None else made

    return product


def other_of(router: Router, kind: str, torchs: Callable[..., Any]) -> Callable[..., Any]:
    """Any other function, by the tensors among its arguments; with gradients torch serves it."""
    table: Table = {}

    def call(*args: Any, **named: Any) -> Any:
        if _is_grad_enabled() and _needs_grad(args):
            return torchs(*args, **named)
        out = named.get("out")
        if len(named) > (out is not None):
            return torchs(*args, **named)
        try:
            key = tuple(map(_key, args))
            route: Any = table.get(key, _NEW)
        except (TypeError, RuntimeError):  # what cannot be looked up: tensors of other kinds
            return torchs(*args, **named)
        if route is _NEW:
            route = table[key] = _first(router, kind, args, torchs)
        if route is None or _is_autocast():
            return torchs(*args, **named)
        made = route.run(args, out)
        return torchs(*args, **named) if made is None else made

    return call


class _Factors:
    """Products of two scales, kept while both are as they were: a launch for each would take as long as short kernels.

    Not in a graph: its replays must read scales as they are then.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Any, Any, int, int, Any]] = {}

    def product(self, a: Any, b: Any) -> Any:
        if capturing(a.device) or a.is_inference() or b.is_inference():
            return a * b
        known = self._known.get((id(a), id(b)))
        if known is None or known[2] != a._version or known[3] != b._version:
            if len(self._known) >= _MOST_FACTORS:
                self._known.clear()
            # With the tensors themselves: their ids are not given to others meanwhile.
            known = self._known[id(a), id(b)] = (a, b, a._version, b._version, a * b)
        return known[4]


def scaled_mm_of(router: Router) -> Callable[..., Any]:
    """torch._scaled_mm with one factor for each of its matrices."""
    table: Table = {}
    factors = _Factors()

    def scaled_mm(a: Any, b: Any, scale_a: Any = None, scale_b: Any = None, *rest: Any, **named: Any) -> Any:
        plain = not rest and named.get("out_dtype") is torch.bfloat16 and {*named} <= {"out_dtype", "use_fast_accum"}
        if not plain or any(type(tensor) not in PLAIN for tensor in (a, b, scale_a, scale_b)):
            return SCALED_MM(a, b, scale_a, scale_b, *rest, **named)
        fast = bool(named.get("use_fast_accum", False))
        key = (_key(a), _key(b), _key(scale_a), _key(scale_b), fast)
        route: Any = table.get(key, _NEW)
        if route is _NEW:
            route = table[key] = _scaled(router, (a, b, scale_a, scale_b), fast)
        made = None if route is None else route.run((a, b, factors.product(scale_a, scale_b), fast))
        return SCALED_MM(a, b, scale_a, scale_b, **named) if made is None else made

    return scaled_mm


def _scaled(router: Router, given: tuple[Any, Any, Any, Any], fast: bool) -> Route | None:
    a, b, scale_a, scale_b = given
    if scale_a.numel() != 1 or scale_b.numel() != 1 or scale_b.dtype != torch.float32:
        return None

    def torchs(left: Any, right: Any, scale: Any, fast_sums: bool) -> Any:
        return SCALED_MM(left, right, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast_sums)

    return router.route("scaled_mm", (a, b, scale_a * scale_b, fast), torchs)


def _first(router: Router, kind: str, args: tuple[Any, ...], torchs: Callable[..., Any]) -> Route | None:
    """The route of a kind of call that is met for the first time."""
    if not all(type(arg) in PLAIN for arg in args if isinstance(arg, torch.Tensor)):
        return None
    return router.route(kind, args, torchs)


def _needs_grad(args: tuple[Any, ...]) -> bool:
    return any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args)


def _key(arg: Any) -> Any:
    if type(arg) in PLAIN:
        return (arg.shape, arg.stride(), arg.dtype, arg.get_device())
    if isinstance(arg, torch.Tensor):
        raise TypeError("a subclass of Tensor")
    return tuple(arg) if isinstance(arg, list) else arg
