"""What do very many configs of one kernel take on this device? Recorded spaces, on which searches are judged by replay.

    python benchmarks/record.py --target cuda:native --shape 2048x2048x2048 --count 2000 --out benchmarks/h200/recorded

The default config first, then configs drawn uniformly by the seed: a study with the strategy `random`, which verifies
and times each; one that cannot be built, is wrong, or does not finish is recorded as failed. Results are in the format
of the FAIR Benchmark Hub for Auto-Tuning, which `deepgen replay` and `deepgen import` read.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import deepgen as dg
from deepgen import generators, targets
from deepgen.operators import gemm
from deepgen.vocabulary import Trial, Verdict
from harness import Conditions, parser, run_main
from harness.cases import shape, shape_text

SHAPES = ("2048x2048x2048", "128x11008x4096", "64b512x512x64")
FAILED = {Verdict.BUILD_FAILED: "CompilationFailedConfig"}


def cached(trial: Trial, names: list[str]) -> dict[str, Any]:
    """A trial in the hub's format, in milliseconds."""
    config = {name: trial.config.get(name) for name in names}
    measured = trial.measurement
    times = [sample * 1e3 for sample in measured.samples]
    taken = times and measured.seconds is not None and measured.seconds * 1e3
    failed = FAILED.get(measured.verdict, "RuntimeFailedConfig")
    return {**config, "time": taken if measured.ok else failed, "times": times if measured.ok else []}


def main() -> None:
    words = parser(__doc__)
    words.add_argument("--target", default="cuda:native", help="[cuda:native]")
    words.add_argument("--dtype", default="bf16", help="[bf16]")
    words.add_argument("--layout", default="nt", help="[nt]")
    words.add_argument("--family", help="of kernels [what deepgen would take]")
    words.add_argument("--shape", action="append", metavar="[Bb]MxNxK", help=f"may be repeated [{' '.join(SHAPES)}]")
    words.add_argument("--count", type=int, default=2000, help="of configs [2000]")
    words.add_argument("--out", type=Path, default=Path("recorded"), help="folder [recorded]")
    options = words.options()
    target = targets.resolve(options.target)
    options.out.mkdir(parents=True, exist_ok=True)
    for batch, m, n, k in map(shape, options.shape or SHAPES):
        operator = gemm(m, n, k, batch=batch, dtype=options.dtype, layout=options.layout)
        family = generators.find(operator, target, options.family)
        with TemporaryDirectory() as folder:
            study = dg.tune(
                operator,
                target=target,
                generator=family,
                trials=options.count,
                time_budget=None if options.time_limit == float("inf") else options.time_limit,
                strategy="random",
                seed=options.seed,
                transfer=False,
                second_look=False,
                baselines=False,
                out=folder,
            )
            trials = [trial for trial in study.trials() if trial.measurement is not None]
        knobs = {knob.name: list(knob.values) for knob in family.space(operator, target).knobs}
        cache = {str(trial.id): cached(trial, list(knobs)) for trial in trials}
        conditions = Conditions.now()
        content = {
            "device_name": conditions.gpu.get("name", conditions.hardware),
            "kernel_name": family.name,
            "problem_size": [batch, m, n, k],
            "operator": operator.to_json(),
            "conditions": asdict(conditions),
            "tune_params_keys": list(knobs),
            "tune_params": knobs,
            "objective": "time",
            "time_unit": "milliseconds",
            "cache": {",".join(str(row[name]) for name in knobs): row for row in cache.values()},
        }
        file = options.out / f"{family.name}_{options.dtype}_{shape_text((batch, m, n, k))}.json.gz"
        file.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
        right = sorted(trial.measurement.seconds or 0.0 for trial in trials if trial.measurement.ok)
        best = f"best {right[0] * 1e6:.2f} us, median {right[len(right) // 2] * 1e6:.2f} us" if right else "none right"
        print(f"{file.name}: {len(trials)} configs, {len(trials) - len(right)} failed, {best}", flush=True)


if __name__ == "__main__":
    run_main(main)
