"""A built C kernel bound to buffers: the launch plan as plain calls. Used by the worker and in a user's own process."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from deepgen.operators import Array
from deepgen.space import parse
from deepgen.vocabulary import BadInput, DeepgenError, Kernel, ScalarArg, Step, TensorArg, WorkspaceArg

Scalars: TypeAlias = "Mapping[str, int | float]"
# Gives a workspace its memory: from the argument and the number of bytes to an array of them.
Allocate: TypeAlias = "Callable[[WorkspaceArg, int], Array]"

_CTYPES: dict[str, Any] = {
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
}


_MOST_SHAPES = 1000  # whose calls are kept ready


class NotLoadable(DeepgenError):
    """The binary cannot be loaded, does not hold what the launch plan calls, or refuses to run on this system."""


@dataclass(frozen=True)
class Bound:
    """A kernel with all its arguments in place. It keeps its tensors and workspaces alive."""

    prepare: Callable[[], None]  # once, before the first run and whenever the inputs have changed
    run: Callable[[], None]
    workspaces: Mapping[str, Array]
    prepared: frozenset[str]  # workspaces that hold what `prepare` left there
    tensors: Mapping[str, Array]


@dataclass(frozen=True)
class _Repeated:
    """A call of one shape on whatever arrays: the block of its arguments with the tensors' addresses left open."""

    entry: Any
    slots: Any
    places: tuple[tuple[int, str], ...]
    workspaces: tuple[Array, ...]  # kept alive: the block holds their addresses

    def __call__(self, tensors: Mapping[str, Array]) -> None:
        for place, name in self.places:
            self.slots[place] = tensors[name].ctypes.data
        self.entry(self.slots)


class NativeKernel:
    """A kernel's shared library, loaded into this process. It stays loaded: threads of it may outlive any call."""

    def __init__(self, kernel: Kernel, binary: Path | str) -> None:
        self.kernel = kernel
        try:
            self._library = ctypes.CDLL(str(binary))
        except OSError as error:
            raise NotLoadable(f"the binary of {kernel.name} cannot be loaded: {error}") from error
        if (refusal := self._refusal()) is not None:
            raise NotLoadable(f"{kernel.name} cannot run here: {refusal}")
        self._entries = {s.entry: self._entry(s.entry) for s in (*kernel.plan.prepare, *kernel.plan.steps)}
        # An entry may have a twin, `<entry>_block`, that takes all its arguments in one array, eight bytes each.
        self._blocks = {name: self._twin(name) for name in self._entries}
        self._local = threading.local()

    def bind(self, tensors: Mapping[str, Array], scalars: Scalars, allocate: Allocate | None = None) -> Bound:
        """The launch plan over these buffers. Nothing of the kernel runs yet."""
        plan = self.kernel.plan
        workspaces = _workspaces(plan.prepare + plan.steps, scalars, allocate or _allocate)
        prepared = frozenset(a.name for s in plan.prepare for a in s.args if isinstance(a, WorkspaceArg))
        zeroed = {
            a.name: a for s in plan.prepare + plan.steps for a in s.args if isinstance(a, WorkspaceArg) and a.zeroed
        }

        def calls(steps: tuple[Step, ...]) -> list[Callable[[], None]]:
            return [self._call(s, _arguments(s, tensors, workspaces, scalars)) for s in steps]

        # A workspace that `prepare` fills must keep what it holds; any other zeroed one is zeroed for every run.
        once = [workspaces[n] for n in zeroed if n in prepared]
        always = [workspaces[n] for n in zeroed if n not in prepared]
        return Bound(
            _sequence(once, calls(plan.prepare)),
            _sequence(always, calls(plan.steps)),
            workspaces,
            prepared,
            dict(tensors),
        )

    def run(self, tensors: Mapping[str, Array], scalars: Scalars) -> None:
        """One whole run, preparation included. Each thread keeps its own workspaces from call to call."""
        kept: dict[tuple[int | float, ...], _Repeated | None] = self._local.__dict__.setdefault("repeated", {})
        shape = tuple(scalars.values())
        if shape not in kept:
            if len(kept) >= _MOST_SHAPES:
                kept.clear()
            kept[shape] = self._repeated(tensors, scalars)
        repeated = kept[shape]
        if repeated is not None:
            repeated(tensors)
            return
        bound = self.bind(tensors, scalars, self._reuse)
        bound.prepare()
        bound.run()

    def _repeated(self, tensors: Mapping[str, Array], scalars: Scalars) -> _Repeated | None:
        """The run as one call of which only addresses change, where the plan is as simple as that."""
        plan = self.kernel.plan
        if plan.prepare or len(plan.steps) != 1 or self._blocks[plan.steps[0].entry] is None:
            return None
        [step] = plan.steps
        if any(isinstance(arg, WorkspaceArg) and arg.zeroed for arg in step.args):
            return None
        workspaces = _workspaces(plan.steps, scalars, self._reuse)
        slots = _block(_arguments(step, tensors, workspaces, scalars))
        places = tuple((place, arg.tensor) for place, arg in enumerate(step.args) if isinstance(arg, TensorArg))
        return _Repeated(self._blocks[step.entry], slots, places, tuple(workspaces.values()))

    def _call(self, step: Step, arguments: list[Any]) -> Callable[[], None]:
        """The entry with its arguments, as one block where the binary offers that: passing 18 of them takes 1 us."""
        block = self._blocks[step.entry]
        if block is None:
            return partial(self._entries[step.entry], *arguments)
        return partial(block, _block(arguments))

    def _reuse(self, arg: WorkspaceArg, size: int) -> Array:
        # Fresh pages on every call would cost more than many a kernel.
        kept: dict[str, Array] = self._local.__dict__.setdefault("workspaces", {})
        if arg.name not in kept or kept[arg.name].nbytes < size:
            kept[arg.name] = _allocate(arg, size)
        return kept[arg.name][:size]

    def _refusal(self) -> str | None:
        """What the binary says against running here: what a processor has, its system may still withhold."""
        if not hasattr(self._library, "deepgen_refusal"):
            return None
        ask = self._library.deepgen_refusal
        ask.restype = ctypes.c_char_p
        told: bytes | None = ask()
        return None if told is None else told.decode()

    def _entry(self, name: str) -> Any:
        try:
            function = self._library[name]
        except AttributeError as error:
            raise NotLoadable(f"the binary of {self.kernel.name} has no entry {name!r}") from error
        function.restype = None
        return function

    def _twin(self, name: str) -> Any:
        return self._entry(f"{name}_block") if hasattr(self._library, f"{name}_block") else None


_parsed = lru_cache(maxsize=1024)(parse)  # parsing takes longer than many a kernel runs


def evaluate(value: int | float | str, scalars: Scalars) -> int | float:
    """A number of a launch plan: itself, or an expression over the operator's scalars."""
    if not isinstance(value, str):
        return value
    if value in scalars:
        return scalars[value]
    result = _parsed(value).evaluate(scalars)
    if isinstance(result, bool) or not isinstance(result, (int, float)):
        raise BadInput(f"launch plan: {value!r} gives {result!r}", allowed="a number")
    return result


def _workspaces(steps: tuple[Step, ...], scalars: Scalars, allocate: Allocate) -> dict[str, Array]:
    """One array for each name; steps that name the same workspace share it, at the largest size asked for."""
    wanted: dict[str, tuple[WorkspaceArg, int]] = {}
    for arg in (a for s in steps for a in s.args if isinstance(a, WorkspaceArg)):
        size = int(evaluate(arg.bytes, scalars))
        if arg.name not in wanted or wanted[arg.name][1] < size:
            wanted[arg.name] = (arg, size)
    return {name: allocate(arg, size) for name, (arg, size) in wanted.items()}


def _arguments(
    step: Step, tensors: Mapping[str, Array], workspaces: Mapping[str, Array], scalars: Scalars
) -> list[Any]:
    out: list[Any] = []
    for arg in step.args:
        if isinstance(arg, TensorArg):
            if arg.tensor not in tensors:
                raise BadInput(f"{step.entry} takes a tensor {arg.tensor!r}", allowed="given: " + ", ".join(tensors))
            out.append(ctypes.c_void_p(tensors[arg.tensor].ctypes.data))
        elif isinstance(arg, WorkspaceArg):
            out.append(ctypes.c_void_p(workspaces[arg.name].ctypes.data))
        elif isinstance(arg, ScalarArg):
            out.append(_scalar(arg, scalars))
        else:
            raise BadInput(f"{step.entry} takes a tensor map", allowed="tensors, scalars and workspaces on a CPU")
    return out


def _block(arguments: list[Any]) -> Any:
    """Arguments side by side, eight bytes each."""
    slots = (ctypes.c_uint64 * len(arguments))()
    for place, argument in enumerate(arguments):
        ctypes.memmove(ctypes.addressof(slots) + 8 * place, ctypes.byref(argument), ctypes.sizeof(argument))
    return slots


def _scalar(arg: ScalarArg, scalars: Scalars) -> Any:
    if arg.ctype not in _CTYPES:
        raise BadInput(f"launch plan: scalar type {arg.ctype!r}", allowed="one of " + ", ".join(_CTYPES))
    value = evaluate(arg.value, scalars)
    return _CTYPES[arg.ctype](int(value) if arg.ctype.startswith("i") else float(value))


def _sequence(zeroed: list[Array], calls: list[Callable[[], None]]) -> Callable[[], None]:
    if not zeroed and len(calls) == 1:
        return calls[0]

    def run() -> None:
        for workspace in zeroed:
            workspace.fill(0)
        for call in calls:
            call()

    return run


def _allocate(arg: WorkspaceArg, size: int) -> Array:
    raw = np.empty(size + arg.align, np.uint8)
    skip = -raw.ctypes.data % arg.align
    return raw[skip : skip + size]
