"""What benchmarks on an NVIDIA GPU share: building on all cores, one problem's tensors, and calls timed with a cold L2.

Needs torch, numpy and NVRTC on a host with a GPU; no installation of deepgen.
"""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from importlib import resources
from math import isnan
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

from deepgen.operators import Gemm, gemm
from deepgen.run.call.gpu_kernel import GpuKernel
from deepgen.targets import Cuda
from deepgen.targets.gpu_driver import CUDA, Driver
from deepgen.toolchains import BuildLimits, BuildPool, Cache, toolchains_for
from deepgen.vocabulary import Artifact, Kernel, Missing, WorkspaceArg, digest

Config = dict[str, Any]
Shape = tuple[int, int, int, int]  # batch, M, N, K

SUITES = Path(__file__).resolve().parents[1] / "data/suites.json"
FLUSH_BYTES = 256 << 20  # more than the L2 holds
LIMITS = BuildLimits(wall_seconds=30.0)  # what takes longer is not worth the wait
HEAD_START = 300_000  # cycles that the device idles while the host enqueues a call: some take long, such as Triton's
# By dtype: torch's name, and the most that the norm of the difference from float64 may be, over the norm.
DTYPES = {
    "f32": ("float32", 1e-5),
    "tf32": ("float32", 2e-3),
    "f64": ("float64", 1e-13),
    "f16": ("float16", 2e-3),
    "bf16": ("bfloat16", 1e-2),
    "f8e4m3": ("float8_e4m3fn", 5e-3),
    "f8e5m2": ("float8_e5m2", 5e-3),
    "i8": ("int8", 0.0),
}


def suite() -> list[Shape]:
    """The 21 GEMM and 5 batched ones."""
    gpu = json.loads(SUITES.read_text())["gpu"]
    return [(1, m, n, k) for m, n, k in gpu["gemm"]] + [tuple(s) for s in gpu["batched_gemm"]]


def operator(shape: Shape, dtype: str = "f32", layout: str = "nt", *, exact_sums: bool = False) -> Gemm:
    """Products of 8-bit floats are added up fast unless exact sums are asked for."""
    batch, m, n, k = shape
    fast_sums = dtype.startswith("f8") and not exact_sums
    return gemm(m, n, k, dtype=dtype, batch=batch, layout=layout, fast_sums=fast_sums)


class Builder:
    """Builds kernels, so many at a time, each in a process of NVRTC; what differs in its launch only is built once.

    A build takes 0.2 GiB, and may take the 4 GiB that any build may: many at once in one process would share them. With
    a folder, what is built stays there for other processes.
    """

    def __init__(self, target: Cuda, cores: int, folder: Path | None = None) -> None:
        self._own = tempfile.TemporaryDirectory()
        self._pool = BuildPool(toolchains_for(target), target, Cache(folder or self._own.name), cores, LIMITS)
        self._built: dict[str, Future[Artifact]] = {}

    def start(self, kernel: Kernel) -> Future[Artifact]:
        name = binary_name(kernel)
        if name not in self._built:
            self._built[name] = self._pool.submit(kernel)
        return self._built[name]

    def image(self, kernel: Kernel) -> bytes:
        """What the driver loads, waited for. Raises BuildError."""
        return Path(self.start(kernel).result().binary).read_bytes()

    def quiet(self) -> AbstractContextManager[None]:
        """No build runs meanwhile."""
        return self._pool.quiet()

    def close(self) -> None:
        """What is not built yet is given up."""
        self._pool.close()
        self._own.cleanup()

    def __enter__(self) -> Builder:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def binary_name(kernel: Kernel) -> str:
    """The same for kernels that are compiled from the same text with the same options."""
    return digest([[s.name, s.text] for s in kernel.sources] + [list(kernel.flags)], 16)


class Bench:
    """The tensors of one problem, and how a call on them is checked and timed."""

    def __init__(self, problem: Gemm, flush: Any) -> None:
        import torch

        self.problem, self.torch, self.flush = problem, torch, flush
        batch, m, n, k = problem.batch, problem.m, problem.n, problem.k
        ta, tb = problem.layout[0] == "t", problem.layout[1] == "t"
        make = torch.Generator(device="cuda").manual_seed(1)
        name, self._most = DTYPES[problem.a]
        kind = getattr(torch, name)

        def drawn(*sizes: int) -> Any:
            if problem.a == "i8":
                return torch.randint(-128, 128, sizes, device="cuda", generator=make, dtype=kind)
            return torch.randn(*sizes, device="cuda", generator=make).to(kind)

        self.a = drawn(batch, *((k, m) if ta else (m, k)))
        self.b = drawn(batch, *((n, k) if tb else (k, n)))
        # As the product takes them, whatever the layout.
        self.left = self.a.transpose(1, 2) if ta else self.a
        self.right_side = self.b.transpose(1, 2) if tb else self.b
        result = torch.int32 if problem.c == "i32" else getattr(torch, DTYPES[problem.c][0])
        self.c = torch.empty(batch, m, n, device="cuda", dtype=result)
        self.reference = self.left.double() @ self.right_side.double()
        self.scale = self.reference.norm().item()
        if problem.c in ("bf16", "f16"):
            self._most = max(self._most, DTYPES[problem.c][1])

    @property
    def tensors(self) -> dict[str, int]:
        return {"A": self.a.data_ptr(), "B": self.b.data_ptr(), "C": self.c.data_ptr()}

    @property
    def places(self) -> dict[str, Any]:
        """As baselines take them."""
        return {name: SimpleNamespace(address=address) for name, address in self.tensors.items()}

    def error(self, call: Callable[[], Any]) -> float:
        """The norm of the error over the norm of the result; not a number where some of it was not written.

        A call writes to C, or returns its result.
        """
        self.c.fill_(self.torch.iinfo(self.c.dtype).min if self.problem.c == "i32" else float("nan"))
        given = call()
        result = self.c if given is None else given
        return float(((result.double() - self.reference).norm() / self.scale).item())

    def right(self, call: Callable[[], Any]) -> bool:
        error = self.error(call)
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


def interleaved(bench: Bench, calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Microseconds of single calls, in random order within each round, each with a cold L2."""
    event: Any = bench.torch.cuda.Event
    taken: dict[str, list[float]] = {name: [] for name in calls}
    order, dice = list(calls), random.Random(1)
    for _ in range(rounds):
        dice.shuffle(order)
        for name in order:
            bench.flush.zero_()
            bench.torch.cuda._sleep(HEAD_START)
            begin, end = event(enable_timing=True), event(enable_timing=True)
            begin.record()
            calls[name]()
            end.record()
            end.synchronize()
            taken[name].append(begin.elapsed_time(end) * 1e3)
    return taken


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


def gpu_torch() -> Any:
    """torch, where it finds a GPU."""
    missing = Missing("torch with an NVIDIA GPU", blocks="nothing can be timed", remedy="Run it where there is one.")
    try:
        import torch
    except ModuleNotFoundError:
        raise missing from None
    if not torch.cuda.is_available():
        raise missing
    return torch


@contextmanager
def open_device(cores: int, folder: Path | None = None) -> Iterator[tuple[Builder, Cuda, Driver]]:
    """The GPU of this host, and who builds for it."""
    from deepgen import targets

    gpu_torch().zeros(1, device="cuda")
    target = targets.resolve("cuda:native")
    assert isinstance(target, Cuda), "cuda:native is a CUDA target"
    with Builder(target, cores, folder) as builder:
        yield builder, target, Driver(CUDA)


def key_of(config: Config) -> str:
    return json.dumps(config, sort_keys=True)


# The dialect counts with the family that it was made for, as in the results that are kept.
_FOLDERS = {"simt_gemm": ("simt_gemm", "dialect")}


def sources(families: Iterable[str]) -> dict[str, str]:
    """A digest of what each family compiles, comments left out: it tells whether results are of the kernels at hand."""
    out = {}
    for name in families:
        folders = [resources.files(f"deepgen.kernels.gemm.{one}") for one in _FOLDERS.get(name, (name,))]
        found = [f for folder in folders for f in folder.iterdir() if f.name.endswith((".cu", ".h"))]
        files = sorted(found, key=lambda f: f.name)
        lines = [line.partition("//")[0].strip() for file in files for line in file.read_text().splitlines()]
        out[name] = digest([line for line in lines if line], 12)
    return out


def conditions() -> dict[str, str]:
    """What the card and the libraries say of themselves."""
    import torch

    query = "name,driver_version,clocks.sm,clocks.mem,power.draw,power.limit,temperature.gpu"
    asked = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip().split(", ")
    versions = {"torch": torch.__version__, "cuda": str(torch.version.cuda)}
    return {**versions, **dict(zip(query.split(","), told, strict=False))}
