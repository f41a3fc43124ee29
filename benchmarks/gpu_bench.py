"""What benchmarks on an NVIDIA GPU share: building on all cores, one shape's tensors, and calls timed with a cold L2.

Needs torch, numpy and cuda-bindings on a host with a GPU; no installation of deepgen.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from math import isnan
from types import SimpleNamespace
from typing import Any

from deepgen.measure.gpu_driver import CUDA, Driver
from deepgen.measure.gpu_kernel import GpuKernel
from deepgen.operators import Gemm, gemm
from deepgen.targets import Cuda
from deepgen.vocabulary import Kernel, WorkspaceArg

Config = dict[str, Any]
Shape = tuple[int, int, int, int]  # batch, M, N, K

FLUSH_BYTES = 256 << 20  # more than the L2 holds
# By dtype: torch's name, and the most that the norm of the difference from float64 may be, over the norm.
DTYPES = {
    "f32": ("float32", 1e-5),
    "tf32": ("float32", 2e-3),
    "f64": ("float64", 1e-13),
    "f16": ("float16", 2e-3),
    "bf16": ("bfloat16", 1e-2),
    "f8e4m3": ("float8_e4m3fn", 5e-2),
    "f8e5m2": ("float8_e5m2", 1e-1),
    "i8": ("int8", 0.0),
}


def operator(shape: Shape, dtype: str = "f32", out: str | None = None) -> Gemm:
    batch, m, n, k = shape
    made = gemm(m, n, k, dtype=dtype, batch=batch, layout="nt")
    return replace(made, c=out) if out else made


class Builder:
    """Builds kernels in threads; NVRTC does not hold Python's lock."""

    def __init__(self, arch: str, cores: int) -> None:
        self._pool = ThreadPoolExecutor(cores)
        self._built: dict[str, Future[bytes]] = {}
        self._arch = arch

    def start(self, kernel: Kernel) -> Future[bytes]:
        if kernel.id not in self._built:
            self._built[kernel.id] = self._pool.submit(self._build, kernel)
        return self._built[kernel.id]

    def _build(self, kernel: Kernel) -> bytes:
        from cuda.bindings import nvrtc

        def check(result: tuple[Any, ...]) -> Any:
            if int(result[0]) != 0:
                raise RuntimeError(str(result[0]))
            return result[1] if len(result) > 1 else None

        main, *headers = kernel.sources
        texts, names = [h.text.encode() for h in headers], [h.name.encode() for h in headers]
        made = nvrtc.nvrtcCreateProgram(main.text.encode(), main.name.encode(), len(headers), texts, names)
        program = check(made)
        options = [o.encode() for o in (f"-arch={self._arch}", *kernel.flags)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if int(status) != 0:
            log = b" " * check(nvrtc.nvrtcGetProgramLogSize(program))
            check(nvrtc.nvrtcGetProgramLog(program, log))
            raise RuntimeError(log.decode(errors="replace")[:600])
        code: bytes = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
        check(nvrtc.nvrtcGetCUBIN(program, code))
        check(nvrtc.nvrtcDestroyProgram(program))
        return code


class Bench:
    """The tensors of one shape, and how a call on them is timed."""

    def __init__(self, shape: Shape, problem: Gemm, flush: Any) -> None:
        import torch

        self.shape, self.problem, self.torch, self.flush = shape, problem, torch, flush
        batch, m, n, k = shape
        make = torch.Generator(device="cuda").manual_seed(1)
        name, self._most = DTYPES[problem.a]
        kind = getattr(torch, name)

        def drawn(*sizes: int) -> Any:
            if problem.a == "i8":
                return torch.randint(-8, 8, sizes, device="cuda", generator=make, dtype=kind)
            return torch.randn(*sizes, device="cuda", generator=make).to(kind)

        self.a, self.b = drawn(batch, m, k), drawn(batch, n, k)
        result = torch.int32 if problem.c == "i32" else getattr(torch, DTYPES[problem.c][0])
        self.c = torch.empty(batch, m, n, device="cuda", dtype=result)
        self.reference = self.a.double() @ self.b.double().transpose(1, 2)
        self.scale = self.reference.norm().item()

    @property
    def tensors(self) -> dict[str, int]:
        return {"A": self.a.data_ptr(), "B": self.b.data_ptr(), "C": self.c.data_ptr()}

    @property
    def places(self) -> dict[str, Any]:
        """As baselines take them."""
        return {name: SimpleNamespace(address=address) for name, address in self.tensors.items()}

    def peer(self) -> None:
        """torch's own product; it has none for every dtype."""
        if self.shape[0] == 1:
            self.torch.mm(self.a[0], self.b[0].t(), out=self.c[0])
        else:
            self.torch.bmm(self.a, self.b.transpose(1, 2), out=self.c)

    def right(self, call: Callable[[], Any]) -> bool:
        """Whether a call writes the whole result, and the right one."""
        self.c.fill_(self.torch.iinfo(self.c.dtype).min if self.problem.c == "i32" else float("nan"))
        call()
        error = ((self.c.double() - self.reference).norm() / self.scale).item()
        return not isnan(error) and error <= self._most

    def time(self, call: Callable[[], Any], most: int, beat: float = 0.0) -> list[float]:
        """Microseconds of single calls with a cold L2; few where they are long, or where the first are hopeless."""
        samples: list[float] = []
        while len(samples) < most:
            samples += self._some(call, 2)
            if beat and min(samples) > (1.1 if len(samples) < 4 else 1.04) * beat:
                break
            if samples[0] > 2000.0:
                most = min(most, 6)
        return samples

    def _some(self, call: Callable[[], Any], count: int) -> list[float]:
        pairs = []
        event: Any = self.torch.cuda.Event
        for _ in range(count):
            self.flush.zero_()
            begin, end = event(enable_timing=True), event(enable_timing=True)
            begin.record()
            call()
            end.record()
            pairs.append((begin, end))
        self.torch.cuda.synchronize()
        return [begin.elapsed_time(end) * 1e3 for begin, end in pairs]


class Loaded:
    """A kernel on the device with its arguments bound to a bench."""

    def __init__(self, bench: Bench, kernel: Kernel, code: bytes, driver: Driver) -> None:
        self._kept: list[Any] = []
        self._kernel = GpuKernel(driver, kernel, code)
        shapes = {t.name: (t.shape, t.dtype.name) for t in bench.problem.tensors()}

        def allocate(arg: WorkspaceArg, size: int) -> int:
            torch = bench.torch
            self._kept.append(torch.zeros(max(size, 16), dtype=torch.uint8, device="cuda"))
            return int(self._kept[-1].data_ptr())

        bound = self._kernel.bind(bench.tensors, bench.problem.scalars(), allocate, shapes)
        bound.prepare.run(0)
        self._run = bound.run.run

    def __call__(self) -> None:
        self._run(0)

    def close(self) -> None:
        self._kernel.close()


def open_device(cores: int) -> tuple[Builder, Cuda, Driver]:
    import torch

    from deepgen import targets

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.zeros(1, device="cuda")
    target = targets.resolve("cuda:native")
    assert isinstance(target, Cuda), "cuda:native is a CUDA target"
    return Builder(target.arch, cores), target, Driver(CUDA)


def key_of(config: Config) -> str:
    return json.dumps(config, sort_keys=True)
