"""Are whole models faster through deepgen.torch than by torch? Blocks of known models, and drawn ones.

    PYTHONPATH=src python benchmarks/models.py qwen record tune bench --seconds 300 --json FILE
    PYTHONPATH=src python benchmarks/models.py llama record tune bench --format fp8 --json FILE
    PYTHONPATH=src python benchmarks/models.py drawn-7 record tune bench --json FILE
    python benchmarks/models.py bert record tune bench --device cpu --format f32 --threads 2 --json FILE

Each step stores its result in the folder, so that it can be run separately: the operators of the model are recorded,
tuned from the recording with `deepgen tune`, and the model is timed with torch, with kernels, compiled, and from CUDA
graphs. llama (Llama-3-8B), qwen (Qwen2.5-7B), mixtral (with experts) and gpt2 (medium) have a prompt and a decode;
bert-large, vit (ViT-L), resnet (ResNet-50, whole) and unet (of Stable Diffusion) one run; `drawn-N` is a decoder, an
encoder, a network and a U-Net block with sizes of seed N, smaller ones for processors. In `fp8` weights and inputs of
products are 8-bit floats with a scale each; in `i8`, for processors, they are 8-bit integers, with a scale for each row
that is computed. bert is a layer with one sequence, repeatedly, so its weights stay in caches: its kernels are tuned
warm.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

import deepgen as dg
import deepgen.torch
import model_definitions as models
from deepgen.frontends.torch import benching
from harness import Options, alternate, parser, per_call, run_main, save
from harness.turns import seconds_text

Make = Callable[[], Callable[[], Any]]
Runs = Mapping[str, tuple[Make, int]]  # what is run, and its weight
FORMATS = ("bf16", "fp8", "f32", "i8")
REQUEST = 16  # tokens after a prompt


def record(runs: Runs, path: Path) -> None:
    """Record what all of these runs compute, each run repeated by its weight."""
    parts = [(make(), often) for make, often in runs.values()]
    with torch.no_grad():
        for run, _ in parts:
            run()
        with deepgen.torch.record() as work:
            for run, often in parts:
                for _ in range(often):
                    run()
    path.parent.mkdir(parents=True, exist_ok=True)
    work.save(path)
    print(work)


def tune(work: Path, library: Path, seconds: float, target: str, *more: str) -> None:
    """Tune from the command line, as a user would."""
    words = ["tune", str(work), "--time-budget", str(seconds), "--library", str(library), "--target", target,
             "--out", str(library.parent / "studies"), *more]  # fmt: skip
    source = Path(dg.__file__).parents[1]  # exactly this deepgen, installed or not
    subprocess.run([sys.executable, "-m", "deepgen", *words], check=True, env={**os.environ, "PYTHONPATH": str(source)})


def bench(runs: Runs, library: Path, *, rounds: int, compiled: bool, graphs: bool) -> dict[str, Any]:
    """Time each run in every way."""
    # Trusted: tuned by this program, perhaps under another user name, as on a machine that is recreated for each run.
    opened, results = dg.library(library, trust=True), dict[str, Any]()
    for name, (make, _) in runs.items():
        report = benching.bench(make, opened, rounds=rounds, compiled=compiled, graphs=graphs)
        print(f"\n{name}")
        for row in report.rows:
            speed = f"{row.faster.estimate:.3f} ({row.faster.low:.3f} to {row.faster.high:.3f}) of {row.than}"
            print(f"  {row.name:26} {seconds_text(row.seconds):>10}  {row.difference:.1e}  {speed}", flush=True)
            for word, calls in (("served", row.served), ("left to torch", row.refused)):
                if calls:
                    print(f"    {word}: {', '.join(f'{count} x {of}' for of, count in calls.items())}", flush=True)
        for met in report.met:
            print(f"  {'deepgen' if met.ours else 'torch':8} {met.operator.describe():44} {met.why}")
        results[name] = report.to_json()
    return results


def host_part(library: Path, name: str, call: Callable[[], Any]) -> dict[str, float]:
    """The host time of a call, by torch and by a kernel, without waiting between calls."""
    used = deepgen.torch.use(dg.library(library, trust=True), race=False)
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    plain = per_call(call, 100, wait=wait)

    def served() -> float:
        with used:
            return plain()

    with torch.no_grad():
        taken = alternate({"torch": plain, "deepgen": served}, 15)
    best = {way: taken.least(way) for way in ("torch", "deepgen")}
    ours = any(met.ours for met in used.met)
    ratio = best["deepgen"] / best["torch"]
    times = ", ".join(f"{way} {seconds_text(seconds)}" for way, seconds in best.items())
    print(f"\na call of {name}: {times}, ratio {ratio:.2f}, served by a kernel: {ours}")
    return {**best, "ratio": ratio, "served": float(ours)}


def check_not_slower(results: Mapping[str, Any]) -> None:
    """Raise the warnings; to be called after results are written."""
    warnings = [f"{name}: {report['warning']}" for name, report in results.items() if report["warning"]]
    if warnings:
        raise SystemExit("\n".join(warnings))


def request(prompt: Make, decode: Make) -> Callable[[], Any]:
    """A prompt and the tokens after it."""
    first, following = prompt(), decode()

    def run() -> Any:
        first()
        for _ in range(REQUEST - 1):
            following()
        return following()

    return run


def measure(options: Options) -> None:
    gpu = options.device == "cuda"
    runs: Runs = models.runs_of(options.model, options.device, options.format)
    threads: tuple[str, ...] = ()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
        threads = ("--threads", str(options.threads))
    work, library = options.folder / f"work-{options.format}.json", options.folder / "library"
    if "record" in options.steps:
        record(runs, work)
    if "tune" in options.steps:
        tune(work, library, options.seconds, *(("cuda:native",) if gpu else ("cpu", "--warm", *threads)))
    if "bench" in options.steps:
        timed = partial(bench, library=library, rounds=options.rounds, graphs=gpu)
        blocks = timed(runs, compiled=not options.no_compile)
        call = None
        if gpu and options.model == "llama":
            # The parts of a request were recorded and tuned. Compiled, its decodes would form one graph.
            whole: Runs = {"request": (lambda: request(runs["prefill"][0], runs["decode"][0]), 1)}
            blocks |= timed(whole, compiled=False)
            call = host_part(library, *models.one_call(options.device, options.format == "fp8"))
        device = torch.cuda.get_device_name() if gpu else f"{torch.get_num_threads()} threads"
        save(options.json, {"blocks": blocks, "call": call}, model=options.model, format=options.format, device=device)
        check_not_slower(blocks)


def main() -> None:
    words = parser(__doc__)
    words.add_argument("model", help="one of " + ", ".join((*models.BLOCKS, *models.NETWORKS, "drawn-N")))
    words.add_argument("steps", nargs="+", choices=("record", "tune", "bench"))
    words.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="[cuda]")
    words.add_argument(
        "--format", choices=FORMATS, default=FORMATS[0], help="fp8 is for GPUs, i8 for processors [bf16]"
    )
    words.add_argument("--seconds", type=float, default=300.0, help="of tuning [300]")
    words.add_argument("--threads", type=int, help="for torch and for kernels, on a processor [all cores]")
    words.add_argument("--rounds", type=int, default=30, help="[30]")
    words.add_argument("--no-compile", action="store_true", help="without torch.compile")
    words.add_argument("--folder", type=Path, help="what the steps leave [build/MODEL]")
    options = words.options()
    number = options.model.removeprefix("drawn-")
    if options.model not in (*models.BLOCKS, *models.NETWORKS) and not (number != options.model and number.isdigit()):
        words.error(f"there is no model {options.model}")
    options.folder = options.folder or Path("build") / options.model
    measure(options)


if __name__ == "__main__":
    run_main(main)
