"""`deepgen replay`: try a strategy on recorded spaces, without hardware."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Annotated

import typer

from deepgen import settings
from deepgen.frontends.cli import options, studies
from deepgen.frontends.cli.output import labelled, print_json
from deepgen.tuning import search
from deepgen.tuning.search import recorded as recorded_spaces
from deepgen.tuning.search.base import parse_options
from deepgen.tuning.search.recorded import Contest, RecordedSpace, interval

RecordingFile = Annotated[
    Path,
    typer.Argument(
        metavar="RECORDED", help="A recorded space (JSON, gzip or not), or a study's folder.", show_default=False
    ),
]
Strategy = Annotated[str, typer.Option("--strategy", help="Strategy to score.")]
Budget = Annotated[int, typer.Option("--budget", min=1, help="Evaluations per run, including failed configs.")]
Repeats = Annotated[int, typer.Option("--repeats", min=1, help="Number of runs, with seeds 0, 1, 2 ...")]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Configs requested at a time.")]
LearnFrom = Annotated[
    list[Path] | None,
    typer.Option("--learn-from", help="A recorded space or study to learn from; repeatable.", show_default=False),
]
StrategyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="Option of the strategy, such as library=lightgbm.",
        show_default=False,
    ),
]


def replay(
    recorded: RecordingFile,
    strategy: Strategy = "model",
    budget: Budget = 100,
    repeats: Repeats = 10,
    batch: Batch = 1,
    learn_from: LearnFrom = None,
    option: StrategyOption = None,
    as_json: options.AsJson = False,
) -> None:
    """Score a search strategy on a recorded space, without hardware.

    The score is the best possible time, divided by the best time that is found within the budget.
    """
    settled = search.settle(strategy, parse_options(option or []))
    space = read(recorded)
    history = [read(path).past for path in learn_from or []]
    contest = Contest(strategy, budget, settled, history, batch)
    scores = [recorded_spaces.replay(space, contest, seed)[-1] for seed in range(repeats)]
    if as_json:
        print_json(
            {
                "recorded": str(recorded),
                "strategy": strategy,
                "budget": budget,
                "options": dict(contest.options),
                "learned_from": [past.name for past in history],
                "scores": scores,
                "mean": mean(scores),
                "interval": interval(scores),
            }
        )
        return
    low, high = interval(scores)
    labelled("space", f"{space.name}: {space.space.count()} configs, best {space.best * 1e3:.4g} ms")
    labelled("strategy", strategy + (f", after learning from {', '.join(p.name for p in history)}" if history else ""))
    labelled("score", f"{mean(scores):.4f} ({low:.4f} to {high:.4f}) after {budget} evaluations, {repeats} runs")


def read(path: Path) -> RecordedSpace:
    """A recording, or the trials of a study, named as in all other commands."""
    if path.is_file():
        return recorded_spaces.read(path)
    study = studies.open_study(str(path), settings.load())
    return recorded_spaces.from_trials(study.folder.name, study.trials())
