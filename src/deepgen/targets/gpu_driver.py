"""The CUDA driver and the HIP runtime through ctypes: one small interface, no package needed.

The two APIs correspond, so they differ only in a table of names. The HIP side has never run on a device; the CUDA side
has. A failed call raises DriverError, whose `sticky` means that the context is lost.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_void_p
from dataclasses import dataclass
from typing import Any, TypeAlias

from deepgen.vocabulary import DeepgenError, Missing

Stream: TypeAlias = int  # a handle; 0 is the default stream
Triple: TypeAlias = "tuple[int, int, int]"
Shape: TypeAlias = "tuple[Triple, Triple, Triple, int]"  # grid, block, cluster, dynamic shared bytes


@dataclass(frozen=True)
class Api:
    """An API's library and its names for the common functions."""

    kind: str
    libraries: tuple[str, ...]
    names: Mapping[str, str]
    dynamic_shared: int  # the function attribute that raises the limit of dynamic shared memory
    out_of_memory: tuple[int, ...]
    sticky: tuple[int, ...]
    remedy: str


# Common functions: their names in CUDA and in HIP, and their arguments.
_FUNCTIONS: dict[str, tuple[str, str, tuple[Any, ...]]] = {
    "init": ("cuInit", "hipInit", (c_uint,)),
    "alloc": ("cuMemAlloc_v2", "hipMalloc", (c_void_p, c_size_t)),
    "free": ("cuMemFree_v2", "hipFree", (c_void_p,)),
    "to_device": ("cuMemcpyHtoD_v2", "hipMemcpyHtoD", (c_void_p, c_void_p, c_size_t)),
    "to_host": ("cuMemcpyDtoH_v2", "hipMemcpyDtoH", (c_void_p, c_void_p, c_size_t)),
    "copy": ("cuMemcpyDtoDAsync_v2", "hipMemcpyDtoDAsync", (c_void_p, c_void_p, c_size_t, c_void_p)),
    "fill": ("cuMemsetD8Async", "hipMemsetD8Async", (c_void_p, ctypes.c_ubyte, c_size_t, c_void_p)),
    "event": ("cuEventCreate", "hipEventCreateWithFlags", (c_void_p, c_uint)),
    "record": ("cuEventRecord", "hipEventRecord", (c_void_p, c_void_p)),
    "elapsed": ("cuEventElapsedTime", "hipEventElapsedTime", (c_void_p, c_void_p, c_void_p)),
    "query": ("cuEventQuery", "hipEventQuery", (c_void_p,)),
    "stream": ("cuStreamCreate", "hipStreamCreateWithFlags", (c_void_p, c_uint)),
    "drop_stream": ("cuStreamDestroy_v2", "hipStreamDestroy", (c_void_p,)),
    "wait": ("cuStreamWaitEvent", "hipStreamWaitEvent", (c_void_p, c_void_p, c_uint)),
    "synchronize": ("cuCtxSynchronize", "hipDeviceSynchronize", ()),
    "load": ("cuModuleLoadData", "hipModuleLoadData", (c_void_p, c_char_p)),
    "unload": ("cuModuleUnload", "hipModuleUnload", (c_void_p,)),
    "function": ("cuModuleGetFunction", "hipModuleGetFunction", (c_void_p, c_void_p, c_char_p)),
    "symbol": ("cuModuleGetGlobal_v2", "hipModuleGetGlobal", (c_void_p, c_void_p, c_void_p, c_char_p)),
    "set_attribute": ("cuFuncSetAttribute", "hipFuncSetAttribute", (c_void_p, c_int, c_int)),
    "launch": ("cuLaunchKernel", "hipModuleLaunchKernel", (c_void_p, *(c_uint,) * 7, c_void_p, c_void_p, c_void_p)),
    "free_bytes": ("cuMemGetInfo_v2", "hipMemGetInfo", (c_void_p, c_void_p)),
}
_ARGUMENTS = {key: arguments for key, (_, _, arguments) in _FUNCTIONS.items()}
# Illegal address, launch timeout, assert, and the faults from 714 to 720.
_STICKY = (700, 702, 710, *range(714, 721), 999)
CUDA = Api(
    kind="cuda",
    libraries=("libcuda.so.1",),
    names={key: cuda for key, (cuda, _, _) in _FUNCTIONS.items()},
    dynamic_shared=8,
    out_of_memory=(2,),
    sticky=_STICKY,
    remedy="Install NVIDIA's driver.",
)
HIP = Api(
    kind="hip",
    libraries=("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"),
    names={key: hip for key, (_, hip, _) in _FUNCTIONS.items()},
    dynamic_shared=8,
    out_of_memory=(2,),
    sticky=_STICKY,
    remedy="Install ROCm's runtime, or the vendor's.",
)
APIS = {api.kind: api for api in (CUDA, HIP)}

_CLUSTER, _PORTABLE_CLUSTER, _NON_PORTABLE = 4, 8, 14
_OVERLAPS = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_NOT_READY = 600  # in both APIs


class DriverError(DeepgenError):
    """A failed call of the driver."""

    def __init__(self, code: int, name: str, call: str, api: Api) -> None:
        super().__init__(f"{call} failed: {name}")
        self.code, self.name = code, name
        self.out_of_memory = code in api.out_of_memory
        self.sticky = code in api.sticky


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute, whose value is a union of 64 bytes."""

    _fields_ = (("id", c_int), ("pad", c_int), ("value", c_uint * 16))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("count", c_uint),
    )


class Driver:
    """One device in this process, in its primary context, which the process's frameworks share."""

    def __init__(self, api: Api, device: int = 0) -> None:
        self.api = api
        self.library = _open(api)
        self._calls = {key: self._call(key, name) for key, name in api.names.items()}
        self._check("init", self._calls["init"](0))
        self.device = device
        self._context = c_void_p()
        self.enter()

    def enter(self) -> None:
        """Make the device's primary context current for the calling thread."""
        if self.api is HIP:
            self.check("hipSetDevice", self.library.hipSetDevice(self.device))
            return
        if not self._context:
            handle = c_int()
            self.check("cuDeviceGet", self.library.cuDeviceGet(byref(handle), self.device))
            self.check("cuDevicePrimaryCtxRetain", self.library.cuDevicePrimaryCtxRetain(byref(self._context), handle))
        self.check("cuCtxSetCurrent", self.library.cuCtxSetCurrent(self._context))

    def alloc(self, size: int) -> int:
        pointer = c_void_p()
        self._check("alloc", self._calls["alloc"](byref(pointer), max(size, 1)))
        return pointer.value or 0

    def free(self, pointer: int) -> None:
        self._check("free", self._calls["free"](pointer))

    def to_device(self, pointer: int, host: int, size: int) -> None:
        self._check("to_device", self._calls["to_device"](pointer, host, size))

    def to_host(self, host: int, pointer: int, size: int) -> None:
        self._check("to_host", self._calls["to_host"](host, pointer, size))

    def copy(self, to: int, source: int, size: int, stream: Stream = 0) -> None:
        self._check("copy", self._calls["copy"](to, source, size, stream))

    def fill(self, pointer: int, byte: int, size: int, stream: Stream = 0) -> None:
        if size:
            self._check("fill", self._calls["fill"](pointer, byte, size, stream))

    def event(self) -> int:
        handle = c_void_p()
        self._check("event", self._calls["event"](byref(handle), 0))
        return handle.value or 0

    def record(self, event: int, stream: Stream = 0) -> None:
        self._check("record", self._calls["record"](event, stream))

    def elapsed(self, start: int, end: int) -> float:
        """Seconds between two recorded events that have been reached."""
        milliseconds = c_float()
        self._check("elapsed", self._calls["elapsed"](byref(milliseconds), start, end))
        return milliseconds.value * 1e-3

    def stream(self) -> Stream:
        """A new stream that synchronises with the default stream in both directions."""
        handle = c_void_p()
        self._check("stream", self._calls["stream"](byref(handle), 0))
        return handle.value or 0

    def drop_stream(self, stream: Stream) -> None:
        self._check("drop_stream", self._calls["drop_stream"](stream))

    def wait(self, event: int, stream: Stream) -> None:
        """Let a stream continue only after an event."""
        self._check("wait", self._calls["wait"](stream, event, 0))

    def profiled(self) -> tuple[Callable[[], object], Callable[[], object]]:
        """The calls that start and stop a profiler. AMD's profilers have none, because they record every launch."""
        if self.api is HIP:
            return int, int
        return self.library.cuProfilerStart, self.library.cuProfilerStop

    def happened(self, event: int) -> bool:
        """Whether the device has reached a recorded event."""
        code = self._calls["query"](event)
        if code == _NOT_READY:
            return False
        self._check("query", code)
        return True

    def synchronize(self) -> None:
        """Wait for all work; a fault in a kernel is reported here."""
        self._check("synchronize", self._calls["synchronize"]())

    def load(self, image: bytes) -> int:
        module = c_void_p()
        self._check("load", self._calls["load"](byref(module), image))
        return module.value or 0

    def unload(self, module: int) -> None:
        self._check("unload", self._calls["unload"](module))

    def function(self, module: int, name: str) -> int:
        handle = c_void_p()
        self._check("function", self._calls["function"](byref(handle), module, name.encode()))
        return handle.value or 0

    def symbol(self, module: int, name: str) -> tuple[int, int]:
        """The address and size in bytes of a module's global variable."""
        pointer, size = c_void_p(), c_size_t()
        self._check("symbol", self._calls["symbol"](byref(pointer), byref(size), module, name.encode()))
        return pointer.value or 0, size.value

    def allow_shared(self, function: int, size: int) -> None:
        """Allow launches of a kernel with that much dynamic shared memory."""
        self._check("set_attribute", self._calls["set_attribute"](function, self.api.dynamic_shared, size))

    def free_bytes(self) -> int:
        free, total = c_size_t(), c_size_t()
        self._check("free_bytes", self._calls["free_bytes"](byref(free), byref(total)))
        return free.value

    def raw(self, key: str) -> tuple[str, Any]:
        """A function of the library, for C: its name and the function itself."""
        return self.api.names[key], self._calls[key]

    def check(self, call: str, code: int) -> None:
        if code:
            raise DriverError(code, self._name(code), call, self.api)

    def _check(self, key: str, code: int) -> None:
        if code:
            raise DriverError(code, self._name(code), self.api.names[key], self.api)

    def _call(self, key: str, name: str) -> Any:
        function = getattr(self.library, name)
        function.argtypes = _ARGUMENTS[key]
        return function

    def _name(self, code: int) -> str:
        text = c_char_p()
        if self.api is HIP:
            self.library.hipGetErrorString.restype = c_char_p
            text.value = self.library.hipGetErrorString(code)
        else:
            self.library.cuGetErrorString(code, byref(text))
        return f"{(text.value or b'unknown error').decode(errors='replace')} ({code})"


class DriverLaunch:
    """A kernel with its launch shape and arguments bound. `fire` is just one call of the driver."""

    def __init__(
        self, driver: Driver, function: int, shape: Shape, values: Sequence[Any], overlaps: bool = False
    ) -> None:
        """`values`: the arguments as ctypes objects, which may be changed between launches. A launch that `overlaps`
        may begin before the previous one has ended.

        `name`, `call`, `cells` and `stream_at` let C code do the same as `fire`: the driver's function, its arguments
        of eight bytes each, and the address of the stream's handle.
        """
        grid, block, cluster, shared = shape
        self._driver, self._values = driver, tuple(values)
        params = (c_void_p * max(1, len(values)))(*(ctypes.addressof(value) for value in values))
        if driver.api is HIP:
            self.name, self.call = driver.api.names["launch"], driver.library[driver.api.names["launch"]]
            numbers = [c_uint(n) for n in (*grid, *block, shared)]
            self._stream = c_void_p(0)
            self._arguments: tuple[Any, ...] = (c_void_p(function), *numbers, self._stream, byref(params), None)
            self.cells = _cells(function, *grid, *block, shared, 0, ctypes.addressof(params), 0)
            self.stream_at = ctypes.addressof(self.cells) + 8 * 8
            return
        # Four arguments instead of eleven, which halves the cost of the call from Python.
        asked = [(_CLUSTER, cluster)] if any(size > 1 for size in cluster) else []
        asked += [(_OVERLAPS, (1, 0, 0))] if overlaps else []
        attributes = (LaunchAttribute(key, 0, (c_uint * 16)(*value)) for key, value in asked)
        self._attributes = (LaunchAttribute * max(1, len(asked)))(*attributes)
        self._config = LaunchConfig(
            (c_uint * 3)(*grid), (c_uint * 3)(*block), shared, 0, ctypes.addressof(self._attributes), len(asked)
        )
        if cluster[0] * cluster[1] * cluster[2] > _PORTABLE_CLUSTER:
            code = driver.library.cuFuncSetAttribute(c_void_p(function), _NON_PORTABLE, 1)
            driver.check("cuFuncSetAttribute", code)
        self.name, self.call = "cuLaunchKernelEx", driver.library["cuLaunchKernelEx"]
        self._arguments = (byref(self._config), c_void_p(function), byref(params), None)
        self.cells = _cells(ctypes.addressof(self._config), function, ctypes.addressof(params), 0)
        self.stream_at = ctypes.addressof(self._config) + LaunchConfig.stream.offset

    def on(self, stream: Stream) -> None:
        """Move the launch to another stream."""
        if self._driver.api is HIP:
            self._stream.value = stream
        else:
            self._config.stream = stream

    def fire(self) -> None:
        code = self.call(*self._arguments)
        if code:
            self._driver.check(self.name, code)


def _cells(*values: int) -> Any:
    return (ctypes.c_uint64 * len(values))(*values)


def _open(api: Api) -> ctypes.CDLL:
    for name in api.libraries:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise Missing(api.libraries[0], blocks=f"no {api.kind} kernel can run here", remedy=api.remedy)
