"""`deepgen.torch.optimize`: one model with a library's kernels, also for patterns that are several calls of torch.

torch's compiler hands over the graphs of the model's Python code, and guards what they depend on: modes, attributes,
hooks, shapes that were branched on. They run in Python as before, call by call and without generated code, except that
a pattern is one call, which a kernel serves where it is faster than torch's calls.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._dynamo.external_utils import wrap_inline
from torch.autograd import forward_ad
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from deepgen.frontends.torch import tracing
from deepgen.frontends.torch.calls import convolution, normed_sum
from deepgen.frontends.torch.functions import Deciding
from deepgen.frontends.torch.ops import TORCHS
from deepgen.frontends.torch.patterns import CONVOLUTIONS, Region, is_product, name_of, normed_sums, regions
from deepgen.frontends.torch.products import Asked, Reads, has_pairs, placed
from deepgen.frontends.torch.race import OPTIMIZED, Met, contiguous, modes
from deepgen.frontends.torch.routes import Route, Router
from deepgen.frontends.torch.using import functions_of, shown
from deepgen.libraries import Library
from deepgen.operators.named import Named
from deepgen.operators.named import operator as named
from deepgen.vocabulary import BadInput

Run = Callable[..., Any]
_STEPS = {**dict.fromkeys(("relu", "relu_"), "relu"), "silu": "silu", "sigmoid": "sigmoid", "tanh": "tanh"}
_ADDED = ("add", "add_", "iadd")
_NORM = ("input", "mean", "var", "weight", "bias", "training", "momentum", "eps")


class Optimized:
    """A model whose calls are served by a library's kernels, until `close`."""

    def __init__(self, model: Any, library: Library, *, race: bool) -> None:
        if not isinstance(model, torch.nn.Module):
            raise BadInput(f"{model!r:.60} is not a module", allowed="a torch.nn.Module")
        if not callable(getattr(library, "choose", None)):
            raise BadInput(f"{library!r:.60} is not a library", allowed="pass the result of deepgen.library(path)")
        if model._compiled_call_impl is not None:
            raise BadInput("the model is compiled already", allowed="a model before `compile` and `optimize`")
        self._router = Router(library, race=race, form=OPTIMIZED)
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
        for both in [*normed_sums(graph.graph)]:
            pattern = Pattern(partial(normed_sum, both.kind, both.eps))
            both.replace(graph.graph, pattern_of(self._router, both.region.both, pattern))
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

    def __init__(self, router: Router, torchs: GraphModule, pattern: Pattern) -> None:
        super().__init__(router, f"pattern {torchs.code}", torchs)
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
        out = route.run(args if self._pattern.prepare is None else self._pattern.prepare(*args))
        return out.unbind() if route.two and out is not None else out

    def _quick(self, route: Route, reads: int) -> Run:
        return route.eager(lambda *args: self._run(route, args, None))


def pattern_of(router: Router, torchs: GraphModule, pattern: Pattern) -> Run:
    """A function that computes what several calls of torch do. With gradients torch serves it, and if one tensor is
    passed twice: which of the two an operand is cannot be seen then, but the decision also holds for other tensors.
    """
    calls = _Deciding(router, torchs, pattern)
    places = calls.places

    def pattern_call(*tensors: Any) -> Any:
        if len({*map(id, tensors)}) < len(tensors):
            return torchs(*tensors)
        if not modes() and forward_ad._current_level < 0:
            for check, run in places[torch.is_grad_enabled()].get(0, ()):
                if check(*tensors):
                    result = None if run is None else run(*tensors)
                    return torchs(*tensors) if result is None else result
        return calls.slowly(tensors, 0)

    return pattern_call


@dataclass(frozen=True)
class NormedConvolution:
    """A convolution, a batch norm with kept statistics, and what follows: the norm is a scale and a bias of channels.

    These are computed in each call: torch does not say when statistics change.
    """

    options: tuple[Any, ...]  # stride and all that follows
    eps: float
    steps: tuple[str, ...]  # after the norm
    places: Mapping[str, int]  # among the region's inputs

    @classmethod
    def of(cls, region: Region) -> NormedConvolution | None:
        if len(region.nodes) < 2:
            return None
        convolution, norm, *after = region.nodes
        if name_of(norm) != "batch_norm" or norm.args[0] is not convolution or norm.kwargs:
            return None
        normed = dict(zip(_NORM, norm.args, strict=False))
        image, weight, bias, *options = (*convolution.args, None)[: max(3, len(convolution.args))]
        if len(normed) < len(_NORM) or convolution.kwargs or any(isinstance(one, Node) for one in tree_leaves(options)):
            return None
        read = {"x": image, "filters": weight, "bias": bias}
        read |= {f"norm_{name}": normed[name] for name in ("mean", "var", "weight", "bias")}
        steps, before = list[str](), norm
        for node in after:
            others = [one for one in node.all_input_nodes if one is not before]
            if name_of(node) in _ADDED and len(others) == 1 and len(node.args) == 2 and not node.kwargs:
                read["residual"] = others[0]
                steps.append("residual")
            elif name_of(node) in _STEPS and not others:
                steps.append(_STEPS[name_of(node)])
            else:
                return None
            before = node
        if len(steps) > len({*steps}) or {*region.inputs} != {*read.values()} - {None}:
            return None
        places = {name: region.inputs.index(one) for name, one in read.items() if one is not None}
        return cls(tuple(options), float(normed["eps"]), tuple(steps), places)

    def prepare(self, *inputs: Any) -> tuple[Any, ...]:
        """The tensors of the operator."""
        own = {name: inputs[place] for name, place in self.places.items()}
        x = own["x"]
        scale = torch.rsqrt(own["norm_var"] + self.eps)
        scale = scale if "norm_weight" not in own else scale * own["norm_weight"]
        shift = (-own["norm_mean"] if "bias" not in own else own["bias"] - own["norm_mean"]) * scale
        shift = shift if "norm_bias" not in own else shift + own["norm_bias"]
        residual = [own["residual"]] if "residual" in own else []
        return (x, own["filters"], scale.to(x.dtype), shift.to(x.dtype), *residual)

    def read(self, x: Any, filters: Any, scale: Any, shift: Any, residual: Any = None) -> Asked | None:
        plain = convolution(x, filters, shift, *self.options)
        if plain is None or not isinstance(plain.operator, Named):
            return None
        strides = plain.strides or contiguous(plain.shape)
        if residual is not None and (residual.shape, residual.stride()) != (plain.shape, strides):
            return None
        words = {**dict(plain.operator.arguments), "epilogue": ",".join(("scale", "bias", *self.steps))}
        whole = named(plain.operator.name, **words)
        tensors = {"x": plain.tensors[0], "weight": plain.tensors[1], "scale": scale, "bias": shift}
        if residual is not None:
            tensors["residual"] = residual if plain.strides is None else residual.movedim(1, -1)
        ordered = tuple(tensors[one.name] for one in whole.tensors()[:-1])
        args = (x, filters, scale, shift, *(() if residual is None else (residual,)))
        return placed(whole, ordered, args, plain.shape, plain.dtype, plain.strides)
