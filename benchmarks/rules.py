"""Are kernels made by rules faster than torch, cuDNN and our hand-written families? On a GPU or a processor.

    python benchmarks/rules.py --target cuda:native --seconds 20     all cases: f16, and some in bf16, i8 and f32
    python benchmarks/rules.py --dtype bf16 --only conv              on this processor, in one format
    python benchmarks/rules.py --seconds 0 --threads 1               default configs, without a search
    python benchmarks/rules.py --summary --json FILE                 means by group of an earlier run

Each case is tuned for a while, and the winner timed with all baselines that have a call for it and with the best
hand-written family, tuned for the same time: interleaved, in random order, verified before. A ratio is the other's time
over ours. Writes the file after each case; the same command resumes an earlier run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from tempfile import TemporaryDirectory
from typing import Any

from deepgen import generators, targets
from deepgen.libraries.racing import Runners
from deepgen.vocabulary import DeepgenError
from harness import Options, parser, plain, run_main, save, table
from harness.race import DEFAULT, OURS, Choice, Config, Place, Raced, race, tuned
from rules_cases import Case, cases

FAMILY = "family"  # the best hand-written one


@dataclass(frozen=True)
class Result:
    case: str
    group: str
    config: Config
    tuning_seconds: float
    gflops: float
    raced: Raced

    @staticmethod
    def ratios(row: Mapping[str, Any]) -> dict[str, float]:
        return {name: one["ratio"] for name, one in row["raced"]["beside"].items()}


def measured(case: Case, place: Place, seconds: float, runners: Runners, studies: Path) -> Result:
    operator, rules = case.build(), generators.by_name("rules")
    config = tuned(operator, place, rules, seconds, studies)
    choices = {OURS: Choice(rules, config)}
    default = rules.default(operator, place.limited())
    if dict(default) != dict(config):
        choices[DEFAULT] = Choice(rules, default)
    hand_written = [one for one in generators.serving(operator, place.target) if one.name != rules.name]
    if hand_written:
        own = tuned(operator, place, hand_written[0], seconds, studies)
        choices[FAMILY] = Choice(hand_written[0], own)
    raced = race(operator, place, choices, runners)
    return Result(case.name, case.group, dict(config), seconds, operator.flops() / raced.seconds / 1e9, raced)


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Geometric means for each group over every contender that was timed in it."""
    others = list(dict.fromkeys(name for row in rows for name in Result.ratios(row)))
    lines = []
    for group in dict.fromkeys(row["group"] for row in rows):
        mine = [Result.ratios(row) for row in rows if row["group"] == group]
        over = [[ratios[name] for ratios in mine if name in ratios] for name in others]
        lines.append((group, len(mine), *(f"{geometric_mean(some):.2f}" if some else "-" for some in over)))
    return table(("group", "cases", *others), lines)


def run(options: Options, rows: list[Any]) -> None:
    target, deadline = targets.resolve(options.target), options.deadline()
    place = Place(target, options.cold or target.runner == "gpu", options.threads if target.runner == "cpu" else None)
    done = {row["case"] for row in rows}
    with TemporaryDirectory() as studies, closing(Runners()) as runners:
        for case in options.chosen(cases(target.runner, options.dtype), lambda one: one.name):
            if case.name in done:
                continue
            if deadline.over:
                print("the time limit is reached: the same command goes on")
                break
            try:
                result = measured(case, place, options.seconds, runners, Path(studies))
            except DeepgenError as error:
                print(f"{case.name}: {error}", flush=True)
                continue
            rows.append(plain(result))
            beside = "  ".join(f"{name} {one.ratio:.2f}" for name, one in result.raced.beside.items())
            print(
                f"{case.name}: {result.raced.seconds * 1e6:.1f} us, {result.gflops:.0f} GFLOP/s  {beside}", flush=True
            )
            save(options.json, rows, target=target.name)


def main() -> None:
    words = parser(__doc__)
    words.add_argument("--target", default="cpu", help="[cpu]")
    words.add_argument("--dtype", help="one format [on GPUs all, on processors f32]")
    words.add_argument("--seconds", type=float, default=20.0, help="of tuning, for each case; 0: default configs [20]")
    words.add_argument("--threads", type=int, default=2, help="on processors [2]")
    words.add_argument("--cold", action="store_true", help="cold caches on processors, too")
    words.add_argument("--summary", action="store_true", help="measure nothing")
    options = words.options()
    rows = json.loads(options.json.read_text())["results"] if options.json and options.json.exists() else []
    if not options.summary:
        run(options, rows)
    print(summary(rows))


if __name__ == "__main__":
    run_main(main)
