"""Replacements for torch's functions: same arguments and results, using a library's kernel where it is faster.

They are called once for each layer of a model, and torch's own take a few microseconds. So the implementation for a
kind of call is chosen once, cached at the call site, and found again by a single check of its tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeAlias
from weakref import ref

import torch
from torch.autograd import forward_ad

from deepgen.frontends.torch.calls import attend
from deepgen.frontends.torch.elements import TENSORS as ELEMENTS
from deepgen.frontends.torch.ops import OPS, TORCHS
from deepgen.frontends.torch.race import PLAIN, Check, Looks, check_of, modes, watched
from deepgen.frontends.torch.routes import KINDS_KEPT, Route, Router, Table

GRADIENT = 50e-6  # extra cost in seconds of a call with gradients, which torch handles in C++

_NEW = object()
_NOWHERE = object()
_NOT_GIVEN: Any = object()
_NOT_IN_PLACE = {"inplace": False}  # as torch's layers pass it
_MOST_PLACES = 4096
_ALIKE = 8  # kinds of calls cached per call site
_LOOKED_AT = 16  # calls of a small size, before a CUDA graph is captured

_is_grad_enabled = torch.is_grad_enabled
_is_autocast = getattr(torch._C, "_is_any_autocast_enabled", torch.is_autocast_enabled)
LINEAR = TORCHS["linear"]

Run: TypeAlias = "Callable[..., Any]"
# The cache of decisions, by call site: what the tensors must be like, and what then serves the call. That takes the
# tensors that the operator reads, in its order, and may return None for torch to serve the call after all. The key of a
# site is mostly the id of a parameter. It is only a hint, since another tensor may have that id later.
Places: TypeAlias = "dict[Any, tuple[tuple[Check, Run | None], ...]]"

# What follows queries, keys and values, of which all from `scale` on are given by name.
_ATTENTION: Mapping[str, Any] = {
    "attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False,
}  # fmt: skip
CONVOLUTIONS = tuple(f"{kind}{n}d" for kind in ("conv", "conv_transpose") for n in (1, 2, 3))


def _filtered(args: Sequence[Any]) -> tuple[Any, ...]:
    """The tensors of a convolution, whose bias may be None."""
    return tuple(args[: 2 if args[2] is None else 3])


def _layer(args: Sequence[Any]) -> Any:
    return (id(args[1]), *map(_option, args[3:]))


def _option(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# Functions with arguments other than tensors: the number of arguments, the tensors the operator reads, and the rest.
_ARGUMENTS: Mapping[str, tuple[int, Run, Run]] = {
    "addmm": (3, itemgetter(1, 2, 0), lambda args: id(args[2])),
    "softmax": (2, itemgetter(slice(0, 1)), itemgetter(1)),
    "layer_norm": (5, itemgetter(0, 2, 3), lambda args: (tuple(args[1]), args[4])),
    "rms_norm": (4, itemgetter(0, 2), lambda args: (tuple(args[1]), args[3])),
    **{kind: (8 if "transpose" in kind else 7, _filtered, _layer) for kind in CONVOLUTIONS},  # as layers call them
}


class Deciding:
    """Decides and caches what serves the calls of one function."""

    def __init__(self, router: Router, kind: str, torchs: Run) -> None:
        self._router, self._kind, self._torchs = router, kind, torchs
        self._own: Run = getattr(OPS, kind) if hasattr(OPS, kind) else torchs  # used if gradients are needed
        self._table: Table = {}
        self.places: tuple[Places, Places] = ({}, {})  # without and with gradients enabled
        # Calls left to torch, by their second tensor, usually a weight: the sizes in elements of the first tensor.
        # Nothing else is checked: torch's own function is correct for all tensors.
        self.torchs_own: dict[int, tuple[ref[Any], tuple[int, ...]]] = {}

    def slowly(
        self, args: tuple[Any, ...], place: Any, named: Mapping[str, Any] = {}, reads: Sequence[Any] | None = None
    ) -> Any:
        """Decide a call in Python. The next one like it is found in the cache of its site.

        `reads` are the tensors that the operator reads, in its order; by default all tensors of the call.
        """
        out = named.get("out")
        if len(named) > (out is not None) or watched() or self._router.deciding:
            return self._torchs(*args, **named)
        try:
            key = tuple(map(_key, args))
            route: Any = self._table.get(key, _NEW)
        except (TypeError, RuntimeError):  # not hashable, or tensors of other kinds
            return self._torchs(*args, **named)
        if route is _NEW:
            if len(self._table) >= KINDS_KEPT:
                return self._torchs(*args, **named)
            route = self._table[key] = self._routed(args)
        if _is_autocast():
            return self._torchs(*args, **named)
        tensors = [arg for arg in args if type(arg) in PLAIN]
        if route is not None and _is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            gains = route.gain > GRADIENT and route.called
            return (self._own if gains and out is None else self._torchs)(*args, **named)
        result = None if route is None or route.idle else self._run(route, args, out)
        reads = tensors if reads is None else reads
        if route is None and len(reads) > 1 and self._kind not in ELEMENTS and reads[0].is_contiguous():
            self._leave_to_torch(reads[0], reads[1])
        if route is None or route.idle or result is not None:
            remember(self.places, place, reads, None if route is None else self._quick(route, len(reads)))
        return self._torchs(*args, **named) if result is None else result

    def _routed(self, args: tuple[Any, ...]) -> Route | None:
        return self._router.route(self._kind, args, self._torchs)

    def _run(self, route: Route, args: tuple[Any, ...], out: Any) -> Any:
        return route.run(args, out)

    def _quick(self, route: Route, reads: int) -> Run:
        return route.eager(route.quick(reads))

    def earned(self) -> float:
        """The seconds that kernels have saved so far."""
        routes = {id(route.calls): route for route in self._table.values() if route is not None}
        return sum(route.calls.served * route.saves for route in routes.values())

    def _leave_to_torch(self, input: Any, weight: Any) -> None:
        if len(self.torchs_own) >= _MOST_PLACES:
            self.torchs_own.clear()
        before, sizes = self.torchs_own.get(id(weight), (lambda: None, ()))
        sizes_seen = sizes[: _ALIKE - 1] if before() is weight else ()
        self.torchs_own[id(weight)] = (ref(weight), (input.numel(), *sizes_seen))


def remember(places: tuple[Places, Places], place: Any, tensors: Sequence[Any], run: Run | None) -> None:
    """Cache what serves calls at a site with tensors like these, None for torch; the latest comes first."""
    # Calls with a missing tensor are not cached: a check covers a fixed number of tensors.
    whole = place is not _NOWHERE and all(type(tensor) in PLAIN for tensor in tensors)
    check = check_of(tensors) if whole else None
    if check is None:
        return
    entries = places[_is_grad_enabled()]
    if len(entries) >= _MOST_PLACES:
        entries.clear()
    entries[place] = ((check, run), *entries.get(place, ())[: _ALIKE - 1])


def linear_of(router: Router) -> Run:
    calls = Deciding(router, "linear", LINEAR)
    places, torchs_own = calls.places, calls.torchs_own

    def linear(input: Any, weight: Any, bias: Any = None) -> Any:
        own = torchs_own.get(id(weight))
        if own is not None and own[0]() is weight and type(input) in PLAIN and input.numel() in own[1]:
            return LINEAR(input, weight, bias)
        if bias is not None:
            return biased(input, weight, bias)
        if not modes() and forward_ad._current_level < 0:
            for check, run in places[_is_grad_enabled()].get(id(weight), ()):
                if check(input, weight):
                    result = None if run is None else run(input, weight)
                    return LINEAR(input, weight) if result is None else result
        return calls.slowly((input, weight), id(weight))

    def biased(input: Any, weight: Any, bias: Any) -> Any:
        if not modes() and forward_ad._current_level < 0:
            for check, run in places[_is_grad_enabled()].get(-id(weight), ()):
                if check(input, weight, bias):
                    result = None if run is None else run(input, weight, bias)
                    return LINEAR(input, weight, bias) if result is None else result
        return calls.slowly((input, weight, bias), -id(weight))

    return linear


def product_of(router: Router, kind: str, torchs: Run) -> Run:
    """A replacement for mm, bmm or matmul."""
    calls = Deciding(router, kind, torchs)
    places, torchs_own = calls.places, calls.torchs_own

    def product(a: Any = _NOT_GIVEN, b: Any = _NOT_GIVEN, *rest: Any, **named: Any) -> Any:
        if b is _NOT_GIVEN or rest:
            return torchs(*_passed(a, b, *rest), **named)
        own = torchs_own.get(id(b))
        if own is not None and own[0]() is b and type(a) in PLAIN and a.numel() in own[1]:
            return torchs(a, b, **named)
        if not modes() and forward_ad._current_level < 0 and (not named or (len(named) == 1 and "out" in named)):
            for check, run in places[_is_grad_enabled()].get(id(b), ()):
                if check(a, b):
                    result = None if run is None else run(a, b, **named)
                    return torchs(a, b, **named) if result is None else result
        return calls.slowly((a, b), id(b), named)

    return product


def grouped_of(router: Router) -> Run:
    """A replacement for `_grouped_mm`, with offsets; with gradients torch serves it."""
    torchs = TORCHS["grouped_mm"]
    calls = Deciding(router, "grouped_mm", torchs)
    places = calls.places

    def grouped_mm(a: Any = _NOT_GIVEN, b: Any = _NOT_GIVEN, offs: Any = None, *rest: Any, **named: Any) -> Any:
        if b is _NOT_GIVEN or offs is None or rest or any(value is not None for value in named.values()):
            return torchs(*_passed(a, b, offs, *rest), **named)
        if not modes() and forward_ad._current_level < 0:
            for check, run in places[_is_grad_enabled()].get(id(b), ()):
                if check(a, b, offs):
                    result = None if run is None else run(a, b, offs)
                    return torchs(a, b, offs) if result is None else result
        return calls.slowly((a, b, offs), id(b))

    return grouped_mm


def attention_of(router: Router) -> Run:
    """A replacement for `scaled_dot_product_attention`; with gradients or dropout torch serves it."""
    torchs = TORCHS["attention"]
    calls = Deciding(router, "attention", attend)
    places = calls.places

    def attention(*args: Any, **named: Any) -> Any:
        options = {**_ATTENTION, **dict(zip(_ATTENTION, args[3:], strict=False)), **named}
        if not 3 <= len(args) <= 6 or len(options) > len(_ATTENTION) or options["dropout_p"]:
            return torchs(*args, **named)
        mask, *rest = options.values()
        reads = args[:3] if mask is None else (*args[:3], mask)
        place = (len(reads), *rest)
        if not modes() and forward_ad._current_level < 0:
            for check, run in places[_is_grad_enabled()].get(place, ()):
                if check(*reads):
                    result = None if run is None else run(*reads)
                    return torchs(*args, **named) if result is None else result
        return calls.slowly((*args[:3], mask, *rest), place, reads=reads)

    return attention


def other_of(router: Router, kind: str, torchs: Run) -> Run:
    """A replacement for a function with arguments other than tensors; with gradients torch serves it."""
    calls = Deciding(router, kind, torchs)
    places, torchs_own = calls.places, calls.torchs_own
    count, tensors, place_of = _ARGUMENTS[kind]
    second = 0 if kind == "softmax" else 1  # softmax has only one tensor

    def call(*args: Any, **named: Any) -> Any:
        if len(args) != count or named:
            return calls.slowly(args, _NOWHERE, named)
        reads = tensors(args)
        if reads[second] is None or reads[-1] is None:  # no kernel normalises without weight or bias
            return torchs(*args)
        own = torchs_own.get(id(reads[second]))
        if own is not None and own[0]() is reads[second] and type(reads[0]) in PLAIN and reads[0].numel() in own[1]:
            return torchs(*args)
        try:
            place = place_of(args)
            entries = places[_is_grad_enabled()].get(place, ())
        except TypeError:  # invalid arguments for such a function
            return torchs(*args)
        if not modes() and forward_ad._current_level < 0:
            for check, run in entries:
                if check(*reads):
                    result = None if run is None else run(*reads)
                    return torchs(*args) if result is None else result
        return calls.slowly(args, place, reads=reads)

    return call


class Elements:
    """Elementwise operators of one kind; with gradients torch serves them.

    Models call these most often, mostly with little work or with a new shape, as for a growing cache. Kernels are built
    for one shape, so calls are inspected only if the result may have as many elements as that of a kernel. Inspecting
    takes CPU time. If a GPU waits for it, on `small` sizes, only the first calls are inspected, so that kernels are
    ready, and then those captured in a CUDA graph, since replays make no calls. If kernels save less than inspecting
    other calls of Python's operators costs, `looks` stops the inspection.
    """

    def __init__(
        self,
        router: Router,
        kind: str,
        sizes: set[int] | range,
        small: Iterable[int] = (),
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        """`sizes`: of all kernels, including small ones. `give_up`: restores torch's own Tensor methods."""
        self._sizes = sizes
        self._left = dict.fromkeys(small, _LOOKED_AT)
        self._torchs: Run = _cat if kind == "cat" else TORCHS[kind]
        self._calls = Deciding(router, kind, self._torchs)
        self.looks = Looks(self._calls.earned, give_up)
        unary = self._unary if ELEMENTS[kind] == 1 else self._binary
        self.instead_of: Callable[[Run, bool], Run] = self._cat if kind == "cat" else unary

    def captures(self, *, begin: bool) -> None:
        """Called when the capture of a CUDA graph begins or ends."""
        if isinstance(self._sizes, set):
            (self._sizes.update if begin else self._sizes.difference_update)(self._left)

    def _large(self, args: tuple[Any, ...], tensors: tuple[Any, ...], place: Any, size: int) -> Any:
        """Handle a call with many elements."""
        left = self._left.get(size)
        if left:
            self._left[size] = left - 1
            if left == 1 and isinstance(self._sizes, set):
                self._sizes.discard(size)
        grad = _is_grad_enabled()
        if (grad and any(one.requires_grad for one in tensors)) or (len(tensors) == 2 and tensors[0] is tensors[1]):
            return self._torchs(*args)
        if not modes() and forward_ad._current_level < 0:
            for check, run in self._calls.places[grad].get(place, ()):
                if check(*tensors):
                    result = None if run is None else run(*tensors)
                    return self._torchs(*args) if result is None else result
        return self._calls.slowly(args, place, reads=tensors)

    def _unary(self, torchs: Run, operator: bool) -> Run:
        """`torchs` is torch's function to be replaced. `operator`: whether it is a Python operator."""
        large, sizes, looks, take = self._large, self._sizes, self.looks, self.looks.take

        def unary(a: Any = _NOT_GIVEN, *rest: Any, **named: Any) -> Any:
            if a is _NOT_GIVEN or rest:
                return torchs(*_passed(a, *rest), **named)
            if type(a) not in PLAIN or a.numel() not in sizes or (named and named != _NOT_IN_PLACE):
                return torchs(a, **named)
            return large((a,), (a,), a.numel(), a.numel())

        def prefix(a: Any) -> Any:
            """A Python operator with one operand, which is a tensor."""
            # Symbolic sizes need no special case: symbols are in no set.
            if type(a) not in PLAIN or a.numel() not in sizes:
                try:
                    take()
                except IndexError:
                    looks.settle()
                return torchs(a)
            return large((a,), (a,), a.numel(), a.numel())

        return prefix if operator else unary

    def _binary(self, torchs: Run, operator: bool) -> Run:
        large, sizes, looks, take = self._large, self._sizes, self.looks, self.looks.take

        def binary(a: Any = _NOT_GIVEN, b: Any = _NOT_GIVEN, *rest: Any, **named: Any) -> Any:
            if rest or named or b is _NOT_GIVEN:
                return torchs(*_passed(a, b, *rest), **named)
            if type(a) not in PLAIN or a.numel() not in sizes or type(b) not in PLAIN:
                return torchs(a, b)
            return large((a, b), (a, b), a.numel(), a.numel())

        def infix(a: Any, b: Any) -> Any:
            """A Python operator with two operands, the first of which is a tensor."""
            if type(a) not in PLAIN or a.numel() not in sizes or type(b) not in PLAIN:
                try:
                    take()
                except IndexError:
                    looks.settle()
                return torchs(a, b)
            return large((a, b), (a, b), a.numel(), a.numel())

        return infix if operator else binary

    def _cat(self, torchs: Run, operator: bool) -> Run:
        large, sizes = self._large, self._sizes

        def cat(tensors: Any = _NOT_GIVEN, dim: Any = _NOT_GIVEN, *rest: Any, **named: Any) -> Any:
            if rest or named or type(tensors) not in (tuple, list) or len(tensors) != 2:
                return torchs(*_passed(tensors, dim, *rest), **named)
            a, b = tensors
            along = 0 if dim is _NOT_GIVEN else dim
            plain = type(a) in PLAIN and type(b) in PLAIN and type(along) is int
            if not plain or a.numel() + b.numel() not in sizes:
                return torchs(tensors, along)
            return large((along, a, b), (a, b), (along, a.numel()), a.numel() + b.numel())

        return cat


def _passed(*args: Any) -> tuple[Any, ...]:
    """The positional arguments that were given; others may be passed by name."""
    return tuple(arg for arg in args if arg is not _NOT_GIVEN)


def _cat(dim: int, a: Any, b: Any) -> Any:
    return TORCHS["cat"]((a, b), dim)


def _key(arg: Any) -> Any:
    if type(arg) in PLAIN:
        return (arg.shape, arg.stride(), arg.dtype, arg.get_device())
    if isinstance(arg, torch.Tensor):
        raise TypeError("a subclass of Tensor")
    return tuple(arg) if isinstance(arg, list) else arg
