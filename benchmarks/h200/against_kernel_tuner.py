"""The T1 files of examples/t1 on a GPU: deepgen and Kernel Tuner, each with the same number of evaluations.

    PYTHONPATH=src:WHEELS python benchmarks/h200/against_kernel_tuner.py --out benchmarks/h200/against_kernel_tuner.json

WHEELS is a folder with these packages of PyPI unpacked: kernel-tuner, python-constraint2, jsonschema,
jsonschema-specifications, referencing, rpds-py, attrs, xmltodict, packaging, typing_extensions. The machine itself has
numpy, scipy, scikit-learn and cuda-bindings.

A row has the best time that each tool reports for its own winner, and its wall time. Since each times in its own way,
both winners are then timed side by side by deepgen, and one after the other by Kernel Tuner.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
sys.path[:0] = [str(HERE.parent), str(REPO / "src")]

import numpy as np  # noqa: E402

import deepgen as dg  # noqa: E402
from common import run_main, save  # noqa: E402
from deepgen.kernels.own import OwnKernel  # noqa: E402
from deepgen.kernels.own.arguments import ScalarArgument, TensorArgument  # noqa: E402
from deepgen.kernels.own.own import from_recipe  # noqa: E402
from deepgen.run.measure.base import Policy  # noqa: E402
from deepgen.space import parse  # noqa: E402
from deepgen.targets import resolve  # noqa: E402
from deepgen.tuning import formats  # noqa: E402
from deepgen.vocabulary import Missing  # noqa: E402
from gpu_bench import conditions  # noqa: E402

FILES = ("convolution", "hotspot", "gemm", "dedispersion")
SCALARS = {"f32": "float32", "i32": "int32"}
TARGET = "cuda:native"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--evaluations", type=int, default=100)
    parser.add_argument("--strategy", default="genetic_algorithm", help="Kernel Tuner's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=FILES, choices=FILES)
    parser.add_argument("--without-kernel-tuner", action="store_true", help="deepgen alone")
    given = parser.parse_args()
    resolve(TARGET)  # says at once that there is no GPU
    rows = []
    for name in given.only:
        kernel = formats.read(REPO / "examples" / "t1" / f"{name}.T1.json").kernel
        assert kernel is not None
        row: dict[str, Any] = {"file": name, "evaluations": given.evaluations, "seed": given.seed}
        row["deepgen"] = ours = tuned(kernel, given.evaluations, given.seed)
        if not given.without_kernel_tuner:
            row["kernel_tuner"] = theirs = by_kernel_tuner(kernel, given.strategy, given.evaluations, given.seed)
            row["side_by_side"] = side_by_side(kernel, ours["config"], theirs["config"])
            row["by_kernel_tuner"] = [again(kernel, one["config"]) for one in (ours, theirs)]
        rows.append(row)
        print(told(row), flush=True)
        save(given.out, rows, gpu=conditions())  # what is measured is kept, whatever comes after it


def tuned(kernel: OwnKernel, trials: int, seed: int) -> dict[str, Any]:
    """deepgen's own search, with warm caches as Kernel Tuner has them."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        study = dg.tune(
            kernel, target=TARGET, trials=trials, seed=seed, baselines=False, out=folder, policy=Policy(cold=False)
        )
        wall = time.perf_counter() - started
        best = study.best()
        verdicts = [trial.measurement.verdict.value for trial in study.trials()]
        return {
            "milliseconds": best.seconds * 1e3,
            "wall_seconds": wall,
            "verdicts": {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))},
            "seconds": study.summary()["time"],
            "config": dict(best.trial.config),
        }


def by_kernel_tuner(kernel: OwnKernel, strategy: str, evaluations: int, seed: int) -> dict[str, Any]:
    started = time.perf_counter()
    results, env = searched(
        kernel, strategy=strategy, strategy_options={"max_fevals": evaluations}, seed=seed, iterations=7
    )
    best = env["best_config"]
    return {
        "milliseconds": float(best["time"]),
        "wall_seconds": time.perf_counter() - started,
        "configs": len(results),
        "strategy": strategy,
        "config": {name: best[name] for name in kernel.description.knobs},
    }


def again(kernel: OwnKernel, config: dict[str, Any]) -> float:
    """Milliseconds of a config as Kernel Tuner times it."""
    knobs = {name: [value] for name, value in config.items()}
    _, env = searched(kernel, knobs=knobs, iterations=50)
    return float(env["best_config"]["time"])


def searched(kernel: OwnKernel, knobs: dict[str, list[Any]] | None = None, **options: Any) -> Any:
    """Kernel Tuner on the same source, the same inputs and the same space."""
    try:
        from kernel_tuner import tune_kernel
    except ImportError as error:
        raise Missing(f"Kernel Tuner ({error})", blocks="it cannot be compared with", remedy=str(__doc__)) from error
    described = kernel.description
    inputs, (step,) = kernel.operator().inputs(0), described.launches
    arguments: list[Any] = []
    for argument in described.arguments:
        if isinstance(argument, ScalarArgument):
            arguments.append(np.array(argument.value, SCALARS[argument.ctype])[()])
        elif isinstance(argument, TensorArgument):
            filled = inputs.get(argument.name)
            arguments.append(np.zeros(argument.shape, np.float32) if filled is None else filled)
    constants = {t.symbol: inputs[t.name] for t in described.tensors if t.symbol is not None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tune_kernel(
            described.name,
            kernel.family.description.sources[0].text,
            lambda config: tuple(size_at(size, config) for size in step.grid),
            arguments,
            knobs or {name: list(values) for name, values in described.knobs.items()},
            grid_div_x=[],
            grid_div_y=[],
            grid_div_z=[],
            restrictions=list(described.requires),
            cmem_args=constants or None,
            lang="nvcuda",
            compiler_options=list(described.flags),
            block_size_names=[str(size) for size in step.block if isinstance(size, str)],
            quiet=True,
            **options,
        )


def size_at(size: int | str, config: dict[str, Any]) -> Any:
    return parse(size).evaluate(config) if isinstance(size, str) else size


def side_by_side(kernel: OwnKernel, *configs: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of configs that deepgen times in turns, in finals of their own."""
    chosen = " or ".join("(" + " and ".join(f"{n} == {v!r}" for n, v in one.items()) + ")" for one in configs)
    described = replace(kernel.family.description, requires=(*kernel.description.requires, chosen), default=None)
    both = from_recipe(described.to_json())
    with tempfile.TemporaryDirectory() as folder:
        study = dg.tune(
            both,
            target=TARGET,
            trials=len(configs),
            strategy="exhaustive",
            baselines=False,
            out=folder,
            policy=Policy(cold=False),
        )
        times = study.finals_seconds()
        by_config = {tuple(trial.config.items()): times.get(trial.id) for trial in study.trials()}
        found = [by_config.get(tuple((k, one[k]) for k in described.knobs)) for one in configs]
        return {"milliseconds": [None if s is None else s * 1e3 for s in found]}


def told(row: dict[str, Any]) -> str:
    ours = row["deepgen"]
    text = f"{row['file']:<13} deepgen {ours['milliseconds']:.4f} ms in {ours['wall_seconds']:.0f} s"
    if "kernel_tuner" not in row:
        return text
    theirs = row["kernel_tuner"]
    text += f"; Kernel Tuner {theirs['milliseconds']:.4f} ms in {theirs['wall_seconds']:.0f} s"
    one, other = row["side_by_side"]["milliseconds"]
    text += f"; side by side {one or float('nan'):.4f} and {other or float('nan'):.4f} ms"
    return text + f"; by Kernel Tuner {row['by_kernel_tuner'][0]:.4f} and {row['by_kernel_tuner'][1]:.4f} ms"


if __name__ == "__main__":
    run_main(main)
