"""`with deepgen.torch.record() as work:` which operators a model runs, how often, and their shares of the time."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from deepgen.frontends.torch.calls import ATEN, differing, normed_sum, rms_norm
from deepgen.frontends.torch.fused_products import of_region
from deepgen.frontends.torch.patterns import IN_PLACE, normed_sums, regions
from deepgen.frontends.torch.replaying import CallsSeen
from deepgen.libraries.predict import FAR, distance
from deepgen.operators import Operator
from deepgen.tuning.work import RecordedPart, RecordedWork, ordered
from deepgen.vocabulary import DeepgenError

_TAKEN_APART = (torch.rms_norm, torch.nn.functional.rms_norm)
_WHOLE = {
    **dict.fromkeys(_TAKEN_APART, torch.ops.aten.rms_norm.default),
    torch.nn.functional.scaled_dot_product_attention: torch.ops.aten.scaled_dot_product_attention.default,
}  # functions that are replayed as they are called
_AHEAD = 200_000_000  # cycles for which a GPU occasionally waits, so that its work never waits for the host
_AHEAD_SECONDS = _AHEAD / 3e9  # at the highest clock of any GPU so far
_EMPTY = 9  # pairs of events with nothing between them


class Recording:
    """The recording, available once the block has ended."""

    def __init__(self) -> None:
        self._work: RecordedWork | None = None

    @property
    def work(self) -> RecordedWork:
        if self._work is None:
            raise DeepgenError("the recording has not ended: leave the `with` block first")
        return self._work

    def end(self, work: RecordedWork) -> None:
        self._work = work

    def save(self, path: str | Path) -> None:
        """Write the file that `deepgen tune` takes."""
        self.work.save(path)

    def __str__(self) -> str:
        return str(self.work)


@contextmanager
def record(*, dynamic: bool = False, patterns: bool = False) -> Iterator[Recording]:
    """Record the operators that run in the block on this thread, forward and backward, but not compiled code.

    Each operator is timed on its own. Run the model once before, so that first-call costs are not recorded.
    `dynamic`: the model is run with several sizes in the block, such as batches or numbers of tokens. Shapes of an
    operator that differ in these become one, for which a single kernel is tuned. `patterns`: calls that `optimize` and
    torch.compile replace by one kernel, such as a product with its activation, are recorded as one operator.
    """
    recording, recorder = Recording(), _Recorder(_Flow() if patterns else None)
    with _Whole(recorder), recorder:
        yield recording
    work = recorder.work()
    recording.end(joined(work) if dynamic else work)


def joined(work: RecordedWork) -> RecordedWork:
    """Shapes of an operator that differ by at most three octaves, in sizes that are no lengths of rows, as one part."""
    parts: list[RecordedPart] = []
    left = [*work.parts]  # the longest first
    while left:
        first = left.pop(0)
        same = [part for part in left if _joins(first, part)]
        left = [part for part in left if part not in same]
        also = _spread(first.what, [part.what for part in same]) if isinstance(first.what, Operator) else ()
        count, seconds = (sum(getattr(part, name) for part in (first, *same)) for name in ("count", "seconds"))
        parts.append(RecordedPart(first.what, count, seconds, also))
    return ordered(work.target, parts, work.calls)


def _joins(one: RecordedPart, other: RecordedPart) -> bool:
    if isinstance(one.what, str) or isinstance(other.what, str) or not differing(one.what, other.what):
        return False
    return distance(one.what, other.what) <= FAR


def _spread(first: Operator, others: Sequence[Any]) -> tuple[Operator, ...]:
    """The smallest and the largest of several shapes, beside the first, and one that is drawn between them."""
    every = sorted((first, *others), key=lambda one: one.least_bytes())
    ends = dict.fromkeys(one for one in (every[0], every[-1]) if one != first)
    low, high = every[0].sizes(), every[-1].sizes()
    part = Random(first.slug()).random()  # the same for all sizes: what is equal, such as queries and keys, stays so
    between = first.resized({name: round(low[name] ** (1 - part) * high[name] ** part) for name in low}, {}, {})
    return (*ends, between) if others and between not in every else tuple(ends)


class _Whole(TorchFunctionMode):  # type: ignore[misc]
    """Handles functions that torch decomposes before dispatch: their parts are counted as one operator."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        with _disable_current_modes():  # looking at a call makes calls
            asked = rms_norm(*args, **named) if func in _TAKEN_APART else None
        whole, recorder = _WHOLE.get(func), self._recorder
        if whole is None:
            return func(*args, **named)
        begin = recorder.begin(None if asked is None else asked.operator, whole)
        try:
            out = func(*args, **named)
        finally:
            recorder.begin(None)
        with _disable_current_modes():
            recorder.whole(whole, args, named, out, begin if asked is not None else None)
        return out


class _Flow:
    """The calls as a graph, in which patterns are found. It knows tensors by weak references, and keeps none alive."""

    def __init__(self) -> None:
        self._graph, self._fakes = Graph(), FakeTensorMode()
        self._nodes: Any = WeakIdKeyDictionary()  # what computed each tensor

    def add(
        self, func: Any, args: Any, kwargs: Any, out: Any, place: int, *, opaque: bool, begin: int | None = None
    ) -> None:
        """A call, the `place`th that ran. `opaque`: no part of any pattern, as calls that gradients need are. `begin`:
        of the calls that it consists of.
        """
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        memories = _written(func, args, kwargs)
        written = [one for one in self._nodes if memories and _memory(one) in memories]
        func = _not_in_place(func) if memories else func
        if func is None or opaque or (torch.is_grad_enabled() and any(one.requires_grad for one in tensors)):
            for one in tensors:
                self._graph.call_function(operator.pos, (self._node(one),)).meta["val"] = None
            tensors = []
        into = partial(tree_map_only, torch.Tensor, self._node)
        node = self._graph.call_function(func, into(tuple(args)), into(dict(kwargs))) if tensors else None
        for one in written:  # under any name they have other numbers from now on
            del self._nodes[one]
        if node is None:
            return
        places = range(place if begin is None else begin, place + 1)
        node.meta = {"val": tree_map_only(torch.Tensor, self._like, out), "places": places}
        if isinstance(out, torch.Tensor):
            self._nodes[out] = node
        for n, one in enumerate(out) if isinstance(out, (list, tuple)) else ():
            if isinstance(one, torch.Tensor):
                self._nodes[one] = self._graph.call_function(operator.getitem, (node, n))
                self._nodes[one].meta["val"] = self._like(one)

    def patterns(self) -> dict[int, tuple[Operator, int]]:
        """By the places of calls: the pattern that they are part of, and how often that counts."""
        members, taken = dict[int, tuple[Operator, int]](), set[Node]()
        for region, whole in regions(self._graph, of_region):
            self._put(members, region.nodes, whole.operator)
            taken.update(region.nodes)
        for both in normed_sums(self._graph, taken):
            asked = normed_sum(both.kind, both.eps, *(one.meta["val"] for one in both.region.inputs))
            if asked is not None:
                self._put(members, both.region.nodes, asked.operator)
        return members

    def _put(self, members: dict[int, tuple[Operator, int]], nodes: Sequence[Node], what: Operator) -> None:
        places = [place for node in nodes for place in node.meta.get("places", ())]
        members |= {place: (what, int(place == places[-1])) for place in places}

    def _node(self, tensor: Any) -> Node:
        if tensor not in self._nodes:
            self._nodes[tensor] = self._graph.placeholder(f"tensor_{len(self._graph.nodes)}")
            self._nodes[tensor].meta["val"] = self._like(tensor)
        node: Node = self._nodes[tensor]
        return node

    def _like(self, tensor: Any) -> Any:
        with self._fakes:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> set[int]:
    """The memories of the tensors that a call writes."""
    schema = func._schema
    if not schema.is_mutable:
        return set()
    named = {**dict(zip((one.name for one in schema.arguments), args, strict=False)), **kwargs}
    names = [one.name for one in schema.arguments if one.alias_info is not None and one.alias_info.is_write]
    return {_memory(one) for one in tree_leaves([named.get(name) for name in names]) if isinstance(one, torch.Tensor)}


def _memory(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata) if torch._C._has_storage(tensor) else id(tensor)


def _not_in_place(func: Any) -> Any:
    """`relu` of `relu_`; None where there is none."""
    name = func.overloadpacket.__name__
    packet = getattr(torch.ops.aten, name[:-1], None) if name in IN_PLACE else None
    return getattr(packet, func._overloadname, None)


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Records every operator that torch dispatches, with its time."""

    def __init__(self, flow: _Flow | None = None) -> None:
        super().__init__()
        self._flow = flow
        self._ran: list[tuple[Operator | str, int, Any]] = []  # with the number of calls and the time
        self._device = "cpu"
        self.within: Operator | None = None  # the operator that these are parts of
        self.calls, self._called = CallsSeen(), None  # and the function that is replayed as it is called
        self._parts = 0
        self._empty: list[tuple[Any, Any]] = []
        self._waited = -_AHEAD_SECONDS  # when the GPU was told to wait

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        read = ATEN.get(func)
        asked = read(*args, **(kwargs or {})) if read is not None else None
        what = self.within or (func.name().partition(".")[0] if asked is None else asked.operator)
        count = 1 if self.within is None or not self._parts else 0
        self._parts = 0 if self.within is None else self._parts + 1
        out, seconds = self._timed(func, args, kwargs or {})
        if self._flow is not None:
            self._flow.add(func, args, kwargs or {}, out, len(self._ran), opaque=self.within is not None)
        if self._called is None:
            self.calls.add(func, args, kwargs or {}, out)
        self._ran.append((what, count, seconds))
        return out

    def _timed(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """A call's result, and its seconds or the events around it."""
        if self._on_gpu(args):
            self._keep_ahead()
            start, end = _event(), _event()
            start.record()
            out = func(*args, **kwargs)
            end.record()
            return out, (start, end)
        started = time.perf_counter()
        out = func(*args, **kwargs)
        return out, time.perf_counter() - started

    def whole(self, func: Any, args: Any, named: Any, out: Any, begin: int | None) -> None:
        """A function whose parts have run; from `begin` on these are parts of no pattern, but it may be."""
        self.calls.add(func, args, named, out)
        if begin is not None and self._flow is not None:
            self._flow.add(func, args, named, out, len(self._ran) - 1, opaque=False, begin=begin)

    def begin(self, whole: Operator | None, called: Any = None) -> int:
        """What runs from now on is a part of this operator, and of this function; None: of none. Returns its place."""
        self.within, self._parts, self._called = whole, 0, called
        return len(self._ran)

    def work(self) -> RecordedWork:
        totals: dict[Operator | str, tuple[int, float]] = {}
        if self._device != "cpu":
            torch.cuda.synchronize()
        # Events take time themselves: otherwise views, which do nothing on a GPU, would count as much as small kernels.
        nothing = median(_apart(*pair) for pair in self._empty) if self._empty else 0.0
        whole = self._flow.patterns() if self._flow is not None else {}
        for place, (one, count_of_one, took) in enumerate(self._ran):
            # The pattern's name goes to its last call, which counts; the others add their time.
            what, calls = whole.get(place, (one, count_of_one))
            seconds = took if isinstance(took, float) else max(0.0, _apart(*took) - nothing)
            count, total = totals.get(what, (0, 0.0))
            totals[what] = (count + calls, total + seconds)
        parts = [RecordedPart(what, *row) for what, row in totals.items()]
        return ordered(self._device, parts, self.calls.recorded())

    def _keep_ahead(self) -> None:
        """Let the host get ahead of the GPU, by at least half of each wait. Otherwise the GPU would wait for the host,
        and the times would be the host's.
        """
        now = time.perf_counter()
        if now - self._waited >= 0.5 * _AHEAD_SECONDS:
            torch.cuda._sleep(_AHEAD)
            self._waited = now

    def _on_gpu(self, args: Any) -> bool:
        flat = (one for arg in args for one in (arg if isinstance(arg, (list, tuple)) else (arg,)))
        on = any(isinstance(one, torch.Tensor) and one.is_cuda for one in flat)
        if on and self._device == "cpu":
            self._device = "hip:native" if torch.version.hip else "cuda:native"
            self._keep_ahead()
            self._empty = [(_event(), _event()) for _ in range(_EMPTY)]
            for start, end in self._empty:
                start.record()
                end.record()
        return on


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)


def _apart(start: Any, end: Any) -> float:
    """Seconds between two events."""
    return float(start.elapsed_time(end)) * 1e-3
