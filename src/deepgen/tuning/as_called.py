"""Times a study's winner as users call it: loaded, through its public call, beside the baselines.

It runs in a separate process, because a library reads its thread count when it is loaded, and to isolate kernels that
someone else tuned. Calls are back to back, on the same arrays, so caches are warm; the overhead of the call in Python
is part of every sample, for our kernels and for baselines.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from deepgen import baselines
from deepgen.operators import Operator
from deepgen.operators.signature import OUTPUT
from deepgen.run.measure.gpu_device import DeviceTensor
from deepgen.run.measure.race import interleaved, paired_ratio, race
from deepgen.targets import host
from deepgen.tuning.study.study import Study
from deepgen.vocabulary import DeepgenError, Json, JsonObject

OURS = "ours"
ROUNDS = 40
_SAMPLE_SECONDS = 2e-3  # duration of the calls in one sample: far more than the clock's resolution
_MOST_CALLS = 2000
Clock = Callable[[Callable[[], object], int], float]  # returns the seconds that this many calls take


def as_called(study: Study, rounds: int = ROUNDS) -> JsonObject:
    """The seconds of a call of the winner and of each baseline, measured in a separate process."""
    command = [sys.executable, "-m", __name__, str(study.folder), "--rounds", str(rounds)]
    done = subprocess.run(
        [*command, *(["--trust"] if study.trusted else [])], capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"it ended with {done.returncode}"]
        raise DeepgenError(f"the winner of {study.folder} could not be called: {last[0]}")
    reported: JsonObject = json.loads(done.stdout)
    return reported


def main(argv: Sequence[str] | None = None) -> None:
    """The main function of that process: prints one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--trust", action="store_true")
    parsed = parser.parse_args(argv)
    try:
        print(json.dumps(_times(Study.open(parsed.folder, trust=parsed.trust), parsed.rounds)))
    except DeepgenError as error:
        raise SystemExit(str(error)) from error


def _times(study: Study, rounds: int) -> JsonObject:
    operator, target = study.operator, study.target
    on_gpu = target.runner == "gpu"
    kernel = study.best().load()
    arrays = _on_device(operator) if on_gpu else operator.inputs(0)
    results = kernel(**arrays)  # new arrays, which later calls reuse as outputs
    written = [tensor.name for tensor in operator.tensors() if tensor.name not in arrays]
    outputs = dict(zip(written, results if isinstance(results, tuple) else (results,), strict=True))
    inputs = tuple(arrays.values())  # by position, the fastest way to call
    calls: dict[str, Callable[[], object]] = {OURS: lambda: kernel(*inputs, out=results)}
    tensors = {**arrays, **outputs}
    shared = _shared(operator, tensors) if on_gpu else tensors
    threads = study.task().policy.threads or host.usable_cores()
    lost: list[Json] = []
    for name in baselines.raced(baselines.find(operator, target, study.task().own_baselines), operator):
        try:
            call = baselines.by_name(name, study.task().own_baselines).prepare(operator, shared, threads)
            title = ", ".join([name, *filter(None, [getattr(call, "form", "")])])
            calls[title] = call.call if isinstance(call, (baselines.NewResult, baselines.PackedAhead)) else call
        except DeepgenError as error:
            lost.append({"name": name, "verdict": "refused", "detail": str(error), "error": None})
    clock = _device_clock if on_gpu else _host_clock
    samples = _rounds(calls, clock, rounds)
    return {
        "seconds": median(samples[OURS]),
        "rounds": rounds,
        "baselines": [_row(name, samples) for name in calls if name != OURS],
        "baselines_lost": lost,
    }


def _rounds(calls: Mapping[str, Callable[[], object]], clock: Clock, rounds: int) -> dict[str, list[float]]:
    """Samples of all contenders, in a new random order each round."""
    counts = {}
    for name, call in calls.items():
        call()
        counts[name] = min(_MOST_CALLS, 1 + int(_SAMPLE_SECONDS / clock(call, 1)))
    timers = {name: partial(_sample, clock, call, counts[name]) for name, call in calls.items()}
    return race(calls, interleaved(timers, 0), rounds).samples


def _sample(clock: Clock, call: Callable[[], object], count: int) -> float:
    return clock(call, count) / count


def _row(name: str, samples: Mapping[str, Sequence[float]]) -> JsonObject:
    ratio = paired_ratio(samples[name], samples[OURS])
    seconds = median(samples[name])
    return {"name": name, "seconds": seconds, "ratio": ratio.estimate, "interval": [ratio.low, ratio.high]}


def _host_clock(call: Callable[[], object], count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - started


def _device_clock(call: Callable[[], object], count: int) -> float:
    """Timed with events around the calls, on the stream that torch uses too."""
    import torch

    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    before.record()
    for _ in range(count):
        call()
    after.record()
    torch.cuda.synchronize()
    return float(before.elapsed_time(after)) * 1e-3


def _on_device(operator: Operator) -> dict[str, Any]:
    """The inputs as torch tensors, in the dtypes that users have."""
    import torch

    kinds = {"bf16": torch.bfloat16, "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}
    words = {1: np.int8, 2: np.int16}
    out = {}
    drawn = operator.inputs(0)
    for tensor in operator.tensors():
        if tensor.role == OUTPUT:
            continue
        kind, array = kinds.get(tensor.dtype.name), drawn[tensor.name]
        plain = array if kind is None else array.view(words[tensor.dtype.bytes])
        moved = torch.from_numpy(plain).cuda()
        out[tensor.name] = moved if kind is None else moved.view(kind)
    return out


def _shared(operator: Operator, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The same memory as baselines take it."""
    return {t.name: DeviceTensor(tensors[t.name].data_ptr(), t.shape, t.dtype) for t in operator.tensors()}


if __name__ == "__main__":
    main()
