"""Calls in C++: kernels registered with torch's dispatcher (c/dispatch.cpp), for CPU tensors.

The extension is built once by the local C++ compiler, like kernels, and cached with them. Without a compiler or
Python's headers, torch's functions are replaced in Python (functions.py), with the same results.
"""

from __future__ import annotations

import os
import sysconfig
import threading
from collections.abc import Callable, Mapping, Set
from ctypes import addressof
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from deepgen.frontends.torch.calls import ATEN
from deepgen.frontends.torch.functions import CONVOLUTIONS
from deepgen.frontends.torch.products import Reads, addmm
from deepgen.frontends.torch.routes import Route, Router
from deepgen.run.call import compiled
from deepgen.vocabulary import Kernel, LaunchPlan, Source

_NAME = "deepgen_dispatch"
_SOURCES = ("dispatch.cpp", "call.h")
_ATEN = torch.ops.aten


@dataclass(frozen=True)
class _Operator:
    """An operator of torch's dispatcher that takes all arguments by position."""

    reads: Reads
    torchs: Callable[..., Any]
    kinds: tuple[str, ...]  # the functions that are based on it


_PRODUCTS = ("linear", "matmul")
_OPERATORS: Mapping[str, _Operator] = {
    "aten::mm": _Operator(ATEN[_ATEN.mm.default], torch.mm, ("mm", *_PRODUCTS)),
    "aten::bmm": _Operator(ATEN[_ATEN.bmm.default], torch.bmm, ("bmm", *_PRODUCTS)),
    "aten::addmm": _Operator(
        lambda bias, a, b, beta, alpha: addmm(bias, a, b, beta=beta, alpha=alpha),
        lambda bias, a, b, beta, alpha: torch.addmm(bias, a, b, beta=beta, alpha=alpha),
        ("addmm", *_PRODUCTS),
    ),
    "aten::_int_mm": _Operator(ATEN[_ATEN._int_mm.default], torch._int_mm, ("int_mm",)),
    "aten::_softmax": _Operator(ATEN[_ATEN._softmax.default], torch._softmax, ("softmax",)),
    "aten::convolution": _Operator(ATEN[_ATEN.convolution.default], torch.convolution, CONVOLUTIONS),
}
KINDS: Set[str] = {kind for operator in _OPERATORS.values() for kind in operator.kinds}


@cache
def core() -> Any:
    """The extension; None if it is not available."""
    from deepgen.toolchains import programs

    headers = programs.python_headers()
    extension = None if headers is None or compiled.core() is None else compiled.built(_kernel(headers))
    if extension is not None:
        os.register_at_fork(after_in_child=extension.forked)
    return extension


class Dispatch:
    """The operators of one library; the extension queries it when a thread first sees a kind of call."""

    def __init__(self, router: Router, kinds: Set[str]) -> None:
        self._router = router
        self._names = tuple(name for name, operator in _OPERATORS.items() if not kinds.isdisjoint(operator.kinds))
        router.alone = lambda function: partial(core().within, None, function)

    def open(self) -> None:
        core().open(self._names, self._decide, compiled.core().fire)

    def close(self) -> None:
        # Torch's dispatcher cannot remove kernels while other threads call operators; idle ones cost 0.1 us.
        core().close(threading.active_count() == 1)

    def _decide(self, name: str, args: tuple[Any, ...]) -> Any:
        """What serves calls like this one on this thread; None for torch."""
        operator = _OPERATORS[name]

        def door(route: Route) -> Callable[..., Any]:
            return partial(core().within, _entry(route), operator.torchs)

        route = self._router.route(name, args, operator.torchs, door, operator.reads)
        if route is None or not route.called or route.ready(args) is None:
            return None
        return _entry(route)


def _entry(route: Route) -> Any:
    """A route in the extension's form, for this thread."""
    laid = tuple(route.shape), tuple(route.strides), route.dtype == torch.int32
    return core().entry(route.ready(), route.places, *laid, route.align, addressof(route.calls.in_c))


def _kernel(headers: str) -> Kernel:
    """The extension's source and flags. Versions that the headers depend on are included, since an update may replace
    them.
    """
    folder = Path(torch.__file__).parent
    versions = f"-DVERSIONS={sysconfig.get_config_var('SOABI')}_{torch.__version__}"
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    libraries = ("-ltorch_cpu", "-ltorch_python", "-lc10", "-lstdc++")
    flags = (
        "-std=gnu++20",
        "-O2",
        "-w",
        versions,
        abi,
        f"-I{headers}",
        f"-I{folder / 'include'}",
        f"-L{folder / 'lib'}",
    )
    sources = tuple(Source(name, Path(__file__).with_name("c").joinpath(name).read_text()) for name in _SOURCES)
    return Kernel(_NAME, "c", sources, (*flags, *libraries), LaunchPlan(()))
