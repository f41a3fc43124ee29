"""What benchmarks of whole models share: a model is recorded, tuned from the recording, and timed in several ways."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import deepgen as dg
import deepgen.torch
from deepgen.frontends.torch import benching
from deepgen.tuning.study.text import seconds_text

Make = Callable[[], Callable[[], Any]]
_CALLS, _ROUNDS = 100, 15


def record(runs: Mapping[str, tuple[Make, int]], path: Path) -> None:
    """What all of these runs compute, each run so often."""
    made = [(make(), often) for make, often in runs.values()]
    with torch.no_grad():
        for run, _ in made:
            run()
        with deepgen.torch.record() as work:
            for run, often in made:
                for _ in range(often):
                    run()
    path.parent.mkdir(parents=True, exist_ok=True)
    work.save(path)
    print(work)


def tune(work: Path, library: Path, seconds: float, target: str, *more: str) -> None:
    """As a user would: by the command line."""
    words = ["tune", str(work), "--time-budget", str(seconds), "--library", str(library), "--target", target,
             "--out", str(library.parent / "studies"), "--trials", "100000", *more]  # fmt: skip
    source = Path(dg.__file__).parents[1]  # this very deepgen, installed or not
    subprocess.run([sys.executable, "-m", "deepgen", *words], check=True, env={**os.environ, "PYTHONPATH": str(source)})


def bench(
    runs: Mapping[str, tuple[Make, int]], library: Path, *, rounds: int, compiled: bool, graphs: bool
) -> dict[str, Any]:
    """Each run in every way."""
    # Trusted: tuned by this program, perhaps by a user of another name, as on a machine that is made anew for each run.
    opened, results = dg.library(library, trust=True), dict[str, Any]()
    for name, (make, _) in runs.items():
        found = benching.bench(make, opened, rounds=rounds, compiled=compiled, graphs=graphs)
        print(f"\n{name}")
        for row in found.rows:
            speed = f"{row.faster.estimate:.3f} ({row.faster.low:.3f} to {row.faster.high:.3f}) of {row.than}"
            print(f"  {row.name:26} {seconds_text(row.seconds):>10}  {row.difference:.1e}  {speed}", flush=True)
            for word, calls in (("served", row.served), ("given back to torch", row.refused)):
                if calls:
                    print(f"    {word}: {', '.join(f'{count} x {of}' for of, count in calls.items())}", flush=True)
        for met in found.met:
            print(f"  {'deepgen' if met.ours else 'torch':8} {met.operator.describe():44} {met.why}")
        results[name] = found.to_json()
    return results


def check_not_slower(results: Mapping[str, Any]) -> None:
    """To be called once results are written."""
    warnings = [f"{name}: {found['warning']}" for name, found in results.items() if found["warning"]]
    if warnings:
        raise SystemExit("\n".join(warnings))


def calls(library: Path, name: str, call: Callable[[], Any]) -> dict[str, float]:
    """What a call costs the host, by torch and by a kernel: nothing is waited for between calls."""
    used = deepgen.torch.use(dg.library(library, trust=True), race=False)
    took: dict[str, list[float]] = {"torch": [], "deepgen": []}
    with torch.no_grad():
        for _ in range(_ROUNDS):
            took["torch"].append(_host_seconds(call))
            with used:
                took["deepgen"].append(_host_seconds(call))
    best = {way: min(times) for way, times in took.items()}
    served = any(met.ours for met in used.met)
    print(f"\na call of {name}: torch {best['torch'] * 1e6:.2f} us, deepgen {best['deepgen'] * 1e6:.2f} us, "
          f"ratio {best['deepgen'] / best['torch']:.2f}, served by a kernel: {served}")  # fmt: skip
    return {**best, "ratio": best["deepgen"] / best["torch"], "served": float(served)}


def _host_seconds(run: Callable[[], Any]) -> float:
    for _ in range(10):
        run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(_CALLS):
        run()
    taken = (time.perf_counter() - started) / _CALLS
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return taken
