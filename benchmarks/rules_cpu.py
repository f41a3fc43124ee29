"""Kernels by rules on this machine's processor beside torch, and beside our families for one operator.

    python benchmarks/rules_cpu.py                               all cases in f32, tuned with 24 trials each
    python benchmarks/rules_cpu.py --trials 0                    the default configs, without a search
    python benchmarks/rules_cpu.py --dtype bf16 --only conv      some groups or cases, in another format
    python benchmarks/rules_cpu.py --threads 1                   one thread, timed by the processor's time
    python benchmarks/rules_cpu.py --summary                     what the results say, by group

A case is timed in rounds, interleaved and in random order, with as many threads on both sides: with warm caches, and
with cold ones (a block larger than the last cache is written before every call). One thread is timed by the processor's
time, which other programs disturb less. A ratio is torch's time over ours in the same round, so that above 1 we are
faster; a case's ratio is the median. `expert` is the same for our own family's
default: its time over that of the rules. Weights are given to torch in the order that it likes best, ahead of time;
ours are packed in every call. Every case is written as soon as it is run, in place of an earlier result of it.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping
from math import exp, log
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from common import by_lines, conditions, run_main
from deepgen import generators, targets
from deepgen.operators import Operator
from deepgen.operators.compare import compare
from deepgen.run.call.loaded import load
from deepgen.run.measure import Policy
from deepgen.targets import Target
from deepgen.tuning import Request, tune
from deepgen.vocabulary import DeepgenError
from rules_cases import Case, cases, quantised_call

RESULTS = Path(__file__).parent / "results" / "rules_cpu.json"
ROUNDS, FLUSHED = 15, 64 << 20
FORMATS = {"f32": "float32", "f64": "float64", "bf16": "bfloat16", "f16": "float16", "i8": "int8"}


def main() -> None:
    asked = _arguments()
    found = _read(asked.output)
    if not asked.summary:
        import torch

        torch.set_num_threads(asked.threads)
        torch.set_grad_enabled(False)
        chosen = [case for case in cases() if any(word in f"{case.group}: {case.name}" for word in asked.only or [""])]
        for case in chosen:
            row = {"case": case.name, "group": case.group, "dtype": asked.dtype, "threads": asked.threads}
            row |= _run(torch, case, asked)
            same = ("case", "dtype", "threads")
            found = [old for old in found if any(old[key] != row[key] for key in same)] + [row]
            asked.output.write_text(by_lines({"conditions": conditions(), "results": found}))
            print(_line(row), flush=True)
    _summary(found)


def _run(torch: Any, case: Case, asked: argparse.Namespace) -> dict[str, Any]:
    operator = case.made(asked.dtype)
    target = targets.resolve("cpu").limited_to(asked.threads)
    config = _config(operator, target, asked)
    inputs = operator.inputs(0)
    calls = {"rules": _bound(operator, target, "rules", config, inputs)}
    tensors = {name: as_torch(torch, array, asked.dtype) for name, array in inputs.items()}
    if asked.dtype != "i8":
        calls["torch"] = case.torch(torch, tensors, case.words)
    elif (quantised := quantised_call(torch, case, tensors)) is not None:
        calls["torch"] = quantised
    if case.expert is not None and generators.by_name(case.expert).refuses(operator, target) is None:
        default = generators.by_name(case.expert).default(operator, target)
        calls["expert"] = _bound(operator, target, case.expert, default, inputs)
    row: dict[str, Any] = {"config": dict(config), "trials": asked.trials}
    for state in ("warm", "cold"):
        times = interleaved(calls, time.process_time if asked.threads == 1 else time.perf_counter, cold=state == "cold")
        row[f"us_{state}"] = {name: round(statistics.median(of) * 1e6, 1) for name, of in times.items()}
        for other in list(calls)[1:]:
            ratios = [b / a for a, b in zip(times["rules"], times[other], strict=True)]
            row[f"{other}_{state}"] = round(statistics.median(ratios), 3)
    row["gflops"] = round(operator.flops() / row["us_warm"]["rules"] / 1e3, 1)
    return row


def _config(operator: Operator, target: Target, asked: argparse.Namespace) -> Mapping[str, Any]:
    family = generators.by_name("rules")
    if not asked.trials:
        return family.default(operator, target)
    with TemporaryDirectory() as folder:
        request = Request(
            operator,
            target,
            trials=asked.trials,
            policy=Policy(threads=asked.threads),
            baselines=False,
            generator=family,
            out=Path(folder),
        )
        return tune(request).best().trial.config


def _bound(
    operator: Operator, target: Target, family: str, config: Mapping[str, Any], inputs: Mapping[str, Any]
) -> Callable[[], Any]:
    """A call of the kernel on preallocated arrays, after its result was compared with the reference."""
    kernel = load(generators.by_name(family).emit(operator, target, config), operator, target)
    results = [t for t in operator.tensors() if t.role == "output"]
    out = {t.name: np.zeros(t.shape, t.dtype.numpy()) for t in results}
    given = [inputs[t.name] for t in operator.tensors() if t.name in inputs]

    def call() -> None:
        kernel(*given, out=out[results[0].name] if len(results) == 1 else out)

    call()
    want = operator.reference(inputs)
    for t in results:
        if not compare(out[t.name], want[t.name], t.dtype, operator.tolerance(t.name)).ok:
            raise DeepgenError(f"{family}: {operator.describe()} is wrong with {dict(config)}")
    return call


def as_torch(torch: Any, array: Any, dtype: str) -> Any:
    shared = torch.from_numpy(array.view(np.int16) if dtype == "bf16" else array)
    return shared.view(getattr(torch, FORMATS[dtype])) if dtype == "bf16" else shared


def interleaved(
    calls: Mapping[str, Callable[[], Any]],
    clock: Callable[[], float],
    *,
    cold: bool,
    rounds: int = ROUNDS,
    flushed: int = FLUSHED,
) -> dict[str, list[float]]:
    """Seconds of each call, round by round in random order; `cold`: after so many bytes were written."""
    block, order, mixed = np.zeros(flushed if cold else 0, np.uint8), list(calls), random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        mixed.shuffle(order)
        for name in order:
            if cold:
                block += np.uint8(turn)
            else:
                calls[name]()
            start = clock()
            calls[name]()
            times[name].append(clock() - start)
    return times


def _line(row: Mapping[str, Any]) -> str:
    beside = "  ".join(f"{key} {row[key]:.2f}" for key in row if key.startswith(("torch_", "expert_")))
    return (
        f"{row['group']:16s} {row['case']:60.60s} {row['us_warm']['rules']:9.1f} us {row['gflops']:6.1f} GF/s  {beside}"
    )


def _summary(found: list[dict[str, Any]]) -> None:
    for kind in dict.fromkeys((row["dtype"], row["threads"], row["group"]) for row in found):
        rows = [row for row in found if (row["dtype"], row["threads"], row["group"]) == kind]
        keys = [f"{other}_{state}" for other in ("torch", "expert") for state in ("warm", "cold")]
        means = {key: geometric_mean([row[key] for row in rows if key in row]) for key in keys}
        told = "  ".join(f"{key} {value:.2f}" for key, value in means.items() if value)
        print(f"{kind[0]:5s} {kind[1]} threads  {kind[2]:16s} {len(rows):2d} cases  {told}")


def geometric_mean(ratios: list[float]) -> float | None:
    """None of none."""
    return exp(sum(map(log, ratios)) / len(ratios)) if ratios else None


def _read(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["results"] if path.exists() else []
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=list(FORMATS), default="f32")
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", action="append", help="a part of a group's or a case's name")
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    run_main(main)
