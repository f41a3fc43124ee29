"""Are Triton kernels that deepgen tunes as fast as by triton.autotune on a GPU, or as torch's on a processor?

    PYTHONPATH=src python benchmarks/triton_examples.py --target cuda:native --json FILE
    python benchmarks/triton_examples.py --target cpu --threads 2 --only softmax

The kernels are those of examples/triton. On a GPU both search the same configs with empty caches, and the winners are
timed alternately, from CUDA graphs with cold caches: ours may take at most 1.02 times as long. Then deepgen alone is
given a kernel with configs that hang and one with configs that crash: each must end with a winner. On a CPU the winner
is timed against torch's call, or numpy's, if there is one. Every kernel has a separate process; a failure is shown and
the others continue.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import deepgen as dg
from deepgen.kernels.own import OwnKernel
from deepgen.kernels.own.triton_family import ALL_OPTIONS
from deepgen.run.measure.base import Policy
from deepgen.vocabulary.finding import module_at
from harness import BENCHMARKS, Options, alternate, parser, per_call, plain, run_main, save, table
from harness.gpu import Clock
from triton_calls import NAMES, Call, call, example

MOST = 1.02  # relative to their winner's time
FAULTS = ("hangs", "crashes")
HANG_SECONDS = 2.0
# The values that both search, for knobs with many values.
RACED: Mapping[str, Mapping[str, Sequence[int]]] = {
    "matmul": {"BLOCK_M": [64, 128], "BLOCK_N": [128, 256], "BLOCK_K": [64], "GROUP": [8], "num_stages": [3, 4]},
    "softmax": {"ROWS": [1, 2, 4, 8]},
    "layer_norm": {"BLOCK": [1024, 2048, 4096], "num_warps": [2, 4, 8, 16]},
    "cross_entropy": {"BLOCK": [1024, 2048, 4096, 8192], "num_warps": [4, 8, 16], "num_stages": [2]},
    "attention": {"BLOCK_Q": [64, 128], "BLOCK_K": [32, 64, 128], "num_stages": [2, 3]},
    "fused_moe": {"BLOCK_M": [64], "BLOCK_N": [64, 128, 256], "BLOCK_K": [64], "num_stages": [2, 3, 4]},
    "rope": {"HEADS": [1, 4, 8, 16, 32]},
    "dropout": {"BLOCK": [512, 1024, 2048, 4096], "num_warps": [2, 4, 8, 16]},
    "jacobi": {"BLOCK_Y": [1, 4, 8], "BLOCK_X": [128, 256, 512], "num_warps": [4, 8]},
    "correlation": {"BLOCK": [32, 64], "BLOCK_N": [16, 32], "num_warps": [4, 8], "num_stages": [1, 2, 3]},
}
ON_CPU = ("matmul", "softmax", "layer_norm")


@dataclass(frozen=True)
class Row:
    """One kernel: our winner, and theirs if there is one. Walls are the durations of the searches in seconds."""

    kernel: str
    configs: int
    wall: float
    config: Mapping[str, Any]
    beside: str = ""
    their_wall: float | None = None
    seconds: float | None = None
    their_seconds: float | None = None
    ratio: float | None = None  # ours over theirs
    low: float | None = None
    high: float | None = None
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error and (self.ratio is None or self.ratio <= MOST) and not self.config.get("FAULT", 0)


def searched(own: OwnKernel, name: str, options: Options, folder: Path) -> tuple[dg.Study, float]:
    """All configs of the raced part of the space, by deepgen; its wall time."""
    gpu = options.target != "cpu"
    started = time.perf_counter()
    study = dg.tune(
        own.operator(),
        target=options.target,
        trials=100_000,
        time_budget=options.seconds,
        strategy="exhaustive" if gpu else "model",
        transfer=False,
        knobs=RACED.get(name, {}) if gpu else {},
        policy=Policy(timeout_seconds=HANG_SECONDS) if gpu else Policy(threads=options.threads),
        baselines=False,
        out=folder / "studies",
        progress=False,
    )
    return study, time.perf_counter() - started


def on_gpu(name: str, options: Options, folder: Path) -> Row:
    own, function = example(name)
    study, wall = searched(own, name, options, folder)
    arguments = call(own.operator(), "cuda")
    configs = [study.space.at(rank) for rank in range(study.space.count())]
    theirs, their_wall = autotuned(function, arguments, configs)
    loaded = study.best().load()
    inputs = [tensor for at, tensor in arguments.inputs.items() if at not in arguments.outputs]
    clock = Clock()
    graphs = {"ours": clock.graph(lambda: loaded(*inputs, out=arguments.outputs)), "theirs": clock.graph(theirs)}
    contenders = {side: lambda graph=graph: clock.seconds(graph) for side, graph in graphs.items()}
    timed = alternate(contenders, options.rounds, seed=options.seed).beside("ours", "theirs")
    figures = (timed.seconds, timed.beside_seconds, timed.ratio, timed.low, timed.high)
    config = dict(study.best().trial.config)
    return Row(name, len(configs), wall, config, "triton.autotune", their_wall, *figures)


def autotuned(function: Any, arguments: Call, configs: Sequence[Mapping[str, Any]]) -> tuple[Any, float]:
    """The same configs, by triton.autotune; returns a function that calls the winner."""
    import torch
    import triton

    listed = [
        triton.Config(arguments.constants(c), **{name: value for name, value in c.items() if name in ALL_OPTIONS})
        for c in configs
    ]
    tuned = triton.autotune(configs=listed, key=[])(function)

    def run() -> None:
        tuned[arguments.grid](*arguments.arguments)

    started = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return run, time.perf_counter() - started


def on_cpu(name: str, options: Options, folder: Path) -> Row:
    import torch

    own, _ = example(name)
    torch.set_num_threads(options.threads)
    study, wall = searched(own, name, options, folder)
    arguments = call(own.operator(), "cpu")
    loaded = study.best().load()
    inputs = [tensor for at, tensor in arguments.inputs.items() if at not in arguments.outputs]
    functions = torch.nn.functional
    theirs = {
        "matmul": lambda: torch.matmul(*inputs[:2]),
        "softmax": lambda: torch.softmax(inputs[0], 1),
        "layer_norm": lambda: functions.layer_norm(inputs[0], inputs[0].shape[1:], *inputs[1:3], 1e-5),
    }[name]
    outputs = {at: tensor.numpy() for at, tensor in arguments.outputs.items()}
    arrays = [tensor.numpy() for tensor in inputs]
    contenders = {"ours": per_call(lambda: loaded(*arrays, out=outputs)), "torch": per_call(theirs)}
    timed = alternate(contenders, options.rounds, seed=options.seed).beside("ours", "torch")
    figures = (timed.seconds, timed.beside_seconds, timed.ratio, timed.low, timed.high)
    ended = len(list(study.trials()))
    return Row(name, ended, wall, dict(study.best().trial.config), "torch", None, *figures)


def survived(name: str, options: Options, folder: Path) -> Row:
    own: OwnKernel = getattr(module_at(BENCHMARKS / "triton_faulty.py"), name)
    study, wall = searched(own, name, options, folder)
    return Row(name, len(list(study.trials())), wall, dict(study.best().trial.config))


def one(name: str, options: Options) -> Row:
    with TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = f"{folder}/triton"
        run = survived if name in FAULTS else on_cpu if options.target == "cpu" else on_gpu
        return run(name, options, Path(folder))


def apart(name: str, options: Options, limit: float) -> Row:
    """One kernel in a separate process."""
    words = ["--target", options.target, "--seconds", str(options.seconds), "--rounds", str(options.rounds)]
    argv = [sys.executable, __file__, "--one", name, *words, "--threads", str(options.threads)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=min(limit, 1e6), check=False)
    except subprocess.TimeoutExpired:
        return Row(name, 0, limit, {}, error=f"it did not finish within {limit:.0f} s")
    if done.returncode:
        return Row(name, 0, 0.0, {}, error=(done.stderr.strip().splitlines() or ["it failed"])[-1])
    return Row(**json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--target", default="cuda:native", help="a GPU, or cpu [cuda:native]")
    words.add_argument("--threads", type=int, default=2, help="on a processor [2]")
    words.add_argument("--seconds", type=float, default=60.0, help="of a search at most [60]")
    words.add_argument("--rounds", type=int, default=100, help="[100]")
    words.add_argument("--one", choices=(*NAMES, *FAULTS), help="one kernel in this process (used by this program)")
    options = words.options()
    if options.one:
        print(json.dumps(plain(one(options.one, options))))
        return 0
    names = ON_CPU if options.target == "cpu" else (*NAMES, *FAULTS)
    deadline, rows = options.deadline(), list[Row]()
    for name in options.chosen(names):
        if deadline.over:
            print(f"{name}: left out, the time limit is reached")
            continue
        rows.append(apart(name, options, deadline.left))
        print(f"{name:14} {'ok ' if rows[-1].ok else 'BAD'}  {rows[-1].error}", flush=True)
        save(options.json, rows, target=options.target)
    heads = ("kernel", "configs", "wall", "their wall", "ours, us", "theirs, us", "ratio")
    times = [(row.seconds and row.seconds * 1e6, row.their_seconds and row.their_seconds * 1e6) for row in rows]
    cells = [(r.kernel, r.configs, r.wall, r.their_wall, *t, r.ratio) for r, t in zip(rows, times, strict=True)]
    print(table(heads, cells))
    return int(any(not row.ok for row in rows))


if __name__ == "__main__":
    run_main(main)
