"""Kernels by rules on an x86 processor: many configs verified, then the best of a short search beside torch.

    PYTHONPATH=src python benchmarks/rules_x86_check.py                       f32, bf16 and i8, two threads, 300 s
    PYTHONPATH=src python benchmarks/rules_x86_check.py --dtype i8 --only gemm --seconds 60
    PYTHONPATH=src python benchmarks/rules_x86_check.py --only gemm --each 6 --known benchmarks/results/rules_x86.json
    PYTHONPATH=src python benchmarks/rules_x86_check.py --summary             what the results say, by group

For each case the default config and up to --trials others (half of them near the default) are built, run and compared
with the reference; a wrong one, or one that does not build, is named, and the exit status is then 1. The fastest is
timed beside torch and the best family that is made for the operator, interleaved, with warm and with cold caches. With
--known, the best config of an earlier run is among them. `tried` are the microseconds of each config, at best.
Ratios are as in rules_cpu.py: above 1 the rules are faster. `packed` is torch, and the rules, with weights that both
packed ahead of time; `torch` and `rules` have not. `floor` is how long it takes to read the operator's tensors: where
its ratio is near 1, nothing faster can be had. Every case gets an equal part of the time that is left; cases for
which none is left are named.

Four cores measure: two for the threads at work, and two on which threads of the other side may still wait busily.
All other cores build, ahead of what is measured. Where the system tells which logical processors share a core, those
that measure are on cores of their own, as far as there are as many.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from common import by_lines, conditions, run_main
from deepgen import generators, targets
from deepgen.generators import Generator
from deepgen.operators import OPERATORS
from deepgen.operators.compare import compare
from deepgen.run.call.native import Bound, NativeKernel
from deepgen.targets import Cpu
from deepgen.toolchains import build_once
from deepgen.vocabulary import DeepgenError, Kernel
from read_floor import reading
from rules_cases import Case, cases, quantised_call
from rules_cpu import as_torch, geometric_mean, interleaved

RESULTS = Path(__file__).parent / "results" / "rules_x86.json"
DTYPES = ("i8", "bf16", "f32")
WHOLE_NUMBERS = ("conv", "transposed", "depthwise", "gemm", "bmm", "gemv")  # groups that there are in bytes
FIRST = ("gemm", "conv nhwc", "gemv", "transposed")  # groups that are run before the others
READING = ("gemv", "reductions")  # groups that do little else than read
MEASURING = 4  # cores
SEARCHED = 0.6  # of the time of a case
AGAIN = 4  # configs that are timed once more, in turns
ROUNDS = 15
Config: TypeAlias = "Mapping[str, Any]"
Run: TypeAlias = "Callable[[], Any]"
Built: TypeAlias = "tuple[Config, Kernel, str]"  # with the path of its library


def main() -> int:
    asked = _arguments()
    if asked.summary:
        _summary(json.loads(asked.output.read_text())["results"])
        return 0
    cores = _one_of_each_core(sorted(os.sched_getaffinity(0)))
    building = cores[MEASURING:] or cores
    with ProcessPoolExecutor(
        len(building), multiprocessing.get_context("spawn"), os.sched_setaffinity, (0, building)
    ) as pool:
        os.sched_setaffinity(0, cores[:MEASURING])
        status = _all(asked, pool)
        pool.shutdown(wait=False, cancel_futures=True)
    return status


def _one_of_each_core(processors: Sequence[int]) -> list[int]:
    """Logical processors, one of each core before the others."""
    seen: dict[str, int] = {}
    ranked = []
    for n in processors:
        told = Path(f"/sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list")
        core = told.read_text().strip() if told.exists() else str(n)
        seen[core] = seen.get(core, 0) + 1
        ranked.append((seen[core], n))
    return [n for _, n in sorted(ranked)]


def _all(asked: argparse.Namespace, pool: ProcessPoolExecutor) -> int:
    chosen = _chosen(asked)
    builds = [_Builds(pool, case, dtype, asked) for case, dtype in chosen]
    import torch

    torch.set_num_threads(asked.threads)
    torch.set_grad_enabled(False)
    end, rows = time.monotonic() + asked.seconds, []
    for place, (case, dtype) in enumerate(chosen):
        left = end - time.monotonic()
        if left < 2:
            print(f"no time left for {len(chosen) - place} cases: {', '.join(c.name for c, _ in chosen[place:])}")
            break
        row = {"case": case.name, "group": case.group, "dtype": dtype, "threads": asked.threads}
        try:
            row |= _Check(torch, case, dtype, asked.threads).run(builds[place], left / (len(chosen) - place))
        except (DeepgenError, RuntimeError, ValueError) as error:  # one case must not end the others
            row |= {"verified": 0, "failed": [f"{type(error).__name__}: {str(error)[:300]}"]}
        rows.append(row)
        told = {**conditions(), "processors": sorted(os.sched_getaffinity(0))}
        asked.output.write_text(by_lines({"conditions": told, "results": rows}))
        print(_line(row), flush=True)
    _summary(rows)
    return int(any(row["failed"] for row in rows))


def _chosen(asked: argparse.Namespace) -> list[tuple[Case, str]]:
    """A few cases of every group, in every format in which there are any: those of one group after each other."""
    found = []
    taken: dict[str, int] = {}
    for case in sorted(cases(), key=lambda case: not case.group.startswith(FIRST)):
        taken[case.group] = taken.get(case.group, 0) + 1
        named = any(word in f"{case.group}: {case.name}" for word in asked.only or [""])
        for dtype in asked.dtype or DTYPES:
            there = dtype != "i8" or case.group.startswith(WHOLE_NUMBERS)
            if there and named and taken[case.group] <= asked.each:
                found.append((case, dtype))
    return found


class _Builds:
    """The kernels of a case, built by other processes."""

    def __init__(self, pool: ProcessPoolExecutor, case: Case, dtype: str, asked: argparse.Namespace) -> None:
        self._pool, self._of = pool, (case.operator, case.words, dtype, asked.threads)
        self._made: list[Future[Built]] = []
        self._planned = pool.submit(_configs, *self._of, asked.trials, _known(asked.known, case, dtype))
        self._planned.add_done_callback(self._start)

    def _start(self, planned: Future[list[Config]]) -> None:
        if not planned.cancelled() and planned.exception() is None:
            self._made = [self._pool.submit(_built, *self._of, config) for config in planned.result()]

    def ready(self, end: float) -> Iterator[Future[Built]]:
        """Those that are built by then, the default for certain."""
        self._planned.result()
        while not self._made:
            time.sleep(0.01)
        for place, future in enumerate(self._made):
            wait_for([future], timeout=None if place == 0 else max(0.0, end - time.monotonic()))
            if future.done():
                yield future
        for future in self._made:
            future.cancel()


def _processor(threads: int) -> Cpu:
    cpu = targets.resolve("cpu").limited_to(threads)
    assert isinstance(cpu, Cpu)
    return cpu


def _known(paths: Sequence[Path], case: Case, dtype: str) -> list[Config]:
    """The best configs of earlier runs."""
    rows = [row for path in paths for row in json.loads(path.read_text())["results"]]
    return [row["config"] for row in rows if (row["case"], row["dtype"]) == (case.name, dtype) and row.get("config")]


def _configs(
    operator: str, words: dict[str, Any], dtype: str, threads: int, count: int, known: Sequence[Config] = ()
) -> list[Config]:
    """The default, known ones, some that differ from it in one or two knobs, and some from anywhere in the space."""
    of, cpu, rules = OPERATORS.get(operator).make({**words, "dtype": dtype}), _processor(threads), _rules()
    space, default = rules.space(of, cpu), rules.default(of, cpu)
    mixed, values = random.Random(0), {knob.name: list(knob.values) for knob in space.knobs}
    found: list[Config] = [default, *(config for config in known if config != default and not space.explain(config))]
    for _ in range(20 * count):
        if len(found) > count // 2:
            break
        near, free = dict(default), [n for n in default if n in values and len(values[n]) > 1]
        for name in mixed.sample(free, min(len(free), mixed.choice((1, 2)))):
            near[name] = mixed.choice(values[name])
        if near not in found and not space.explain(near):
            found.append(near)
    return [*found, *space.sample(max(1, count - len(found)), seed=0)]


def _built(operator: str, words: dict[str, Any], dtype: str, threads: int, config: Config) -> Built:
    of, cpu = OPERATORS.get(operator).make({**words, "dtype": dtype}), _processor(threads)
    kernel = _rules().emit(of, cpu, config)
    return config, kernel, build_once(kernel, cpu).binary


def _rules(name: str = "rules") -> Generator:
    return generators.by_name(name)


class _Check:
    """One case in one format."""

    def __init__(self, torch: Any, case: Case, dtype: str, threads: int) -> None:
        self.torch, self.case, self.dtype, self.threads = torch, case, dtype, threads
        self.cpu, self.operator = _processor(threads), case.made(dtype)
        self.inputs = self.operator.inputs(0)
        self.want: Any = None
        self.failed: list[str] = []

    def run(self, builds: _Builds, seconds: float) -> dict[str, Any]:
        started = time.monotonic()
        self.want = self.operator.reference(self.inputs)
        config, tried = self.searched(builds, started + seconds * SEARCHED)
        calls = self.calls(config) if config is not None else {}
        once = sum(_least(call, 1) for call in calls.values())
        rounds = max(2, min(ROUNDS, int((started + seconds - time.monotonic()) / (3 * once + 1e-9))))
        row: dict[str, Any] = {"config": dict(config or {}), "verified": len(tried), "failed": self.failed}
        row["tried"] = tried
        for state in ("warm", "cold") if len(calls) > 1 else ():
            flushed = max(64 << 20, 2 * self.cpu.l3_bytes)
            times = interleaved(calls, time.perf_counter, cold=state == "cold", rounds=rounds, flushed=flushed)
            row[f"us_{state}"] = {name: round(statistics.median(of) * 1e6, 1) for name, of in times.items()}
            row |= {f"{name}_{state}": value for name, value in _ratios(times).items()}
        if "us_warm" in row:
            row["gflops"] = round(self.operator.flops() / row["us_warm"]["rules"] / 1e3, 1)
        return row | {"seconds": round(time.monotonic() - started, 1)}

    def searched(self, builds: _Builds, end: float) -> tuple[Config | None, list[tuple[float, Config]]]:
        """The fastest config of those that were verified by then, and all of these with their microseconds."""
        found: list[tuple[float, int, Config, Run]] = []
        for future in builds.ready(end):
            try:
                config, kernel, binary = future.result()
                call = self.bound(kernel, binary)
                self.verified(call)
            except DeepgenError as error:
                self.failed.append(str(error)[:300])
                continue
            found.append((_least(call), len(found), config, call))
        best = sorted(found)[:AGAIN]
        if not best:
            return None, []
        times = interleaved({str(n): call for _, n, _, call in best}, time.perf_counter, cold=False)
        fastest = min(best, key=lambda one: statistics.median(times[str(one[1])]))
        tried = sorted((round(seconds * 1e6, 1), n, config) for seconds, n, config, _ in found)
        return fastest[2], [(us, dict(config)) for us, _, config in tried]

    def bound(self, kernel: Kernel, binary: str) -> _Call:
        """A call of a built kernel on arrays of its own."""
        native = NativeKernel(kernel, binary)
        arrays = {
            t.name: self.inputs[t.name] if t.name in self.inputs else np.zeros(t.shape, t.dtype.numpy())
            for t in self.operator.tensors()
        }
        flat = {name: array.reshape(-1).view(np.uint8) for name, array in arrays.items()}
        bound = native.bind(flat, self.operator.scalars())
        bound.prepare()
        return _Call(bound, arrays)

    def verified(self, call: _Call) -> None:
        """Raises DeepgenError where what a call gives is wrong."""
        call()
        for t in self.operator.tensors():
            if t.role == "output":
                told = compare(call.arrays[t.name], self.want[t.name], t.dtype, self.operator.tolerance(t.name))
                if not told.ok:
                    raise DeepgenError("its result is wrong")

    def ready(self, family: Generator, config: Config) -> Run:
        kernel = family.emit(self.operator, self.cpu, config)
        call = self.bound(kernel, build_once(kernel, self.cpu).binary)
        self.verified(call)
        return call

    def calls(self, config: Config) -> dict[str, Run]:
        calls: dict[str, Run] = {"rules": self.ready(_rules(), config)}
        tensors = {name: as_torch(self.torch, array, self.dtype) for name, array in self.inputs.items()}
        if self.dtype == "i8":
            own = quantised_call(self.torch, self.case, tensors)
            packed = quantised_call(self.torch, self.case, tensors, ahead=True)
        else:
            own, packed = self.case.torch(self.torch, tensors, self.case.words), None
        if own is not None:
            calls["torch"] = own
        constant = _rules("rules_constant_weights")
        if constant.refuses(self.operator, self.cpu) is None:
            ahead = {name: "once" for name in config if name.startswith("at_") and config[name] == "block"}
            calls["rules_packed"] = self.ready(constant, {**config, **ahead})
            if packed is not None:
                calls["torch_packed"] = packed
        expert = generators.serving(self.operator, self.cpu)[0]
        if expert.name != "rules":
            calls["expert"] = self.ready(expert, expert.default(self.operator, self.cpu))
        if self.case.group in READING:
            calls["floor"] = reading(sum(array.nbytes for array in self.inputs.values()), self.cpu, self.threads)
        return calls


@dataclass(frozen=True)
class _Call:
    bound: Bound  # it keeps the kernel's memory alive
    arrays: Mapping[str, Any]

    def __call__(self) -> None:
        self.bound.run()


def _least(call: Run, runs: int = 3) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def _ratios(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    def ratio(other: str, own: str) -> float:
        return round(statistics.median(b / a for a, b in zip(times[own], times[other], strict=True)), 3)

    found = {other: ratio(other, "rules") for other in ("torch", "expert", "floor") if other in times}
    if "torch_packed" in times:
        found["packed"] = ratio("torch_packed", "rules_packed")
    elif "torch" in times and "rules_packed" in times:
        found["packed"] = ratio("torch", "rules_packed")  # what torch was given, it had packed as it likes it
    return found


def _line(row: Mapping[str, Any]) -> str:
    keys = [f"{name}_{state}" for name in ("torch", "packed", "expert", "floor") for state in ("warm", "cold")]
    beside = "  ".join(f"{key} {row[key]:.2f}" for key in keys if key in row)
    rate = f"{row['us_warm']['rules']:9.1f} us {row['gflops']:7.1f} GF/s" if "us_warm" in row else "not timed"
    failed = f"  FAILED {len(row['failed'])}: {row['failed'][0]}" if row["failed"] else ""
    named = f"{row['dtype']:5s} {row['group']:15s} {row['case']:58.58s}"
    return f"{named} {rate}  {beside}  verified {row['verified']}{failed}"


def _summary(rows: Sequence[Mapping[str, Any]]) -> None:
    for kind in dict.fromkeys((row["dtype"], row["group"]) for row in rows):
        of = [row for row in rows if (row["dtype"], row["group"]) == kind]
        keys = [f"{name}_{state}" for name in ("torch", "packed", "expert", "floor") for state in ("warm", "cold")]
        means = {key: geometric_mean([row[key] for row in of if key in row]) for key in keys}
        told = "  ".join(f"{key} {value:.2f}" for key, value in means.items() if value)
        print(f"{kind[0]:5s} {kind[1]:16s} {len(of):2d} cases  {told}")
    verified, failed = sum(row["verified"] for row in rows), sum(len(row["failed"]) for row in rows)
    print(f"{verified} configs verified, {failed} failed")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="may be given several times; all without it")
    parser.add_argument("--only", action="append", help="a part of a group's or a case's name")
    parser.add_argument("--each", type=int, default=1, help="cases of a group at most")
    parser.add_argument("--trials", type=int, default=24, help="configs of a case at most")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--known", type=Path, action="append", default=[], help="the results of an earlier run")
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    run_main(main)
