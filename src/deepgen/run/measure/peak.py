"""Measures this machine's roofline: peak arithmetic in registers, and memory bandwidth."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, dataclass, fields, replace
from importlib import resources
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Barrier
from typing import Any

import numpy as np

from deepgen.operators import Array, Operator
from deepgen.run.measure.base import arithmetic
from deepgen.targets import Target, device_for
from deepgen.toolchains import Cache, build_once, default_cache_folder
from deepgen.vocabulary import BadInput, DeepgenError, Kernel, LaunchPlan, Source, dtype
from deepgen.vocabulary.dtypes import narrow

_C_TYPES = {"f32": "float", "f64": "double"}
_WIDENED = {"bf16": "f32", "f16": "f32", "tf32": "f32"}  # computed in f32 without units for it
_DOTS = ("bf16", "i8")  # multiplied as dot products, with tiles if available
_ROUNDS = 40  # the best one counts: a peak is undisturbed
_SECONDS = 2e-3  # of one round: longer than threads take to start, shorter than a scheduler's time slice
_READ_BYTES = 32 << 20  # per thread
_STREAMS = (4, 8, 12)  # streams read at once per thread: the best number differs between machines
_AHEAD = 2048  # prefetch distance in bytes
_NUMBERS = 4096  # bytes of multiplied numbers


@dataclass(frozen=True)
class MeasuredBounds:
    """The best rates of the machine on this many threads. Random data draw more power than zeros and may slow it."""

    gflops_zeros: float
    gflops_random: float
    gbytes_per_second: float

    @property
    def gflops(self) -> float:
        """The rate of multiply-adds in registers."""
        return max(self.gflops_zeros, self.gflops_random)


class NotMeasured(DeepgenError):
    """The peak is not cached, and must not be measured now."""


def peak_gflops(operator: Operator, target: Target, **how: Any) -> float | None:
    """The machine's peak for this operator's arithmetic on all cores; None if it cannot be measured. `how`: as in
    `cpu_bounds`."""
    bounds = operator_bounds(operator, target, **how)
    return bounds.gflops if bounds else None


def bandwidth(operator: Operator, target: Target, **how: Any) -> float | None:
    """The read bandwidth of all cores in GB/s, measured together with the peak."""
    bounds = operator_bounds(operator, target, **how)
    return bounds.gbytes_per_second if bounds else None


def operator_bounds(operator: Operator, target: Target, *, again: bool = False, **how: Any) -> MeasuredBounds | None:
    if not target.host_cores:
        return None
    name = bounding(arithmetic(operator), target, **how)
    return None if name is None else cpu_bounds(target, name, target.host_cores, again=again, **how)


def bounding(name: str, target: Target, **how: Any) -> str | None:
    """The dtype whose peak bounds arithmetic in a dtype: its own if the target has units for it.

    bf16 can be widened to f32, and some CPUs multiply f32 faster than vectors of bf16.
    """
    dots = {"u8": "i8"}.get(name, name)
    if dots not in _DOTS or _dot_flags(dots, target) is None:
        own_f16 = name == "f16" and (target.has("avx512_fp16") or target.has("asimdhp"))
        widened = name if own_f16 else _WIDENED.get(name, name)
        return widened if widened in _C_TYPES else None
    if dots == "i8" or target.has("amx_tile", "amx_bf16"):
        return dots
    return max(("bf16", "f32"), key=lambda name: cpu_bounds(target, name, 1, **how).gflops)


def cpu_bounds(
    target: Target,
    dtype: str,
    threads: int,
    *,
    again: bool = False,
    cache: Cache | None = None,
    toolchains: Mapping[str, str] | None = None,
    quiet: Callable[[], AbstractContextManager[object]] | None = nullcontext,
) -> MeasuredBounds:
    """The bounds, measured once per machine, dtype and number of threads, and cached.

    `again` measures anyway and keeps the better value: disturbances can only make the bounds look lower. `quiet` is
    held while measuring; with None, bounds that are not cached raise NotMeasured.
    """
    cache = cache or Cache(default_cache_folder())
    # Cores that the process may not use make no difference.
    alike = replace(target.limited_to(threads), name=target.kind)
    kept = cache.folder / "peak" / f"{alike.fingerprint()}-{dtype}-{threads}.json"
    recorded = _read(kept)
    if recorded is not None and not again:
        return recorded
    if quiet is None:
        raise NotMeasured("the peak was not measured yet")
    kernel = _kernel(dtype, target)
    device_for(target)  # raises if it is another machine
    artifact = build_once(kernel, target, paths=toolchains, cache=cache)
    with quiet():
        bounds = _measure(ctypes.CDLL(artifact.binary), dtype, threads)
    if recorded is not None:
        bounds = MeasuredBounds(*(max(pair) for pair in zip(astuple(recorded), astuple(bounds), strict=True)))
    _write(kept, bounds)
    return bounds


def _kernel(name: str, target: Target) -> Kernel:
    flags = _dot_flags(name, target) if name in _DOTS else _flags(name)
    if flags is None:
        allowed = "one of " + ", ".join((*_C_TYPES, *_DOTS)) + ", if the CPU has instructions for it"
        raise BadInput(f"the peak of {dtype(name)} cannot be measured", allowed=allowed)
    names = ("x86_dot_peak.c", "cpu_peak.c") if name in _DOTS else ("cpu_peak.c",)
    folder = resources.files("deepgen.run.measure")
    sources = tuple(Source(file, folder.joinpath(file).read_text()) for file in names)
    return Kernel("cpu_peak", "c", sources, ("-std=gnu11", *flags), LaunchPlan(()))


def _flags(name: str) -> tuple[str, ...] | None:
    return (f"-DREAL={_C_TYPES[name]}",) if name in _C_TYPES else None


def _dot_flags(name: str, target: Target) -> tuple[str, ...] | None:
    """None if the target has no dot products for this dtype."""
    tiles = target.has("amx_tile", "amx_bf16" if name == "bf16" else "amx_int8")
    vectors = target.has("avx512_bf16") if name == "bf16" else target.has("avx512_vnni") or target.has("avx_vnni")
    return (f"-DTILES={int(tiles)}", f"-DBF16={int(name == 'bf16')}") if tiles or vectors else None


def _rates(library: Any, numbers: Array, threads: int) -> list[float]:
    """For each round, the flops per second that all threads together reach in registers."""
    compute = library.deepgen_peak_compute
    compute.restype, compute.argtypes = ctypes.c_double, (ctypes.c_int64, ctypes.c_void_p)
    library.deepgen_peak_flops.restype = ctypes.c_int64
    flops, few, at = library.deepgen_peak_flops(), 1000, numbers.ctypes.data
    iterations = int(few * _SECONDS / min(compute(few, at) for _ in range(5)))
    return _together(threads, lambda thread: flops * iterations / compute(iterations, at), _ROUNDS)


def _measure(library: Any, name: str, threads: int) -> MeasuredBounds:
    read = library.deepgen_peak_read
    read.restype, read.argtypes = ctypes.c_double, (ctypes.c_void_p, *[ctypes.c_int64] * 3)
    memory = np.ones(threads * _READ_BYTES + 64, np.uint8)
    start = memory.ctypes.data + -memory.ctypes.data % 64

    def reading(streams: int) -> float:
        def one(thread: int) -> float:
            return _READ_BYTES / float(read(start + thread * _READ_BYTES, _READ_BYTES, streams, _AHEAD))

        return max(_together(threads, one, _ROUNDS // 8))

    numbers = _random(name)
    zeros, random = (max(_rates(library, n, threads)) * 1e-9 for n in (np.zeros_like(numbers), numbers))
    return MeasuredBounds(zeros, random, max(map(reading, _STREAMS)) * 1e-9)


def _random(name: str) -> Array:
    """Random numbers like an operator's inputs, enough to fill four tiles."""
    rng, of = np.random.default_rng(0), dtype(name)
    count = _NUMBERS // of.bytes
    return narrow(rng.integers(-128, 128, count) if of.integer else rng.standard_normal(count), of)


def _together(threads: int, rate: Callable[[int], float], rounds: int) -> list[float]:
    """For each round, the sum of the rates of all threads running at once. Calls into C release the GIL."""
    ready = Barrier(threads)

    def one(thread: int) -> list[float]:
        rates = []
        for _ in range(rounds):
            ready.wait()
            rates.append(rate(thread))
        return rates

    with ThreadPoolExecutor(threads) as pool:
        return [sum(rates) for rates in zip(*pool.map(one, range(threads)), strict=True)]


def _read(path: Path) -> MeasuredBounds | None:
    try:
        data = json.loads(path.read_text())
        return MeasuredBounds(*(float(data[field.name]) for field in fields(MeasuredBounds)))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, bounds: MeasuredBounds) -> None:
    """Write atomically; if the cache cannot be written, the next run only has to measure again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(vars(bounds), file)
        os.replace(file.name, path)  # noqa: PTH105 (a plain name, not a path)
    except OSError:
        return
