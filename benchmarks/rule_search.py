"""How near strategies come to the best config of spaces that rules make, each known whole from VTA's cycle model.

    python benchmarks/rule_search.py [--seeds 5] [--only TEXT]

A score is the best possible time divided by the best found. Writes benchmarks/results/rule_search.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

from common import run_main, save
from deepgen import generators, targets
from deepgen.operators import gemm
from deepgen.tuning.search.recorded import Contest, Recorded, interval, replay
from deepgen.vocabulary import Measurement, Verdict
from deepgen_vta.chip import Vta
from deepgen_vta.emit import emit
from deepgen_vta.simulator import timeline
from deepgen_vta.space import Tiles, product

RESULTS = Path(__file__).parent / "results" / "rule_search.json"
SIZES = ((64, 64, 64), (32, 96, 32), (16, 64, 128))
STRATEGIES = ("constrained_ga", "model", "random")
BUDGETS = (32, 64, 128)
BATCH = 8


def recorded(m: int, n: int, k: int) -> Recorded:
    """The whole space of a product, with the time of every config."""
    operator, target = gemm(m, n, k, dtype="i8", c="i32", layout="nt"), targets.resolve("vta")
    assert isinstance(target, Vta)
    family = generators.find(operator, target)
    space = family.space(operator, target)
    matrices = product(operator.expression(), target)
    assert matrices is not None
    found = {}
    for config in space:
        program = emit(matrices, Tiles.of(config), target)
        seconds = timeline(program, target).cycles / (target.mhz * 1e6)
        found[tuple(config[knob.name] for knob in space.knobs)] = Measurement(Verdict.CORRECT, samples=(seconds,))
    return Recorded(f"gemm {m}x{n}x{k}", space, found)


def scores(one: Recorded, strategy: str, seeds: int) -> dict[str, Any]:
    runs = [replay(one, Contest(strategy, max(BUDGETS), batch=BATCH), seed) for seed in range(seeds)]
    ends = [run[-1] for run in runs]
    return {
        "space": one.name,
        "configs": len(one.measurements),
        "best_us": one.best * 1e6,
        "strategy": strategy,
        "after": {str(budget): mean(run[budget - 1] for run in runs) for budget in BUDGETS},
        "interval": interval(ends),
        "found_the_best": sum(end == 1.0 for end in ends),
        "seeds": seeds,
    }


def show(results: list[dict[str, Any]]) -> None:
    columns = ("space", "configs", "strategy", *(f"after {budget}" for budget in BUDGETS), "found the best")
    table = Table(*columns, title="Score on VTA's cycle model (simulated)")
    for row in results:
        after = (f"{row['after'][str(budget)]:.3f}" for budget in BUDGETS)
        table.add_row(
            row["space"], str(row["configs"]), row["strategy"], *after, f"{row['found_the_best']} of {row['seeds']}"
        )
    Console(width=120).print(table)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seeds", type=int, default=5)
    arguments.add_argument("--only", default="", help="only spaces whose names hold this text")
    given = arguments.parse_args()
    results = []
    for sizes in SIZES:
        if given.only in f"gemm {'x'.join(map(str, sizes))}":
            one = recorded(*sizes)
            results += [scores(one, strategy, given.seeds) for strategy in STRATEGIES]
    show(results)
    if not given.only:
        save(RESULTS, results)


if __name__ == "__main__":
    run_main(main)
