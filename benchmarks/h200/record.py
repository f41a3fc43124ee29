"""Record what many configs of the Hopper GEMM family take on an H200: spaces on which searches are judged by replay.

Three problems in bf16, layout nt. Of each: what the family takes without search, what earlier runs found, neighbours of
these for a quarter of the count, and uniform draws for the rest. Every config is checked against float64 and
timed with a cold L2; one that is not built, is wrong, or does not end is recorded as failed. `--build` compiles on many
cores into a folder and touches no GPU; `--measure` takes from there what has come, in a process that is replaced when a
kernel hangs. Results are in the format of the FAIR Benchmark Hub for Auto-Tuning, which `deepgen replay` reads.

    python benchmarks/h200/record.py --build FOLDER &
    python benchmarks/h200/record.py --measure FOLDER --out benchmarks/h200/recorded
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import random
import subprocess
import sys
import time
from datetime import datetime, timezone
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from statistics import mean
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE), str(HERE.parents[1] / "src")]

from common import run_main  # noqa: E402
from deepgen.kernels.gemm.sm90_gemm import Sm90Gemm  # noqa: E402
from deepgen.operators import Gemm  # noqa: E402
from deepgen.targets.cuda import parse_cuda  # noqa: E402
from deepgen.targets.gpu_driver import CUDA, Driver  # noqa: E402
from deepgen.toolchains import BuildError, Cache, build_once  # noqa: E402
from deepgen.vocabulary import DeepgenError, digest  # noqa: E402
from gpu_bench import (  # noqa: E402
    FLUSH_BYTES,
    LIMITS,
    Bench,
    Config,
    Loaded,
    binary_name,
    conditions,
    key_of,
    operator,
)
from gpu_known import found_before, known  # noqa: E402

FAMILY, TARGET = Sm90Gemm(), parse_cuda("h200")
SHAPES = ((1, 2048, 2048, 2048), (1, 128, 11008, 4096), (64, 512, 512, 64))
SAMPLES, HANG_SECONDS, START_SECONDS = 8, 5.0, 15.0
NOT_BUILT, FAILED = "CompilationFailedConfig", "RuntimeFailedConfig"
Job = tuple[int, Config]  # which problem, and the config


def problems() -> list[Gemm]:
    return [operator(shape, "bf16") for shape in SHAPES]


def configs(problem: Gemm, count: int) -> list[Config]:
    """The config without search first; the same list whenever the space and the earlier results are the same."""
    space, dice = FAMILY.space(problem, TARGET), random.Random(1)
    good = known(problem, FAMILY, TARGET, found_before(), 8)
    found = {key_of(c): c for c in (dict(FAMILY.default(problem, TARGET)), *good)}
    near = {key_of(c): c for one in good for c in map(dict, space.neighbors(one))}
    some = dice.sample(list(near.values()), min(len(near), count // 4))
    for c in chain(some, map(dict, space.sample(2 * count, 1))):
        if len(found) < count:
            found.setdefault(key_of(c), c)
    first, *rest = found.values()
    dice.shuffle(rest)  # so that a run that is cut short is a fair sample, too
    return [first, *rest]


def jobs(count: int) -> list[Job]:
    """The problems in turn."""
    lists = [[(i, c) for c in configs(problem, count)] for i, problem in enumerate(problems())]
    return [job for some in zip_longest(*lists) for job in some if job is not None]


# Building ------------------------------------------------------------------------------------------------------------


def build(folder: Path, count: int, cores: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with multiprocessing.get_context("fork").Pool(cores, os.nice, (19,)) as pool:
        for _ in pool.imap_unordered(partial(_build, folder), jobs(count), chunksize=2):
            pass


def _build(folder: Path, job: Job) -> None:
    kernel, begun = FAMILY.emit(problems()[job[0]], TARGET, job[1]), time.monotonic()
    file, note = folder / binary_name(kernel), folder / f"{digest(job, 16)}.json"
    told: dict[str, Any] = {"binary": file.name}
    try:
        if not file.exists():
            built = build_once(kernel, TARGET, cache=Cache(folder / "cache"), limits=LIMITS)
            _put(file, Path(built.binary).read_bytes())
    except BuildError as error:
        told = {"binary": None, "why": str(error)}
    told["milliseconds"] = (time.monotonic() - begun) * 1e3
    _put(note, json.dumps(told).encode())


def _put(file: Path, content: bytes) -> None:
    """Whole or not at all."""
    part = file.with_name(f"{file.name}.{os.getpid()}")
    part.write_bytes(content)
    part.rename(file)


# Measuring -----------------------------------------------------------------------------------------------------------


class Worker:
    """Measures configs as their binaries come, one line of the journal each."""

    def __init__(self, folder: Path, journal: Path, ends: float) -> None:
        import torch

        self.torch = torch
        torch.zeros(1, device="cuda")
        self.driver = Driver(CUDA)
        self.folder, self.journal, self.ends = folder, journal, ends
        flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        self.benches = [Bench(problem, flush) for problem in problems()]

    def run(self, todo: list[Job]) -> None:
        """What is not built yet is put off; at the end all that was built has been measured."""
        seen = {key_of({"job": row["job"]}) for row in read(self.journal)}
        todo = [job for job in todo if key_of({"job": job}) not in seen]
        while todo and time.time() < self.ends:
            later = [job for job in todo if not self.ready(job)]
            if len(later) == len(todo):
                self.alive()
                time.sleep(0.05)
            todo = later

    def ready(self, job: Job) -> bool:
        """Measured, or told why not, unless it is still to be built."""
        note = self.folder / f"{digest(job, 16)}.json"
        if time.time() > self.ends or not note.exists():
            return False
        told, bench = json.loads(note.read_text()), self.benches[job[0]]
        if told["binary"] is None:
            self.say(job, NOT_BUILT, [], told)
            return True
        self.say(job, FAILED, [], told)  # stands if the kernel takes this process with it
        try:
            kernel = FAMILY.emit(bench.problem, TARGET, job[1])
            call = Loaded(bench, kernel, (self.folder / told["binary"]).read_bytes(), self.driver)
            if bench.right(call):
                times = bench.time(call, SAMPLES)
                self.say(job, mean(sorted(times)[1:-1]) * 1e-3, [t * 1e-3 for t in times], told)
            call.close()
        except (DeepgenError, RuntimeError) as error:
            print(job, str(error)[:200], flush=True)
            self.torch.cuda.synchronize()  # where the fault spoiled the context this fails, too, and ends the process
        return True

    def say(self, job: Job, taken: float | str, times: list[float], told: dict[str, Any]) -> None:
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        row = {"job": job, "time": taken, "times": times, "compile_time": told["milliseconds"], "timestamp": now}
        with self.journal.open("a") as lines:
            lines.write(json.dumps(row) + "\n")

    def alive(self) -> None:
        os.utime(self.journal)


def read(journal: Path) -> list[dict[str, Any]]:
    """The last word on each job."""
    last: dict[str, dict[str, Any]] = {}
    for line in journal.read_text().splitlines() if journal.exists() else ():
        row = json.loads(line)
        last[key_of({"job": row["job"]})] = row
    return list(last.values())


def measure(options: argparse.Namespace) -> None:
    """Keep a worker at it; one that hangs or crashes is followed by another."""
    journal, ends = options.measure / "journal.jsonl", time.time() + options.seconds
    journal.unlink(missing_ok=True)
    journal.touch()
    command = [sys.executable, __file__, "--measure", str(options.measure), "--count", str(options.count)]
    while time.time() < ends - 2:
        child = subprocess.Popen([*command, "--worker", str(ends)])
        started = time.time() + START_SECONDS
        while child.poll() is None:
            time.sleep(0.2)
            if time.time() - max(started, journal.stat().st_mtime) > HANG_SECONDS or time.time() > ends + 10:
                child.kill()
                child.wait()
        if child.returncode == 0:
            break
        print(f"the worker ended with {child.returncode}; going on after the config it was at", flush=True)
    pack(read(journal), options.out)


def pack(rows: list[dict[str, Any]], out: Path) -> None:
    """One file a problem, in the hub's format."""
    out.mkdir(parents=True, exist_ok=True)
    told = conditions()
    for number, problem in enumerate(problems()):
        mine = [row for row in rows if row["job"][0] == number]
        knobs = {k.name: list(k.values) for k in FAMILY.space(problem, TARGET).knobs}
        cache = {}
        for row in mine:
            config = {name: row["job"][1].get(name) for name in knobs}
            record = {key: row[key] for key in ("time", "times", "compile_time", "timestamp")}
            cache[",".join(map(str, config.values()))] = {**config, **record}
        data = {
            "device_name": told["name"],
            "kernel_name": FAMILY.name,
            "problem_size": [problem.batch, problem.m, problem.n, problem.k],
            "operator": problem.to_json(),
            "conditions": told,
            "tune_params_keys": list(knobs),
            "tune_params": knobs,
            "objective": "time",
            "time_unit": "milliseconds",
            "cache": cache,
        }
        batch = f"{problem.batch}x" if problem.batch > 1 else ""
        name = f"sm90_gemm_bf16_{batch}{problem.m}x{problem.n}x{problem.k}.json.gz"
        (out / name).write_bytes(gzip.compress(json.dumps(data).encode(), mtime=0))
        times = sorted(row["time"] for row in mine if not isinstance(row["time"], str))
        best = f"best {times[0] * 1e3:.2f} us, median {times[len(times) // 2] * 1e3:.2f} us" if times else ""
        print(f"{name}: {len(mine)} configs, {len(mine) - len(times)} failed, {best}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, metavar="FOLDER")
    parser.add_argument("--measure", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=HERE / "recorded")
    parser.add_argument("--count", type=int, default=2100, help="configs of each problem")
    parser.add_argument("--seconds", type=float, default=300.0, help="for measuring")
    parser.add_argument("--cores", type=int, default=16)
    parser.add_argument("--worker", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.build:
        build(options.build, options.count, options.cores)
    elif options.worker:
        Worker(options.measure, options.measure / "journal.jsonl", options.worker).run(jobs(options.count))
    elif options.measure:
        measure(options)


if __name__ == "__main__":
    run_main(main)
