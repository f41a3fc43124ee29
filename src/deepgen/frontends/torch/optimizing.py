"""`deepgen.torch.optimize`: one model with a library's kernels, also for patterns that are several calls of torch.

torch's compiler hands over the graphs of the model's Python code, and guards what they depend on: modes, attributes,
hooks, shapes that were branched on. They run in Python as before, call by call and without generated code, except that
a pattern is one call, which a kernel serves where it is faster than torch's calls.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.external_utils import wrap_inline
from torch.autograd import forward_ad
from torch.fx import GraphModule

from deepgen.frontends.torch import tracing
from deepgen.frontends.torch.functions import Deciding
from deepgen.frontends.torch.normed_convolutions import NormedConvolution
from deepgen.frontends.torch.ops import TORCHS
from deepgen.frontends.torch.patterns import CONVOLUTIONS, Region, is_product, name_of, regions
from deepgen.frontends.torch.products import Asked, Reads, has_pairs
from deepgen.frontends.torch.race import Met, modes
from deepgen.frontends.torch.routes import Route, Router
from deepgen.frontends.torch.using import functions_of, shown
from deepgen.libraries import Library
from deepgen.vocabulary import BadInput

Run = Callable[..., Any]


class Optimized:
    """A model whose calls are served by a library's kernels, until `close`."""

    def __init__(self, model: Any, library: Library, *, race: bool) -> None:
        if not isinstance(model, torch.nn.Module):
            raise BadInput(f"{model!r:.60} is not a module", allowed="a torch.nn.Module")
        if not callable(getattr(library, "choose", None)):
            raise BadInput(f"{library!r:.60} is not a library", allowed="pass the result of deepgen.library(path)")
        if model._compiled_call_impl is not None:
            raise BadInput("the model is compiled already", allowed="a model before `compile` and `optimize`")
        self._router = Router(library, race=race)
        self._model: Any = model
        # As `model.compile` does, with a frame around it: the compiler passes over calls that begin in torch's layers.
        # It limits how many variants a code object has, so each model gets its own.
        frame = wrap_inline(model._call_impl)
        frame.__code__ = frame.__code__.replace()
        model._compiled_call_impl = torch.compile(frame, backend=EagerBackend(self._router))

    @property
    def met(self) -> tuple[Met, ...]:
        """The calls and patterns seen so far, whether a kernel of the library serves them, and why."""
        return tuple(self._router.met)

    def close(self) -> None:
        """The model runs as before."""
        self._model._compiled_call_impl = None

    def __str__(self) -> str:
        """A table of the calls seen so far, with the number that kernels handled."""
        return shown(self.met)


class EagerBackend:
    """A backend of torch.compile: its graphs run in Python, with a router's kernels."""

    def __init__(self, router: Router) -> None:
        self._router = router
        ours = functions_of(router)
        self._ours: Mapping[Any, Run] = {TORCHS[kind]: function for kind, function in ours.items()}
        self._ours = {**self._ours, operator.matmul: ours["matmul"]}

    def __call__(self, graph: GraphModule, inputs: Sequence[Any]) -> Run:
        for region, read in [*regions(graph.graph, _read_of)]:
            self._exchange(region.alone)
            region.replace(graph.graph, pattern_of(self._router, region.alone, read), region.inputs)
        self._exchange(graph)
        run: Run = graph.forward
        return run

    def _exchange(self, graph: GraphModule) -> None:
        """Single calls that kernels may serve."""
        for node in graph.graph.nodes:
            if node.op == "call_function" and node.target in self._ours:
                node.target = self._ours[node.target]
        graph.recompile()


@dataclass(frozen=True)
class Pattern:
    """What several calls of torch compute: an operator's tensors from theirs, and the operator from these."""

    read: Reads
    prepare: Callable[..., tuple[Any, ...]] | None = None  # None: the same tensors


def _read_of(region: Region) -> Pattern | None:
    """How a region is read, if there may be a kernel: it has tensors only, no sizes that vary; pairs have a family."""
    tensors = [one.meta.get("example_value") for one in region.inputs]
    if not all(isinstance(one, torch.Tensor) for one in tensors):
        return None
    multiplied = [one for one in region.nodes if is_product(one)]
    if name_of(multiplied[0]) in CONVOLUTIONS:
        normed = NormedConvolution.of(region) if len(multiplied) == 1 else None
        return None if normed is None else Pattern(normed.read, normed.prepare)
    if len(multiplied) > (2 if has_pairs(tensors[0]) else 1):
        return None
    kinds: dict[Any, tracing.Traced | None] = {}

    def read(*tensors: Any) -> Asked | None:
        key = tuple((one.shape, one.stride(), one.dtype, one.device) for one in tensors)
        if key not in kinds:
            try:
                kinds[key] = tracing.traced(region.alone, *tensors)
            except BadInput:
                kinds[key] = None
        traced = kinds[key]
        return None if traced is None else traced.asked(*tensors)

    return Pattern(read)


class _Deciding(Deciding):
    """As of single calls, but a pattern's tensors are not in the operator's order, or are prepared first."""

    def __init__(self, router: Router, torchs: Run, pattern: Pattern) -> None:
        super().__init__(router, f"pattern {id(torchs)}", torchs)
        self._pattern = pattern

    def _routed(self, args: tuple[Any, ...]) -> Route | None:
        prepare, router = self._pattern.prepare, self._router
        if prepare is None:
            return router.route(self._kind, args, self._torchs, read=self._pattern.read)

        def door(route: Route) -> Run:
            return lambda *_: route.run(prepare(*args))

        with torch.no_grad():
            return router.route(self._kind, prepare(*args), lambda *_: self._torchs(*args), door, self._pattern.read)

    def _run(self, route: Route, args: tuple[Any, ...], out: Any) -> Any:
        return route.run(args if self._pattern.prepare is None else self._pattern.prepare(*args))

    def _quick(self, route: Route, reads: int) -> Run:
        return route.eager(lambda *args: self._run(route, args, None))


def pattern_of(router: Router, torchs: GraphModule, pattern: Pattern) -> Run:
    """A function that computes what several calls of torch do; with gradients torch serves it."""
    calls = _Deciding(router, torchs, pattern)
    places = calls.places

    def pattern_call(*tensors: Any) -> Any:
        if not modes() and forward_ad._current_level < 0:
            for check, run in places[torch.is_grad_enabled()].get(0, ()):
                if check(*tensors):
                    result = None if run is None else run(*tensors)
                    return torchs(*tensors) if result is None else result
        return calls.slowly(tensors, 0)

    return pattern_call
