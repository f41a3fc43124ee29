"""Loads a kernel into this process, with fast paths for the most common calls.

The fast paths read two arrays and write one, all from one array library. They do the same as `Loaded`, without loops;
all other calls go to `Loaded`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import get_ident
from typing import Any

from deepgen.operators import Operator
from deepgen.operators.signature import INPUT
from deepgen.run.call import compiled
from deepgen.run.call.arrays import Maker, stream_handle
from deepgen.run.call.calling import Loaded
from deepgen.run.call.devices import CpuDevice, Device, GpuDevice
from deepgen.run.call.firing import Fire
from deepgen.targets import Target
from deepgen.targets.gpu_driver import APIS, DriverError
from deepgen.vocabulary import DeepgenError, Kernel, LaunchPlan, completed


def load(
    kernel: Kernel,
    operator: Operator,
    target: Target,
    binary: Path | None = None,
    plan: LaunchPlan | None = None,
    requires: tuple[tuple[str, str], ...] = (),
    exclusive: bool = False,
) -> Loaded:
    """Load a kernel into this process, building it if there is no binary. `plan`: the plan completed by the build;
    `requires`: what a shape must satisfy beyond the plan's own requirements; `exclusive`: calls take a lock."""
    api = APIS.get(target.languages[0])
    if api is None and (target.runner != "cpu" or kernel.language not in target.languages):
        raise DeepgenError(f"kernels in {kernel.language} for {target.name} cannot be called from this process")
    if binary is None:
        from deepgen.toolchains import build_once

        built = build_once(kernel, target)
        binary, plan = Path(built.binary), built.plan
    kernel = completed(kernel, plan)
    if requires or exclusive:
        all_of_it, alone = (*kernel.plan.requires, *requires), exclusive or kernel.plan.exclusive
        kernel = replace(kernel, plan=replace(kernel.plan, requires=all_of_it, exclusive=alone))
    device: Device = CpuDevice(kernel, binary) if api is None else GpuDevice(kernel, binary, api)
    quick = QuickTorch if isinstance(device, GpuDevice) else QuickNumpy
    in_python: Any = quick if is_two_to_one(operator) else Loaded
    core = compiled.core()
    if core is not None:
        try:
            return _compiled_class(core, in_python)(kernel, operator, device)
        except ValueError:  # more arguments, or other alignments, than the C code supports
            pass
    loaded: Loaded = in_python(kernel, operator, device)
    return loaded


@cache
def _compiled_class(core: Any, in_python: Any) -> type[Loaded]:
    class Compiled(core.Caller, in_python):  # type: ignore[misc]
        """Calls in C if arrays are like those of an earlier call; first calls and all others use the Python path."""

        def __init__(self, kernel: Kernel, operator: Operator, device: Device) -> None:
            super().__init__(kernel, operator, device)
            place = self._arguments.order.index
            gpu = (stream_handle, DriverError, device.recover) if isinstance(device, GpuDevice) else None
            self._set_up(
                tuple(map(sys.intern, self._arguments.order)),  # tensors, in the order of addresses
                tuple(map(sys.intern, self._arguments.values)),  # scalars, which are passed by name
                tuple(map(place, self._arguments.needed)),  # places of tensors that are passed by position
                tuple(map(place, self._arguments.written)),
                tuple(self._aligned[name] for name in self._arguments.order),
                Loaded._first,  # for the first call of its kind
                in_python.__call__,  # for calls whose kind C cannot determine
                device.by_stream,
                gpu,
            )

        def close(self) -> None:
            self._forget()
            super().close()

    quick: type[Loaded] = core.quick(Compiled)
    return quick


_MOST = 1000  # cached kinds of calls
_ABSENT = object()  # stands for an array that is not passed by position


def is_two_to_one(operator: Operator) -> bool:
    signature = operator.signature()
    needed = [p for p in signature.tensors if p.role == INPUT and not p.optional]
    return len(needed) == 2 and len(signature.outputs) == 1


class _Quick(Loaded):
    """Reads two arrays and writes one. Calls with anything else by name take the general path."""

    def __init__(self, kernel: Kernel, operator: Operator, device: Device) -> None:
        super().__init__(kernel, operator, device)
        first, second = (p.name for p in self._signature.tensors if p.role == INPUT and not p.optional)
        [self._written] = self._arguments.written
        self._three = (first, second, self._written)
        self._defaults = dict(operator.values())
        self._multiple = max(self._aligned[name] for name in self._three)
        # For each known kind of call: the function that makes its output, and the one that runs it.
        self._met: dict[Any, tuple[Maker, Fire]] = {}

    def _meet(self, key: Any, a: Any, b: Any, out: Any, handle: int) -> Any:
        """The first call of its kind, by the general path, which caches what later calls need."""
        arrays, _ = self._arguments.sort((a, b), out, {})
        ready = self._call(arrays, self._defaults, handle)
        if ready.fire is not None:
            if len(self._met) >= _MOST:
                self._met.clear()
            self._met[key] = (ready.makers.get(self._written, _itself), ready.fire)
        return arrays[self._written]

    def close(self) -> None:
        self._met.clear()
        super().close()


class QuickNumpy(_Quick):
    """The fast path on the CPU, for numpy arrays."""

    def __call__(
        self, a: Any = _ABSENT, b: Any = _ABSENT, /, *more: Any, out: Any = None, stream: Any = None, **named: Any
    ) -> Any:
        if more or named or stream is not None:
            return super().__call__(*_by_position(a, b), *more, out=out, stream=stream, **named)
        try:
            at_a, at_b = a.ctypes.data, b.ctypes.data
            key: Any
            if out is None:
                key = (a.shape, a.strides, a.dtype, b.shape, b.strides, b.dtype, get_ident())
            else:
                key = (
                    a.shape, a.strides, a.dtype, b.shape, b.strides, b.dtype,
                    out.shape, out.strides, out.dtype, out.flags.writeable, get_ident(),
                )  # fmt: skip
        except AttributeError:
            key = None
        if key is None:  # arrays of another library
            return super().__call__(*_by_position(a, b), out=out)
        met = self._met.get(key)
        if met is None:
            return self._meet(key, a, b, out, 0)
        make, fire = met
        if out is None:
            out = make(a)
        at_c = out.ctypes.data
        if (at_a | at_b | at_c) % self._multiple:
            self._check_aligned(self._three, (at_a, at_b, at_c))
        fire((at_a, at_b, at_c), 0)
        return out


class QuickTorch(_Quick):
    """The fast path on a GPU, for torch tensors."""

    def __init__(self, kernel: Kernel, operator: Operator, device: GpuDevice) -> None:
        super().__init__(kernel, operator, device)
        self._by_stream, self._gpu = device.by_stream, device

    def __call__(
        self, a: Any = _ABSENT, b: Any = _ABSENT, /, *more: Any, out: Any = None, stream: Any = None, **named: Any
    ) -> Any:
        if more or named:
            return super().__call__(*_by_position(a, b), *more, out=out, stream=stream, **named)
        try:
            device = a.get_device()
            handle = self._gpu.torch_stream(device) if stream is None else stream_handle(stream)
            key: Any
            if out is None:
                key = (
                    a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype,
                    device, b.get_device(), handle if self._by_stream else None, get_ident(),
                )  # fmt: skip
            else:
                key = (
                    a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype, out.shape, out.stride(), out.dtype,
                    device, b.get_device(), out.get_device(), handle if self._by_stream else None, get_ident(),
                )  # fmt: skip
        except (AttributeError, RuntimeError):
            key = None
        if key is None:  # arrays of another library, or without strides
            return super().__call__(*_by_position(a, b), out=out, stream=stream)
        met = self._met.get(key)
        if met is None:
            return self._meet(key, a, b, out, handle)
        make, fire = met
        if out is None:
            out = make(a)
        addresses = at_a, at_b, at_c = a.data_ptr(), b.data_ptr(), out.data_ptr()
        if (at_a | at_b | at_c) % self._multiple:
            self._check_aligned(self._three, addresses)
        try:
            fire(addresses, handle)
        except DriverError as error:
            self._device.recover(error)
            fire(addresses, handle)
        return out


def _by_position(a: Any, b: Any) -> tuple[Any, ...]:
    """The arrays that were passed by position."""
    return (a, b) if b is not _ABSENT else (a,) if a is not _ABSENT else ()


def _itself(out: Any) -> Any:
    return out


__all__ = ["Loaded", "load"]
