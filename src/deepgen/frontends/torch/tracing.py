"""A torch module as one operator: it is traced, and converted to a named operator or an expression."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import prod
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, functionalize
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from deepgen.frontends.torch import calls, lazy, rows, windows
from deepgen.frontends.torch.elements import ATEN as ON_ELEMENTS
from deepgen.frontends.torch.fused_products import fused
from deepgen.frontends.torch.lazy import Lazy, constant, of_tensor, result
from deepgen.frontends.torch.products import Asked, placed
from deepgen.operators import Operator
from deepgen.operators.expr.builder import expression, tensor
from deepgen.operators.expr.check import check
from deepgen.operators.expr.nodes import Expression, Read, with_reads
from deepgen.operators.expr.operator import ExpressionOperator
from deepgen.vocabulary import BadInput
from deepgen.vocabulary.dtypes import our_name

_ATEN = torch.ops.aten
_OPERATIONS: Mapping[str, Callable[..., Any]] = {**lazy.OPERATIONS, **rows.OPERATIONS, **windows.OPERATIONS}
# Operations that are not decomposed, because the translator handles them better as a whole.
_WHOLE = ("xlogy", "_safe_softmax", "native_group_norm", "native_layer_norm", "gelu", "elu", "softplus", "var",
          "var_mean", "_softmax", "_log_softmax", "addmm", "native_batch_norm", "_native_batch_norm_legit",
          "linalg_vector_norm", "avg_pool2d", "avg_pool3d", "cumprod", "flip")  # fmt: skip
_VIEWS = [getattr(_ATEN, name) for name in ("view", "_unsafe_view", "permute", "t", "transpose", "unsqueeze", "squeeze",
                                            "expand", "alias", "detach")]  # fmt: skip
# Attention on the CPU, where modules are traced: an operator by itself, and decomposed as a part of anything else.
_ATTENTION = (_ATEN._scaled_dot_product_flash_attention_for_cpu.default,)


@dataclass(frozen=True)
class Traced:
    """What a module computes for inputs like those it was traced with.

    The operator reads what `arguments` returns for a call's inputs and the module's own parameters, and `result`
    converts the operator's result to the module's. Running statistics of a module are not computed, and numbers that
    are not tensors are part of the operator.
    """

    operator: Operator
    shape: tuple[int, ...]
    dtype: Any
    strides: tuple[int, ...] | None
    _read: Callable[[Sequence[Any]], tuple[Any, ...]]
    _state: Callable[[], Sequence[Any]]
    _offsets: tuple[int, ...] = ()  # of each tensor that is read, in elements, where it is a part of another

    def arguments(self, *inputs: Any) -> tuple[Any, ...]:
        """Views of the inputs and parameters, as the operator's kernels take them."""
        return self._read([*self._state(), *(one.detach() for one in inputs if isinstance(one, torch.Tensor))])

    def asked(self, *inputs: Any) -> Asked | None:
        """A call with these inputs; None if what the operator reads does not begin where they do."""
        tensors = self.arguments(*inputs)
        return placed(self.operator, tensors, inputs, self.shape, self.dtype, self.strides, self._offsets)

    def result(self, out: Any) -> Any:
        """The operator's result in the module's form."""
        return out.view(self.shape) if self.strides is None else out.as_strided(self.shape, self.strides)


def traced(module: Callable[..., Any], *inputs: Any) -> Traced:
    """The operator that a module, or a function of tensors, computes. Raises BadInput if there is none."""
    state = _state_of(module)
    tensors = [*state().values(), *(one for one in inputs if isinstance(one, torch.Tensor))]
    graph = _graph(module, [*state()], tensors, inputs, _parts(_ATTENTION))
    node = _single(graph)
    call = node and _called(graph, node, tensors)
    if call is None and (whole := fused(graph, _output(graph), tensors)) is not None:
        out = _output(graph).meta["val"]
        own = partial(_detached, state)
        return Traced(whole.operator, tuple(out.shape), out.dtype, None, whole.read, own, whole.offsets)
    if call is None and any(one.target in _ATTENTION for one in graph.graph.nodes):
        graph = _graph(module, [*state()], tensors, inputs, _parts())
    if node is None or call is None or _is_vector(call.operator):
        made_of, out = _expressed(graph, tensors)
        names = [int(one.name[1:]) for one in made_of.definition.tensors]
        read = partial(_passed, names)
        return Traced(made_of, tuple(out.shape), out.dtype, None, read, partial(_detached, state))
    return Traced(
        call.operator,
        tuple(_output(graph).meta["val"].shape),
        call.dtype,
        call.strides,
        lambda own: _called(graph, node, own).tensors,  # type: ignore[union-attr]
        partial(_detached, state),
    )


def _is_vector(operator: Operator) -> bool:
    """Whether each element is multiplied only once, as for a matrix times a vector: product families are for more
    reuse.
    """
    tensors = operator.tensors()
    return len(tensors) == 3 and operator.flops() <= 2 * max(prod(one.shape) for one in tensors)


def _state_of(module: Any) -> Callable[[], Mapping[str, Any]]:
    if not isinstance(module, torch.nn.Module):
        return dict
    return lambda: {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _detached(state: Callable[[], Mapping[str, Any]]) -> list[Any]:
    return [one.detach() for one in state().values()]


def _graph(
    module: Any, names: Sequence[str], tensors: Sequence[Any], inputs: Sequence[Any], parts: Mapping[Any, Any]
) -> GraphModule:
    """Operations below autograd, traced on fake tensors and decomposed into their parts. The graph has a placeholder
    for each of `tensors`."""

    def run(*flat: Any) -> Any:
        left = iter(flat[len(names) :])
        every = [next(left) if isinstance(one, torch.Tensor) else one for one in inputs]
        if not isinstance(module, torch.nn.Module):
            return module(*every)
        return functional_call(module, dict(zip(names, flat, strict=False)), tuple(every))

    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        # On the CPU, whatever their device: the traced graph must not depend on it.
        empty = [torch.empty_strided(one.shape, one.stride(), dtype=one.dtype) for one in tensors]
        try:
            return make_fx(functionalize(run), decomposition_table=parts)(*empty)
        except (RuntimeError, TypeError, ValueError) as error:
            raise BadInput(
                f"torch cannot trace it: {error!s:.200}", allowed="pass a module that torch.export can trace"
            ) from error


@cache
def _parts(whole: Collection[Any] = ()) -> dict[Any, Callable[..., Any]]:
    """torch's decompositions of operations into a smaller set, but not of those that are to stay whole."""
    every = core_aten_decompositions()
    return {
        one: parts for one, parts in every.items() if one.overloadpacket.__name__ not in _WHOLE and one not in whole
    }


def _output(graph: GraphModule) -> Node:
    """The node of the single result."""
    result_of = next(node for node in graph.graph.nodes if node.op == "output").args[0]
    if not isinstance(result_of, Node):
        raise BadInput("a module with several results", allowed="one tensor")
    return result_of


def _computed(graph: GraphModule) -> list[Node]:
    """The operations that the result depends on, in order."""
    needed = {_output(graph)}
    for node in reversed(graph.graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    return [node for node in graph.graph.nodes if node in needed and node.op == "call_function"]


def _is_view(node: Node) -> bool:
    return node.target is operator.getitem or getattr(node.target, "overloadpacket", None) in _VIEWS


def _single(graph: GraphModule) -> Node | None:
    """The only operation apart from views, if it may be a named operator."""
    nodes = [node for node in _computed(graph) if not _is_view(node)]
    served = len(nodes) == 1 and nodes[0].target in calls.ATEN and nodes[0].target not in ON_ELEMENTS
    if not served or any(node.op == "get_attr" for node in graph.graph.nodes):
        return None
    taken = [node for node in nodes[0].users if node.target is operator.getitem and node.users]
    if any(node.args[1] != 0 for node in taken):
        return None  # operators give the first of several results
    after = _output(graph).meta["val"]
    out = nodes[0].meta["val"]
    out = out[0] if isinstance(out, (tuple, list)) else out
    kept = _output(graph) in (nodes[0], *taken) or (after.is_contiguous() and out.is_contiguous())
    return nodes[0] if kept else None


def _called(graph: GraphModule, node: Node, tensors: Sequence[Any]) -> Asked | None:
    """The operator of one operation on these tensors; only views precede it."""
    values: dict[Node, Any] = dict(zip((n for n in graph.graph.nodes if n.op == "placeholder"), tensors, strict=True))

    def value(argument: Any) -> Any:
        return map_arg(argument, values.__getitem__)

    for one in _computed(graph):
        if one is node:
            return calls.ATEN[node.target](*value(node.args), **value(node.kwargs))
        values[one] = one.target(*value(one.args), **value(one.kwargs))
    return None


def _expressed(graph: GraphModule, tensors: Sequence[Any]) -> tuple[ExpressionOperator, Any]:
    values: dict[Node, Any] = {}
    needed = {one for node in _computed(graph) for one in node.all_input_nodes} | {_output(graph)}
    places = {node: n for n, node in enumerate(n for n in graph.graph.nodes if n.op == "placeholder")}
    for node in graph.graph.nodes:
        if node in places and node in needed:
            values[node] = _leaf(f"t{places[node]}", tensors[places[node]])
        elif node.op == "get_attr" and node in needed:
            values[node] = _constant(getattr(graph, str(node.target)))
    for node in _computed(graph):
        arguments, named = (map_arg(part, values.__getitem__) for part in (node.args, node.kwargs))
        if node.target is operator.getitem:
            values[node] = arguments[0][arguments[1]]
            continue
        name = node.target.overloadpacket.__name__
        compute = _OPERATIONS.get(name) or _OPERATIONS.get(name.removesuffix("_"))
        if compute is None or (name not in _OPERATIONS and not _alone(node.all_input_nodes[0])):
            allowed = "operations on elements, reductions, scans, normalisations, products, convolutions, pooling"
            raise BadInput(f"{node.target} cannot be expressed", allowed=allowed)
        values[node] = compute(*arguments, **named)
    out = _output(graph).meta["val"]
    value = values[_output(graph)]
    if not isinstance(value, Lazy):
        raise BadInput(
            "its result is not computed", allowed="values only: indices of pooling and running maxima are not supported"
        )
    return ExpressionOperator(_tidy(expression(result("y", value, out.dtype), name="traced"))), out


def _alone(node: Node) -> bool:
    """Whether nothing else refers to it when an operation changes it in place."""
    return node.op == "call_function" and not _is_view(node) and not any(map(_is_view, node.users))


def _constant(value: Any) -> Lazy:
    if value.numel() != 1:
        raise BadInput("it reads a tensor that is neither an input nor a parameter", allowed="a buffer of the module")
    return constant(value.item(), value.dtype, value.shape)


def _order(value: Any) -> list[int]:
    """Dimensions in memory order, the outermost first."""
    order = sorted(range(value.dim()), key=lambda dim: (-value.stride(dim), dim))
    if not value.permute(order).is_contiguous():
        raise BadInput(f"a tensor of shape {tuple(value.shape)} with gaps", allowed="it must be dense in memory")
    return order if not value.is_contiguous() else [*range(value.dim())]


def _leaf(name: str, value: Any) -> Lazy:
    order = _order(value)
    kind = "u8" if value.dtype is torch.bool else our_name(str(value.dtype).rpartition(".")[2])
    operand = tensor(name, [value.shape[dim] for dim in order if value.shape[dim] > 1] or [1], kind)
    return of_tensor(operand, value.shape, value.dtype, [dim for dim in order if value.shape[dim] > 1])


def _passed(places: Sequence[int], tensors: Sequence[Any]) -> tuple[Any, ...]:
    out = []
    for value in (tensors[place] for place in places):
        dense = value.permute(_order(value))
        flat = dense.view([size for size in dense.shape if size > 1] or [1])
        out.append(flat.view(torch.uint8) if value.dtype is torch.bool else flat)
    return tuple(out)


def _tidy(whole: Expression) -> Expression:
    """The expression without a last stage that only copies, and with names that do not depend on earlier traces."""
    *before, last = whole.stages
    if before and isinstance(last.value, Read) and last.reduce is None and last.value.tensor == before[-1].name:
        source, indices = before[-1], [index.plain for index in last.value.indices]
        if indices == [axis.name for axis in last.axes] and source.shape == last.shape and source.dtype == last.dtype:
            before, last = before[:-1], replace(source, name=last.name)
    names = {stage.name: f"s{n}" for n, stage in enumerate(before)}
    stages = [
        replace(
            stage,
            name=names.get(stage.name, stage.name),
            value=with_reads(stage.value, lambda read: replace(read, tensor=names.get(read.tensor, read.tensor))),
        )
        for stage in (*before, last)
    ]
    return check(replace(whole, stages=tuple(stages)))
