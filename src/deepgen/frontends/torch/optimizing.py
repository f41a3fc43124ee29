"""`deepgen.torch.optimize`: one model with a library's kernels, also for patterns that are several calls of torch.

torch's compiler hands over the graphs of the model's Python code, and guards what they depend on: modes, attributes,
hooks, shapes that were branched on. They run in Python as before, call by call and without generated code, except that
a pattern is one call, which a kernel serves where it is faster than torch's calls.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.external_utils import wrap_inline
from torch.autograd import forward_ad
from torch.fx import GraphModule

from deepgen.frontends.torch import tracing
from deepgen.frontends.torch.functions import Deciding
from deepgen.frontends.torch.ops import TORCHS
from deepgen.frontends.torch.patterns import Region, has_pairs, is_product, regions
from deepgen.frontends.torch.products import Asked
from deepgen.frontends.torch.race import Met, modes
from deepgen.frontends.torch.routes import Router
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
        model._compiled_call_impl = torch.compile(frame, backend=Exchange(self._router))

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


class Exchange:
    """A backend of torch.compile: its graphs run in Python, with a router's kernels."""

    def __init__(self, router: Router) -> None:
        self._router = router
        ours = functions_of(router)
        self._ours: Mapping[Any, Run] = {TORCHS[kind]: function for kind, function in ours.items()}
        self._ours = {**self._ours, operator.matmul: ours["matmul"]}

    def __call__(self, graph: GraphModule, inputs: Sequence[Any]) -> Run:
        for region, _ in [*regions(graph.graph, _worth_it)]:
            self._exchange(region.alone)
            region.replace(graph.graph, pattern_of(self._router, region.alone), region.inputs)
        self._exchange(graph)
        run: Run = graph.forward
        return run

    def _exchange(self, graph: GraphModule) -> None:
        """Single calls that kernels may serve."""
        for node in graph.graph.nodes:
            if node.op == "call_function" and node.target in self._ours:
                node.target = self._ours[node.target]
        graph.recompile()


def _worth_it(region: Region) -> bool | None:
    """Whether there may be a kernel: it reads tensors only, not sizes that vary, and pairs have a family."""
    tensors = [one.meta.get("example_value") for one in region.inputs]
    if not all(isinstance(one, torch.Tensor) for one in tensors):
        return None
    products = sum(map(is_product, region.nodes))
    return products == 1 or (products == 2 and has_pairs(tensors[0])) or None


def pattern_of(router: Router, torchs: GraphModule) -> Run:
    """A function that computes what several calls of torch do; with gradients torch serves it."""
    traced: dict[Any, tracing.Traced | None] = {}

    def read(*tensors: Any) -> Asked | None:
        key = tuple((one.shape, one.stride(), one.dtype, one.device) for one in tensors)
        if key not in traced:
            try:
                traced[key] = tracing.traced(torchs, *tensors)
            except BadInput:
                traced[key] = None
        one = traced[key]
        return None if one is None else one.asked(*tensors)

    calls = Deciding(router, f"pattern {id(torchs)}", torchs, read)
    places = calls.places

    def pattern(*tensors: Any) -> Any:
        if not modes() and forward_ad._current_level < 0:
            for check, run in places[torch.is_grad_enabled()].get(0, ()):
                if check(*tensors):
                    result = None if run is None else run(*tensors)
                    return torchs(*tensors) if result is None else result
        return calls.slowly(tensors, 0)

    return pattern
