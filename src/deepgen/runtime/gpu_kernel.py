"""A built GPU kernel bound to addresses: its launch plan as launches. Used by the worker and in a user's process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from deepgen.runtime.gpu_driver import Driver, DriverError, Launch, Stream
from deepgen.runtime.native import NotLoadable, Scalars, evaluate
from deepgen.runtime.tensor_map import encode
from deepgen.vocabulary import BadInput, DescriptorArg, Kernel, ScalarArg, Step, TensorArg, WorkspaceArg

# Gives a workspace its memory: from the argument and the number of bytes to an address.
Allocate: TypeAlias = "Callable[[WorkspaceArg, int], int]"

_CTYPES: dict[str, Any] = {
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
}
_STATIC_SHARED = 48 << 10  # up to this a launch may ask for shared memory without notice


@dataclass(frozen=True)
class Zero:
    """Scratch memory that must hold zeros before a run."""

    driver: Driver
    address: int
    bytes: int

    def fire(self, stream: Stream) -> None:
        self.driver.fill(self.address, 0, self.bytes, stream)


class BoundPlan:
    """Launches in order, with the places where tensors' addresses stand, so that others can be put there."""

    def __init__(self, zeros: Sequence[Zero], launches: Sequence[Launch], slots: Mapping[str, Sequence[Any]]) -> None:
        self._zeros, self._launches, self._slots = tuple(zeros), tuple(launches), slots
        self._stream = 0

    def point(self, tensor: str, address: int) -> None:
        for slot in self._slots.get(tensor, ()):
            slot.value = address

    def slots(self, tensor: str) -> tuple[Any, ...]:
        """Where a tensor's address stands: objects whose `value` it is."""
        return tuple(self._slots.get(tensor, ()))

    @property
    def single(self) -> Launch | None:
        """The one launch that is all there is to do; None where there is more."""
        return self._launches[0] if len(self._launches) == 1 and not self._zeros else None

    def run(self, stream: Stream = 0) -> None:
        """Enqueue all of it. Allocates nothing and waits for nothing."""
        if stream != self._stream:
            self._stream = stream
            for launch in self._launches:
                launch.on(stream)
        for zero in self._zeros:
            zero.fire(stream)
        for launch in self._launches:
            launch.fire()


@dataclass(frozen=True)
class Bound:
    """A kernel with all its arguments in place."""

    prepare: BoundPlan
    run: BoundPlan
    prepared: frozenset[str]  # workspaces that hold what `prepare`, or the run before, left there


class GpuKernel:
    """A kernel's module, loaded into this process's context."""

    def __init__(self, driver: Driver, kernel: Kernel, image: bytes) -> None:
        self.driver, self.kernel = driver, kernel
        try:
            self._module = driver.load(image)
        except DriverError as error:
            if error.out_of_memory or error.sticky:
                raise
            raise NotLoadable(f"the binary of {kernel.name} cannot be loaded: {error}") from error
        self._functions = {s.entry: self._function(s.entry) for s in (*kernel.plan.prepare, *kernel.plan.steps)}

    @staticmethod
    def read(driver: Driver, kernel: Kernel, binary: Path | str) -> GpuKernel:
        try:
            image = Path(binary).read_bytes()
        except OSError as error:
            raise NotLoadable(f"the binary of {kernel.name} cannot be read: {error.strerror}") from error
        return GpuKernel(driver, kernel, image)

    def bind(
        self,
        tensors: Mapping[str, int],
        scalars: Scalars,
        allocate: Allocate,
        shapes: Mapping[str, tuple[tuple[int, ...], str]] | None = None,
    ) -> Bound:
        """The launch plan over these addresses. `shapes`, of shape and dtype, is needed for tensor maps only."""
        plan = self.kernel.plan
        sizes = workspace_bytes(self.kernel, scalars)
        addresses = {name: allocate(arg, size) for name, (arg, size) in sizes.items()}
        prepared = frozenset(a.name for s in plan.prepare for a in s.args if isinstance(a, WorkspaceArg))
        zeros = {n: Zero(self.driver, addresses[n], size) for n, (arg, size) in sizes.items() if arg.zeroed}
        lasting = frozenset(n for n, (arg, _) in sizes.items() if arg.lasting)
        for name in lasting & zeros.keys():
            zeros.pop(name).fire(0)
            self.driver.synchronize()  # whatever stream comes next

        def bound(steps: tuple[Step, ...], zeroed: list[Zero]) -> BoundPlan:
            slots: dict[str, list[Any]] = {}
            launches = [self._launch(s, tensors, addresses, scalars, shapes or {}, slots) for s in steps]
            return BoundPlan(zeroed, launches, slots)

        return Bound(
            bound(plan.prepare, [z for n, z in zeros.items() if n in prepared]),
            bound(plan.steps, [z for n, z in zeros.items() if n not in prepared]),
            prepared | lasting,
        )

    def close(self) -> None:
        self.driver.unload(self._module)

    def _function(self, entry: str) -> int:
        try:
            return self.driver.function(self._module, entry)
        except DriverError as error:
            raise NotLoadable(f"the binary of {self.kernel.name} has no entry {entry!r}") from error

    def _launch(
        self,
        step: Step,
        tensors: Mapping[str, int],
        workspaces: Mapping[str, int],
        scalars: Scalars,
        shapes: Mapping[str, tuple[tuple[int, ...], str]],
        slots: dict[str, list[Any]],
    ) -> Launch:
        values: list[Any] = []
        for arg in step.args:
            if isinstance(arg, TensorArg):
                value: Any = ctypes.c_uint64(_address(step, arg.tensor, tensors))
                slots.setdefault(arg.tensor, []).append(value)
            elif isinstance(arg, WorkspaceArg):
                value = ctypes.c_uint64(workspaces[arg.name])
            elif isinstance(arg, ScalarArg):
                value = _scalar(arg, scalars)
            else:
                value = self._tensor_map(step, arg, tensors, scalars, shapes, slots)
            values.append(value)
        shared = int(evaluate(step.shared_bytes, scalars))
        function = self._functions[step.entry]
        if shared > _STATIC_SHARED:
            self.driver.allow_shared(function, shared)
        shape = (_three(step.grid, scalars), _three(step.block, scalars), _three(step.cluster, scalars), shared)
        return Launch(self.driver, function, shape, values)

    def _tensor_map(
        self,
        step: Step,
        arg: TensorMapArg,
        tensors: Mapping[str, int],
        scalars: Scalars,
        shapes: Mapping[str, tuple[tuple[int, ...], str]],
        slots: dict[str, list[Any]],
    ) -> Any:
        if arg.tensor not in shapes:
            raise BadInput(
                f"{step.entry} takes a tensor map of {arg.tensor!r}", allowed="a tensor whose shape is known"
            )
        shape, dtype = shapes[arg.tensor]
        made = encode(self.driver, arg, _address(step, arg.tensor, tensors), shape, dtype, scalars)
        slots.setdefault(arg.tensor, []).append(made.slot)
        return made.storage


def workspace_bytes(kernel: Kernel, scalars: Scalars) -> dict[str, tuple[WorkspaceArg, int]]:
    """Each workspace once, at the largest size that a step asks for."""
    wanted: dict[str, tuple[WorkspaceArg, int]] = {}
    for step in (*kernel.plan.prepare, *kernel.plan.steps):
        for arg in (a for a in step.args if isinstance(a, WorkspaceArg)):
            size = int(evaluate(arg.bytes, scalars))
            if arg.name not in wanted or wanted[arg.name][1] < size:
                wanted[arg.name] = (arg, size)
    return wanted


def _address(step: Step, tensor: str, tensors: Mapping[str, int]) -> int:
    if tensor not in tensors:
        raise BadInput(f"{step.entry} takes a tensor {tensor!r}", allowed="given: " + ", ".join(tensors))
    return tensors[tensor]


def _scalar(arg: ScalarArg, scalars: Scalars) -> Any:
    if arg.ctype not in _CTYPES:
        raise BadInput(f"launch plan: scalar type {arg.ctype!r}", allowed="one of " + ", ".join(_CTYPES))
    value = evaluate(arg.value, scalars)
    return _CTYPES[arg.ctype](int(value) if arg.ctype.startswith("i") else float(value))


def _three(sizes: Sequence[int | str], scalars: Scalars) -> tuple[int, int, int]:
    x, y, z = (*(int(evaluate(size, scalars)) for size in sizes), 1, 1, 1)[:3]
    return x, y, z
