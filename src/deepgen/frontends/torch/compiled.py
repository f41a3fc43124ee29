"""What compiled code calls for a product: one function for each kernel, with `out=` as torch's own functions have it.

Inductor's code calls it directly, with tensors that are as they were when the graph was compiled: nothing is looked up
but the kernel's binding to a thread, and nothing checked but where the tensors lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import cycle
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from deepgen.frontends.torch.ops import TORCHS, scaled_mm, two_scales_mm
from deepgen.frontends.torch.race import calling
from deepgen.frontends.torch.routes import Route
from deepgen.frontends.torch.scaled import Factors, by_scales
from deepgen.frontends.torch.tried import elsewhere, made_real
from deepgen.frontends.torch.views import Views, viewed

Call = Callable[..., Any]

# torch's own, which serve where a kernel cannot be called after all.
_TORCHS: Mapping[str, Call] = {
    **{kind: TORCHS[kind] for kind in ("mm", "bmm", "addmm")},
    "scaled_mm": scaled_mm,
    "two_scales_mm": two_scales_mm,
}
_WARM = 4  # calls before those that are timed: with two sets of tensors, scales are known after two of each

_externs: dict[tuple[str, Route, Views], Any] = {}
_paying: dict[tuple[str, Route], str] = {}


def extern(kind: str, route: Route, rest: tuple[Any, ...], views: Views) -> Any:
    """A function of Inductor's for one route. `rest`: the arguments that are no tensors."""
    from torch._inductor.select_algorithm import ExternKernelChoice

    key = (kind, route, views)
    if key not in _externs:
        _externs[key] = ExternKernelChoice(call_of(kind, route, rest, views), name=f"deepgen_{kind}_{len(_externs)}")
    return _externs[key]


def call_of(kind: str, route: Route, rest: tuple[Any, ...], views: Views = (None, None)) -> Call:
    """What compiled code calls, with the tensors of an operator of ours and `out`."""
    quick, torchs = route.quick(fitting=True, views=views), _TORCHS[kind]
    if not route.captured:  # programs may capture what was compiled
        quick = route.eager(quick)

    def two(a: Any, b: Any, *, out: Any) -> None:
        if quick(a, b, None, out) is None:
            torchs(*viewed(a, b, views), out=out)

    def biased(bias: Any, a: Any, b: Any, *, out: Any) -> None:
        if quick(a, b, bias, out) is None:
            torchs(bias, *viewed(a, b, views), out=out)

    def scaled(a: Any, b: Any, scale: Any, *, out: Any) -> None:
        if quick(a, b, scale, out) is None:
            torchs(*viewed(a, b, views), scale, *rest, out=out)

    kept = by_scales(route, quick, Factors())

    def two_scales(a: Any, b: Any, one: Any, other: Any, *, out: Any) -> None:
        if kept(a, b, one, other, out) is None:
            torchs(*viewed(a, b, views), one, other, *rest, out=out)

    calls: Mapping[str, Call] = {"addmm": biased, "scaled_mm": scaled, "two_scales_mm": two_scales}
    return calls.get(kind, two)


def costs(kind: str, route: Route, args: tuple[Any, ...]) -> str:
    """Why compiled code had better call torch, where nothing replays it: empty where a kernel pays.

    That is a question on GPUs only, whose work and the processor's overlap. It is decided as for eager code, with the
    processor's times of these calls in place of eager ones.
    """
    if route.raced is None or route.raced.calling is None:
        return ""
    if (kind, route) not in _paying:
        with torch.no_grad(), _disable_current_modes():
            raced = replace(route.raced, calling=_timed(kind, route, args))
        _paying[kind, route] = "" if raced.called else f"compiled: {raced}"
    return _paying[kind, route]


def _timed(kind: str, route: Route, args: tuple[Any, ...]) -> tuple[float, float]:
    """Seconds of the processor's for a call by compiled code, ours and torch's, with the memory that it takes."""
    real = made_real(args)
    rest = tuple(arg for arg in args if not isinstance(arg, torch.Tensor))
    turns = cycle([[arg for arg in some if isinstance(arg, torch.Tensor)] for some in (real, elsewhere(real))])
    ours, torchs, make = call_of(kind, route, rest), _TORCHS[kind], route.make
    if kind == "scaled_mm":  # torch is not to make its second scale each time
        one = torch.ones_like(real[2])
        torchs = lambda a, b, scale, fast, out: two_scales_mm(a, b, scale, one, fast, out=out)  # noqa: E731

    def mine() -> Any:
        out = make()
        ours(*next(turns), out=out)
        return out

    def other() -> Any:
        out = make()
        torchs(*next(turns), *rest, out=out)
        return out

    for _ in range(_WARM):
        mine(), other()
    return calling(mine, other)
