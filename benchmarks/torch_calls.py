"""What a call costs through deepgen.torch, beside torch's own: tiny tensors, so that little else is timed.

    python benchmarks/torch_calls.py --json torch_calls.json
    python benchmarks/torch_calls.py --launches --block --compiled
    python benchmarks/torch_calls.py --device cuda

`unserved` is a call that torch serves while a library is in use. With `--launches`, kernels do nothing and are launched
by a driver that does nothing, so only the CPU's part of a GPU call is left. Times are this thread's CPU times, the
minimum of many short batches. The bar is 1.3 times torch's. `--block` times a step of a block of models.py, which
decodes tokens, with small matrices on the CPU: in a model, calls have fewer cache hits than in a loop; `nothing` is a
library without kernels. `--compiled` times products in code compiled by torch.compile, 16 in a graph, without its
checks of a function's arguments: a call including its memory allocation. On the CPU a graph's own elementwise work,
such as a product of two scales, is no launch.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

import deepgen.torch
from deepgen import generators
from deepgen.operators import Operator
from deepgen.run.call import calling
from deepgen.run.call.arrays import view
from deepgen.run.call.devices import GpuDevice
from deepgen.run.call.loaded import Loaded, load
from deepgen.run.measure.race import paired_ratio
from deepgen.targets import Target, gpu_driver, resolve
from deepgen.vocabulary import Kernel, LaunchPlan, Missing, Source, Step, TensorArg
from deepgen.vocabulary.measurement import KEPT, Properties
from harness import parser, run_main, save

PRODUCTS = 16  # per compiled graph
CALLS = 300  # per batch: with short ones, some are undisturbed on a busy machine
EMPTY = "int entry(void** p, const unsigned* grid, const unsigned* block) { return 0; }\n"

Make = Callable[[Operator, Target], Loaded]


class Serves:
    """Replaces a library: a kernel for everything, or for nothing."""

    def __init__(self, make: Make | None) -> None:
        self._make = make

    def choose(self, operator: Operator, target: Target, among: Any) -> Any:
        make = self._make
        if make is None:
            return SimpleNamespace(entry=None, reason="nothing is served")
        load_it = lambda: make(operator, target)  # noqa: E731
        entry = SimpleNamespace(operator=operator, properties=Properties(KEPT, KEPT, KEPT))
        return SimpleNamespace(entry=entry, seconds=None, considered=(), reason="", load=load_it)


def default(operator: Operator, target: Target) -> Loaded:
    """The default config of its family, on one thread."""
    family = generators.find(operator, target)
    return load(family.emit(operator, target, family.default(operator, target.limited_to(1))), operator, target)


@contextmanager
def launches() -> Iterator[Make]:
    """Kernels that do nothing, with a fake CUDA driver. CPU tensors are treated as GPU tensors."""
    from fake_gpu import build_driver, image  # type: ignore[import-not-found]

    def built(operator: Operator, target: Target) -> Loaded:
        bias = bool(getattr(operator, "bias", False))
        options = (p.name for p in operator.signature().tensors if not p.optional or (bias and p.name == "bias"))
        plan = LaunchPlan((Step("entry", tuple(TensorArg(name) for name in options)),))
        return load(Kernel("empty", "cuda", (Source("k.cu", EMPTY),), (), plan), operator, gpu, cubin)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if build_driver(folder) is None:
            raise Missing(
                "a C compiler", blocks="the stand-in for the driver cannot be built", remedy="install gcc or clang"
            )
        cubin, gpu = image(folder, "empty", EMPTY), resolve("cuda:sm_90a")
        fake = replace(gpu_driver.CUDA, libraries=(str(folder / "libcuda.so.1"),))
        with (
            patch.dict(gpu_driver.APIS, cuda=fake),
            patch.object(GpuDevice, "_find_torch_stream", lambda self, device: 0),
            patch.object(calling, "view", lambda array, name: replace(view(array, name), device="gpu:0")),
        ):
            yield built


def measured(rounds: int, device: str, make: Make) -> dict[str, dict[str, float]]:
    """Microseconds of each call, by what serves it."""
    functions = torch.nn.functional
    rows, width, dtype = (4, 8, torch.float32) if device == "cpu" else (16, 64, torch.bfloat16)
    x, square, bias, other_bias, out = (
        torch.randn(*shape, device=device, dtype=dtype)
        for shape in ((rows, width), (width, width), (width,), (width,), (rows, width))
    )
    weight = torch.nn.Parameter(square, requires_grad=False)
    small, turned = (torch.ones(rows, 64, device=device).to(torch.float8_e4m3fn) for _ in range(2))
    one, other = (torch.tensor(1.0, device=device) for _ in range(2))
    calls: dict[str, Callable[[], Any]] = {
        "linear": lambda: functions.linear(x, weight),
        "linear with bias": lambda: functions.linear(x, weight, bias),
        "mm": lambda: torch.mm(x, weight),
        "mm into out": lambda: torch.mm(x, weight, out=out),
        "addmm": lambda: torch.addmm(bias, x, weight),
        "softmax": lambda: torch.softmax(x, -1),
        "layer_norm": lambda: functions.layer_norm(x, (width,), bias, other_bias, 1e-5),
        "rms_norm": lambda: functions.rms_norm(x, (width,), bias, 1e-5),
        "_scaled_mm": lambda: torch._scaled_mm(small, turned.t(), one, other, out_dtype=torch.bfloat16),
        # Too small for a kernel, so these are not served either.
        "x + y": lambda: x + out,
        "-x": lambda: -x,
        "torch.mul(x, y)": lambda: torch.mul(x, out),
        "silu": lambda: functions.silu(x),
        "cat": lambda: torch.cat((x, out), -1),
    }
    ways = {
        "deepgen": deepgen.torch.use(Serves(make), race=False),  # type: ignore[arg-type]
        "unserved": deepgen.torch.use(Serves(None), race=False),  # type: ignore[arg-type]
    }
    least = {name: {way: float("inf") for way in ("torch", *ways)} for name in calls}
    with torch.no_grad():
        for _ in range(rounds):
            for name, call in calls.items():
                least[name]["torch"] = min(least[name]["torch"], _microseconds(call))
                for way, used in ways.items():
                    with used:
                        least[name][way] = min(least[name][way], _microseconds(call))
    return least


def measured_block(rounds: int, make: Make, fp8: bool) -> dict[str, dict[str, float]]:
    """Microseconds of a step by what serves it, and their ratios to torch's in interleaved rounds."""
    from model_definitions import Sizes, Tokens, block

    tiny = Sizes(64, 128, 4, 2, 16)
    step, nothing = block(tiny, Tokens(2, 1, 512), "cpu", "fp8" if fp8 else "bf16"), Serves(None)
    nothing.list = list  # type: ignore[attr-defined]
    ways = {"deepgen": Serves(make), "unserved": Serves(None), "nothing": nothing}
    used = {way: deepgen.torch.use(library, race=False) for way, library in ways.items()}  # type: ignore[arg-type]
    samples: dict[str, list[float]] = {way: [] for way in ("torch", *used)}
    with torch.no_grad():
        for _ in range(rounds):
            for way in random.sample([*samples], len(samples)):
                with used.get(way, nullcontext()):
                    samples[way].append(_microseconds(step, 5))
    results = {way: min(times) for way, times in samples.items()}
    for way in used:
        ratio = paired_ratio(samples[way], samples["torch"])
        results |= {f"{way} of torch": ratio.estimate, f"{way}, low": ratio.low, f"{way}, high": ratio.high}
    return {"a step in 8-bit floats" if fp8 else "a step in bf16": results}


def measured_compiled(rounds: int, device: str, make: Make) -> dict[str, dict[str, float]]:
    """Microseconds of a product in compiled code, by what serves it."""
    from torch._inductor import compile as compiled
    from torch.fx.experimental.proxy_tensor import make_fx

    rows, width, dtype = (4, 8, torch.float32) if device == "cpu" else (16, 64, torch.bfloat16)
    x, bias = (torch.randn(*shape, device=device, dtype=dtype) for shape in ((rows, width), (width,)))
    weights = [torch.randn(width, width, device=device, dtype=dtype) for _ in range(PRODUCTS)]
    small, *matrices = (
        torch.ones(size, 64, device=device).to(torch.float8_e4m3fn) for size in (rows, *(64,) * PRODUCTS)
    )
    scales = [torch.tensor(1.0, device=device) for _ in range(2 * PRODUCTS)]

    def scaled(a: Any, *more: Any) -> list[Any]:
        parts = (more[place : place + PRODUCTS] for place in (0, PRODUCTS, 2 * PRODUCTS))
        return [torch._scaled_mm(a, b.t(), *two, out_dtype=torch.bfloat16) for b, *two in zip(*parts, strict=True)]

    cases: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "mm": (lambda a, *all: [torch.mm(a, b.t()) for b in all], (x, *weights)),
        "addmm": (lambda c, a, *all: [torch.addmm(c, a, b.t()) for b in all], (bias, x, *weights)),
        "_scaled_mm": (scaled, (small, *matrices, *scales)),
    }
    ours: AbstractContextManager[Any] = deepgen.torch.use(Serves(make), race=False)  # type: ignore[arg-type]
    ways: dict[str, AbstractContextManager[Any]] = {"torch": nullcontext(), "deepgen": ours}
    runs: dict[tuple[str, str], Callable[[], Any]] = {}
    least: dict[str, dict[str, float]] = {}
    with torch.no_grad():
        for way, used in ways.items():
            with used:
                for name, (function, args) in cases.items():
                    run = compiled(make_fx(function)(*args), [*args])
                    runs[name, way] = lambda run=run, args=args: run(*args)  # type: ignore[misc]
        for _ in range(rounds):
            for (name, way), call in runs.items():
                with ways[way]:
                    taken = _microseconds(call, 20) / PRODUCTS
                    earlier = least.setdefault(f"compiled {name}", {})
                    earlier[way] = min(earlier.get(way, taken), taken)
    return least


def _microseconds(call: Callable[[], Any], calls: int = CALLS) -> float:
    for _ in range(min(20, calls)):
        call()
    _wait()
    started = time.thread_time()
    for _ in range(calls):
        call()
    taken = time.thread_time() - started
    _wait()
    return taken / calls * 1e6


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    words = parser(__doc__)
    words.add_argument("--rounds", type=int, default=60)
    words.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    words.add_argument("--launches", action="store_true", help="of nothing, by a stand-in for the driver")
    words.add_argument("--block", action="store_true", help="a step of a block like Llama's as well")
    words.add_argument("--compiled", action="store_true", help="products in code of torch.compile's as well")
    options = words.options()
    torch.set_num_threads(1)
    with launches() if options.launches else nullcontext(default) as make:
        results = measured(options.rounds, options.device, make)
        if options.block:
            for fp8 in (False, True):
                results |= measured_block(options.rounds, make, fp8)
        if options.compiled:
            results |= measured_compiled(options.rounds, options.device, make)
    print(f"{'call':24} {'torch':>8} {'deepgen':>8} {'ratio':>6} {'unserved':>9} {'ratio':>6}")
    for name, times in results.items():
        figures = f"{times['torch']:8.2f} {times['deepgen']:8.2f} {times['deepgen'] / times['torch']:6.2f}"
        if "unserved" in times:
            figures += f" {times['unserved']:9.2f} {times['unserved'] / times['torch']:6.2f}"
        print(f"{name:24} {figures}")
    for name, times in results.items():
        for way in ("deepgen", "unserved", "nothing"):
            if f"{way} of torch" in times:
                low, high = times[f"{way}, low"], times[f"{way}, high"]
                print(f"{name}, {way}: {times[f'{way} of torch']:.4f} of torch ({low:.4f} to {high:.4f})")
    save(options.json, results, device=options.device)


if __name__ == "__main__":
    run_main(main)
