"""How many runs the second look saves, and what it costs: the same searches with it and without.

    python benchmarks/second_look.py [FOLDER] [--seeds 10] [--budget 200] [--json FILE]

The simulated device gives a landscape a seed. Recorded spaces (*.json.gz in FOLDER) hold nothing that a build told;
there a coin stands for it, which shows whether the look goes wrong on landscapes of real kernels.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

from common import run_main, save
from deepgen import operators, targets
from deepgen.kernels.sim import SimTiles
from deepgen.space import Space
from deepgen.targets import Sim
from deepgen.targets.sim import noisy, true_seconds
from deepgen.tuning import search
from deepgen.tuning.search import Setting
from deepgen.tuning.search.recorded import read
from deepgen.tuning.search.second_look import SecondLook
from deepgen.vocabulary import Measurement, Trial, Verdict

STRATEGIES = ("model", "random")
SAMPLES = 5
NOT_RUN = Measurement(Verdict.NOT_RUN, "clearly slow")


@dataclass(frozen=True)
class Place:
    """A space, with what a build tells of a config and what a run would."""

    name: str
    seed: int
    space: Space
    facts: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    measure: Callable[[Mapping[str, Any]], Measurement]


@dataclass
class Search:
    """How a search went."""

    best: float = float("inf")
    run_seconds: float = 0.0
    saved: int = 0
    saved_seconds: float = 0.0
    missed: int = 0  # of the kernels that were not run, those that were no slower than twice the best by then


def go(place: Place, strategy: str, budget: int, *, look: bool) -> Search:
    chooser, second, done = search.make(strategy, Setting(place.space, place.seed)), SecondLook(place.space), Search()
    for number in range(budget):
        [config] = chooser.ask(1)
        rank, facts, measured = place.space.rank(config), place.facts(config), place.measure(config)
        seconds = measured.seconds or 0.0
        if look and measured.ok and second.opinions([rank])[0].hopeless(facts):
            done.saved += 1
            done.saved_seconds += seconds
            done.missed += seconds < 2.0 * done.best
            measured = NOT_RUN
        elif measured.ok:
            done.best = min(done.best, seconds)
            done.run_seconds += seconds
        trial = Trial(number, rank, config, "", measured, facts)
        chooser.tell(trial)
        second.hear(trial)
    return done


def simulated(seeds: int) -> Iterator[Place]:
    operator = operators.gemm(256, 256, 256)
    for seed in range(seeds):
        sim = targets.resolve(f"sim:seed={seed}")
        assert isinstance(sim, Sim)

        def measure(config: Mapping[str, Any], sim: Sim = sim) -> Measurement:
            seconds = true_seconds(sim, operator.flops(), config)
            return Measurement(Verdict.CORRECT, samples=tuple(noisy(sim, seconds, json.dumps(config), SAMPLES)))

        yield Place("sim", seed, SimTiles().space(operator, sim), _length, measure)


def _length(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the simulated toolchain tells: the size of its binary, which is the config as text."""
    return {"code_bytes": len(json.dumps({"config": config}))}


def recorded(folder: Path, seeds: int) -> Iterator[Place]:
    for path in sorted(folder.glob("*.json.gz")):
        recording = read(path)
        for seed in range(seeds):
            yield Place(recording.name, seed, recording.space, _coin, recording.measure)


def _coin(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"coin": sum(json.dumps(config, sort_keys=True).encode()) % 2}


def row_of(name: str, strategy: str, pairs: list[tuple[Search, Search]], budget: int) -> dict[str, Any]:
    """The pairs are searches with the look and without."""
    return {
        "space": name,
        "strategy": strategy,
        "runs_saved": mean(s.saved for s, _ in pairs) / budget,
        "run_time_saved": mean(1.0 - s.run_seconds / w.run_seconds for s, w in pairs),
        "not_so_slow": sum(s.missed for s, _ in pairs),
        "best": mean(w.best / s.best for s, w in pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/second_look.json"))
    options = parser.parse_args()
    places = [*simulated(options.seeds), *(recorded(options.folder, options.seeds) if options.folder else ())]
    rows = []
    columns = ["space", "strategy", "runs saved", "run time saved", "not so slow", "best without / with"]
    table = Table(*columns, title=f"The second look, {options.seeds} searches of {options.budget} trials each")
    for name in dict.fromkeys(place.name for place in places):
        for strategy in STRATEGIES:
            pairs = [
                (go(p, strategy, options.budget, look=True), go(p, strategy, options.budget, look=False))
                for p in places
                if p.name == name
            ]
            row = row_of(name, strategy, pairs, options.budget)
            saved = (f"{row[key]:.1%}" for key in ("runs_saved", "run_time_saved"))
            table.add_row(name, strategy, *saved, str(row["not_so_slow"]), f"{row['best']:.4f}")
            rows.append(row)
    Console().print(table)
    save(options.json, {"seeds": options.seeds, "budget": options.budget, "rows": rows})


if __name__ == "__main__":
    run_main(main)
