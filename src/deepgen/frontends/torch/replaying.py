"""A model's calls in their order: recorded without their numbers, and run again with random ones.

Its time decides which kernels serve it (benching.py). What cannot be run again, such as calls whose results have other
shapes with other numbers, is left out: what it computed is then an input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from operator import getitem
from os import sysconf
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from deepgen.tuning.work import RecordedCall, RecordedCalls, RecordedTensor
from deepgen.vocabulary import BadInput
from deepgen.vocabulary.json import Json

MOST_CALLS = 5_000  # in a recording: what follows is not replayed
_WORDS = ("none", "tanh", "mean", "sum", "floor", "trunc")  # texts that calls may pass
_FLOATS: Mapping[str, float] = {"inf": inf, "-inf": -inf, "nan": nan}
_OTHER_SHAPES = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_TORCHS = (torch.dtype, torch.memory_format, type(torch.strided))
_SHARED = 0.25  # of the free memory: beyond it, inputs of one shape share theirs
_ATEN = torch.ops.aten


class _NotReplayed(Exception):
    """A call has an argument of another kind."""


class CallsSeen:
    """Records the calls. It knows tensors by weak references, and keeps none alive."""

    def __init__(self) -> None:
        self._values: Any = WeakIdKeyDictionary()  # how calls refer to each tensor
        self._tensors: list[RecordedTensor] = []
        self._calls: list[RecordedCall] = []
        self._results = 0

    def add(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        results = [*out] if isinstance(out, (tuple, list)) else [out]
        kept = len(self._calls) < MOST_CALLS and _is_replayable(func)
        try:
            if not kept or not any(isinstance(one, torch.Tensor) for one in tree_leaves((args, dict(kwargs)))):
                raise _NotReplayed
            before = [self._coded(one) for one in args], {name: self._coded(one) for name, one in kwargs.items()}
        except _NotReplayed:
            for one in tree_leaves(out):
                self._values.pop(one, None) if isinstance(one, torch.Tensor) else None
            return
        count = len(results) if isinstance(out, (tuple, list)) else None
        self._calls.append(RecordedCall(_name(func), tuple(before[0]), before[1], count))
        for n, one in enumerate(results, start=self._results):
            if isinstance(one, torch.Tensor):
                self._values[one] = {"result": n}
        self._results += len(results)

    def recorded(self) -> RecordedCalls | None:
        if not self._calls:
            return None
        return RecordedCalls(torch.get_num_threads(), tuple(self._tensors), tuple(self._calls))

    def _coded(self, value: Any) -> Json:
        if isinstance(value, torch.Tensor):
            if value not in self._values:
                self._values[value] = {"tensor": len(self._tensors)}
                kind = str(value.dtype).rpartition(".")[2]
                self._tensors.append(RecordedTensor(tuple(value.shape), tuple(value.stride()), kind))
            coded: Json = self._values[value]
            return coded
        if value is None or type(value) in (bool, int) or (type(value) is str and value in _WORDS):
            return value  # type: ignore[no-any-return]
        if type(value) is float:
            return value if isfinite(value) else {"float": str(value)}
        if isinstance(value, (list, tuple)):
            return [self._coded(one) for one in value]
        if isinstance(value, _TORCHS):
            return {"torch": str(value).rpartition(".")[2]}
        if isinstance(value, torch.device):
            return {"device": ""}
        raise _NotReplayed


def _name(func: Any) -> str:
    return str(func.name()).partition("::")[2] + ("" if func._schema.overload_name else ".default")


def _is_replayable(func: Any) -> bool:
    of_torch = isinstance(func, OpOverload) and func.namespace == "aten"
    return of_torch and not any(tag in func.tags for tag in _OTHER_SHAPES)


@dataclass(frozen=True)
class Replay:
    """A model's calls as a function without arguments, on random tensors."""

    graph: GraphModule
    inputs: tuple[Any, ...]

    def __call__(self) -> Any:
        return self.graph(*self.inputs)


def replay(recorded: RecordedCalls, device: str) -> Replay:
    """The calls on a device, as graphs for torch's compiler have them: by torch's operators."""
    graph, results, calls = Graph(), list[tuple[Node, int | None]](), list[Node]()
    tensors = [graph.placeholder(f"tensor_{n}") for n in range(len(recorded.tensors))]

    def result(number: int) -> Node:
        call, place = results[number]
        again = (user for user in call.users if user.target is getitem and user.args[1] == place)
        return call if place is None else next(again, None) or graph.call_function(getitem, (call, place))

    readers: Mapping[str, Callable[[Any], Any]] = {
        "tensor": tensors.__getitem__, "result": result, "device": lambda _: torch.device(device),
        "float": _FLOATS.__getitem__, "torch": _of_torch,
    }  # fmt: skip

    def read(value: Any) -> Any:
        if isinstance(value, dict):
            [(kind, of)] = value.items()
            return readers[kind](of)
        if isinstance(value, str) and value not in _WORDS:
            raise ValueError(f"one passes {value!r:.40}")
        return [read(one) for one in value] if isinstance(value, list) else value

    try:
        for call in recorded.calls:
            named = {name: read(value) for name, value in call.named.items()}
            calls.append(graph.call_function(_operator(call.name), tuple(map(read, call.args)), named))
            if not calls[-1].all_input_nodes:
                raise ValueError(f"{call.name} reads no tensor")
            places = [None] if call.results is None else range(call.results)
            results += [(calls[-1], place) for place in places]
        inputs = _filled(recorded.tensors, device)
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"its calls cannot be replayed: {error!s:.200}", allowed="record the model again") from error
    graph.output(tuple(node for node in calls if not node.users))
    return Replay(GraphModule(torch.nn.Module(), graph), inputs)


_Passed: TypeAlias = "Callable[[Sequence[Any], Mapping[str, Any]], tuple[Sequence[Any], Mapping[str, Any]]]"


def _by_place(count: int) -> _Passed:
    """Some of the arguments, by position."""
    return lambda args, named: (args[:count], {})


def _unchanged(args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    return args, named


def _scaled(args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    names = [one.name for one in _ATEN._scaled_mm.default._schema.arguments]
    whole = {**dict(zip(names, args, strict=False)), **named}
    return args[:2], {name: whole[name] for name in names[2:] if whole.get(name) is not None}


def _convolution(args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    *shared, transposed, out_pad, groups = args
    return ((*shared[:5], out_pad, groups, shared[5]) if transposed else (*shared, groups)), named


# Where models find a function that is replaced, how it takes the arguments, and whether it has the first result only.
_PLACES: Mapping[Any, tuple[Any, str, _Passed, bool]] = {
    **{getattr(_ATEN, name).default: (torch, name, _unchanged, False)
       for name in ("mm", "bmm", "addmm", "matmul", "_int_mm", "_grouped_mm", "neg", "cat") if hasattr(_ATEN, name)},
    **{getattr(_ATEN, name).Tensor: (torch, name, _unchanged, False) for name in ("add", "sub", "mul", "div")},
    _ATEN.linear.default: (F, "linear", _unchanged, False),
    _ATEN.silu.default: (F, "silu", _unchanged, False),
    _ATEN._scaled_mm.default: (torch, "_scaled_mm", _scaled, False),
    _ATEN.scaled_dot_product_attention.default: (F, "scaled_dot_product_attention", _unchanged, False),
    _ATEN._softmax.default: (torch, "softmax", _by_place(2), False),
    _ATEN.softmax.int: (torch, "softmax", _by_place(2), False),
    _ATEN.layer_norm.default: (F, "layer_norm", _by_place(5), False),
    _ATEN.native_layer_norm.default: (F, "layer_norm", _unchanged, True),
    _ATEN.rms_norm.default: (F, "rms_norm", _unchanged, False),
    _ATEN.convolution.default: (F, "conv", _convolution, False),
}  # fmt: skip


def as_called(plain: Replay, *, late: bool = True) -> Replay:
    """The same as a model calls it. `late`: by functions that are looked up in each call, as `use` replaces them."""
    graph = Graph()
    graph.output(graph.graph_copy(plain.graph.graph, {}))
    for node in [*graph.nodes]:
        owner, name, passed, first = _PLACES.get(node.target, (None, "", _unchanged, False))
        others = [user for user in node.users if user.target is not getitem or user.args[1] != 0]
        if owner is None or (first and others):
            continue
        if name == "conv":
            name = f"conv{'_transpose' if node.args[6] else ''}{len(node.args[3])}d"
        node.args, node.kwargs = passed(node.args, node.kwargs)
        node.target = _late(owner, name) if late else getattr(owner, name)
        for taken in [*node.users] if first else ():
            taken.replace_all_uses_with(node)
            graph.erase_node(taken)
    return Replay(GraphModule(torch.nn.Module(), graph), plain.inputs)


def _late(owner: Any, name: str) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        return getattr(owner, name)(*args, **named)

    return call


def _operator(name: str) -> OpOverload:
    packet, _, overload = name.partition(".")
    function = getattr(getattr(_ATEN, packet, None), overload, None)
    if not _is_replayable(function):
        raise ValueError(f"torch has no operator {name!r:.60}")
    return function


def _of_torch(name: str) -> Any:
    value = getattr(torch, name, None)
    if not isinstance(value, _TORCHS):
        raise ValueError(f"torch has no {name!r:.60}")
    return value


def _filled(tensors: Sequence[RecordedTensor], device: str) -> tuple[Any, ...]:
    """Tensors with random numbers. Each has memory of its own, as weights have in a model, while there is enough."""
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else sysconf("SC_AVPHYS_PAGES") * sysconf("SC_PAGE_SIZE")
    chance, left, out = torch.Generator(device).manual_seed(0), _SHARED * free, list[Any]()
    alike: dict[RecordedTensor, Any] = {}
    for one in tensors:
        if one not in alike or left > 0:
            alike[one] = _random(one, device, chance)
            left -= alike[one].untyped_storage().nbytes()
        out.append(alike[one])
    return tuple(out)


def _random(like: RecordedTensor, device: str, chance: Any) -> Any:
    kind = _of_torch(like.dtype)
    if len(like.shape) != len(like.strides) or any(type(n) is not int or n < 0 for n in (*like.shape, *like.strides)):
        raise ValueError(f"a tensor has shape {like.shape} and strides {like.strides}")
    whole = 1 + sum((size - 1) * stride for size, stride in zip(like.shape, like.strides, strict=True) if size)
    if kind.is_floating_point:
        flat = torch.randn(whole, generator=chance, device=device)
        # Sums of products stay near one; vectors are as those of norms are.
        flat = flat.mul_(max(1, like.shape[-1]) ** -0.5) if len(like.shape) > 1 else flat.abs_().add_(0.5)
        flat = flat.to(kind)
    elif kind == torch.int8:
        flat = torch.randint(-8, 8, (whole,), generator=chance, device=device, dtype=kind)
    else:  # what is looked up is there, and nothing is masked
        flat = torch.full((whole,), kind == torch.bool, dtype=kind, device=device)
    return flat.as_strided(like.shape, like.strides)
