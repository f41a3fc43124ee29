"""An H200 for tests of the GPU benchmarks: everything is real but what needs the chip.

Kernels are emitted, built by NVRTC and bound as they are on a device. The driver is an object in Python, which looks
into the cubins that it is given, refuses what the real one would refuse of launches and tensor maps, and, instead of
running a kernel, puts the right answer where its C lies. A launch takes a time that depends on its code only.
"""

from __future__ import annotations

import ctypes
import sys
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from deepgen import targets
from deepgen.baselines import cublaslt
from deepgen.baselines.cublaslt_api import Heuristic
from deepgen.targets import gpu_driver
from deepgen.targets.cuda import parse_cuda

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
INVALID, NOT_FOUND, OUT_OF_RANGE = 1, 500, 201
CALL_MS = 7e-3  # of what is not ours
_MOST_SHARED, _MOST_THREADS, _MOST_CLUSTER, _LONGEST_SIDE = 232448, 1024, 16, 256
_SWIZZLED = {0: 1 << 20, 1: 32, 2: 64, 3: 128}  # the most bytes of a line of a box, by the kind of swizzle
_ELEMENT = {0: 1, 1: 2, 3: 4, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2}  # bytes, by the driver's number of a type


class Function:
    """A function of the library, which ctypes would let have argument types."""

    def __init__(self, call: Callable[..., int | None]) -> None:
        self.call, self.argtypes = call, ()

    def __call__(self, *arguments: Any) -> int:
        return self.call(*arguments) or 0


class Library:
    """libcuda.so: memory is the host's, and events tell simulated time."""

    def __init__(self) -> None:
        self.answers: dict[int, Callable[[], None]] = {}  # by where C lies
        self.modules: dict[int, bytes] = {}
        self.functions: dict[int, tuple[bytes, str]] = {}
        self.launched: list[tuple[int, ...]] = []  # grids
        self.idle: tuple[str, ...] = ()  # kernels that compute nothing
        self.wrong: Callable[[bytes], bool] = lambda image: False  # whether a kernel of this code does nothing
        self.ms = 0.0
        self._kept: list[Any] = []
        self._events: dict[int, float] = {}

    def __getattr__(self, name: str) -> Function:
        known = {
            "cuMemAlloc_v2": self._alloc, "cuEventCreate": self._event, "cuEventRecord": self._record,
            "cuEventElapsedTime": self._elapsed, "cuModuleLoadData": self._load, "cuModuleGetFunction": self._function,
            "cuFuncSetAttribute": self._attribute, "cuLaunchKernelEx": self._launch,
            "cuTensorMapEncodeTiled": self._map,
            "cuDevicePrimaryCtxRetain": lambda context, device: self._give(context, 1),
        }  # fmt: skip
        return Function(known.get(name, lambda *_: 0))

    def __getitem__(self, name: str) -> Function:
        return self.__getattr__(name)

    def answer(self, address: int) -> None:
        self.answers[address]()

    @staticmethod
    def _give(place: Any, value: Any) -> None:
        place._obj.value = value

    def _alloc(self, place: Any, size: int) -> None:
        self._kept.append(torch.empty(size, dtype=torch.uint8))  # not touched, so that it takes no memory
        self._give(place, self._kept[-1].data_ptr())

    def _event(self, place: Any, flags: int) -> None:
        self._give(place, len(self._events) + 1)
        self._events[len(self._events) + 1] = 0.0

    def _record(self, event: int, stream: int) -> None:
        self._events[event] = self.ms

    def _elapsed(self, place: Any, begin: int, end: int) -> None:
        self._give(place, self._events[end] - self._events[begin])

    def _load(self, place: Any, image: bytes) -> int | None:
        if not image.startswith(b"\x7fELF"):
            return INVALID
        self._give(place, len(self.modules) + 1)
        self.modules[len(self.modules) + 1] = image
        return None

    def _function(self, place: Any, module: int, name: bytes) -> int | None:
        image = self.modules[module]
        if b".text." + name + b"\0" not in image:
            return NOT_FOUND
        self._give(place, len(self.functions) + 1)
        self.functions[len(self.functions) + 1] = (image, name.decode())
        return None

    def _attribute(self, function: int, attribute: int, value: int) -> int | None:
        return INVALID if attribute == gpu_driver.CUDA.dynamic_shared and value > _MOST_SHARED else None

    def _launch(self, config: Any, function: Any, params: Any, extra: None) -> int | None:
        c, image = config._obj, self.functions[function.value][0]
        cluster = gpu_driver.LaunchAttribute.from_address(c.attributes).value[:3] if c.count else [1, 1, 1]
        whole = all(size > 0 and size % by == 0 for size, by in zip(c.grid, cluster, strict=True))
        threads, blocks = c.block[0] * c.block[1] * c.block[2], cluster[0] * cluster[1] * cluster[2]
        if not whole or threads > _MOST_THREADS or blocks > _MOST_CLUSTER or c.shared > _MOST_SHARED:
            return INVALID
        self.launched.append(tuple(c.grid))
        self.ms += 5e-3 + zlib.crc32(image) % 1000 * 1e-6
        addresses = [ctypes.c_uint64.from_address(place).value for place in params._obj if place]
        results = [a for a in addresses if a in self.answers]
        if not results:
            return None if self.functions[function.value][1] in self.idle else OUT_OF_RANGE
        if not self.wrong(image):
            self.answer(results[0])
        return None

    def _map(
        self, storage: Any, kind: int, rank: int, address: Any, sizes: Any, strides: Any, box: Any, *rest: Any
    ) -> int:
        """What cuda.h asks of a tensor map."""
        _, interleave, swizzle, *_ = rest
        width = _ELEMENT[kind]
        lines = strides[: rank - 1]
        good = address.value % 16 == 0 and interleave == 0 and 1 <= rank <= 5
        good &= all(0 < n <= 1 << 32 for n in sizes) and all(s % 16 == 0 and 0 < s < 1 << 40 for s in lines)
        good &= all(0 < n <= _LONGEST_SIDE for n in box) and box[0] * width % 16 == 0
        good &= box[0] * width <= _SWIZZLED[swizzle]
        return 0 if good else INVALID


class Event:
    """torch's, over the library's time."""

    library: Library

    def __init__(self, enable_timing: bool) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = self.library.ms

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return False

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) or CALL_MS


class Torch(ModuleType):
    """torch, whose tensors for the GPU lie in host memory."""

    def __init__(self, library: Library) -> None:
        super().__init__("torch")
        event = type("Event", (Event,), {"library": library})
        nothing = SimpleNamespace(start=lambda: None, stop=lambda: None)
        self.cuda = SimpleNamespace(
            is_available=lambda: True,
            Event=event,
            synchronize=lambda: None,
            _sleep=lambda cycles: None,
            empty_cache=lambda: None,
            profiler=nothing,
            Stream=lambda: SimpleNamespace(cuda_stream=7),
            current_stream=lambda: SimpleNamespace(cuda_stream=7),
            stream=lambda stream: nullcontext(),
            CUDAGraph=lambda: SimpleNamespace(replay=lambda: None),
            graph=lambda graph, stream: nullcontext(),
        )

    @staticmethod
    def _scaled_mm(a: Any, b: Any, *scales: Any, out_dtype: Any, use_fast_accum: bool) -> Any:
        return (a.float() @ b.float()).to(out_dtype)  # torch's own takes minutes on a CPU

    @staticmethod
    def mm(a: Any, b: Any, *, out: Any) -> Any:
        return out.copy_(a.float() @ b.float())  # in 16 bits as well, where the processor has none

    def __getattr__(self, name: str) -> Any:
        real = getattr(torch, name)
        if name not in ("empty", "full", "ones", "randint", "randn", "zeros", "Generator"):
            return real

        def on_the_host(*sizes: Any, device: str = "cuda", **other: Any) -> Any:
            return real(*sizes, **other)

        return on_the_host


class Handle:
    """cuBLASLt with three algorithms, one of which it cannot run."""

    library: Library

    def __init__(self, path: Path) -> None:
        self.path = path

    def product(self, *told: Any) -> ctypes.c_void_p:
        return ctypes.c_void_p(1)

    layout = product

    def algorithms(self, product: Any, layouts: Any, count: int, workspace: int) -> list[Heuristic]:
        return [Heuristic(workspace=size) for size in (16, 0, 32)]

    def call(self, *arguments: Any) -> int:
        workspace = arguments[11]._obj.workspace
        if workspace == 0:
            return 15
        self.library.ms += 6e-3 + workspace * 1e-6
        self.library.answer(arguments[7].value)
        return 0


def install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Library:
    """From here on benchmarks find an H200; what they import of each other is imported anew."""
    library = Library()
    monkeypatch.setitem(sys.modules, "torch", Torch(library))
    monkeypatch.setattr(gpu_driver, "_open", lambda api: library)
    monkeypatch.setattr(targets, "resolve", lambda name: parse_cuda("h200"))
    monkeypatch.setattr(cublaslt, "find", lambda: folder)
    monkeypatch.setattr(cublaslt, "Handle", type("Handle", (Handle,), {"library": library}))
    (folder / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA H200, 580, 1980 MHz, 3201 MHz, 100 W, 700 W, 40'\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    for place in (BENCHMARKS / "h200", BENCHMARKS):
        monkeypatch.syspath_prepend(str(place))
        for file in place.glob("*.py"):
            monkeypatch.delitem(sys.modules, file.stem, raising=False)
    import gpu_bench

    monkeypatch.setattr(gpu_bench, "FLUSH_BYTES", 4096)
    _answered(monkeypatch, gpu_bench.Bench, library, lambda b: (b.c, b.reference))
    import sm90_bench

    _answered(monkeypatch, sm90_bench.Bench, library, lambda b: (b.tensors["C"], b.want))
    return library


def _answered(
    monkeypatch: pytest.MonkeyPatch, bench: Any, library: Library, told: Callable[[Any], tuple[Any, Any]]
) -> None:
    """A bench tells the library what its C should hold."""
    made = bench.__init__

    def init(self: Any, *arguments: Any) -> None:
        made(self, *arguments)
        c, answer = told(self)
        library.answers[c.data_ptr()] = lambda: c.copy_(answer)
        library._kept.append(c)  # so that no other tensor comes to lie there

    monkeypatch.setattr(bench, "__init__", init)
