"""Short kernels on an H200: what finals say beside what events around the public call say, in several states.

    PYTHONPATH=src python benchmarks/h200/short_kernels.py --out benchmarks/h200/short_kernels.json

Each problem is tuned for some seconds, and its finals time the winner, torch and cuBLASLt in the state that deepgen
promises (docs/gpu.md). Then the same three are called from here, interleaved, with events around each call:

`write`, `read`: right behind a flush of the cache by writing to a large buffer, or by reading it;
`write+pause`, `read+pause`: behind a kernel that only waits, so that all is enqueued before the device gets to it;
`graph`, `graph+pause`: a CUDA graph of the call, behind a flush by reading.

A number with `*` is of a host that was too slow: in more than a tenth of the samples the device had come to the start
before the call was enqueued. `arguments` shows what an empty kernel takes by the bytes of its arguments, in the same
states. Finals and `read+pause` should agree within 3%. `places` shows how much the same call varies with where its
arrays lie in device memory: the processes of finals and of this script never have them at the same addresses.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "src")]

import deepgen as dg  # noqa: E402
from common import run_main  # noqa: E402
from deepgen import targets  # noqa: E402
from deepgen.baselines.cublaslt import CublasLt  # noqa: E402
from deepgen.operators import Gemm, gemm  # noqa: E402
from deepgen.targets import Target  # noqa: E402
from deepgen.targets.gpu_driver import CUDA, Driver, Launch  # noqa: E402
from deepgen.toolchains import Cache, build_once  # noqa: E402
from deepgen.tuning.engines import LocalEngine  # noqa: E402
from deepgen.vocabulary import DeepgenError, Kernel, LaunchPlan, Source, Step  # noqa: E402
from gpu_bench import FLUSH_BYTES, Bench, conditions, gpu_torch  # noqa: E402
from gpu_rivals import rivals  # noqa: E402

PROBLEMS = (gemm(768, 768, 768, dtype="bf16", layout="nt"), gemm(96, 96, 96, dtype="bf16", layout="nt", batch=256))
STATES = {  # how the cache is flushed, whether there is a pause, whether the call is in a graph
    "write": ("write", False, False),
    "read": ("read", False, False),
    "write+pause": ("write", True, False),
    "read+pause": ("read", True, False),
    "graph": ("read", False, True),
    "graph+pause": ("read", True, True),
}
PROMISED, AGREE = "read+pause", 0.03
PAUSE_CYCLES = 400_000  # 0.2 ms
TOO_LATE = 0.1  # of the samples
NAMES = {"torch-gpu": "torch", "cublaslt": "cublaslt"}  # of finals, and here
BYTES = (0, 64, 512, 2048)  # of arguments
PLACES = 12  # of the same arrays in device memory

Call = Callable[[], Any]
Row = dict[str, Any]


class Clock:
    """Times calls on torch's default stream in each of the states."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self._ballast = torch.zeros(FLUSH_BYTES // 4, device="cuda")
        self._least = torch.zeros((), device="cuda")
        self._events = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample(self, call: Call, flush: str, pause: bool) -> tuple[float, bool]:
        """Microseconds, and whether the host was too slow."""
        torch, (start, end) = self.torch, self._events
        torch.cuda.synchronize()
        if flush == "write":
            self._ballast.zero_()
        else:
            torch.amin(self._ballast, dim=0, out=self._least)
        if pause:
            torch.cuda._sleep(PAUSE_CYCLES)
        start.record()
        call()
        end.record()
        late = bool(start.query())
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e3, late

    def seconds(self, call: Call) -> float:
        """Of one call in the state that deepgen promises."""
        flush, pause, _ = STATES[PROMISED]
        return self.sample(call, flush, pause)[0] * 1e-6

    def graph(self, call: Call) -> Call:
        """The call, captured; it is called once before that, on the same stream, for what it allocates."""
        torch = self.torch
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            call()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            call()
        torch.cuda.synchronize()
        replay: Call = graph.replay
        return replay


def timed(clock: Clock, calls: Mapping[str, Call], graphs: Mapping[str, Call], rounds: int) -> dict[str, Row]:
    """By contender and state: the median and the quartiles in microseconds, and how often the host was too slow."""
    entries = [(n, s) for n in calls for s, (_, _, graphed) in STATES.items() if not graphed or n in graphs]
    taken: dict[tuple[str, str], list[tuple[float, bool]]] = {entry: [] for entry in entries}
    dice = random.Random(1)
    for _ in range(rounds):
        dice.shuffle(entries)
        for name, state in entries:
            flush, pause, graphed = STATES[state]
            taken[name, state].append(clock.sample((graphs if graphed else calls)[name], flush, pause))
    out: dict[str, Row] = {name: {} for name in calls}
    for (name, state), samples in taken.items():
        low, middle, high = statistics.quantiles([us for us, _ in samples], n=4)
        late = sum(late for _, late in samples) / len(samples)
        out[name][state] = {"us": middle, "quartiles": [low, high], "late": late}
    return out


def searched(operator: Gemm, target: Target, seconds: float, folder: Path) -> tuple[Any, Row]:
    """The winner, loaded, and what finals say of all."""
    engine = LocalEngine(cache=folder / "cache")
    started = time.monotonic()
    study = dg.tune(operator, target=target, trials=100_000, time_budget=seconds, out=folder, engine=engine)
    took = time.monotonic() - started
    finals: Row = dict(study.finals() or {})
    winner = next(row for row in finals["finalists"] if row["trial"] == finals["winner"])
    said = {"ours": winner["seconds"] * 1e6}
    said.update({NAMES.get(row["name"], row["name"]): row["seconds"] * 1e6 for row in finals["baselines"]})
    told = [row for row in finals["conditions"] if isinstance(row, dict)]
    return study.best().load(), {
        "said": said,
        "baselines_lost": finals["baselines_lost"],
        "rounds": finals["rounds"],
        "config": winner["config"],
        "late_samples": sum(int(row.get("late_samples", 0)) for row in told),
        "empty_launch_us": statistics.median(row["call_seconds"] * 1e6 for row in told),
        "search_seconds": took,
        "doubts": study.summary().get("doubts", []),
    }


def measured(operator: Gemm, target: Target, clock: Clock, search: float, rounds: int) -> Row:
    torch = clock.torch
    with tempfile.TemporaryDirectory() as folder:
        kernel, row = searched(operator, target, search, Path(folder))
        bench = Bench(operator, None)
        arrays = [x if operator.batch > 1 else x[0] for x in (bench.a, bench.b, bench.c)]
        found, absent = rivals(bench, with_triton=False)

        def ours() -> None:
            kernel(arrays[0], arrays[1], out=arrays[2])

        if not bench.right(ours):
            raise DeepgenError(f"the winner for {operator.describe()} is wrong when it is called")
        calls: dict[str, Call] = {"ours": ours, **found}
        capturable = dict(calls)
        if "cublaslt" in found:
            lt: Any = CublasLt().choose(operator, bench.places, 1, clock.seconds)  # as finals let it choose
            if not bench.right(lt):
                raise DeepgenError(f"cuBLASLt is wrong for {operator.describe()}")
            calls["cublaslt"] = lt
            capturable["cublaslt"] = lambda: lt(torch.cuda.current_stream().cuda_stream)
        graphs: dict[str, Call] = {}
        for name, call in capturable.items():
            try:
                graphs[name] = clock.graph(call)
            except (RuntimeError, DeepgenError) as error:
                absent[f"{name} in a graph"] = str(error)[:200]
        called = timed(clock, calls, graphs, rounds)
        places = at_places(kernel, operator, clock, rounds)
        return {"problem": operator.describe(), **row, "called": called, "places": places, "absent": absent}


def at_places(kernel: Any, operator: Gemm, clock: Clock, rounds: int) -> dict[str, list[float]]:
    """Medians of the winner and of torch in the promised state, with copies of the arrays at other addresses."""
    torch, bench, dice = clock.torch, Bench(operator, None), random.Random(2)
    calls: dict[tuple[str, int], Call] = {}
    between = []
    for place in range(PLACES):
        between.append(torch.empty(dice.randrange(1, 1 << 24), dtype=torch.uint8, device="cuda"))
        a, b, c = (x.clone() if operator.batch > 1 else x[0].clone() for x in (bench.a, bench.b, bench.c))
        calls["ours", place] = partial(kernel, a, b, out=c)
        calls["torch", place] = partial(torch.matmul, a, b.mT, out=c)
    taken: dict[tuple[str, int], list[float]] = {one: [] for one in calls}
    order = list(calls)
    for _ in range(rounds):
        dice.shuffle(order)
        for one in order:
            taken[one].append(clock.seconds(calls[one]) * 1e6)
    out: dict[str, list[float]] = {"ours": [], "torch": []}
    for (name, _), samples in taken.items():
        out[name].append(statistics.median(samples))
    return out


def arguments(target: Target, clock: Clock, rounds: int) -> dict[str, Row]:
    """Empty kernels with more and more bytes of arguments."""
    text = "".join(
        f'struct Bytes{size} {{ char all[{size}]; }};\nextern "C" __global__ void take{size}(Bytes{size} given) {{}}\n'
        for size in BYTES
        if size
    )
    text += 'extern "C" __global__ void take0() {}\n'
    plan = LaunchPlan(tuple(Step(f"take{size}", (), block=(32, 1, 1)) for size in BYTES))
    kernel = Kernel("arguments", "cuda", (Source("arguments.cu", text),), (), plan)
    driver = Driver(CUDA)
    with tempfile.TemporaryDirectory() as folder:
        module = driver.load(Path(build_once(kernel, target, cache=Cache(folder)).binary).read_bytes())
    calls: dict[str, Call] = {}
    for size in BYTES:
        values = [(ctypes.c_char * size)()] if size else []
        shape = ((1, 1, 1), (32, 1, 1), (1, 1, 1), 0)
        calls[f"{size} bytes"] = Launch(driver, driver.function(module, f"take{size}"), shape, values).fire
    return timed(clock, calls, {}, rounds)


def table(title: str, called: Mapping[str, Row], said: Mapping[str, float] | None = None) -> str:
    heads = [*(["finals"] if said is not None else []), *STATES]
    lines = [f"{title:28}" + "".join(f"{head:>13}" for head in heads)]
    for name, row in called.items():
        cells = [_number(said.get(name))] if said is not None else []
        for state in STATES:
            told = row.get(state)
            cells.append(_number(told and told["us"], "*" if told and told["late"] > TOO_LATE else ""))
        lines.append(f"{name:28}" + "".join(f"{cell:>13}" for cell in cells))
    return "\n".join(lines)


def _number(us: float | None, mark: str = "") -> str:
    return "-" if us is None else f"{us:.2f}{mark}"


def disagreements(row: Row) -> list[str]:
    """Where finals say something else than events around the call in the same state."""
    out = []
    for name, called in row["called"].items():
        us, said = called[PROMISED]["us"], row["said"].get(name)
        if said is None:
            out.append(f"{row['problem']}: finals say nothing of {name}")
        elif abs(said / us - 1.0) > AGREE:
            out.append(f"{row['problem']}: finals say {said:.2f} us of {name}, events around its call {us:.2f} us")
    return out


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--search", type=float, default=25.0, help="seconds of each search [25]")
    parser.add_argument("--rounds", type=int, default=60, help="calls of each, in each state [60]")
    parser.add_argument("--out", type=Path, default=Path("short_kernels.json"))
    given = parser.parse_args(argv)
    torch = gpu_torch()
    target = targets.resolve("cuda:native")
    clock = Clock(torch)
    record: Row = {"conditions": conditions(), "problems": [], "errors": []}

    def keep() -> None:
        given.out.write_text(json.dumps(record, indent=1) + "\n")

    for operator in PROBLEMS:
        try:
            row = measured(operator, target, clock, given.search, given.rounds)
        except DeepgenError as error:  # the other problem may do better
            record["errors"].append(f"{operator.describe()}: {error}")
            continue
        finally:
            keep()
        record["problems"].append(row)
        print(table(row["problem"], row["called"], row["said"]), flush=True)
        for name, why in row["absent"].items():
            print(f"  {name}: {why}", flush=True)
        for name, medians in row["places"].items():
            print(f"  {name} at {PLACES} places: {min(medians):.2f} to {max(medians):.2f} us", flush=True)
        print(
            f"  empty launch {row['empty_launch_us']:.2f} us, {row['late_samples']} late samples in finals", flush=True
        )
    record["arguments"] = arguments(target, clock, given.rounds)
    record["disagreements"] = [line for row in record["problems"] for line in disagreements(row)]
    keep()
    print(table("arguments", record["arguments"]))
    for line in (*record["disagreements"], *record["errors"]):
        print(line)
    return 1 if record["errors"] else 0


if __name__ == "__main__":
    run_main(main)
