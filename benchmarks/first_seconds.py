"""What does a user have after ten seconds? Studies by the plain command, from empty caches: time, trials, the best.

    python benchmarks/first_seconds.py [--target cuda:native] [--no-bytecode] [--json FILE]
    python benchmarks/first_seconds.py --studies 200 --seed 7                 shapes drawn by the seed
    python benchmarks/first_seconds.py --unbounded                            200 trials without a budget
    python benchmarks/first_seconds.py --plot docs/first-seconds.svg FILE...  the best against wall time

Every study is a separate process with empty folders for caches, settings and data. Its time is from before the process
starts until it has ended. Bytecode exists as after an installation, wherever this runs; with `--no-bytecode` there is
none, not even for Python's own modules. On a CPU, pin this command to the cores that it should have: `taskset -c 0,1`.
"""

from __future__ import annotations

import compileall
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness import ROOT, Options, parser, read, run_main, save, table
from harness.cases import draw, size
from harness.race import ROUGH

TRIALS = 200  # of studies without a budget
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"


@dataclass(frozen=True)
class Case:
    """One command, without its budget and target."""

    name: str
    words: tuple[str, ...]


def gemm(m: int, n: int, k: int, dtype: str, layout: str = "nt") -> Case:
    words = ("gemm", f"M={m}", f"N={n}", f"K={k}", f"dtype={dtype}", f"layout={layout}")
    return Case(f"gemm {dtype} {m}x{n}x{k}", words)


def own(name: str, file: str) -> Case:
    return Case(name, (str(ROOT / "examples" / file),))


FIRST_LAYER = Case(
    "conv2d 16x224x224x3 7x7", ("conv2d", "N=16", "H=224", "W=224", "CI=3", "CO=64", "k=7", "stride=2", "pad=3")
)
GPU = (
    *(gemm(*sizes, dtype) for sizes in ((64, 83, 80), (3584,) * 3, (8192,) * 3) for dtype in ("bf16", "f8e4m3")),
    gemm(1230, 1818, 640, "bf16"),
    gemm(5960, 2632, 6008, "bf16"),
    FIRST_LAYER,
    Case("softmax bf16 16384x8192", ("softmax", "rows=16384", "cols=8192", "dtype=bf16")),
    Case("rms_norm bf16 16384x8192", ("rms_norm", "rows=16384", "cols=8192", "dtype=bf16")),
    own("own CUDA kernel", "kernels/vadd_cuda.py"),
    own("Triton kernel", "triton/softmax.py"),
)  # fmt: skip
CPU = (
    *(gemm(*sizes, dtype, "nn") for sizes in ((16, 19, 35), (454, 1296, 238), (2048,) * 3) for dtype in ("f32", "i8")),
    Case("conv2d 1x56x56x64 3x3", ("conv2d", "N=1", "H=56", "W=56", "CI=64", "CO=64", "k=3", "pad=1")),
    Case("softmax 1024x1000", ("softmax", "rows=1024", "cols=1000")),
    own("own C kernel", "kernels/jacobi_c.py"),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What a user had at the end, and when."""

    name: str
    wall: float  # seconds from before the start of the process to its end
    trials: int = 0  # built, verified and timed
    default_after: float | None = None  # seconds from the start of the process until the default was measured
    over_default: float | None = None  # speedup over the default
    beside: tuple[tuple[str, float], ...] = ()  # speedup over each baseline
    curve: tuple[tuple[float, float], ...] = ()  # seconds since the start, and the best time by then
    left_out: tuple[str, ...] = ()
    spent: tuple[tuple[str, float], ...] = ()
    error: str = ""

    @property
    def cells(self) -> tuple[object, ...]:
        beside = min((ratio for _, ratio in self.beside), default=None)
        note = self.error or ("" if self.over_default is None or self.over_default >= 0.98 else "BEHIND THE DEFAULT")
        return self.name, f"{self.wall:.1f}", self.default_after, self.trials, self.over_default, beside, note


def run(case: Case, options: Options, budget: float | None) -> Outcome:
    """One study as started by a user, from nothing."""
    limits = ("--trials", str(TRIALS)) if budget is None else ("--time-budget", f"{budget:g}", "--trials", "100000")
    with TemporaryDirectory() as folder:
        places = {f"XDG_{kind}_HOME": f"{folder}/{kind}" for kind in ("CACHE", "CONFIG", "DATA", "STATE")}
        environment = {
            **{name: value for name, value in os.environ.items() if name != NO_BYTECODE},
            **places,
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        }
        if options.no_bytecode:
            environment |= {NO_BYTECODE: "1", "PYTHONPYCACHEPREFIX": f"{folder}/none"}
        target = ("--target", options.target)
        command = [sys.executable, "-m", "deepgen", "tune", *case.words, *target, *limits, "--out", f"{folder}/studies"]
        started = time.monotonic()
        ended = subprocess.run([*command, "--json"], capture_output=True, text=True, env=environment, check=False)
        wall = round(time.monotonic() - started, 2)
    if ended.returncode != 0:
        return Outcome(case.name, wall, error=ended.stderr.strip().splitlines()[-1] if ended.stderr.strip() else "?")
    summary = json.loads(ended.stdout)
    winner = summary["winner"] or {}
    return Outcome(
        case.name,
        wall,
        sum(summary["trials"].values()),
        summary["default_measured_after"],
        (winner.get("over_default") or {}).get("ratio"),
        tuple((name(one), one["ratio"]) for one in summary["baselines"] if one["ratio"]),
        tuple((at, best) for at, best in summary["improved"]),
        tuple(summary["left_out"]),
        tuple(summary["time"].items()),
    )


def name(row: dict[str, Any]) -> str:
    return f"{row['name']}, {ROUGH}" if row["error"] else row["name"]


def drawn(options: Options) -> list[Case]:
    """GEMMs of any shape, as large as fits a budget."""
    gpu, most = options.target != "cpu", 8192 if options.target != "cpu" else 1024

    def make(chance: random.Random) -> Case:
        m, n, k = (size(chance, 16, most) for _ in range(3))
        return gemm(m, n, k, "bf16" if gpu else "f32", "nt" if gpu else "nn")

    return draw(options.seed, options.studies, make)


def outcomes(options: Options) -> Iterator[Outcome]:
    deadline = options.deadline()
    every = drawn(options) if options.studies else CPU if options.target == "cpu" else GPU
    if options.unbounded:
        every = [gemm(512, 512, 512, "f32", "nn") if options.target == "cpu" else gemm(3584, 3584, 3584, "bf16")]
    for case in options.chosen(every, lambda case: case.name):
        if deadline.over:
            return
        outcome = run(case, options, None if options.unbounded else options.budget)
        print(table(("", "", "", "", "", "", ""), [outcome.cells]).splitlines()[-1], flush=True)
        yield outcome


def plot(picture: Path, files: Sequence[Path]) -> None:
    """The share of each study's final speed that the best so far had, over wall time."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "deepgen"
    from matplotlib import pyplot

    figure, every = pyplot.subplots(1, len(files), figsize=(4.6 * len(files), 4.4), sharey=True, squeeze=False)
    for axes, file in zip(every[0], files, strict=True):
        about = json.loads(file.read_text())["conditions"]
        title = about["gpu"]["name"] if about["target"] != "cpu" else about["hardware"].partition(": ")[2]
        axes.set_prop_cycle(color=pyplot.get_cmap("tab20").colors)
        for outcome in read(file):
            if outcome["curve"]:
                at, best = zip(*outcome["curve"], strict=True)
                share = [best[-1] / seconds for seconds in best]
                axes.step([*at, outcome["wall"]], [*share, 1.0], where="post", label=outcome["name"], linewidth=1.3)
        axes.set(xlabel="seconds from the start of the command", xlim=(0, 12), ylim=(0, 1.02), title=title)
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right", fontsize=6)
    every[0][0].set_ylabel("best time at the end / best time so far")
    figure.tight_layout()
    figure.savefig(picture, metadata={"Date": None})


def main() -> int:
    words = parser(__doc__, seed=1)
    words.add_argument("--target", default="cpu", help="cpu or cuda:native [cpu]")
    words.add_argument("--budget", type=float, default=10.0, metavar="S", help="seconds of each study [10]")
    words.add_argument("--studies", type=int, default=0, metavar="N", help="so many drawn shapes instead of the cases")
    words.add_argument("--no-bytecode", action="store_true", help="as in containers that write none")
    words.add_argument("--unbounded", action="store_true", help=f"{TRIALS} trials without a budget")
    words.add_argument("--plot", type=Path, metavar="SVG", help="draw results that were written before")
    words.add_argument("files", nargs="*", type=Path, help="results to draw")
    options = words.options()
    if options.plot:
        plot(options.plot, options.files)
        return 0
    if not options.no_bytecode:
        compileall.compile_dir(ROOT / "src", quiet=2)
    results = list(outcomes(options))
    print(table(("study", "wall s", "default s", "trials", "/default", "/baseline", ""), [r.cells for r in results]))
    late = [r.name for r in results if not options.unbounded and r.wall > 1.1 * options.budget]
    behind = [r.name for r in results if r.over_default is not None and r.over_default < 0.98]
    print(f"{len(results)} studies: {len(late)} over the budget, {len(behind)} behind the default")
    save(options.json, results, budget=options.budget, bytecode=not options.no_bytecode, target=options.target)
    return 1 if late or behind or any(r.error for r in results) else 0


if __name__ == "__main__":
    run_main(main)
