"""The end of a tuning run, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepgen.cli.output import config_text, labelled, shown
from deepgen.tuning import Study
from deepgen.tuning.finals import lost_baselines
from deepgen.tuning.text import bound_text, rate_text, seconds_text


def print_result(study: Study) -> None:
    """The winner, how it compares, and how to use it."""
    summary: dict[str, Any] = study.summary()
    winner, trials = summary["winner"], summary["trials"]
    print(f"{study.describe()} on {study.target.name}")
    if winner is None:
        labelled("winner", "none: no config was right")
    else:
        labelled("winner", f"{rate_text(winner)}, {seconds_text(winner['seconds'])}{bound_text(winner)}")
        labelled("", f"trial {winner['trial']}, rank {winner['rank']}, {winner['verdict']}")
        labelled("config", config_text(winner["config"]))
        if (winner["serves"] or {}).get("only"):
            labelled("serves", f"its tuned shape only: it was {winner['serves']['why']}")
        if winner.get("ties"):
            kept = "; a tie goes to the default" if winner["tie_broken_by"] == "default" else ""
            labelled("ties", "as fast: trials " + ", ".join(str(t) for t in winner["ties"]) + kept)
    against = [f"{r['name']}: {_ratio(r['ratio'])} ({seconds_text(r['seconds'])})" for r in summary["baselines"]]
    for number, words in enumerate([*against, *lost_baselines(summary)]):
        labelled("" if number else "against", words)
    for number, row in enumerate(summary.get("shapes", ())):
        others = "".join(f", {name} {seconds_text(taken)}" for name, taken in row["baselines"].items())
        labelled("" if number else "shapes", f"{row['operator']}: {seconds_text(row['seconds'])}{others}")
    counts = ", ".join(f"{n} {verdict}" for verdict, n in trials.items())
    labelled("trials", f"{sum(trials.values())}: {counts}")
    labelled("study", shown(study.folder))
    if winner is not None and study.target.computes:
        # Never wrapped: these lines are there to be copied.
        print("use it   import deepgen as dg")
        print(f'         kernel = dg.Study.open("{shown(study.folder)}").best().load()')


def print_ranking(studies: Sequence[Study]) -> None:
    """Where families competed for an operator: each one's winner, the fastest first.

    Winners that pack constant inputs ahead of the calls stand apart: the others pack within their time.
    """
    for operator in dict.fromkeys(study.describe() for study in studies):
        rivals = [study for study in studies if study.describe() == operator]
        if len(rivals) > 1:
            found = [study for study in rivals if study.summary()["winner"] is not None]
            ahead = [study for study in found if study.best().kernel.plan.prepare]
            _print_winners(f"{operator}: families, the fastest first", [s for s in found if s not in ahead])
            _print_winners(
                "Not comparable with these: constant inputs are packed ahead of the calls, which is not timed", ahead
            )


def _print_winners(title: str, studies: Sequence[Study]) -> None:
    if not studies:
        return
    print(title)
    winners: list[tuple[Any, str]] = [(s.summary()["winner"], s.definition["generator"]) for s in studies]
    width = max(len(family) for _, family in winners) + 2
    for seconds, family in sorted((winner["seconds"], family) for winner, family in winners):
        labelled(f"{family}:", seconds_text(seconds), width)


def _ratio(ratio: float | None) -> str:
    return "not measured" if ratio is None else f"ours is {ratio:.2f} times as fast"
