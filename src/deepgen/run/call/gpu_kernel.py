"""A built GPU kernel bound to addresses: its launch plan as launches. Used by the worker and in a user's process.

Tensor maps are the descriptors with which Hopper's copy engine finds the tiles of a tensor (cuTensorMapEncodeTiled), or
the windows of a convolution (cuTensorMapEncodeIm2col).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

from deepgen.run.call import plans
from deepgen.run.call.native import NotLoadable, Slots, check_room
from deepgen.run.call.plans import RawStep, Scalars, address_of, cells, evaluate, places
from deepgen.targets.gpu_driver import CUDA, Driver, DriverError, DriverLaunch, Stream
from deepgen.vocabulary import (
    BadInput,
    ConstantCopy,
    DescriptorArg,
    Kernel,
    ScalarArg,
    Size,
    Step,
    TensorArg,
    TensorMapSpec,
    WorkspaceArg,
    dtype,
)

# Allocates a workspace: takes its argument and the number of bytes, and returns an address.
Allocate: TypeAlias = "Callable[[WorkspaceArg, int], int]"
Shapes: TypeAlias = "Mapping[str, tuple[tuple[int, ...], str]]"  # of each tensor, with its dtype
_STATIC_SHARED = 48 << 10  # a launch may use this much shared memory without opting in


@dataclass(frozen=True)
class Zero:
    """A workspace that must hold zeros before a run."""

    driver: Driver
    address: int
    bytes: int

    def fire(self, stream: Stream) -> None:
        self.driver.fill(self.address, 0, self.bytes, stream)

    def raw(self) -> RawStep:
        return _raw(*self.driver.raw("fill"), cells(self.address, 0, self.bytes, 0))


@dataclass(frozen=True)
class Copy:
    """Copies a tensor's bytes to a global variable of the module. `source` is a slot whose value may change."""

    driver: Driver
    symbol: int
    source: Any
    bytes: int

    def fire(self, stream: Stream) -> None:
        self.driver.copy(self.symbol, self.source.value, self.bytes, stream)

    def raw(self) -> RawStep:
        step = _raw(*self.driver.raw("copy"), cells(self.symbol, 0, self.bytes, 0))
        to, _, size, stream = step.whole
        return replace(step, whole=(to, ctypes.addressof(self.source), size, stream))


class BoundPlan:
    """Launches in order, with the slots of tensor addresses, which can be replaced."""

    def __init__(
        self, before: Sequence[Zero | Copy], launches: Sequence[DriverLaunch], slots: Mapping[str, Sequence[Any]]
    ) -> None:
        self._before, self._launches, self.slots = tuple(before), tuple(launches), slots
        self._stream = 0
        # With a single launch, `fire` calls the driver without a loop.
        self.fire = self._launches[0].fire if len(self._launches) == 1 and not self._before else self._fire

    def on(self, stream: Stream) -> None:
        """Move all launches to another stream."""
        self._stream = stream
        for launch in self._launches:
            launch.on(stream)

    def run(self, stream: Stream = 0) -> None:
        """Enqueue all launches. Allocates nothing and does not wait."""
        if stream != self._stream:
            self.on(stream)
        self.fire()

    def raw(self) -> list[RawStep]:
        """The same steps, for calls from C."""
        before = [work.raw() for work in self._before if work.bytes]
        return [*before, *(_raw(one.name, one.call, one.cells, one.stream_at, one) for one in self._launches)]

    def _fire(self) -> None:
        for work in self._before:
            work.fire(self._stream)
        for launch in self._launches:
            launch.fire()


def _raw(name: str, function: Any, block: Any, stream: int | None = None, keep: object = None) -> RawStep:
    """A call of the driver; the stream is its last argument, unless its place is given."""
    whole = places(block)
    return RawStep(address_of(function), whole, (), name, stream or whole[-1], (block, keep))


@dataclass(frozen=True)
class BoundGpu:
    """A kernel with all its arguments bound."""

    prepare: BoundPlan
    run: BoundPlan
    prepared: frozenset[str]  # workspaces that keep data from `prepare` or from the previous run


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
    ) -> BoundGpu:
        """The launch plan bound to these addresses; 0 stands for an omitted optional tensor.

        `shapes` are needed only for descriptors and constants.
        """
        plan, driver = self.kernel.plan, self.driver
        sizes = plans.workspaces(plan, scalars)
        addresses = {name: allocate(arg, size) for name, (arg, size) in sizes.items()}
        prepared = plans.prepared(plan)
        zeros = {n: Zero(driver, addresses[n], size) for n, (arg, size) in sizes.items() if arg.zeroed}
        lasting = frozenset(n for n, (arg, _) in sizes.items() if arg.lasting)
        for name in lasting & zeros.keys():
            zeros.pop(name).fire(0)
            driver.synchronize()  # before it is used on any stream

        def bound(steps: tuple[Step, ...], zeroed: list[Zero], constants: tuple[ConstantCopy, ...] = ()) -> BoundPlan:
            slots: Slots = {}
            copies = [self._copy(constant, tensors, shapes or {}, slots) for constant in constants]
            launches = [self._launch(s, tensors, addresses, scalars, shapes or {}, slots) for s in steps]
            return BoundPlan([*zeroed, *copies], launches, slots)

        return BoundGpu(
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
            raise BadInput(
                f"{constant.symbol} is filled from {constant.tensor}", allowed="must be one of the kernel's tensors"
            )
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
    ) -> DriverLaunch:
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
                value = self._descriptor(step, arg, tensors, workspaces, scalars, shapes, slots)
            values.append(value)
        shared = int(evaluate(step.shared_bytes, scalars))
        function = self._functions[step.entry]
        if shared > _STATIC_SHARED:
            self.driver.allow_shared(function, shared)
        shape = (_three(step.grid, scalars), _three(step.block, scalars), _three(step.cluster, scalars), shared)
        return DriverLaunch(self.driver, function, shape, values, step.overlaps)

    def _descriptor(
        self,
        step: Step,
        arg: DescriptorArg,
        tensors: Mapping[str, int],
        workspaces: Mapping[str, int],
        scalars: Scalars,
        shapes: Shapes,
        slots: Slots,
    ) -> Any:
        if arg.tensor not in shapes:
            raise BadInput(
                f"{step.entry} takes a descriptor of {arg.tensor!r}", allowed="needs a tensor of known shape"
            )
        place = workspaces[arg.copy] if arg.copy else _address(step, arg.tensor, tensors)
        descriptor = _ENCODERS[type(arg.spec)](self.driver, arg, place, *shapes[arg.tensor], scalars)
        if not arg.copy:  # a workspace's address does not change
            slots.setdefault(arg.tensor, []).append(descriptor.slot)
        return descriptor.storage


def _address(step: Step, tensor: str, tensors: Mapping[str, int]) -> int:
    if tensor not in tensors:
        raise BadInput(f"{step.entry} takes a tensor {tensor!r}", allowed="given: " + ", ".join(tensors))
    return tensors[tensor]


def _three(sizes: Sequence[int | str], scalars: Scalars) -> tuple[int, int, int]:
    x, y, z = (*(int(evaluate(size, scalars)) for size in sizes), 1, 1, 1)[:3]
    return x, y, z


_ALIGN, _BYTES = 64, 128
_MOST = 256  # addresses whose descriptors are cached
_TYPES = {
    **dict.fromkeys(("u8", "i8", "f8e4m3", "f8e5m2"), 0),
    "i16": 1,
    "i32": 3,
    "i64": 5,
    "f16": 6,
    "f32": 7,
    "tf32": 7,
    "f64": 8,
    "bf16": 9,
}  # CUtensorMapDataType
_SWIZZLES = {"none": 0, "32": 1, "64": 2, "128": 3}
_PROMOTIONS = {"none": 0, "64": 1, "128": 2, "256": 3}


@dataclass(frozen=True)
class Descriptor:
    """A descriptor, and the slot that encodes it again for another address of the tensor."""

    storage: Any
    slot: Any


@dataclass(frozen=True)
class Codes:
    """The driver's codes for a tensor's format and for the options of its tensor map."""

    element: int
    swizzle: int
    l2: int


def codes(arg: DescriptorArg, element: str) -> Codes:
    """Raises BadInput if no tensor map supports the spec."""
    spec = arg.spec
    swizzle, l2 = _SWIZZLES.get(spec.swizzle or "none"), _PROMOTIONS.get(spec.l2 or "128")
    if swizzle is None or l2 is None:
        allowed = f"swizzle {', '.join(_SWIZZLES)}; l2 {', '.join(_PROMOTIONS)}"
        raise BadInput(f"the tensor map of {arg.tensor} has {spec.to_json()}", allowed=allowed)
    return Codes(_TYPES[element], swizzle, l2)


class _Slot:
    """Takes the place of a tensor's address: setting `value` encodes the descriptor again.

    A model's tensors recur at a few addresses. Encoded descriptors are cached, as copying one takes a tenth of the
    driver's time.
    """

    def __init__(self, driver: Driver, call: str, storage: Any, arguments: tuple[Any, ...]) -> None:
        self._driver, self._call, self.storage, self._arguments = driver, call, storage, arguments
        self._value = -1
        self._encoded: dict[int, bytes] = {}

    @property
    def value(self) -> int:
        return self._value

    @value.setter
    def value(self, address: int) -> None:
        if address != self._value:
            self.storage.raw = self.encoded(address)
            self._value = address

    def encoded(self, address: int) -> bytes:
        """The descriptor for an address. The caller copies it to the storage, which encoding may overwrite."""
        encoded = self._encoded.get(address)
        if encoded is None:
            kind, rank, *rest = self._arguments
            call = getattr(self._driver.library, self._call)
            code = call(self.storage, kind, rank, ctypes.c_void_p(address), *rest)
            self._driver.check(self._call, code)
            if len(self._encoded) >= _MOST:
                self._encoded.clear()
            encoded = self._encoded[address] = self.storage.raw
        return encoded


def encode(
    driver: Driver, arg: DescriptorArg, address: int, shape: tuple[int, ...], element: str, scalars: Scalars
) -> Descriptor:
    """The descriptor of a tensor at this address."""
    if driver.api.kind != CUDA.kind:
        raise BadInput(f"a tensor map of {arg.tensor}", allowed="tensor maps exist on NVIDIA GPUs only")
    spec = arg.spec
    spelled = codes(arg, element)
    box = _numbers(spec.box, scalars)
    sizes = _numbers(spec.sizes, scalars) if spec.sizes is not None else [*reversed(shape)]
    width = dtype(element).bytes
    dense = [prod(sizes[:i]) * width for i in range(1, len(sizes))]
    strides = _numbers(spec.strides, scalars) if spec.strides is not None else dense
    storage = _aligned()
    rank = len(sizes)
    place = (ctypes.c_uint64 * rank)(*sizes), (ctypes.c_uint64 * max(1, rank - 1))(*strides)
    steps = [1, *_numbers(spec.steps or (), scalars)]
    apart = (ctypes.c_uint32 * rank)(*steps, *[1] * (rank - len(steps)))
    tile: tuple[Any, ...] = ((ctypes.c_uint32 * rank)(*box),)
    if spec.lower is not None:
        corners = (_numbers(corner or (), scalars) for corner in (spec.lower, spec.upper))
        tile = (*((ctypes.c_int * (rank - 2))(*corner) for corner in corners), *map(ctypes.c_uint32, box))
    call = "cuTensorMapEncodeTiled" if spec.lower is None else "cuTensorMapEncodeIm2col"
    options = (0, spelled.swizzle, spelled.l2, 0)
    slot = _Slot(driver, call, storage, (spelled.element, rank, *place, *tile, apart, *options))
    slot.value = address
    return Descriptor(storage, slot)


def _numbers(values: Sequence[Size], scalars: Scalars) -> list[int]:
    return [int(evaluate(value, scalars)) for value in values]


def _aligned() -> Any:
    raw = ctypes.create_string_buffer(_BYTES + _ALIGN)
    return (ctypes.c_char * _BYTES).from_buffer(raw, -ctypes.addressof(raw) % _ALIGN)


_ENCODERS = {TensorMapSpec: encode}  # how each kind of descriptor is encoded
