"""Patterns in a graph of torch calls: products with what follows them, which one kernel may compute.

Graphs of torch.compile, recordings and graphs of Python's calls (`optimize`) are searched in the same way: from a
result back to products, as long as nothing else reads what lies between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from operator import getitem
from typing import Any, TypeVar

import torch
from torch._ops import HigherOrderOperator, OpOverloadPacket
from torch.fx import Graph, GraphModule, Node

T = TypeVar("T")
VIEWS_BEFORE = frozenset((
    "view", "_unsafe_view", "reshape", "permute", "t", "transpose", "unsqueeze", "squeeze", "expand", "alias", "detach",
))  # fmt: skip
# Views of a product's result, and operations on its elements: by torch's names and by the dispatcher's.
VIEWS = frozenset(("view", "_unsafe_view", "reshape", "contiguous", "clone", "alias", "detach", "getitem", "slice",
                   "chunk", "split", "split_with_sizes"))  # fmt: skip
ON_ELEMENTS = frozenset((
    "add", "sub", "mul", "div", "truediv", "neg", "abs", "exp", "erf", "pow", "relu", "relu6", "gelu", "silu", "tanh",
    "sigmoid", "hardswish", "hardtanh", "clamp", "clamp_min", "clamp_max", "maximum", "minimum",
))  # fmt: skip
# They keep elements as they are, or nearly so: casts between floats, and dropout outside of training.
KEEPING = frozenset(("to", "float", "_to_copy", "convert_element_type"))
IN_PLACE = frozenset(("add_", "sub_", "mul_", "div_", "relu_", "silu_", "iadd", "isub", "imul", "itruediv"))
_PURE = ("torch", "deepgen", "_operator", "math", "builtins", "None", "")  # modules of functions
CONVOLUTIONS = frozenset(("conv1d", "conv2d", "conv3d", "convolution"))
_PRODUCTS = frozenset(("mm", "addmm", "linear", "matmul")) | CONVOLUTIONS


@dataclass(frozen=True)
class Region:
    """Nodes that may be one operator. Only the last one's result is read elsewhere."""

    nodes: tuple[Node, ...]  # in the graph's order
    before: tuple[Node, ...]  # views that they read, which others may read too
    inputs: tuple[Node, ...]

    @cached_property
    def alone(self) -> GraphModule:
        """The same as a graph of its own, with the inputs as placeholders."""
        return self._copied(self.nodes[-1:])

    @cached_property
    def both(self) -> GraphModule:
        """All of two nodes' results."""
        return self._copied(self.nodes)

    @cached_property
    def products(self) -> GraphModule:
        """Its products without what follows them."""
        return self._copied([node for node in self.nodes if is_product(node)])

    def replace(self, graph: Graph, call: Any, args: tuple[Any, ...]) -> None:
        """One call in place of these nodes."""
        with graph.inserting_before(self.nodes[-1]):
            whole = graph.call_function(call, args)
        whole.meta = dict(self.nodes[-1].meta)
        self.nodes[-1].replace_all_uses_with(whole)
        for one in reversed(self.nodes):
            graph.erase_node(one)

    def _copied(self, results: Sequence[Node]) -> GraphModule:
        graph, copies = Graph(), dict[Node, Node]()
        for n, one in enumerate(self.inputs):
            copies[one] = graph.placeholder(f"tensor_{n}")
            copies[one].meta = dict(one.meta)
        needed, nodes = set(results), (*self.before, *self.nodes)
        for one in reversed(nodes):
            needed |= {*one.all_input_nodes} if one in needed else set()
        for one in nodes:
            if one in needed:
                copies[one] = graph.node_copy(one, copies.__getitem__)
        graph.output(copies[results[0]] if len(results) == 1 else tuple(copies[one] for one in results))
        return GraphModule(torch.nn.Module(), graph)


def name_of(node: Node) -> str:
    """What a node calls, without its overload."""
    if node.op == "call_method":
        return str(node.target)
    packet = getattr(node.target, "overloadpacket", None)
    return str(getattr(node.target if packet is None else packet, "__name__", ""))


def is_product(node: Node) -> bool:
    return node.op in ("call_function", "call_method") and name_of(node) in _PRODUCTS


def regions(graph: Graph, accept: Callable[[Region], T | None]) -> Iterator[tuple[Region, T]]:
    """Regions that do not overlap, with what `accept` returned. The graph must not change before all are known."""
    nodes = [*graph.nodes]
    places = {node: n for n, node in enumerate(nodes)}
    following: set[Node] = set()  # what may be part of a region
    for node in nodes:
        if is_product(node) or (_may_follow(node, following) and any(one in following for one in node.all_input_nodes)):
            following.add(node)
    taken: set[Node] = set()
    for node in reversed(nodes):
        if node not in following or node in taken or is_product(node):
            continue
        for inside in _candidates(node, following, places):
            region = _region(sorted(inside, key=places.__getitem__), places, following)
            # Products are computed later than before, at the place of the result.
            between = (one for one in nodes[places[region.nodes[0]] : places[node]] if one not in inside)
            if not any(map(may_write, between)) and (answer := accept(region)) is not None:
                taken |= inside
                yield region, answer
                break


_NORMS: Mapping[str, tuple[str, ...]] = {
    "rms_norm": ("input", "normalized_shape", "weight", "eps"),
    "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
}
_EPS: Mapping[str, float | None] = {"rms_norm": None, "layer_norm": 1e-5}


@dataclass(frozen=True)
class NormedSum:
    """A sum of two tensors and a norm of it, which a kernel may compute together. The sum is read elsewhere as well."""

    region: Region  # the sum and the norm; its inputs are the terms, the norm's weight and its bias, if it has one
    kind: str
    eps: float | None

    def replace(self, graph: Graph, call: Any) -> None:
        """One call in place of both, with both results."""
        total, norm = self.region.nodes
        with graph.inserting_before(total):
            whole = graph.call_function(call, self.region.inputs)
            parts = [graph.call_function(getitem, (whole, n)) for n in range(2)]
        for part, node in zip(parts, (total, norm), strict=True):
            part.meta = dict(node.meta)
            node.replace_all_uses_with(part)
        graph.erase_node(norm)
        graph.erase_node(total)


def normed_sums(graph: Graph, taken: Set[Node] = frozenset()) -> Iterator[NormedSum]:
    """Those whose nodes are not in `taken`. The graph must not change before all are known."""
    nodes = [*graph.nodes]
    places = {node: n for n, node in enumerate(nodes)}
    for total in nodes:
        terms = [*total.all_input_nodes]
        if name_of(total) != "add" or [*total.args] != terms or len(terms) != 2 or total.kwargs or total in taken:
            continue
        for norm in sorted(total.users, key=places.__getitem__):
            kind = name_of(norm).removeprefix("native_")
            names = _NORMS.get(kind, ())
            named = {**dict(zip(names, norm.args, strict=False)), **norm.kwargs}
            vectors = [one for name in names[2:-1] if isinstance(one := named.get(name), Node) and one is not total]
            eps = named.get("eps", _EPS.get(kind))
            whole = names and len(vectors) == len(names) - 3 and not isinstance(eps, Node)
            if not whole or named.get("input") is not total or norm in taken:
                continue
            # The norm is computed sooner than before, at the place of the sum.
            early = all(one.op == "placeholder" or places[one] < places[total] for one in vectors)
            if early and not any(map(may_write, nodes[places[total] : places[norm]])):
                yield NormedSum(Region((total, norm), (), (*terms, *vectors)), kind, eps)
                break


def _candidates(result: Node, following: Set[Node], places: Mapping[Node, int]) -> Iterator[set[Node]]:
    """What leads from products to a result, and is read nowhere else; then the same with one product computed apart."""
    whole = _inside(result, following)
    multiplied = sorted(filter(is_product, whole), key=places.__getitem__, reverse=True)
    for apart in (None, *multiplied) if len(multiplied) > 1 else (None,):
        inside = whole if apart is None else _leading(result, _inside(result, following - {apart}))
        if any(map(is_product, inside)) and not all(is_product(one) or name_of(one) in VIEWS for one in inside):
            yield inside


def _leading(result: Node, inside: Set[Node]) -> set[Node]:
    """Those of some nodes that lead from a product among them to the result."""
    following = {one for one in inside if is_product(one)}
    for _ in inside:
        following |= {one for one in inside if any(of in following for of in one.all_input_nodes)}
    return following if result in following else set()


def _inside(result: Node, following: Set[Node]) -> set[Node]:
    """What leads from products to a result, and is read nowhere else."""
    inside = {result}
    while True:
        before = {one for node in inside if not is_product(node) for one in node.all_input_nodes} - inside
        more = {one for one in before & following if all(user in inside and not is_product(user) for user in one.users)}
        if not more:
            return inside
        inside |= more


def _region(nodes: Sequence[Node], places: Mapping[Node, int], following: Set[Node]) -> Region:
    before, inputs = set[Node](), dict[Node, None]()
    left = [one for node in nodes for one in node.all_input_nodes if one not in nodes]
    while left:
        one = left.pop(0)
        # What follows a product may be another region.
        if name_of(one) in VIEWS_BEFORE and one not in following and len(one.all_input_nodes) == 1 and _is_view(one):
            before.add(one)
            left += one.all_input_nodes
        else:
            inputs[one] = None
    return Region(tuple(nodes), tuple(sorted(before, key=places.__getitem__)), tuple(inputs))


def _is_view(node: Node) -> bool:
    """A reshape is one if its operand is contiguous; otherwise it may copy."""
    meta = node.all_input_nodes[0].meta
    value = meta.get("val", meta.get("example_value"))
    return name_of(node) != "reshape" or (isinstance(value, torch.Tensor) and bool(value.is_contiguous()))


def _may_follow(node: Node, following: Set[Node]) -> bool:
    name, args = name_of(node), list[Any](node.args)
    if node.op not in ("call_function", "call_method") or not args:
        return False
    if name in IN_PLACE or _in_place(node):  # only a tensor that is the region's own may be written
        return (name in IN_PLACE or name in ON_ELEMENTS) and _fresh(args[0], following)
    if name == "dropout":
        return False in (node.kwargs.get("training"), *args[2:3])
    if name == "batch_norm":  # with kept statistics
        return args[5:6] == [False] and args[0] in following
    return name in VIEWS or name in ON_ELEMENTS or name in KEEPING


def _fresh(node: Node, following: Set[Node]) -> bool:
    """Whether nothing else refers to a tensor's memory: it is a product, or was computed from one, for one reader."""
    return (
        node in following
        and len(node.users) == 1
        and (is_product(node) or name_of(node) in ON_ELEMENTS | IN_PLACE | {"batch_norm"})
    )


def _in_place(node: Node) -> bool:
    return "out" in node.kwargs or any(one is True for one in (*node.args, *node.kwargs.values()))


def may_write(node: Node) -> bool:
    """Whether a call may write one of its inputs. Python's calls do not say so, except by their names."""
    if node.op not in ("call_function", "call_method"):
        return bool(node.op == "call_module")
    if (schema := getattr(node.target, "_schema", None)) is not None:
        return bool(schema.is_mutable)
    if isinstance(node.target, (OpOverloadPacket, HigherOrderOperator)):
        return True
    name = name_of(node)
    of_torch = node.op == "call_method" or str(getattr(node.target, "__module__", "")).partition(".")[0] in _PURE
    named_so = name in IN_PLACE or name == "setitem" or name.endswith("_") != name.endswith("__")
    return named_so or _in_place(node) or not of_torch
