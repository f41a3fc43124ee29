"""Triton's driver interface for this machine's CPU, and how a kernel call reaches its library."""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from deepgen_triton_cpu.backend.compiler import BACKEND

DEVICE = "cpu"
_ALIGN = 64
_SHARED = 1 << 40  # bytes per program: there is no such limit here
_REGISTERS = 65536
_FLUSHED = 64 << 20  # bytes that a benchmark writes to flush the caches
_SCALARS: Mapping[str, Any] = {
    "i1": ctypes.c_bool, "u1": ctypes.c_bool,
    "i8": ctypes.c_int8, "i16": ctypes.c_int16, "i32": ctypes.c_int32, "i64": ctypes.c_int64,
    "u8": ctypes.c_uint8, "u16": ctypes.c_uint16, "u32": ctypes.c_uint32, "u64": ctypes.c_uint64,
    "fp16": ctypes.c_float, "bf16": ctypes.c_float, "fp32": ctypes.c_float, "f32": ctypes.c_float,
    "fp64": ctypes.c_double, "f64": ctypes.c_double,
}  # fmt: skip
_NUMPY = {
    "float16": "fp16", "float32": "fp32", "float64": "fp64", "bool": "i1", "int8": "i8", "int16": "i16",
    "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "bfloat16": "bf16",
}  # fmt: skip


class CpuDriver(DriverBase):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.utils = _Utilities()
        self.launcher_cls = Launcher
        _take_arrays()
        _name_stages()

    @staticmethod
    def is_active() -> bool:
        """Only if there is no GPU. A GPU's driver has priority, unless `deepgen.triton_cpu` requests this one.

        In an unsupported release of Triton, everything is as if deepgen were not installed.
        """
        from triton import __version__
        from triton.backends import backends

        from deepgen_triton_cpu.lowering.ttir import serves

        if os.environ.get("TRITON_DEFAULT_BACKEND") == BACKEND:
            return True
        return serves(__version__) and not any(
            b.driver.is_active() for b in backends.values() if b.driver is not CpuDriver
        )

    def get_current_target(self) -> GPUTarget:
        from deepgen.extend import targets

        target = targets.resolve("cpu")
        return GPUTarget(BACKEND, f"{target.name}:{','.join(getattr(target, 'isa', ()))}", 1)

    def get_current_device(self) -> str:
        return DEVICE

    def set_current_device(self, device: object) -> None:
        """There is only one device."""

    def get_current_stream(self, device: object) -> int:
        return 0

    def get_device_capability(self, device: object = None) -> tuple[int, int]:
        return 0, 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return _Interface

    def map_python_to_cpp_type(self, ty: str) -> str:
        return "void *" if ty.startswith("*") else {"fp32": "float", "fp64": "double"}.get(ty, f"{ty}_t")

    def get_benchmarker(self) -> Any:
        from triton.testing import do_bench

        return do_bench

    def get_empty_cache_for_benchmark(self) -> Any:
        return bytearray(_FLUSHED)

    def clear_cache(self, cache: bytearray) -> None:
        cache[:] = bytes(len(cache))


class Launcher:
    """Calls a kernel's library with the arguments that Triton binds to its parameters."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self._types = list(source.signature.values())
        self._threads = metadata.num_threads or len(os.sched_getaffinity(0))
        self._scratch_bytes = metadata.scratch
        self._kept = threading.local()  # two threads may call the same kernel

    def __call__(
        self,
        x: int,
        y: int,
        z: int,
        stream: object,
        function: Any,
        packed: object,
        described: object,
        enter: Callable[[object], None] | None,
        leave: Callable[[object], None] | None,
        *arguments: Any,
    ) -> None:
        if enter is not None:
            enter(described)
        if min(x, y, z) > 0:
            passed = list(_passed(self._types, arguments))
            sizes = (ctypes.c_int32(size) for size in (x, y, z))
            function(*passed, *sizes, ctypes.c_int32(self._threads), self._scratch())
        if leave is not None:
            leave(described)

    def _scratch(self) -> ctypes.c_void_p:
        if not hasattr(self._kept, "memory"):
            self._kept.memory = ctypes.create_string_buffer(self._scratch_bytes * self._threads + _ALIGN)
        address = ctypes.addressof(self._kept.memory)
        return ctypes.c_void_p(address + -address % _ALIGN)


def _passed(types: Iterable[Any], arguments: Iterable[Any]) -> Iterable[Any]:
    """The arguments in C form, with descriptors and tuples split into their parts."""
    for of, argument in zip(types, arguments, strict=True):
        if of == "constexpr":
            continue
        if isinstance(of, tuple):
            yield from _passed(of, argument)
        elif of.startswith("tensordesc"):
            yield from _descriptor(argument)
        elif of.startswith("*"):
            yield _address(argument)
        else:
            yield _SCALARS[of](argument)


def _descriptor(argument: Any) -> Iterable[Any]:
    from triton.backends.driver import decompose_descriptor

    base, *numbers = decompose_descriptor(argument)
    rank = len(argument.shape)
    kinds = [ctypes.c_int64] * (2 * rank) + [ctypes.c_bool] * 2 + [ctypes.c_int32] * rank + [ctypes.c_int64] * rank
    yield _address(base)
    yield from (kind(number) for kind, number in zip(kinds, numbers, strict=True))


def _address(argument: Any) -> ctypes.c_void_p:
    if argument is None or isinstance(argument, int):
        return ctypes.c_void_p(argument)
    if hasattr(argument, "ctypes"):
        return ctypes.c_void_p(argument.ctypes.data)
    device = getattr(getattr(argument, "device", None), "type", DEVICE)
    if device != DEVICE:
        from deepgen.extend import BadInput

        raise BadInput(f"a tensor of the device {device} is passed to a kernel on the CPU", allowed="CPU tensors")
    return ctypes.c_void_p(argument.data_ptr())


class _Utilities:
    """The functions that Triton's compiled kernels use when they are first called."""

    def __init__(self) -> None:
        self._pool: int | None = None  # the function that runs work in threads, from the first library

    def load_binary(self, name: str, image: bytes, shared: int, device: object) -> tuple[Any, Any, int, int, int]:
        from deepgen.extend import lend, torchs_threads
        from deepgen_triton_cpu.lowering.lower import ENTRY

        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(image)
            file.flush()
            library = ctypes.CDLL(file.name)
        function = library[ENTRY]
        function.restype = None
        pool = ctypes.c_void_p.in_dll(library, "deepgen_pool_run")
        if self._pool is None:
            self._pool = pool.value
            if (parallel := torchs_threads()) is not None:
                lend(library, parallel)
        pool.value = self._pool
        return library, function, 1, 0, _SHARED  # programs divide by the number of registers of a kernel

    def unload_module(self, library: object) -> None:
        """Does nothing: the library stays loaded, since its threads outlive a call."""

    def get_device_properties(self, device: object) -> dict[str, int]:
        cores = len(os.sched_getaffinity(0))
        return {
            "max_shared_mem": _SHARED, "multiprocessor_count": cores, "max_num_regs": _REGISTERS, "warpSize": 1,
            "sm_clock_rate": 0, "mem_clock_rate": 0, "mem_bus_width": 0,
        }  # fmt: skip


class _Interface:
    """The part of torch's device modules that Triton's benchmarks use. Calls here are complete when they return."""

    @staticmethod
    def synchronize() -> None:
        """Does nothing: no work is in progress."""

    @staticmethod
    def current_stream() -> int:
        return 0

    class Event:
        def __init__(self, enable_timing: bool = True) -> None:
            self._at = 0

        def record(self) -> None:
            self._at = time.perf_counter_ns()

        def elapsed_time(self, end: _Interface.Event) -> float:
            return (end._at - self._at) / 1e6


def _take_arrays() -> None:
    """Let Triton's calls take numpy arrays in addition to tensors, the only arrays that it supports."""
    from triton.runtime import jit

    specialize = jit.native_specialize_impl
    if getattr(specialize, "takes_arrays", False):
        return

    def specialised(backend: Any, argument: Any, constant: bool, by_value: bool, aligned: bool) -> Any:
        if type(argument).__module__ != "numpy" or not hasattr(argument, "ctypes"):
            return specialize(backend, argument, constant, by_value, aligned)
        name = str(argument.dtype)
        if name not in _NUMPY:
            from deepgen.extend import BadInput

            raise BadInput(f"an array of {name} is passed to a kernel", allowed=", ".join(_NUMPY))
        divisible = by_value and aligned and argument.ctypes.data % 16 == 0
        return ("*k" if constant else "*") + _NUMPY[name], "D" if divisible else ""

    specialised.takes_arrays = True  # type: ignore[attr-defined]
    jit.native_specialize_impl = specialised


def _name_stages() -> None:
    """Make `kernel.asm["ttgir"]` and the like report what is available instead, for kernels on the CPU."""
    from triton.compiler.compiler import AsmDict

    missing = AsmDict.__missing__
    if getattr(missing, "names_stages", False):
        return

    def named(self: dict[str, Any], key: str) -> Any:
        if "c" not in self:
            return missing(self, key)
        from deepgen.extend import BadInput

        class NoStage(BadInput, KeyError):
            """Also a KeyError, as users of a dictionary expect."""

        allowed = f"it has {', '.join(sorted(self))}: c is the generated C, so the shared library built from it"
        raise NoStage(f"a kernel on the CPU has no {key}, which only GPUs have", allowed=allowed)

    named.names_stages = True  # type: ignore[attr-defined]
    AsmDict.__missing__ = named
