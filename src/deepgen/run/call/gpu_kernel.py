"""A built GPU kernel bound to addresses: its launch plan as launches. Used by the worker and in a user's process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

from deepgen.run.call import plans, tensor_map
from deepgen.run.call.native import NotLoadable, Slots, check_room
from deepgen.run.call.plans import Scalars, evaluate
from deepgen.targets.gpu_driver import Driver, DriverError, Launch, Stream
from deepgen.vocabulary import (
    BadInput,
    ConstantCopy,
    DescriptorArg,
    Kernel,
    ScalarArg,
    Step,
    TensorArg,
    TensorMapSpec,
    WorkspaceArg,
    dtype,
)

# Gives a workspace its memory: from the argument and the number of bytes to an address.
Allocate: TypeAlias = "Callable[[WorkspaceArg, int], int]"
Shapes: TypeAlias = "Mapping[str, tuple[tuple[int, ...], str]]"  # of each tensor, with its dtype

# How a descriptor of each kind is made.
_ENCODERS = {TensorMapSpec: tensor_map.encode}
_STATIC_SHARED = 48 << 10  # up to this a launch may ask for shared memory without notice


@dataclass(frozen=True)
class Zero:
    """Scratch memory that must hold zeros before a run."""

    driver: Driver
    address: int
    bytes: int

    def fire(self, stream: Stream) -> None:
        self.driver.fill(self.address, 0, self.bytes, stream)


@dataclass(frozen=True)
class Copy:
    """A tensor's bytes, on their way to a global variable of the module. `source` is a slot: its value may change."""

    driver: Driver
    symbol: int
    source: Any
    bytes: int

    def fire(self, stream: Stream) -> None:
        self.driver.copy(self.symbol, self.source.value, self.bytes, stream)


class BoundPlan:
    """Launches in order, with the places where tensors' addresses stand, so that others can be put there."""

    def __init__(
        self, before: Sequence[Zero | Copy], launches: Sequence[Launch], slots: Mapping[str, Sequence[Any]]
    ) -> None:
        self._before, self._launches, self.slots = tuple(before), tuple(launches), slots
        self._stream = 0
        # Where one launch is all there is to do, no loop stands between a call and the driver.
        self.fire = self._launches[0].fire if len(self._launches) == 1 and not self._before else self._fire

    def on(self, stream: Stream) -> None:
        """Put all of it on another stream."""
        self._stream = stream
        for launch in self._launches:
            launch.on(stream)

    def run(self, stream: Stream = 0) -> None:
        """Enqueue all of it. Allocates nothing and waits for nothing."""
        if stream != self._stream:
            self.on(stream)
        self.fire()

    def _fire(self) -> None:
        for work in self._before:
            work.fire(self._stream)
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
        self._functions = {s.entry: self._function(s.entry) for s in plans.steps_of(kernel.plan)}

    @staticmethod
    def read(driver: Driver, kernel: Kernel, binary: Path | str) -> GpuKernel:
        try:
            image = Path(binary).read_bytes()
        except OSError as error:
            raise NotLoadable(f"the binary of {kernel.name} cannot be read: {error.strerror}") from error
        return GpuKernel(driver, kernel, image)

    def bind(
        self, tensors: Mapping[str, int], scalars: Scalars, allocate: Allocate, shapes: Shapes | None = None
    ) -> Bound:
        """The launch plan over these addresses, 0 standing for an optional tensor that is left out.

        `shapes` are needed for descriptors and constants only.
        """
        plan, driver = self.kernel.plan, self.driver
        sizes = plans.workspaces(plan, scalars)
        addresses = {name: allocate(arg, size) for name, (arg, size) in sizes.items()}
        prepared = plans.prepared(plan)
        zeros = {n: Zero(driver, addresses[n], size) for n, (arg, size) in sizes.items() if arg.zeroed}
        lasting = frozenset(n for n, (arg, _) in sizes.items() if arg.lasting)
        for name in lasting & zeros.keys():
            zeros.pop(name).fire(0)
            driver.synchronize()  # whatever stream comes next

        def bound(steps: tuple[Step, ...], zeroed: list[Zero], constants: tuple[ConstantCopy, ...] = ()) -> BoundPlan:
            slots: Slots = {}
            copies = [self._copy(constant, tensors, shapes or {}, slots) for constant in constants]
            launches = [self._launch(s, tensors, addresses, scalars, shapes or {}, slots) for s in steps]
            return BoundPlan([*zeroed, *copies], launches, slots)

        return Bound(
            bound(plan.prepare, [z for n, z in zeros.items() if n in prepared]),
            bound(plan.steps, [z for n, z in zeros.items() if n not in prepared], plan.constants),
            prepared | lasting,
        )

    def close(self) -> None:
        self.driver.unload(self._module)

    def _function(self, entry: str) -> int:
        try:
            return self.driver.function(self._module, entry)
        except DriverError as error:
            raise NotLoadable(f"the binary of {self.kernel.name} has no entry {entry!r}") from error

    def _copy(self, constant: ConstantCopy, tensors: Mapping[str, int], shapes: Shapes, slots: Slots) -> Copy:
        if constant.tensor not in tensors or constant.tensor not in shapes:
            raise BadInput(f"{constant.symbol} holds {constant.tensor}", allowed="a tensor that is given")
        try:
            symbol, room = self.driver.symbol(self._module, constant.symbol)
        except DriverError as error:
            raise NotLoadable(f"the binary of {self.kernel.name} has no symbol {constant.symbol!r}") from error
        shape, element = shapes[constant.tensor]
        needed = prod(shape) * dtype(element).bytes
        check_room(constant, room, needed)
        source = ctypes.c_uint64(tensors[constant.tensor])
        slots.setdefault(constant.tensor, []).append(source)
        return Copy(self.driver, symbol, source, needed)

    def _launch(
        self,
        step: Step,
        tensors: Mapping[str, int],
        workspaces: Mapping[str, int],
        scalars: Scalars,
        shapes: Shapes,
        slots: Slots,
    ) -> Launch:
        values: list[Any] = []
        for arg in step.args:
            if isinstance(arg, TensorArg):
                value: Any = ctypes.c_uint64(_address(step, arg.tensor, tensors))
                slots.setdefault(arg.tensor, []).append(value)
            elif isinstance(arg, WorkspaceArg):
                value = ctypes.c_uint64(workspaces[arg.name])
            elif isinstance(arg, ScalarArg):
                value = plans.scalar(arg, scalars)
            else:
                value = self._descriptor(step, arg, tensors, scalars, shapes, slots)
            values.append(value)
        shared = int(evaluate(step.shared_bytes, scalars))
        function = self._functions[step.entry]
        if shared > _STATIC_SHARED:
            self.driver.allow_shared(function, shared)
        shape = (_three(step.grid, scalars), _three(step.block, scalars), _three(step.cluster, scalars), shared)
        return Launch(self.driver, function, shape, values, step.overlaps)

    def _descriptor(
        self,
        step: Step,
        arg: DescriptorArg,
        tensors: Mapping[str, int],
        scalars: Scalars,
        shapes: Shapes,
        slots: Slots,
    ) -> Any:
        if arg.tensor not in shapes:
            raise BadInput(
                f"{step.entry} takes a descriptor of {arg.tensor!r}", allowed="a tensor whose shape is known"
            )
        made = _ENCODERS[type(arg.spec)](
            self.driver, arg, _address(step, arg.tensor, tensors), *shapes[arg.tensor], scalars
        )
        slots.setdefault(arg.tensor, []).append(made.slot)
        return made.storage


def _address(step: Step, tensor: str, tensors: Mapping[str, int]) -> int:
    if tensor not in tensors:
        raise BadInput(f"{step.entry} takes a tensor {tensor!r}", allowed="given: " + ", ".join(tensors))
    return tensors[tensor]


def _three(sizes: Sequence[int | str], scalars: Scalars) -> tuple[int, int, int]:
    x, y, z = (*(int(evaluate(size, scalars)) for size in sizes), 1, 1, 1)[:3]
    return x, y, z
