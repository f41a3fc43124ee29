"""The device of a loaded kernel: this process's own memory, or a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from deepgen.run.call import plans
from deepgen.run.call.arrays import CPU, GPU, View, as_bytes, is_torch, stream_handle
from deepgen.run.call.firing import BoundCall
from deepgen.run.call.gpu_kernel import BoundGpu, GpuKernel
from deepgen.run.call.native import NativeKernel, renewed_lock
from deepgen.run.call.plans import Scalars
from deepgen.targets.gpu_driver import Api, Driver, DriverError
from deepgen.vocabulary import BadInput, Kernel, WorkspaceArg
from deepgen.vocabulary.kernel import GPU_ALIGN

_NO_CONTEXT = 201


class Device(ABC):
    """What a loaded kernel needs from the device on which it runs."""

    kind: str  # cpu or gpu
    align: int  # alignment in bytes of every array's address
    by_stream: bool  # whether each stream needs a binding of its own

    @abstractmethod
    def has(self, seen: View) -> bool:
        """Whether the kernel can access the array's memory."""

    @abstractmethod
    def stream(self, first: Any, stream: Any) -> int:
        """The handle of the stream for a call with this first array."""

    @abstractmethod
    def bind(self, views: Mapping[str, View | None], scalars: Scalars) -> BoundCall: ...

    def recover(self, error: DriverError) -> None:
        """Make another attempt of the call possible, or raise."""
        raise error

    def run_on(self, parallel: int) -> bool:
        """Use a host's threads through its function at this address; False if the device has no such threads."""
        return False

    def close(self) -> None:
        """Free what can be freed. A shared library stays loaded, as its threads may outlive any call."""
        return


class CpuDevice(Device):
    """This process: kernels are functions in a shared library."""

    kind, align, by_stream = CPU, 1, False

    def __init__(self, kernel: Kernel, binary: Path) -> None:
        self._native = NativeKernel(kernel, binary)
        self._prepares, self._exclusive = bool(kernel.plan.prepare), kernel.plan.exclusive
        self._lock = renewed_lock()

    def has(self, seen: View) -> bool:
        return seen.device == CPU

    def stream(self, first: Any, stream: Any) -> int:
        if stream is not None:
            raise BadInput("stream= is given, but this kernel runs on the CPU", allowed="omit it")
        return 0

    def bind(self, views: Mapping[str, View | None], scalars: Scalars) -> BoundCall:
        arrays = {name: None if seen is None else as_bytes(seen) for name, seen in views.items()}
        bound = self._native.bind(arrays, scalars, self._native.reuse)

        def both() -> None:
            bound.prepare()
            bound.run()

        run = both if self._prepares else bound.run
        if not self._exclusive:
            return BoundCall(bound.slots, lambda _: None, run, bound.workspaces, bound.raw)

        def alone() -> None:
            with self._lock:
                run()

        return BoundCall(bound.slots, lambda _: None, alone, bound.workspaces)

    def run_on(self, parallel: int) -> bool:
        return self._native.run_on(parallel)


class GpuDevice(Device):
    """A GPU: kernels are functions in a module in its primary context, which the process's frameworks share."""

    kind, align = GPU, GPU_ALIGN

    def __init__(self, kernel: Kernel, binary: Path, api: Api, index: int = 0) -> None:
        self._driver = Driver(api, index)
        self._kernel = GpuKernel.read(self._driver, kernel, binary)
        self.by_stream = any(isinstance(a, WorkspaceArg) for s in plans.steps_of(kernel.plan) for a in s.args)
        self._owned: list[int] = []
        # Calls of an exclusive kernel wait for the previous one, on any stream.
        self._last = self._driver.event() if kernel.plan.exclusive else None
        self._lock = renewed_lock()
        self.torch_stream: Callable[[int], int] = self._find_torch_stream

    def has(self, seen: View) -> bool:
        return seen.device in (GPU, f"{GPU}:{self._driver.device}")

    def stream(self, first: Any, stream: Any) -> int:
        """By default torch's current stream for its tensors, and the default stream for other arrays."""
        if stream is not None:
            return stream_handle(stream)
        return self.torch_stream(first.get_device()) if is_torch(first) else 0

    def bind(self, views: Mapping[str, View | None], scalars: Scalars) -> BoundCall:
        addresses = {name: 0 if seen is None else seen.address for name, seen in views.items()}
        shapes = {name: (seen.shape, seen.dtype) for name, seen in views.items() if seen is not None}
        bound = self._kernel.bind(addresses, scalars, self._allocate, shapes)
        if self._last is not None:
            return self._alone(bound, self._last)
        if not self._kernel.kernel.plan.prepare:
            return BoundCall(bound.run.slots, bound.run.on, bound.run.fire, None, bound.run.raw(), self._driver.check)
        slots, on, run = _both(bound)
        raw = [step for plan in (bound.prepare, bound.run) for step in plan.raw()]
        return BoundCall(slots, on, run, None, raw, self._driver.check)

    def _alone(self, bound: BoundGpu, last: int) -> BoundCall:
        slots, on, run = _both(bound)
        used = 0

        def on_stream(stream: int) -> None:
            nonlocal used
            used = stream
            on(stream)

        def alone() -> None:
            with self._lock:
                self._driver.wait(last, used)
                run()
                self._driver.record(last, used)

        return BoundCall(slots, on_stream, alone, None, (), self._driver.check)

    def recover(self, error: DriverError) -> None:
        if error.code != _NO_CONTEXT:
            raise error
        self._driver.enter()  # a thread that has not used the GPU yet

    def close(self) -> None:
        """Free the workspaces and unload the module. No call may be running on the device."""
        for address in self._owned:
            self._driver.free(address)
        self._owned.clear()
        self._kernel.close()

    def _allocate(self, arg: WorkspaceArg, size: int) -> int:
        # Kept until the kernel is closed, as graphs may have recorded the address.
        address = self._driver.alloc(size)
        self._owned.append(address)
        return address

    def _find_torch_stream(self, device: int) -> int:
        """torch's current stream; later calls use the function found here directly."""
        import torch

        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # twenty times as fast as the public function
        self.torch_stream = raw or (lambda index: int(torch.cuda.current_stream(index).cuda_stream))
        return self.torch_stream(device)


def _both(bound: BoundGpu) -> tuple[dict[str, list[Any]], Callable[[int], None], Callable[[], None]]:
    """The preparation and the run combined: slots of addresses, switching streams, and the call."""
    both = (bound.prepare, bound.run)
    names = dict.fromkeys(name for plan in both for name in plan.slots)
    slots = {name: [slot for plan in both for slot in plan.slots.get(name, ())] for name in names}

    def on(stream: int) -> None:
        for plan in both:
            plan.on(stream)

    def run() -> None:
        for plan in both:
            plan.fire()

    return slots, on, run
