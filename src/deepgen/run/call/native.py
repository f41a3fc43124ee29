"""A built C kernel bound to buffers: the launch plan as plain calls. Used by the worker and in a user's process.

In a user's process it can run on torch's threads. OpenMP threads spin for up to milliseconds while waiting for work, so
a kernel's own threads would not get the cores: kernels twice as fast as torch then made a layer slower.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from deepgen.operators import Array
from deepgen.run.call import plans
from deepgen.run.call.plans import RawStep, Scalars, address_of, cells, places
from deepgen.vocabulary import BadInput, ConstantCopy, DeepgenError, Kernel, ScalarArg, Step, TensorArg, WorkspaceArg

# Allocates a workspace: takes its argument and the number of bytes, and returns an array of bytes.
Allocate: TypeAlias = "Callable[[WorkspaceArg, int], Array]"
# The slots of each tensor's address: ctypes objects whose `value` is the address.
Slots: TypeAlias = "dict[str, list[Any]]"
_MOST_WHOLE, _MOST_REAL = 36, 8  # arguments that C passes (c/bound.h)


class NotLoadable(DeepgenError):
    """The binary cannot be loaded, lacks an entry of the launch plan, or refuses to run on this system."""


@dataclass(frozen=True)
class BoundNative:
    """A kernel with all its arguments bound. It keeps its tensors and workspaces alive."""

    prepare: Callable[[], None]  # before the first run, and whenever constant inputs have changed
    run: Callable[[], None]
    workspaces: Mapping[str, Array]
    prepared: frozenset[str]  # workspaces that keep data from `prepare`
    tensors: Mapping[str, Array | None]
    slots: Mapping[str, Sequence[Any]]  # slots for other arrays of the same sizes
    raw: Sequence[RawStep] = ()  # preparation and run for C; empty if they need Python


class NativeKernel:
    """A kernel's shared library, loaded into this process. It stays loaded, as its threads may outlive any call."""

    def __init__(self, kernel: Kernel, binary: Path | str) -> None:
        self.kernel = kernel
        try:
            self._library = ctypes.CDLL(str(binary))
        except OSError as error:
            raise NotLoadable(f"the binary of {kernel.name} cannot be loaded: {error}") from error
        if (refusal := self._refusal()) is not None:
            raise NotLoadable(f"{kernel.name} cannot run here: {refusal}")
        self._entries = {s.entry: self._entry(s.entry) for s in plans.steps_of(kernel.plan)}
        # An entry may have a variant, `<entry>_block`, that takes all its arguments in one array, eight bytes each.
        self._blocks = {name: self._twin(name) for name in self._entries}
        self._local = threading.local()
        self._one_at_a_time = renewed_lock()

    def bind(
        self, tensors: Mapping[str, Array | None], scalars: Scalars, allocate: Allocate | None = None
    ) -> BoundNative:
        """The launch plan bound to these buffers; None stands for an omitted optional tensor.

        No code of the kernel runs yet.
        """
        plan = self.kernel.plan
        wanted = plans.workspaces(plan, scalars)
        spaces = {name: (allocate or _allocate)(arg, size) for name, (arg, size) in wanted.items()}
        prepared = plans.prepared(plan)
        slots: Slots = {}
        copies = [self._copy(constant, tensors, slots) for constant in plan.constants]

        raw: list[RawStep | None] = [None for _ in copies]

        def calls(steps: tuple[Step, ...]) -> list[Callable[[], None]]:
            return [self._call(s, _arguments(s, tensors, spaces, scalars), slots, raw) for s in steps]

        # A workspace filled by `prepare` must keep its data; other zeroed workspaces are zeroed for every run.
        once = [spaces[n] for n, (arg, _) in wanted.items() if arg.zeroed and n in prepared]
        always = [spaces[n] for n, (arg, _) in wanted.items() if arg.zeroed and n not in prepared]
        raw += map(_zeroing, once)
        prepare = _sequence(once, calls(plan.prepare))
        raw += map(_zeroing, always)
        run = _sequence(always, [*copies, *calls(plan.steps)])
        if copies:  # all threads share the library's symbol
            run = partial(_locked, self._one_at_a_time, run)
        whole = [step for step in raw if step is not None]
        return BoundNative(
            prepare, run, spaces, prepared, dict(tensors), slots, whole if len(whole) == len(raw) else ()
        )

    def reuse(self, arg: WorkspaceArg, size: int) -> Array:
        """A workspace that a thread keeps from call to call, as fresh pages can cost more than the kernel.

        Callers must keep a reference: later bindings may replace it here by a larger one. A replacement is at least
        twice as large, so that all of them together take at most twice the memory of the last.
        """
        kept: dict[str, Array] = self._local.__dict__.setdefault("workspaces", {})
        before = kept[arg.name].nbytes if arg.name in kept else 0
        if before < size or arg.name not in kept:
            kept[arg.name] = _allocate(arg, max(size, 2 * before))
        return kept[arg.name][:size]

    @property
    def path(self) -> str:
        """Of its library, as the system names it."""
        return os.path.realpath(self._library._name)

    @property
    def has_threads(self) -> bool:
        """Whether it has threads of ours (see x86_pool.h)."""
        return hasattr(self._library, _LENT)

    def run_on(self, parallel: int) -> bool:
        """Run the kernel's work on the host's threads from now on, with the function at this address (see x86_pool.h).

        Returns False if the kernel has another kind of threads, or none; nothing changes then.
        """
        return lend(self._library, parallel)

    def _call(self, step: Step, arguments: list[Any], slots: Slots, raw: list[RawStep | None]) -> Callable[[], None]:
        """A call of the entry with its arguments, as one block if the binary has one: passing 18 takes 1 us."""
        block = self._blocks[step.entry]
        call = partial(self._entries[step.entry], *arguments)
        if block is not None:
            packed = _block(arguments)
            arguments = [ctypes.c_uint64.from_buffer(packed, 8 * place) for place in range(len(arguments))]
            call = partial(block, packed)
            pointer = cells(ctypes.addressof(packed))
            raw.append(RawStep(address_of(block), places(pointer), keep=(pointer, packed)))
        else:
            raw.append(_raw(self._entries[step.entry], arguments))
        for arg, argument in zip(step.args, arguments, strict=True):
            if isinstance(arg, TensorArg):
                slots.setdefault(arg.tensor, []).append(argument)
        return call

    def _copy(self, constant: ConstantCopy, tensors: Mapping[str, Array | None], slots: Slots) -> Callable[[], None]:
        """A call that copies a tensor's bytes to a symbol of the library."""
        tensor = tensors.get(constant.tensor)
        if tensor is None:
            raise BadInput(
                f"{constant.symbol} is filled from {constant.tensor}", allowed="must be one of the kernel's tensors"
            )
        try:
            symbol = ctypes.addressof(ctypes.c_char.in_dll(self._library, constant.symbol))
        except ValueError:
            raise NotLoadable(f"the binary of {self.kernel.name} has no symbol {constant.symbol!r}") from None
        check_room(constant, _symbol_bytes(symbol), tensor.nbytes)
        source = ctypes.c_void_p(tensor.ctypes.data)
        slots.setdefault(constant.tensor, []).append(source)
        needed = tensor.nbytes
        return lambda: _copy_bytes(symbol, source, needed)

    def _refusal(self) -> str | None:
        """Why the binary refuses to run here, if it does: the system may withhold features that the CPU has."""
        if not hasattr(self._library, "deepgen_refusal"):
            return None
        ask = self._library.deepgen_refusal
        ask.restype = ctypes.c_char_p
        reason: bytes | None = ask()
        return None if reason is None else reason.decode()

    def _entry(self, name: str) -> Any:
        try:
            function = self._library[name]
        except AttributeError as error:
            raise NotLoadable(f"the binary of {self.kernel.name} has no entry {name!r}") from error
        function.restype = None
        return function

    def _twin(self, name: str) -> Any:
        return self._entry(f"{name}_block") if hasattr(self._library, f"{name}_block") else None


def check_room(constant: ConstantCopy, room: int | None, needed: int) -> None:
    """Raises if a tensor does not fit into its symbol; `room` is None if the symbol's size is unknown."""
    if room is not None and needed > room:
        raise BadInput(
            f"{constant.tensor} takes {needed} bytes, but {constant.symbol} has {room}", allowed=f"at most {room} bytes"
        )


def _arguments(
    step: Step, tensors: Mapping[str, Array | None], spaces: Mapping[str, Array], scalars: Scalars
) -> list[Any]:
    out: list[Any] = []
    for arg in step.args:
        if isinstance(arg, TensorArg):
            if arg.tensor not in tensors:
                raise BadInput(f"{step.entry} takes a tensor {arg.tensor!r}", allowed="given: " + ", ".join(tensors))
            tensor = tensors[arg.tensor]
            out.append(ctypes.c_void_p(None if tensor is None else tensor.ctypes.data))
        elif isinstance(arg, WorkspaceArg):
            out.append(ctypes.c_void_p(spaces[arg.name].ctypes.data))
        elif isinstance(arg, ScalarArg):
            out.append(plans.scalar(arg, scalars))
        else:
            raise BadInput(
                f"{step.entry} takes a descriptor of {arg.tensor}", allowed="tensors, scalars and workspaces on a CPU"
            )
    return out


def _block(arguments: list[Any]) -> Any:
    """Pack arguments into an array, eight bytes each."""
    slots = (ctypes.c_uint64 * len(arguments))()
    for place, argument in enumerate(arguments):
        ctypes.memmove(ctypes.addressof(slots) + 8 * place, ctypes.byref(argument), ctypes.sizeof(argument))
    return slots


def _raw(entry: Any, arguments: list[Any]) -> RawStep | None:
    """The call of an entry for C; None if it has more arguments than C can pass."""
    keep, where = [], {True: list[int](), False: list[int]()}
    for argument in arguments:
        cell = argument if ctypes.sizeof(argument) == 8 else _block([argument])
        keep.append(cell)
        where[isinstance(argument, (ctypes.c_float, ctypes.c_double))].append(ctypes.addressof(cell))
    if len(where[False]) > _MOST_WHOLE or len(where[True]) > _MOST_REAL:
        return None
    return RawStep(address_of(entry), tuple(where[False]), tuple(where[True]), keep=keep)


def _zeroing(workspace: Array) -> RawStep:
    arguments = cells(workspace.ctypes.data, 0, workspace.nbytes)
    return RawStep(address_of(ctypes.CDLL(None).memset), places(arguments), keep=arguments)


def _sequence(zeroed: list[Array], calls: list[Callable[[], None]]) -> Callable[[], None]:
    if not zeroed and len(calls) == 1:
        return calls[0]

    def run() -> None:
        for workspace in zeroed:
            workspace.fill(0)
        for call in calls:
            call()

    return run


def _copy_bytes(to: int, source: Any, size: int) -> None:
    ctypes.memmove(to, source, size)


def _locked(lock: threading.Lock, run: Callable[[], None]) -> None:
    with lock:
        run()


def _allocate(arg: WorkspaceArg, size: int) -> Array:
    raw = np.empty(size + arg.align, np.uint8)
    skip = -raw.ctypes.data % arg.align
    return raw[skip : skip + size]


class _ElfSymbol(ctypes.Structure):
    """Elf64_Sym."""

    _fields_ = (
        ("name", ctypes.c_uint32),
        ("info", ctypes.c_uint8),
        ("other", ctypes.c_uint8),
        ("section", ctypes.c_uint16),
        ("value", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
    )


def _symbol_bytes(address: int) -> int | None:
    """The size of a variable in a loaded library; None if the C library cannot report it."""
    look = getattr(ctypes.CDLL(None), "dladdr1", None)
    if look is None:
        return None
    symbol = ctypes.POINTER(_ElfSymbol)()
    about = (ctypes.c_void_p * 4)()  # Dl_info
    status = look(ctypes.c_void_p(address), about, ctypes.byref(symbol), 1)
    return int(symbol.contents.size) if status and symbol else None


def torchs_threads() -> int | None:
    """The address of the function that runs another one on all threads of torch's OpenMP.

    None if torch was not imported, or has no OpenMP.
    """
    torch = sys.modules.get("torch")
    return None if torch is None else _parallel(torch)


@cache
def _parallel(torch: Any) -> int | None:
    """The function has the same name in the OpenMP runtimes of GNU, LLVM and Intel. A runtime loaded globally, such as
    a preloaded one, replaces the one bundled with torch."""
    if not torch.backends.openmp.is_available():
        return None
    for path in (None, *Path(torch.__file__).with_name("lib").glob("libtorch_cpu.*")):
        try:
            library = ctypes.CDLL(None if path is None else str(path))  # torch has loaded it already
            if torch.get_num_threads() == library.omp_get_max_threads():
                return ctypes.cast(library.GOMP_parallel, ctypes.c_void_p).value
        except (AttributeError, OSError):
            continue
    return None


_LENT = "deepgen_set_parallel"
_borrowers: dict[int, ctypes.CDLL] = {}  # by handle; libraries stay loaded, and are often opened again


def lend(library: ctypes.CDLL, parallel: int) -> bool:
    """Let a library run its work with the function at this address. Returns False if it has no threads of ours.

    A forked child has none of the threads that OpenMP would wait for, so there the library uses its own again.
    """
    if not hasattr(library, _LENT):
        return False
    library.deepgen_set_parallel(ctypes.c_void_p(parallel))
    _borrowers[library._handle] = library
    return True


_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def renewed_lock() -> Any:
    """A lock that is free in a forked child, even if it was held."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def _renew() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # as Python does with its own locks
    for library in _borrowers.values():
        library.deepgen_set_parallel(None)


if hasattr(os, "register_at_fork") and hasattr(threading.Lock(), "_at_fork_reinit"):  # Python 3.9 or newer
    os.register_at_fork(after_in_child=_renew)
