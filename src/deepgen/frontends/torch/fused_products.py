"""Products in a traced graph with what follows them, as one operator: GEMM with an epilogue as a text.

A module such as linear and GELU, or silu(gate(x)) * up(x) with separate or joined weights, is then one launch. What
follows is computed in f32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isclose, pi, prod, sqrt
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from deepgen.frontends.torch import products
from deepgen.frontends.torch.ops import OPS, CompiledRegion, number_of
from deepgen.frontends.torch.patterns import VIEWS_BEFORE, Region, name_of, regions
from deepgen.frontends.torch.products import Asked, format_of, has_pairs, placed
from deepgen.frontends.torch.routes import Router
from deepgen.operators import Gemm, gemm
from deepgen.operators.epilogue import FORMATS, Apply, EpilogueOperand, Number, SecondSum, Sum, Tree, shown
from deepgen.operators.epilogue import format_of as usual_format
from deepgen.vocabulary import BadInput

_ATEN = torch.ops.aten
_PRODUCTS = (_ATEN.mm.default, _ATEN.addmm.default)
# Of a result: its elements in their order.
_SAME = ("view", "_unsafe_view", "reshape", "alias", "detach", "clone", "_to_copy", "convert_element_type")
_PARTS = ("split_with_sizes", "split", "chunk")
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_FUNCTIONS = {"maximum": "max", "minimum": "min", "neg": "neg", "abs": "abs", "exp": "exp", "relu": "relu",
              "sigmoid": "sigmoid", "tanh": "tanh", "silu": "silu", "erf": "erf",
              "clamp_min": "max", "clamp_max": "min"}  # fmt: skip
_GELU = {"none": "gelu", "tanh": "gelu_tanh"}
_MOST_NODES = 400  # of a text: what is used twice has twice its length, again and again
_NAMES = {"n": "bias", "m": "factor", "mn": "residual", "0": "one"}


class _Other(Exception):
    """The graph is something else."""


@dataclass(frozen=True)
class Fused:
    """An operator, and how its tensors follow from those of the graph."""

    operator: Gemm
    shape: tuple[int, ...]
    dtype: Any
    read: Callable[[Sequence[Any]], tuple[Any, ...]]
    offsets: tuple[int, ...]  # of each tensor, in elements

    def asked(self, *args: Any) -> Asked | None:
        return placed(self.operator, self.read(args), args, self.shape, self.dtype, offsets=self.offsets)


def of_region(region: Region) -> Fused | None:
    """The operator of a part of a larger graph, whose nodes know what they compute; None for symbolic sizes."""
    for node in (*region.inputs, *region.before, *region.nodes):
        value = node.meta.get("val")
        for one in value if isinstance(value, (list, tuple)) else (value,):
            if not isinstance(one, torch.Tensor) or not all(type(size) is int for size in one.shape):
                return None
    graph = region.alone
    output = next(node for node in graph.graph.nodes if node.op == "output").args[0]
    assert isinstance(output, Node)
    whole = fused(graph, output, [one.meta["val"] for one in region.inputs])
    paired = whole is not None and whole.operator.pair != "none"
    return None if paired and not has_pairs(output.meta["val"]) else whole


def exchange_regions(graph: Graph, router: Router, pays: Callable[..., bool]) -> None:
    """Replace parts of a graph that is being compiled by kernels where these are faster than torch's products alone."""
    for region, whole in [*regions(graph, of_region)]:
        values, code = tuple(one.meta["val"] for one in region.inputs), region.alone.code
        route = router.route(f"region {code}", values, region.products, read=whole.asked)
        if route is None:
            continue
        compiled = CompiledRegion(route, region.alone, region.products)
        if pays(route, "region", (*values, compiled), region.nodes[-1]):
            number = number_of(compiled, code)
            if number is not None:
                region.replace(graph, OPS.region.default, ([*region.inputs], number))


def fused(graph: GraphModule, output: Node, tensors: Sequence[Any]) -> Fused | None:
    """The products and all that follows them; None if the graph has anything else."""
    try:
        return _Reading(graph, output).operator(tensors)
    except (_Other, BadInput):
        return None


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _power(base: Tree, exponent: int) -> Tree:
    return base if exponent == 1 else Apply("*", (_power(base, exponent - 1), base))


def _activation(sign: str, left: Tree, right: Tree) -> Tree:
    """A sum, a difference, a product or a quotient; where it is a decomposed SiLU or GELU, that."""
    if sign == "/" and _same(right, _plus_one(Apply("exp", (Apply("neg", (left,)),)))):
        return Apply("silu", (left,))
    for half, other in ((left, right), (right, left)) if sign == "*" else ():
        if not isinstance(half, Apply) or half.name != "*" or half.parts[1] != Number(0.5):
            continue
        z = half.parts[0]
        if _same(other, _plus_one(Apply("erf", (_times(z, sqrt(0.5)),)))):
            return Apply("gelu", (z,))
        inner = _times(Apply("+", (z, _times(_power(z, 3), 0.044715))), sqrt(2.0 / pi))
        if _same(other, _plus_one(Apply("tanh", (inner,)))):
            return Apply("gelu_tanh", (z,))
    return Apply(sign, (left, right))


def _same(one: Tree, other: Tree) -> bool:
    """Whether two trees are equal, but for the last digits of numbers."""
    if isinstance(one, Number) and isinstance(other, Number):
        return isclose(one.value, other.value, rel_tol=1e-6)
    if not isinstance(one, Apply) or not isinstance(other, Apply):
        return one == other
    return one.name == other.name and all(_same(a, b) for a, b in zip(one.parts, other.parts, strict=True))


def _plus_one(tree: Tree) -> Tree:
    return Apply("+", (tree, Number(1.0)))


def _times(tree: Tree, factor: float) -> Tree:
    return Apply("*", (tree, Number(factor)))


class _Reading:
    """From the result back to the products."""

    def __init__(self, graph: GraphModule, output: Node) -> None:
        self.places = {node: n for n, node in enumerate(one for one in graph.graph.nodes if one.op == "placeholder")}
        self.output, self.shape = output, _shape(output)
        self.products: list[Node] = []  # those of x and of y
        self.joined = False
        self.operands: dict[tuple[Node, int | None], EpilogueOperand] = {}
        self.after: dict[Node, bool] = {}  # whether a product is part of it
        self.left = _MOST_NODES
        for node in graph.graph.nodes:
            inner = any(self.after.get(one, False) for one in node.all_input_nodes)
            self.after[node] = node.target in _PRODUCTS or inner

    def operator(self, tensors: Sequence[Any]) -> Fused | None:
        value = self.output.meta["val"]
        plain = len(self.shape) > 1 and value.is_contiguous() and value.dtype.is_floating_point
        if not plain or not self.after[self.output]:
            return None
        text = shown(self.tree(self.output))
        own, *others = (self._product(one, tensors) for one in self.products)
        if not isinstance(own.operator, Gemm) or any(one.operator != own.operator for one in others):
            return None
        n = own.operator.n // 2 if self.joined else own.operator.n
        sizes, of = (own.operator.m, n, own.operator.k), own.operator
        pair = "joined" if self.joined else "two" if others else "none"
        joint = gemm(*sizes, dtype=of.a, layout=of.layout, c=format_of(value), epilogue=text, pair=pair)
        if not isinstance(joint, Gemm) or sizes[:2] != (prod(self.shape[:-1]), self.shape[-1]):
            return None
        if joint.flops() <= 4 * max(prod(one.shape) for one in joint.tensors()):
            return None  # each element is multiplied once or twice: product families are for more reuse
        sources = self._sources()
        names = [one.name for one in joint.tensors() if one.name != "C"]
        second = {one.name: n for (_, half), one in self.operands.items() if half == 1}  # of joined biases
        offsets = tuple(second.get(name, 0) for name in names)
        whole = Fused(
            joint, self.shape, value.dtype, lambda all_: tuple(sources[name](all_) for name in names), offsets
        )
        whole.read(tensors)  # raises if something that it reads is computed
        return whole

    # What is read -----------------------------------------------------------------------------------------------------

    def _value(self, node: Node, tensors: Sequence[Any]) -> Any:
        """What views make of the graph's tensors."""
        if node in self.places:
            return tensors[self.places[node]]
        if node.op != "call_function" or name_of(node) not in VIEWS_BEFORE:
            raise _Other
        inner = partial(self._value, tensors=tensors)
        return node.target(*map_arg(node.args, inner), **map_arg(node.kwargs, inner))

    def _product(self, node: Node, tensors: Sequence[Any]) -> Asked:
        asked = products.mm(*(self._value(one, tensors) for one in node.args[-2:]))
        if asked is None:
            raise _Other
        return asked

    def _sources(self) -> dict[str, Callable[[Sequence[Any]], Any]]:
        """How the operator's tensors follow from the graph's, by name."""

        def factor(product: Node, place: int, tensors: Sequence[Any]) -> Any:
            return self._product(product, tensors).tensors[place]

        first = self.products[0]
        out: dict[str, Callable[[Sequence[Any]], Any]] = {
            "A": partial(factor, first, 0),
            "B": partial(factor, first, 1),
        }
        if len(self.products) > 1:
            out["B2"] = partial(factor, self.products[1], 1)
        for (node, half), one in self.operands.items():
            out[one.name] = partial(self._operand, node, half, one.kind)
        return out

    def _operand(self, node: Node, half: int | None, kind: str, tensors: Sequence[Any]) -> Any:
        value, n = self._value(node, tensors), self.shape[-1]
        if kind == "mn":
            return value.view(-1, n) if value.dim() != 2 else value
        flat = value.reshape(-1)
        return flat if half is None else flat[half * n : (half + 1) * n]

    # The text ---------------------------------------------------------------------------------------------------------

    def tree(self, node: Any) -> Tree:
        self.left -= 1
        if self.left < 0:
            raise _Other
        if not isinstance(node, Node):
            if isinstance(node, bool) or not isinstance(node, (int, float)):
                raise _Other
            return Number(float(node))
        if not self.after[node]:
            return self.leaf(node, None)
        if node.target in _PRODUCTS:
            return self.product(node, None)
        name = name_of(node)
        if name in ("getitem", "slice"):
            return self.half(node)
        if name in _SAME:
            return self.tree(self.same(node))
        if name == "mul" and (inner := self.silu(node)) is not None:
            return Apply("silu", (self.tree(inner),))
        if name in _SIGNS and not node.kwargs and len(node.args) == 2:
            return _activation(_SIGNS[name], self.tree(node.args[0]), self.tree(node.args[1]))
        if name in _FUNCTIONS and not node.kwargs:
            return Apply(_FUNCTIONS[name], tuple(map(self.tree, node.args)))
        if name == "gelu":
            return Apply(_GELU[str(node.kwargs.get("approximate", "none"))], (self.tree(node.args[0]),))
        if name in ("clamp", "hardtanh"):
            return self.clamped(node)
        if name == "pow" and node.args[1] in (2, 3):
            base = self.tree(node.args[0])
            return _power(base, int(node.args[1]))
        raise _Other

    def same(self, node: Node) -> Node:
        """The node whose elements these are. Of views only those that keep rows; of casts those between floats, since
        nothing is rounded in between."""
        inner = node.args[0]
        assert isinstance(inner, Node)
        if not node.meta["val"].dtype.is_floating_point or _shape(node)[-1:] != _shape(inner)[-1:]:
            raise _Other
        return inner

    def clamped(self, node: Node) -> Tree:
        inner, low, high = (*node.args, None, None)[:3]
        if name_of(node) == "hardtanh":
            low, high = -1 if low is None else low, 1 if high is None else high
        tree = self.tree(inner)
        tree = tree if low is None else Apply("max", (tree, self.tree(low)))
        return tree if high is None else Apply("min", (tree, self.tree(high)))

    def silu(self, node: Node) -> Node | None:
        """z of z * sigmoid(z)."""
        for one, other in (node.args[:2], node.args[1::-1]):
            if (
                isinstance(one, Node)
                and isinstance(other, Node)
                and name_of(other) == "sigmoid"
                and other.args[0] is one
            ):
                return one
        return None

    def product(self, node: Node, half: int | None) -> Tree:
        """x or y, with what `addmm` adds; `half`: of joined products."""
        if node.target is _ATEN.addmm.default and (node.kwargs or len(node.args) != 3):
            raise _Other
        if node not in self.products:
            self.products.append(node)
        if self.joined != (half is not None) or len(self.products) > (1 if self.joined else 2):
            raise _Other
        if len(self.products) > 1 and self.products[0].args[-2] is not self.products[1].args[-2]:
            first, second = (one.args[-2] for one in self.products)
            if not (self._alike(first, second)):
                raise _Other
        place = half if half is not None else self.products.index(node)
        tree: Tree = Sum() if place == 0 else SecondSum()
        if node.target is not _ATEN.addmm.default:
            return tree
        bias = node.args[0]
        assert isinstance(bias, Node)
        return Apply("+", (tree, self.leaf(bias, half)))

    def _alike(self, one: Any, other: Any) -> bool:
        """Whether two nodes are the same view of the same tensor."""
        if one is other:
            return True
        both = isinstance(one, Node) and isinstance(other, Node)
        if not both or one.target is not other.target or one.op != "call_function" or one.kwargs != other.kwargs:
            return False
        pairs = zip(one.args, other.args, strict=False)
        return len(one.args) == len(other.args) and all(a == b or self._alike(a, b) for a, b in pairs)

    def half(self, node: Node) -> Tree:
        """One of two halves of joined products' columns."""
        whole = node.args[0]
        assert isinstance(whole, Node)
        n = self.shape[-1]
        if name_of(node) == "slice":
            dim, start, end = (*node.args[1:], *((0, 0, None)[len(node.args) - 1 :]))[:3]
            wide = _shape(whole)[-1]
            if dim not in (-1, len(_shape(whole)) - 1) or len(node.args) > 4 or not isinstance(start, int):
                raise _Other
            last = wide if end is None else min(int(end), wide)
            place = {(0, n): 0, (n, 2 * n): 1}.get((start, last), -1)
        else:
            place = int(node.args[1])
            if name_of(whole) not in _PARTS:
                raise _Other
            whole = whole.args[0]
        if _shape(node)[-1] != n or _shape(whole)[-1] != 2 * n or place not in (0, 1):
            raise _Other
        while name_of(whole) in _SAME:
            whole = self.same(whole)
        if whole.target not in _PRODUCTS or (self.products and not self.joined):
            raise _Other
        self.joined = True
        return self.product(whole, place)

    def leaf(self, node: Node, half: int | None) -> Tree:
        """An operand: a view of a tensor."""
        if (node, half) in self.operands:
            return self.operands[node, half]
        value, n, rows = node.meta["val"], self.shape[-1], prod(self.shape[:-1])
        shape, wide = tuple(value.shape), n if half is None else 2 * n
        if value.numel() == wide and shape[-1:] == (wide,):
            kind = "n"
        elif half is None and shape in (self.shape, (rows, n)):
            kind = "mn"
        elif half is None and shape in ((*self.shape[:-1], 1), (rows, 1)):
            kind = "m"
        elif half is None and value.numel() == 1:
            kind = "0"
        else:
            raise _Other
        rows_lie_apart = kind == "mn" and len(shape) == 2 and value.stride(1) == 1 and value.stride(0) >= n
        if format_of(value) not in FORMATS or not (value.is_contiguous() or rows_lie_apart):
            raise _Other
        same = sum(one.kind == kind for one in self.operands.values())
        out = EpilogueOperand(f"{_NAMES[kind]}{same + 1 if same else ''}", kind, format_of(value))
        c = format_of(self.output.meta["val"])
        if usual_format(EpilogueOperand(out.name, kind), c, c) == out.format:
            out = EpilogueOperand(out.name, kind)
        self.operands[node, half] = out
        return out
