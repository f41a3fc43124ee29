"""What an earlier study of the same kernel on another card, or for another shape, is worth to a new search.

    python benchmarks/transfer.py FOLDER benchmarks/h200/recorded --seeds 5 --out benchmarks/results/transfer.json

Folders hold recorded spaces, KERNEL_CARD.json.gz or KERNEL_SHAPE.json.gz. For each pair of recordings of one kernel, in
both directions, `model` searches the second three times: `cold`, with a `study` of 200 trials of the first, and with
the `whole` recording of the first, which no user has. Nothing of the second is known beforehand.

Means are over kernels, each the mean of its pairs. Intervals (95%) come from 10,000 resamples of the kernels, and of
the pairs of each: what another kernel would gain is far less certain than what another seed would. With few kernels
they are wide, and rather too narrow than too wide.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from common import run_main, save
from deepgen.tuning import search
from deepgen.tuning.search.base import Past, Setting
from deepgen.tuning.search.recorded import Contest, Recorded, read, replay
from deepgen.vocabulary import BadInput, Trial

BUDGETS = (10, 25, 50)
WAYS = ("cold", "study", "whole")
RESAMPLES = 10_000

Row = dict[str, Any]


@dataclass(frozen=True)
class Pair:
    """A recording that is learned from, and one that is searched."""

    kernel: str
    source: Recorded
    target: Recorded


def pairs(spaces: Sequence[Recorded]) -> Iterator[Pair]:
    groups: dict[str, list[Recorded]] = {}
    for space in spaces:
        groups.setdefault(space.name.rpartition("_")[0], []).append(space)
    for kernel, group in groups.items():
        for source, target in permutations(group, 2):
            yield Pair(kernel, source, target)


def study(recorded: Recorded, count: int, seed: int) -> Past:
    """The trials that `model` would have made there."""
    strategy = search.make("model", Setting(recorded.space, seed))
    trials: list[Trial] = []
    while len(trials) < count and (configs := strategy.ask(1)):
        for config in configs:
            made = Trial(len(trials), recorded.space.rank(config), config, "", recorded.measure(config))
            strategy.tell(made)
            trials.append(made)
    return Past(recorded.name, recorded.space, trials)


class Searches:
    """Runs what is asked for, and cold searches and earlier studies once."""

    def __init__(self, study_trials: int = 200) -> None:
        self._study_trials = study_trials
        self._studies: dict[tuple[str, int], Past] = {}
        self._cold: dict[tuple[str, int], list[float]] = {}

    def scores(self, pair: Pair, way: str, seed: int) -> list[float]:
        """At each of the budgets."""
        if way == "cold":
            key = pair.target.name, seed
            if key not in self._cold:
                self._cold[key] = self._run(pair, [], seed)
            return self._cold[key]
        return self._run(pair, [pair.source.past if way == "whole" else self._study(pair.source, seed)], seed)

    def _run(self, pair: Pair, history: Sequence[Past], seed: int) -> list[float]:
        scores = replay(pair.target, Contest("model", BUDGETS[-1], {}, history), seed)
        return [scores[n - 1] for n in BUDGETS]

    def _study(self, recorded: Recorded, seed: int) -> Past:
        key = recorded.name, seed
        if key not in self._studies:
            self._studies[key] = study(recorded, self._study_trials, 1000 + seed)  # another seed than the new search's
        return self._studies[key]


def add_seed(rows: Sequence[Row], found: Sequence[Pair], searches: Searches, seed: int) -> None:
    """One search more of each way for each pair."""
    for row, pair in zip(rows, found, strict=True):
        for way in WAYS:
            for n, score in zip(BUDGETS, searches.scores(pair, way, seed), strict=True):
                row[way][str(n)].append(score)
        said = ", ".join(f"{way} {row[way]['25'][-1]:.3f}" for way in WAYS)
        print(f"seed {seed}, {pair.source.name} -> {pair.target.name}: {said}", flush=True)


def empty_rows(found: Sequence[Pair]) -> list[Row]:
    return [
        {"kernel": pair.kernel, "source": pair.source.name, "target": pair.target.name}
        | {way: {str(n): [] for n in BUDGETS} for way in WAYS}
        for pair in found
    ]


def summary(rows: Sequence[Row]) -> Row:
    """Means over kernels with intervals, of each way and of what it gains over a cold search."""
    out: Row = {way: {str(n): _resampled(rows, partial(_score, way=way, n=n)) for n in BUDGETS} for way in WAYS}
    for way in WAYS[1:]:
        out[f"{way} - cold"] = {str(n): _resampled(rows, partial(_gain, way=way, n=n)) for n in BUDGETS}
    return out


def _score(row: Row, way: str, n: int) -> float:
    return float(mean(row[way][str(n)]))


def _gain(row: Row, way: str, n: int) -> float:
    return _score(row, way, n) - _score(row, "cold", n)


def _resampled(rows: Sequence[Row], value: Callable[[Row], float]) -> list[float]:
    """The mean over kernels and its interval."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        groups.setdefault(row["kernel"], []).append(value(row))
    kernels = [np.array(values) for values in groups.values()]
    rng = np.random.default_rng(0)
    # The mean of a kernel's pairs, drawn again; then of kernels, drawn again.
    drawn = np.array([k[rng.integers(len(k), size=(RESAMPLES, len(k)))].mean(axis=1) for k in kernels])
    chosen = rng.integers(len(kernels), size=(len(kernels), RESAMPLES))
    means = np.take_along_axis(drawn, chosen, axis=0).mean(axis=0)
    low, high = np.quantile(means, (0.025, 0.975))
    return [round(float(x), 4) for x in (mean(float(k.mean()) for k in kernels), low, high)]


def table(rows: Sequence[Row], told: Mapping[str, Any]) -> str:
    kernels = sorted({row["kernel"] for row in rows})
    lines = [f"{len(rows)} pairs of {len(kernels)} kernels: {', '.join(kernels)}"]
    lines.append(f"{'':16}" + "".join(f"{f'{n} evaluations':>26}" for n in BUDGETS))
    for way, points in told.items():
        cells = [f"{m:.3f} ({low:.3f} to {high:.3f})" for m, low, high in points.values()]
        lines.append(f"{way:16}" + "".join(f"{cell:>26}" for cell in cells))
    for way in WAYS[1:]:
        worst = min(rows, key=partial(_gain, way=way, n=25))
        scores = f"{_score(worst, way, 25):.3f} instead of {_score(worst, 'cold', 25):.3f}"
        lines.append(f"worst pair at 25 with {way}: {worst['source']} -> {worst['target']}, {scores}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--study-trials", type=int, default=200, help="of the earlier studies [200]")
    parser.add_argument("--out", type=Path, help="write the figures of every pair here")
    given = parser.parse_args(argv)
    found = list(pairs([read(path) for folder in given.folders for path in sorted(folder.glob("*.json.gz"))]))
    if not found:
        raise BadInput("no two recordings of the same kernel", where=", ".join(map(str, given.folders)))
    searches, rows = Searches(given.study_trials), empty_rows(found)
    for seed in range(given.seeds):
        add_seed(rows, found, searches, seed)
        told = summary(rows)
        print(table(rows, told), flush=True)
        if given.out is not None:
            save(given.out, {"seeds": seed + 1, "study_trials": given.study_trials, "summary": told, "pairs": rows})


if __name__ == "__main__":
    run_main(main)
