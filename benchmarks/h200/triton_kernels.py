"""The examples in Triton on an H200: tuned by deepgen and by triton.autotune over the same configs.

    PYTHONPATH=src python benchmarks/h200/triton_kernels.py --seconds 540 --out benchmarks/h200/triton_kernels.json

Of each kernel: the wall time of both searches with empty caches, and the times of both winners, in turns, from CUDA
graphs with cold caches. Ours is to take at most 1.02 of theirs. Then a kernel with configs that hang and one
with configs that crash, which only deepgen is given: each must end with a winner. Every kernel has a process of its
own. One that fails is told and the others go on; one that the time does not suffice for is left out and told.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "src")]

from short_kernels import STATES, Clock  # noqa: E402

import common  # noqa: E402
import deepgen as dg  # noqa: E402
import gpu_bench  # noqa: E402
from common import run_main  # noqa: E402
from deepgen import targets  # noqa: E402
from deepgen.kernels.own import OwnKernel  # noqa: E402
from deepgen.kernels.own.triton_family import ALL_OPTIONS  # noqa: E402
from deepgen.run.call.loaded import Loaded, load  # noqa: E402
from deepgen.run.measure.base import Policy  # noqa: E402
from deepgen.tuning.engines import LocalEngine  # noqa: E402
from deepgen.vocabulary.finding import module_at  # noqa: E402
from triton_calls import NAMES, Call, call, example  # noqa: E402

MOST = 1.02  # of their winner's time
ROUNDS = 100
USUAL_SECONDS = 45.0  # of one kernel
SEARCH_SECONDS, HANG_SECONDS = 60.0, 2.0
FAULTS = ("hangs", "crashes")
# The values that both search, of the knobs that have many.
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
Row = dict[str, Any]


def searched(own: OwnKernel, name: str, target: str, folder: Path, seconds: float) -> tuple[dg.Study, Row]:
    """All configs of the raced part of the space, by deepgen."""
    operator, chosen = own.operator(), targets.resolve(target)
    domains = RACED.get(name, {})
    engine = LocalEngine(cache=folder / "cache")
    started = time.perf_counter()
    study = dg.tune(
        operator,
        target=chosen,
        trials=100_000,
        time_budget=seconds,
        strategy="exhaustive",
        transfer=False,
        knobs=domains,
        policy=Policy(timeout_seconds=HANG_SECONDS),
        baselines=False,
        out=folder / "studies",
        engine=engine,
        progress=False,
    )
    wall = time.perf_counter() - started
    best = study.best()
    told = {"wall_seconds": wall, "config": dict(best.trial.config), "seconds": best.seconds}
    return study, {**told, "trials": study.summary()["trials"], "time": study.summary()["time"]}


def autotuned(function: Any, made: Call, configs: Sequence[Mapping[str, Any]]) -> tuple[Any, Row]:
    """The same configs, by triton.autotune; gives what calls the winner."""
    import torch
    import triton

    listed = [
        triton.Config(made.constants(c), **{name: value for name, value in c.items() if name in ALL_OPTIONS})
        for c in configs
    ]
    tuned = triton.autotune(configs=listed, key=[])(function)

    def run() -> None:
        tuned[made.grid](*made.arguments)

    started = time.perf_counter()
    run()
    torch.cuda.synchronize()
    wall = time.perf_counter() - started
    best = tuned.best_config.all_kwargs()
    chosen = next(c for c, one in zip(configs, listed, strict=True) if one.all_kwargs() == best)
    return run, {"wall_seconds": wall, "config": dict(chosen)}


def raced(loaded: Loaded, made: Call, theirs: Any) -> tuple[float, float, float]:
    """Milliseconds of our winner and of theirs, and the ratio of the two: medians over rounds in turns.

    Each call is captured in a CUDA graph and replayed with cold caches. Called one by one, short kernels wait for the
    host: what is timed then is mostly its way to the launch.
    """
    import torch

    given = [tensor for name, tensor in made.inputs.items() if name not in made.outputs]
    clock = Clock(torch)
    graphs = [clock.graph(run) for run in (lambda: loaded(*given, out=made.outputs), theirs)]
    flush, pause, _ = STATES["graph+pause"]
    rounds = []
    for i in range(ROUNDS):
        taken = {place: clock.sample(graphs[place], flush, pause)[0] * 1e-3 for place in ((0, 1) if i % 2 else (1, 0))}
        rounds.append((taken[0], taken[1]))
    return median(o for o, _ in rounds), median(t for _, t in rounds), median(o / t for o, t in rounds)


def compared(name: str, target: str, folder: Path, seconds: float) -> Row:
    own, function = example(name)
    study, ours = searched(own, name, target, folder, seconds)
    row: Row = {"kernel": name, "problem": own.operator().describe(), "ours": ours}
    made = call(own.operator(), "cuda")
    configs = [study.space.at(rank) for rank in range(study.space.count())]
    run, theirs = autotuned(function, made, configs)
    row |= {"configs": len(configs), "theirs": theirs}
    ours["milliseconds"], theirs["milliseconds"], row["ratio"] = raced(study.best().load(), made, run)
    # Their choice of config, called as ours is: what of the ratio is the choice's.
    chosen = targets.resolve(target)
    same = load(own.family.emit(own.operator(), chosen, theirs["config"]), own.operator(), chosen)
    row["their_config_by_us"] = raced(same, made, run)[2]
    return {**row, "ok": row["ratio"] <= MOST}


def survived(name: str, target: str, folder: Path, seconds: float) -> Row:
    own: OwnKernel = getattr(module_at(HERE / "triton_faulty.py"), name)
    _, ours = searched(own, name, target, folder, seconds)
    return {"kernel": name, "ours": ours, "ok": ours["config"]["FAULT"] == 0}


def one(name: str, target: str, seconds: float) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = f"{folder}/triton"
        return (survived if name in FAULTS else compared)(name, target, Path(folder), seconds)


def apart(name: str, target: str, limit: float) -> Row:
    """One kernel in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "row.json"
        argv = [sys.executable, __file__, "--one", name, "--target", target, "--out", str(out)]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=limit, check=False)
            said = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it said nothing"]
            return dict(json.loads(out.read_text())) if out.exists() else _failed(name, said[0])
        except subprocess.TimeoutExpired:
            return _failed(name, f"it did not end within {limit:.0f} s")


def _failed(name: str, why: str) -> Row:
    return {"kernel": name, "ok": False, "error": why}


def words(row: Row) -> str:
    if "error" in row:
        return str(row["error"])
    ours = row["ours"]
    if "theirs" not in row:
        return f"{ours['trials']}, winner {ours['config']} after {ours['wall_seconds']:.1f} s"
    theirs = row["theirs"]
    return (
        f"{row['configs']:3} configs  {ours['milliseconds'] * 1e3:8.1f} us / {theirs['milliseconds'] * 1e3:8.1f} us = "
        f"{row['ratio']:.3f} ({row['their_config_by_us']:.3f} with their config)  wall "
        f"{ours['wall_seconds']:.1f} s / {theirs['wall_seconds']:.1f} s"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=540.0, help="no kernel begins that would end later [540]")
    parser.add_argument("--only", nargs="*", choices=(*NAMES, *FAULTS), help="these kernels")
    parser.add_argument("--target", default="cuda:native", help="[cuda:native]")
    parser.add_argument("--one", choices=(*NAMES, *FAULTS), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("triton_kernels.json"))
    given = parser.parse_args(argv)
    if given.one:
        given.out.write_text(json.dumps(one(given.one, given.target, SEARCH_SECONDS)))
        return 0
    end = time.monotonic() + given.seconds
    import triton

    here = {**common.conditions(), "gpu": gpu_bench.conditions(), "triton": triton.__version__}
    record: Row = {"conditions": here, "kernels": [], "left_out": []}
    for name in given.only or (*NAMES, *FAULTS):
        left = end - time.monotonic()
        if left < USUAL_SECONDS:
            record["left_out"].append(name)
            print(f"{name:14} left out: the time does not suffice", flush=True)
            continue
        row = apart(name, given.target, left)
        record["kernels"].append(row)
        print(f"{name:14} {'ok ' if row['ok'] else 'BAD'}  {words(row)}", flush=True)
        given.out.write_text(json.dumps(record, indent=1) + "\n")
    bad = [row for row in record["kernels"] if not row["ok"]]
    print(f"{len(record['kernels'])} kernels, {len(bad)} bad, {len(record['left_out'])} left out")
    return 1 if bad or record["left_out"] else 0


if __name__ == "__main__":
    run_main(main)
