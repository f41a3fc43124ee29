"""`with deepgen.torch.use(library):` torch's functions, served by a library's kernels where these are faster."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from sys import maxsize
from types import CodeType, TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F

from deepgen.frontends.torch import dispatching, functions, inductor
from deepgen.frontends.torch.calls import kinds_of
from deepgen.frontends.torch.elements import LARGE, LEAST, size_of
from deepgen.frontends.torch.elements import TENSORS as ELEMENTS
from deepgen.frontends.torch.functions import CONVOLUTIONS, Elements
from deepgen.frontends.torch.ops import IN_USE, TORCHS
from deepgen.frontends.torch.race import COMPILED, EAGER, GRAPH, Met
from deepgen.frontends.torch.routes import Router
from deepgen.frontends.torch.scaled import scaled_mm_of
from deepgen.libraries import Library
from deepgen.operators.expr.operator import ExpressionOperator
from deepgen.vocabulary import BadInput

# Every attribute through which a model may call each function.
_PLACES: Mapping[str, tuple[tuple[Any, str], ...]] = {
    "linear": ((F, "linear"),),
    "mm": ((torch, "mm"), (torch.Tensor, "mm")),
    "int_mm": ((torch, "_int_mm"),),
    "bmm": ((torch, "bmm"), (torch.Tensor, "bmm")),
    "matmul": ((torch, "matmul"), (torch.Tensor, "matmul"), (torch.Tensor, "__matmul__")),
    "addmm": ((torch, "addmm"),),
    "attention": ((F, "scaled_dot_product_attention"),),
    "softmax": ((torch, "softmax"), (torch.Tensor, "softmax")),
    "layer_norm": ((F, "layer_norm"),),
    "rms_norm": ((F, "rms_norm"), (torch, "rms_norm")),
    "scaled_mm": ((torch, "_scaled_mm"),),
    **({"grouped_mm": ((torch, "_grouped_mm"),)} if "grouped_mm" in TORCHS else {}),
    **{kind: ((F, kind), (torch, kind)) for kind in CONVOLUTIONS},
    "add": ((torch, "add"), (torch.Tensor, "add"), (torch.Tensor, "__add__")),
    "sub": ((torch, "sub"), (torch.Tensor, "sub"), (torch.Tensor, "__sub__")),
    "mul": ((torch, "mul"), (torch.Tensor, "mul"), (torch.Tensor, "__mul__")),
    "div": ((torch, "div"), (torch.Tensor, "div"), (torch.Tensor, "__truediv__")),
    "neg": ((torch, "neg"), (torch.Tensor, "neg"), (torch.Tensor, "__neg__")),
    "silu": ((F, "silu"),),
    "cat": ((torch, "cat"),),
}
# torch's own attributes for elementwise operators: Python operators take other arguments than functions do.
_TORCHS = {(owner, name): getattr(owner, name) for kind in ELEMENTS for owner, name in _PLACES[kind]}
# Functions that build graphs from Python code. The older ones use real tensors or read the code, so they need torch's
# functions.
_COMPILERS = ((torch, "compile"), (torch.export, "export"))
_OLDER = ((torch.jit, "trace"), (torch.jit, "script"))
_SCRIPT = torch.jit.script
# The compiler distinguishes functions by their code objects: what it compiled with one library's kernels must not be
# used with another. Each library has its own persistent code objects, so that code compiled with it is found again
# later. Torch functions implemented in C have none: for them, another object of the same function is used.
_CODES: WeakKeyDictionary[Any, dict[tuple[bool, CodeType | str], Any]] = WeakKeyDictionary()
_COMPILED = ("linear", "mm", "int_mm", "bmm", "matmul", "addmm")  # functions that kernels serve in compiled code
_GIVEN_UP = "patches of Tensor methods are removed: inspecting every call cost more than it saved"
_entered: list[Any] = []  # the library in use, at most one
_GRAPH, _CAPTURES = torch.cuda.CUDAGraph, ("capture_begin", "capture_end")


class Use:
    """A library in use by the whole process until it is left."""

    def __init__(self, library: Library, *, race: bool = True, warns: bool = True) -> None:
        """`warns`: on exit, if no call was made for which the library has a kernel."""
        if not callable(getattr(library, "choose", None)):
            raise BadInput(f"{library!r} is not a library", allowed="pass the result of deepgen.library(path)")
        self._router, self._library, self._warns = Router(library, race=race), library, warns
        kinds, in_calls = _kinds(library), _kinds(library, (EAGER, GRAPH))
        in_c = kinds & dispatching.KINDS if _on_cpu(library) else set()
        core = dispatching.core() if in_c else None
        dispatched = core is not None and in_calls & in_c
        self._dispatch = dispatching.Dispatch(self._router, in_calls & in_c) if dispatched else None
        in_c = set() if core is None else in_c
        kinds -= in_c
        self._functions = {kind: function for kind, function in functions_of(self._router).items() if kind in kinds}
        self._placed: list[tuple[Any, str, Any]] = [
            (*place, function) for kind, function in self._functions.items() for place in _PLACES[kind]
        ]
        self._given_up: set[str] = set()  # kinds whose Tensor methods are torch's own again
        self._elements = {}
        for kind, (sizes, small) in _sizes(library).items():
            ours = Elements(self._router, kind, sizes, small, partial(self._give_up, kind))
            for owner, name in _PLACES[kind]:
                function = ours.instead_of(_TORCHS[owner, name], name.startswith("__"))
                self._placed.append((owner, name, function))
            self._elements[kind] = ours
        codes = _CODES.setdefault(library, {})
        for *_, function in self._placed:
            function.__code__ = codes.setdefault((race, function.__code__), function.__code__.replace())
        for kind, owner, name in ((one, *place) for one in _COMPILED if one in in_c for place in _PLACES[one]):
            if owner is not torch.Tensor:
                again = codes.setdefault((race, name), dispatching.core().again(TORCHS[kind]))
                self._placed.append((owner, name, again))
        if self._elements:
            self._placed += [(_GRAPH, name, self._told_of(name)) for name in _CAPTURES]
        self._before: list[tuple[Any, str, Any]] = []  # what our functions replaced
        self._captures = False
        self._unknown = [*{function for owner, _, function in self._placed if owner is not _GRAPH}]  # to the compiler
        self._leave: Callable[[], None] | None = None  # detaches from the compiler, once it is imported

    @property
    def met(self) -> tuple[Met, ...]:
        """The calls seen so far, whether a kernel of the library serves them, and why."""
        return tuple(
            replace(met, why=f"{met.why}; {_GIVEN_UP}") if met.ours and self._is_given_up(met.operator) else met
            for met in self._router.met
        )

    @property
    def unused(self) -> str:
        """A message if no call was made for which the library has a kernel; otherwise empty."""
        names = dict.fromkeys(entry.operator.describe() for entry in _entries(self._library, (EAGER, GRAPH)) or ())
        if self._router.has_kernels or not names:
            return ""
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return (
            f"No call was met that the library has a kernel for: {', '.join([*names][:3])}{more}. Layers with a path "
            "of their own inside torch, code that was compiled before, and other sizes do not reach its kernels."
        )

    def __enter__(self) -> Use:
        if _entered:
            raise BadInput(
                "a library is in use already", allowed="only one at a time: leave it first, or merge the two"
            )
        if inductor.loaded():
            self._with_compiler()
        self._put()
        if self._dispatch is not None:
            self._dispatch.open()
        IN_USE.update(self._functions)
        _entered.append(self)
        return self

    def _put(self) -> None:
        """Replace torch's functions by ours."""
        for owner, name, function in self._placed:
            self._before.append((owner, name, vars(owner).get(name)))
            setattr(owner, name, function)
        self._without_given_up()
        for owner, name in (*_OLDER, *(_COMPILERS if self._leave is None else ())):
            self._before.append((owner, name, vars(owner)[name]))
            setattr(owner, name, self._aside(vars(owner)[name], compiles=owner is not torch.jit))

    def _put_back(self) -> None:
        for place in reversed(self._before):
            _restore(*place)
        self._before.clear()

    def _give_up(self, kind: str) -> None:
        """Restore torch's own Tensor methods for one kind of elementwise operator, except during graph capture.

        Functions stay replaced, since the compiler uses them to recognise what it compiled with a library.
        """
        self._given_up.add(kind)
        self._without_given_up()

    def _without_given_up(self) -> None:
        names = {name for kind in self._given_up for owner, name in _PLACES[kind] if owner is torch.Tensor}
        for owner, name, before in [] if self._captures else self._before:
            if owner is torch.Tensor and name in names:
                _restore(owner, name, before)

    def _is_given_up(self, operator: Any) -> bool:
        return isinstance(operator, ExpressionOperator) and operator.definition.name in self._given_up

    def _captured(self, *, begin: bool) -> None:
        """Called when the capture of a CUDA graph begins or ends."""
        self._captures = begin
        for ours in self._elements.values():
            ours.captures(begin=begin)
        for owner, name, function in self._placed if begin and self._before and self._given_up else ():
            if owner is torch.Tensor:
                setattr(owner, name, function)
        self._without_given_up()

    def _told_of(self, name: str) -> Callable[..., Any]:
        """Wraps a method of torch's graphs, to notify the elementwise operators of captures.

        `torch.cuda.graph`, `make_graphed_callables` and the compiler all call it. Checking in each small call whether
        its stream is being captured would add a torch call there. If something else captures, torch serves such calls.
        """
        torchs, begin = getattr(_GRAPH, name), name == "capture_begin"

        @wraps(torchs)
        def call(graph: Any, *args: Any, **named: Any) -> Any:
            self._captured(begin=False)
            result = torchs(graph, *args, **named)
            if begin:  # and did not fail
                self._captured(begin=True)
            return result

        return call

    def _with_compiler(self) -> None:
        inductor.load()
        while self._unknown:  # traced with fake tensors, they call torch's own
            torch.compiler.allow_in_graph(self._unknown.pop())
        self._leave = inductor.enter(self._router)

    def _aside(self, function: Callable[..., Any], *, compiles: bool) -> Callable[..., Any]:
        """Wraps a function to run with torch's functions restored: to import the compiler, or to run an older one."""
        # The frame in which names of a class are looked up: the caller, which is one frame further away.
        further = {"_frames_up": 1} if function is _SCRIPT else {}

        @wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            self._put_back()
            try:
                if not compiles:
                    return function(*args, **further, **named)
                if self._leave is None:
                    self._with_compiler()
            finally:
                self._put()
            return function(*args, **named)

        return call

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if self._warns and kind is None and (unused := self.unused):
            self._warns = False  # only once
            warnings.warn(unused, UserWarning, stacklevel=2)

    def close(self) -> None:
        """Restore torch's own functions."""
        if not self._before:
            return
        if self._dispatch is not None:
            self._dispatch.close()
        _entered.remove(self)
        IN_USE.clear()
        if self._leave is not None:
            self._leave()
            self._leave = None
        self._put_back()

    def __str__(self) -> str:
        """A table of the calls seen so far, with the number that kernels handled."""
        return shown(self.met)


def shown(met: Sequence[Met]) -> str:
    """A table of calls that were seen."""
    rows = [
        f"{'deepgen' if one.ours else 'torch':8} {one.calls.served or '':>8} {one.operator.describe():48} {one.why}"
        for one in met
    ]
    return "\n".join(rows) if rows else "no calls yet"


def _restore(owner: Any, name: str, before: Any) -> None:
    """Restore the attribute as it was before ours; None: it was inherited."""
    if before is not None:
        setattr(owner, name, before)
    elif name in vars(owner):
        delattr(owner, name)


def use(library: Library, *, race: bool = True) -> Use:
    """Replace torch's functions by a library's kernels, as a context manager.

    A kind of call, by its shapes, strides and dtypes, goes to a kernel if the library has one that was faster than
    torch when it was tuned. With `race`, both are also timed when a kind is first seen, on the call's own tensors, and
    torch keeps the calls where it is not slower.
    """
    return Use(library, race=race)


def patch(library: Library, *, race: bool = True) -> Use:
    """Like `use`, from now on, until `close` is called on the returned object."""
    return Use(library, race=race).__enter__()


def _on_cpu(library: Library) -> bool:
    """Whether none of a library's kernels can run on a GPU of this machine."""
    listed = getattr(library, "list", None)
    targets = [] if listed is None else [getattr(entry, "target", None) for entry in listed()]
    return not torch.cuda.is_available() or all(target is not None and target.runner == "cpu" for target in targets)


def _entries(library: Library, forms: Sequence[str] = (EAGER, GRAPH, COMPILED)) -> list[Any] | None:
    """Those that may serve in one of some forms: recorded models may be faster without a kernel in all of them. None if
    a library does not list its own.
    """
    listed, ask = getattr(library, "list", None), getattr(library, "by_models", None)
    if listed is None or ask is None:
        return None if listed is None else [*listed()]
    threads, out = torch.get_num_threads(), list[Any]()
    for entry in listed():
        own, on_cpu = entry.target, entry.target.runner == "cpu"
        where = own.device_kind, threads if on_cpu else None
        asked = [form for form in forms if form != GRAPH or not on_cpu]
        if any(ask(entry.operator, entry.kernel_id, form, *where) is not False for form in asked):
            out.append(entry)
    return out


def _kinds(library: Library, forms: Sequence[str] = (EAGER, GRAPH, COMPILED)) -> set[str]:
    """The functions that some kernel of a library might serve. Others are not replaced, and cost nothing."""
    entries = _entries(library, forms)
    return {*_PLACES} if entries is None else {kind for entry in entries for kind in kinds_of(entry.operator)}


def _sizes(library: Library) -> Mapping[str, tuple[set[int] | range, set[int]]]:
    """The elementwise operators that some kernel of a library might serve, with the result sizes in elements.

    Sizes that only GPU kernels have, and that are small for a GPU, are listed separately.
    """
    entries = _entries(library, (EAGER, GRAPH))  # in compiled code none of them serves
    if entries is None:
        return dict.fromkeys(ELEMENTS, (range(LEAST, maxsize), set()))
    sizes: dict[str, set[int]] = {}
    worth_a_look: dict[str, set[int]] = {}
    for entry in entries:
        if isinstance(entry.operator, ExpressionOperator) and (size := size_of(entry.operator)):
            sizes.setdefault(entry.operator.definition.name, set()).add(size)
            if entry.target.runner == "cpu" or size >= LARGE:
                worth_a_look.setdefault(entry.operator.definition.name, set()).add(size)
    return {kind: (every, every - worth_a_look.get(kind, set())) for kind, every in sizes.items()}


def functions_of(router: Router) -> Mapping[str, Callable[..., Any]]:
    ours = {kind: functions.product_of(router, kind, TORCHS[kind]) for kind in ("mm", "int_mm", "bmm", "matmul")}
    others = ("addmm", "softmax", "layer_norm", "rms_norm", *CONVOLUTIONS)
    ours |= {kind: functions.other_of(router, kind, TORCHS[kind]) for kind in others}
    if "grouped_mm" in TORCHS:
        ours["grouped_mm"] = functions.grouped_of(router)
    ours["attention"] = functions.attention_of(router)
    return {**ours, "linear": functions.linear_of(router), "scaled_mm": scaled_mm_of(router)}
