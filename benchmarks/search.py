"""How near each strategy comes to the best config of recorded spaces: the table for judging changes to the search.

    python benchmarks/search.py FOLDER [--strategies model,random] [--seeds 20] [--json benchmarks/results/search.json]
    python benchmarks/search.py --plot docs/search-curve.svg --json benchmarks/results/search.json

FOLDER contains recorded spaces (*.json.gz). `model+transfer` is `model` after learning from the spaces with the same
knobs. With --kept, completed runs are stored in a folder, and the same command resumes after an interruption. The
second form draws the curves of results that were written before, with matplotlib.
"""

from __future__ import annotations

import os

# One thread, because the strategy's own time is measured too.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import platform
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import mean
from typing import Any

from deepgen.tuning.search.base import Past, parse_options
from deepgen.tuning.search.recorded import Contest, RecordedSpace, interval, read, replay
from harness import Options, parser, run_main

BUDGETS = (25, 50, 100, 200)
DEFAULT = ("model", "model+transfer", "model:library=lightgbm", "model:library=sklearn", "constrained_ga", "evolution",
           "annealing", "random")  # fmt: skip
TRANSFER = "+transfer"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _arguments(argv)
    if arguments.plot is not None:
        return _plot(arguments.plot, arguments.json)
    if arguments.folder is None:
        print("which FOLDER holds the recorded spaces?", file=sys.stderr)
        return 2
    spaces = [read(path) for path in sorted(arguments.folder.glob("*.json.gz"))]
    if not spaces:
        print(f"{arguments.folder} holds no recorded spaces (*.json.gz)", file=sys.stderr)
        return 2
    results: dict[str, Any] = {}
    for word in arguments.strategies.split(","):
        results[word] = _contest(word, spaces, arguments.seeds, arguments.kept)
        _print(word, results[word])
        if arguments.json is not None:
            _write(arguments.json, arguments.seeds, results)
    return 0


def _arguments(argv: Sequence[str] | None) -> Options:
    words = parser(__doc__)
    words.add_argument("folder", type=Path, nargs="?")
    words.add_argument("--strategies", default=",".join(DEFAULT), help="name[:option=value]... of each, with commas")
    words.add_argument("--seeds", type=int, default=20)
    words.add_argument("--kept", type=Path, help="a folder for the runs that ended; those in it are not run again")
    words.add_argument("--plot", type=Path, help="draw the curves in the file of --json as SVG")
    return words.options(argv)


def _contest(word: str, spaces: Sequence[RecordedSpace], seeds: int, kept: Path | None = None) -> dict[str, Any]:
    """The curves of a strategy on all spaces, as means and 95% intervals over seeds."""
    name, *options = word.replace(TRANSFER, "").split(":")
    curves: dict[str, list[list[float]]] = {}
    spent = 0.0
    for space in spaces:
        partners = _partners(space, spaces) if TRANSFER in word else []
        if TRANSFER in word and not partners:
            continue
        contest = Contest(name, BUDGETS[-1], parse_options(options), partners)
        space.space.count()  # built before the timing starts
        runs = [
            _run(space, contest, seed, kept / f"{word}-{space.name}-{seed}.json" if kept else None)
            for seed in range(seeds)
        ]
        curves[space.name] = [scores for scores, _ in runs]
        spent += sum(seconds for _, seconds in runs)
    # A seed's score is its mean over the spaces; the interval is over seeds.
    together = [[mean(c[seed][i] for c in curves.values()) for i in range(BUDGETS[-1])] for seed in range(seeds)]
    return {
        "all": _summary(together),
        "spaces": {space: _summary(runs) for space, runs in curves.items()},
        "curve": [_point([run[i] for run in together]) for i in range(BUDGETS[-1])],
        "milliseconds_a_trial": 1e3 * spent / (len(curves) * seeds * BUDGETS[-1]),
    }


def _run(space: RecordedSpace, contest: Contest, seed: int, kept: Path | None) -> tuple[list[float], float]:
    """The scores of one run, and its CPU time."""
    if kept is not None and kept.exists():
        earlier = json.loads(kept.read_text(encoding="utf-8"))
        return earlier["scores"], earlier["seconds"]
    started = time.process_time()
    scores = replay(space, contest, seed)
    seconds = time.process_time() - started
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        fresh = kept.with_suffix(".new")
        fresh.write_text(json.dumps({"scores": scores, "seconds": seconds}), encoding="utf-8")
        fresh.replace(kept)
    return scores, seconds


def _partners(space: RecordedSpace, spaces: Sequence[RecordedSpace]) -> list[Past]:
    """The other recordings with exactly the same knobs."""
    knobs = {k.name for k in space.space.knobs}
    return [s.past for s in spaces if s.name != space.name and {k.name for k in s.space.knobs} == knobs]


def _summary(runs: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    return {str(n): _point([run[n - 1] for run in runs]) for n in BUDGETS}


def _point(scores: Sequence[float]) -> list[float]:
    return [round(value, 5) for value in (mean(scores), *interval(scores))]


def _print(word: str, result: dict[str, Any]) -> None:
    print(f"{word}: {result['milliseconds_a_trial']:.1f} ms a trial")
    for space, summary in {"all": result["all"], **result["spaces"]}.items():
        cells = [f"{m:.3f} ({low:.3f} to {high:.3f})" for m, low, high in summary.values()]
        print(f"  {space:<24}" + "  ".join(cells), flush=True)


def _write(out: Path, seeds: int, results: dict[str, Any]) -> None:
    kept = json.loads(out.read_text(encoding="utf-8"))["strategies"] if out.exists() else {}
    about = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seeds": seeds,
        "python": platform.python_version(),
        "versions": _versions(),
    }
    strategies = {
        **kept,
        **{word: {**about, "command": _command(word, seeds), **result} for word, result in results.items()},
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"strategies": strategies}, indent=1) + "\n", encoding="utf-8")


def _command(word: str, seeds: int) -> str:
    return f"python benchmarks/search.py FOLDER --strategies {word} --seeds {seeds}"


def _plot(picture: Path, results: Path | None) -> int:
    """Score over evaluations, with the 95% interval over seeds as a band."""
    import matplotlib

    if results is None or not results.exists():
        print("--plot needs --out with results that were written before", file=sys.stderr)
        return 2
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "deepgen"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 4.2))
    for word, result in json.loads(results.read_text(encoding="utf-8"))["strategies"].items():
        if ":" in word:
            continue
        middle, low, high = zip(*result["curve"], strict=True)
        evaluations = range(1, len(middle) + 1)
        (line,) = axes.plot(evaluations, middle, label=word, linewidth=1.4)
        axes.fill_between(evaluations, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(
        xlabel="evaluations", ylabel="best possible time / best time found", xlim=(1, BUDGETS[-1]), ylim=(0.6, 1.0)
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)
    figure.tight_layout()
    figure.savefig(picture, metadata={"Date": None})
    return 0


def _versions() -> dict[str, str]:
    rows = {}
    for package in ("deepgen", "numpy", "lightgbm", "scikit-learn"):
        try:
            rows[package] = version(package)
        except PackageNotFoundError:
            continue
    return rows


if __name__ == "__main__":
    run_main(main)
