"""The whole way from source to verdict on an NVIDIA GPU, in a minute or two: detect, build, run, verify, time, compare,
fail in every known way, and call a kernel from torch. Prints a table; writes everything as JSON.

    PYTHONPATH=src python benchmarks/h200/smoke.py --out smoke.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import smoke_kernels as kernels

from deepgen import targets
from deepgen.generators import find
from deepgen.operators import gemm
from deepgen.run.call.devices import GpuDevice
from deepgen.run.call.loaded import Loaded, load
from deepgen.run.measure.base import Contender, Policy, Task
from deepgen.targets import Cuda
from deepgen.toolchains import BuildError, BuildPool, Cache, toolchains_for
from deepgen.tuning.engines import LocalEngine
from deepgen.tuning.engines.local import LocalSession
from deepgen.vocabulary import BadInput, Kernel, Measurement, WorkspaceArg

ROWS: list[tuple[str, str, str]] = []
RECORD: dict[str, Any] = {}


def say(part: str, what: str, result: str) -> None:
    ROWS.append((part, what, result))
    print(f"{part:10} {what:28} {result}", flush=True)


def attempt(name: str, work: Callable[[], None]) -> None:
    """One part; whatever it does, the others go on."""
    started = time.monotonic()
    try:
        work()
    except Exception as error:
        traceback.print_exc()
        say(name, "FAILED", f"{type(error).__name__}: {str(error)[:200]}")
    RECORD.setdefault("seconds", {})[name] = round(time.monotonic() - started, 2)


def session(target: Cuda, cache: Path, size: int = 1024, **policy: Any) -> LocalSession:
    operator = gemm(size, size, size, layout="nt")
    return LocalEngine(cache=cache).open(Task(operator, target, policy=Policy(**policy)))


def tried(work: LocalSession, kernel: Kernel) -> Measurement:
    try:
        artifact = work.build(kernel)
    except BuildError as error:
        return Measurement(error.verdict, error.detail)
    return work._runner.measure(kernel, artifact)


def told(measured: Measurement, flops: int) -> str:
    if not measured.seconds:
        return f"{measured.verdict}: {measured.detail[:110]}"
    rate = flops / measured.seconds * 1e-12
    return f"{measured.verdict}  {measured.seconds * 1e6:9.2f} us  {rate:6.2f} TFLOP/s  error {measured.error or 0:.3f}"


def right_ones(target: Cuda, cache: Path) -> None:
    with session(target, cache) as work:
        flops = work.task.operator.flops()
        for kernel in (kernels.naive(), kernels.tiled(), kernels.split(), kernels.cluster(), kernels.copy_engine()):
            started = time.monotonic()
            measured = tried(work, kernel)
            RECORD.setdefault("right", {})[kernel.name] = measured.to_json()
            say("right", kernel.name, f"{told(measured, flops)}  (took {time.monotonic() - started:.2f} s)")
        say("right", "empty launch", f"{1e6 * float(str(measured.conditions.get('call_seconds', 0))):.2f} us")
        say("right", "conditions", json.dumps(dict(measured.conditions))[:160])
        odd = work.verify(kernels.tiled(), 7, "special")
        say("right", "other seed, NaN and Inf", str(odd.verdict) + odd.detail[:100])


def faults(target: Cuda, cache: Path) -> None:
    with session(target, cache, size=512, timeout_seconds=2.0) as work:
        say("faults", "good kernel first", str(tried(work, kernels.naive()).verdict))
        for name, kernel, expected in kernels.FAULTS:
            started = time.monotonic()
            measured = tried(work, kernel)
            RECORD.setdefault("faults", {})[name] = measured.to_json()
            ok = "ok  " if str(measured.verdict) == expected else "BAD "
            say("faults", name, f"{ok}{measured.verdict}: {measured.detail[:100]} ({time.monotonic() - started:.1f} s)")
        say("faults", "good kernel afterwards", str(tried(work, kernels.naive()).verdict))


def comparison(target: Cuda, cache: Path) -> None:
    for size in (256, 1024, 4096):
        with session(target, cache, size=size) as work:
            names = work.baselines()
            entries = [Contender("tiled", kernels.tiled()), *(Contender(name) for name in names)]
            started = time.monotonic()
            measured = work.compare(entries, 20, 1)
            flops = work.task.operator.flops()
            for entry, result in zip(entries, measured, strict=True):
                RECORD.setdefault("compare", {}).setdefault(str(size), {})[entry.name] = result.to_json()
                say("compare", f"{size} {entry.name}", told(result, flops))
            say("compare", f"{size} took", f"{time.monotonic() - started:.1f} s")


def batched(target: Cuda, cache: Path) -> None:
    """Baselines alone, on a batch and on sixteen bits: torch and cuBLASLt must agree with the reference."""
    for operator in (
        gemm(512, 384, 256, layout="nt", batch=8),
        gemm(512, 384, 256, layout="tn"),
        gemm(512, 384, 256, layout="nn", dtype="f16"),
        gemm(512, 384, 256, layout="nt", dtype="bf16"),
        gemm(512, 384, 256, layout="nt", dtype="f64"),
        replace(gemm(512, 384, 256, layout="nt"), alpha=0.5, beta=2.0),
    ):
        with LocalEngine(cache=cache).open(Task(operator, target)) as work:
            names = work.baselines()
            for name, result in zip(names, work.compare([Contender(n) for n in names], 5, 1), strict=True):
                say("baselines", f"{operator.describe()[5:27]} {name}", told(result, operator.flops()))


def builds(target: Cuda, cache: Path) -> None:
    toolchains = toolchains_for(target)
    toolchain = toolchains("cuda")
    count = 64
    with BuildPool(toolchains, target, Cache(cache / str(time.time_ns())), jobs=4) as pool:
        started = time.monotonic()
        futures = [pool.submit(kernels.tiled(1 + i)) for i in range(count)]
        facts = [future.result().facts for future in futures]
        taken = time.monotonic() - started
    say(
        "builds",
        toolchain.name + " " + toolchain.version,
        f"{count / taken:.1f} kernels a second, 4 jobs; {facts[0]}"[:150],
    )


def loaded(target: Cuda, cache: Path) -> None:
    import torch

    with session(target, cache) as work:
        binaries = {k.name: Path(work.build(k).binary) for k in (kernels.tiled(), kernels.split())}
    operator = gemm(1024, 1024, 1024, layout="nt")
    for kernel in (kernels.tiled(), kernels.split()):
        call = load(kernel, operator, target, binaries[kernel.name])
        for m, n, k in ((1024, 1024, 1024), (37, 129, 65), (1, 4096, 512)):
            a, b = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
            _agree(f"{kernel.name} {m}x{n}x{k}", call(a, b), a, b)
        wide = torch.randn(64, 256, device="cuda")[:, :128]
        b = torch.randn(96, 128, device="cuda")
        _agree(f"{kernel.name} strided", call(wide, b, out=torch.empty(64, 96, device="cuda")), wide, b)
        _graph(call, kernel.name)
    call = load(kernels.tiled(), operator, target, binaries["tiled"])
    _interfaces(call)
    _overhead(call)


def _agree(what: str, got: Any, a: Any, b: Any) -> None:
    want = a.double() @ b.double().T
    error = ((got.double() - want).norm() / want.norm()).item()
    say("loaded", what, f"{'ok' if error < 1e-5 else 'BAD'}  relative error {error:.1e}")


def _graph(call: Loaded, name: str) -> None:
    import torch

    a, b = torch.randn(256, 128, device="cuda"), torch.randn(192, 128, device="cuda")
    out = torch.empty(256, 192, device="cuda")
    side: Any = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call(a, b, out=out)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        call(a, b, out=out)
    out.fill_(float("nan"))
    a.copy_(torch.randn_like(a))
    graph.replay()
    torch.cuda.synchronize()
    _agree(f"{name} in a graph", out, a, b)


def _interfaces(call: Loaded) -> None:
    import torch

    class OnlyInterface:
        def __init__(self, tensor: Any) -> None:
            self.__cuda_array_interface__ = tensor.__cuda_array_interface__

    class OnlyDlpack:
        def __init__(self, tensor: Any) -> None:
            self._tensor = tensor

        def __dlpack__(self, stream: Any = None) -> Any:
            return self._tensor.__dlpack__()

    a, b = torch.randn(128, 64, device="cuda"), torch.randn(96, 64, device="cuda")
    for kind in (OnlyInterface, OnlyDlpack):
        out = torch.empty(128, 96, device="cuda")
        call(kind(a), kind(b), out=kind(out))
        torch.cuda.synchronize()
        _agree(kind.__name__, out, a, b)


_SMALL = gemm(32, 32, 32, layout="nt").scalars()


def _none(arg: WorkspaceArg, size: int) -> int:
    raise AssertionError(f"the tiled kernel has no workspace, not even {arg.name} of {size} bytes")


def _overhead(call: Loaded) -> None:
    import torch

    a, b = torch.randn(32, 32, device="cuda"), torch.randn(32, 32, device="cuda")
    out = torch.empty(32, 32, device="cuda")
    call(a, b, out=out)
    device = call._device
    assert isinstance(device, GpuDevice)
    bound = device._kernel.bind({n: t.data_ptr() for n, t in zip("ABC", (a, b, out), strict=True)}, _SMALL, _none)
    launch = bound.run

    def each(work: Callable[[], Any]) -> float:
        taken = []
        for _ in range(30):
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(200):
                work()
            taken.append((time.perf_counter() - started) / 200)
        torch.cuda.synchronize()
        return median(taken) * 1e6

    found = {
        "deepgen call": each(lambda: call(a, b, out=out)),
        "bare driver launch": each(launch.fire),
        "torch.matmul(out=)": each(lambda: torch.matmul(a, b, out=out)),
    }
    RECORD["overhead_us"] = found
    say("loaded", "host time a call", "  ".join(f"{name} {us:.2f} us" for name, us in found.items()))


def tuned(target: Cuda, cache: Path) -> None:
    """The generated family, when there is one for GPUs."""
    import tempfile

    import deepgen

    operator = gemm(1024, 1024, 1024, layout="nt")
    try:
        find(operator, target)
    except BadInput as error:
        say("tune", "skipped", str(error)[:120])
        return
    with tempfile.TemporaryDirectory() as folder:
        study = deepgen.tune(operator, target=target, trials=24, out=folder, engine=LocalEngine(cache=cache))
        RECORD["tune"] = study.summary()
        say("tune", "24 trials of 1024", f"best {study.best().seconds * 1e6:.2f} us; {RECORD['tune']['trials']}")
        for row in RECORD["tune"]["baselines"]:
            say("tune", f"against {row['name']}", f"{row['seconds'] * 1e6:.2f} us, ratio {row['ratio']:.3f}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("smoke.json"))
    parser.add_argument("--cache", type=Path, default=Path("build/smoke-cache"))
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    target = targets.resolve(None)
    say("target", target.name, target.describe())
    if not isinstance(target, Cuda):
        print("There is no CUDA GPU here.")
        return 1
    RECORD["target"] = target.to_json()
    parts = {
        "right": right_ones,
        "faults": faults,
        "compare": comparison,
        "baselines": batched,
        "builds": builds,
        "loaded": loaded,
        "tune": tuned,
    }
    for name, part in parts.items():
        if not options.only or name in options.only:
            attempt(name, lambda part=part: part(target, options.cache))  # type: ignore[misc]
    options.out.write_text(json.dumps({**RECORD, "rows": ROWS}, indent=1))
    bad = [row for row in ROWS if "BAD" in row[2] or "FAILED" in row[1]]
    print(f"\n{len(ROWS)} rows, {len(bad)} bad; seconds: {RECORD['seconds']}")
    for row in bad:
        print("  BAD:", *row)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
