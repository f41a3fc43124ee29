"""A replacement for torch._scaled_mm: products of 8-bit floats, with one scale for each of the two matrices, or for
each of their blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad

from deepgen.frontends.torch.functions import Places, Run, remember
from deepgen.frontends.torch.ops import TORCHS
from deepgen.frontends.torch.products import block_scaled_mm
from deepgen.frontends.torch.race import PLAIN, capturing_now, modes, watched
from deepgen.frontends.torch.routes import LAUNCH, Route, Router

SCALED_MM = TORCHS["scaled_mm"]
PRODUCT = 10e-6  # maximum cost in seconds of multiplying two scales in eager code: a torch call and a launch

_FACTORED = 3  # tensors of a product whose scales are multiplied before: A, B and one factor
_MOST_FACTORS, _MOST_OWN = 4096, 4096  # a model with 80 layers has 560 such products
_BF16 = torch.bfloat16
_is_grad_enabled = torch.is_grad_enabled
# Whether a tensor is a result of a compiler's CUDA graph: replays write it without changing its version counter.
_rewritten: Callable[[Any], bool] = getattr(torch._C, "_is_cached_tensor", lambda tensor: False)


class Factors:
    """Products of two scales, cached while both are unchanged: launching a product each time would take as long as a
    kernel.

    Changes are detected by torch's version counters, or by a new address if the data was exchanged.
    """

    def __init__(self) -> None:
        self._factors: dict[tuple[int, int], tuple[int, int, int, int, Any, object]] = {}

    def product(self, a: Any, b: Any, gain: float) -> Any:
        """The product; None if torch should serve: the scales are new, perhaps in every call, and a kernel gains too
        little.
        """
        kept = self._factors.get((id(a), id(b)))
        if kept is not None:
            count_a, count_b, at_a, at_b, factor, _ = kept
            if count_a == a._version and count_b == b._version and at_a == a.data_ptr() and at_b == b.data_ptr():
                return self._keep(a, b, a * b) if factor is None else factor
        factor = a * b if gain > PRODUCT else None
        # Inference tensors have no version counter.
        if not (a.is_inference() or b.is_inference() or _rewritten(a) or _rewritten(b)):
            self._keep(a, b, factor)
        return factor

    def _keep(self, a: Any, b: Any, factor: Any) -> Any:
        if len(self._factors) >= _MOST_FACTORS:
            self._factors.clear()
        # The tensors and their memory are kept alive, so that ids and addresses are not reused.
        lasting = (a, b, a.detach(), b.detach())
        self._factors[id(a), id(b)] = (a._version, b._version, a.data_ptr(), b.data_ptr(), factor, lasting)
        return factor


def scaled_mm_of(router: Router) -> Run:
    places: tuple[Places, Places] = ({}, {})
    factors = Factors()
    # Calls left to torch: by a scale, which is kept alive, the sizes of the matrices in elements. Little else is
    # checked: in a model each function call costs more than in a loop, since caches are cold.
    torchs_own: dict[int, tuple[Any, set[tuple[int, int]]]] = {}

    def scaled_mm(
        input: Any,
        mat2: Any,
        scale_a: Any = None,
        scale_b: Any = None,
        bias: Any = None,
        scale_result: Any = None,
        out_dtype: Any = None,
        use_fast_accum: Any = False,
        **more: Any,
    ) -> Any:
        result = None
        plain = type(input) in PLAIN and type(mat2) in PLAIN and not more
        if plain and out_dtype is _BF16 and bias is None and scale_result is None:
            place = -id(scale_b) if use_fast_accum else id(scale_b)
            own = torchs_own.get(place)
            if own is not None and (input.numel(), mat2.numel()) in own[1]:
                return SCALED_MM(input, mat2, scale_a, scale_b, None, None, _BF16, use_fast_accum)
            entries = () if modes() or forward_ad._current_level >= 0 else places[_is_grad_enabled()].get(place, ())
            for check, run in entries:
                if check(input, mat2, scale_a, scale_b):
                    result = None if run is None else run(input, mat2, scale_a, scale_b)
                    break
            else:
                result = met((input, mat2, scale_a, scale_b), bool(use_fast_accum), place)
        if result is not None:
            return result
        return SCALED_MM(
            input, mat2, scale_a=scale_a, scale_b=scale_b, bias=bias, scale_result=scale_result, out_dtype=out_dtype,
            use_fast_accum=use_fast_accum, **more,
        )  # fmt: skip

    def met(operands: tuple[Any, Any, Any, Any], fast: bool, place: int) -> Any:
        """Decide a call in Python. The next one like it is found in the cache of its site."""
        if any(type(tensor) not in PLAIN for tensor in operands) or watched() or router.deciding:
            return None
        route = _route(router, operands, fast, serving)
        run = None if route is None else serving(route)
        a, b, _, scale_b = operands
        if route is None and a.is_contiguous():
            if len(torchs_own) >= _MOST_OWN:
                torchs_own.clear()
            torchs_own.setdefault(place, (scale_b, set()))[1].add((a.numel(), b.numel()))
        remember(places, place, operands, run)
        return None if run is None else run(*operands)

    def serving(route: Route) -> Run:
        if len(route.places) > _FACTORED:  # scales of blocks go to the kernel as they are
            return lambda *operands: None if route.idle else route.run(operands)
        return by_scales(route, route.quick(), factors, called=route.called)

    return scaled_mm


def by_scales(route: Route, quick: Run, factors: Factors, *, called: bool = True) -> Run:
    """A function that serves calls by a route with one scale for each matrix; it returns None if torch should serve
    them.

    `quick` is the route's. Without `called`, torch serves except while a graph is captured.
    """
    on_gpu, gain = route.on_gpu, route.gain

    def run(a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any = None) -> Any:
        if on_gpu and capturing_now():  # replays must read the current scales
            return None if gain < LAUNCH else quick(a, b, scale_a * scale_b, out)
        factor = None if not called else factors.product(scale_a, scale_b, gain)
        return None if factor is None else quick(a, b, factor, out)

    return run


def _route(
    router: Router, operands: tuple[Any, Any, Any, Any], fast: bool, serving: Callable[[Route], Run]
) -> Route | None:
    a, b, scale_a, scale_b = operands
    if scale_a.numel() != 1 or scale_b.numel() != 1:
        torchs_own = partial(SCALED_MM, out_dtype=_BF16, use_fast_accum=fast)
        return router.route("block_scaled_mm", operands, torchs_own, serving, block_scaled_mm)
    if scale_b.dtype != torch.float32:
        return None

    def torchs(left: Any, right: Any, scale: Any, fast_sums: bool) -> Any:
        return SCALED_MM(left, right, scale_a, scale_b, out_dtype=_BF16, use_fast_accum=fast_sums)

    def door(route: Route) -> Run:
        run = serving(route)
        return lambda left, right, scale, fast_sums: run(left, right, scale_a, scale_b)

    return router.route("scaled_mm", (a, b, scale_a * scale_b, fast), torchs, door)
