"""Prints the result of a tuning run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deepgen.frontends.cli.output import config_text, labelled, paragraph, shown
from deepgen.operators import Operator
from deepgen.report.words import TOO_NOISY, compared, gained, outdone, without_advice
from deepgen.tuning import Study
from deepgen.tuning.progress import PARTS, SEARCH, phases_text
from deepgen.tuning.study.text import as_perf_stats, bound_text, lost_baselines, rate_text, seconds_text
from deepgen.vocabulary.errors import DeepgenError
from deepgen.vocabulary.folders import appending

TABLE = "perf_stats.csv"  # in the study's folder


def print_result(study: Study) -> None:
    """The winner, how it compares, and how to use it."""
    summary: dict[str, Any] = study.summary()
    winner, trials = summary["winner"], summary["trials"]
    if (faster := summary["faster_baseline"]) is not None:
        paragraph(outdone(faster))
    paragraph(f"{study.describe()} on {study.target.shown}")
    if winner is None:
        labelled("winner", "none: no kernel computed a correct result")
    else:
        labelled("winner", f"{rate_text(winner)}, {seconds_text(winner['seconds'])}{bound_text(winner)}")
        searched = f"; {seconds_text(winner['trial_seconds'])} in the search" if winner["over_default"] else ""
        labelled("", f"trial {winner['trial']}, rank {winner['rank']}, {winner['verdict']}{searched}")
        if proxy := study.target.proxy or ("simulated, not measured" if study.target.simulated else ""):
            labelled("", proxy)
        labelled("config", config_text(winner["config"]))
        if winner.get("ties"):
            kept = "; the default wins ties" if winner["tie_broken_by"] == "default" else ""
            several = len(winner["ties"]) > 1
            as_fast = ("trials " if several else "trial ") + ", ".join(str(t) for t in winner["ties"])
            labelled("ties", f"{as_fast} {'are' if several else 'is'} as fast{kept}")
        if winner["over_default"] is not None:
            labelled("gained", f"over the default: {gained(winner)}")
    against = [f"{row['name']}: {compared(row)}" for row in summary["baselines"]]
    for number, words in enumerate(against):
        labelled("" if number else "against", words)
    for number, row in enumerate(summary.get("shapes", ())):
        others = "".join(f", {name} {seconds_text(taken)}" for name, taken in row["baselines"].items())
        labelled("" if number else "shapes", f"{row['operator']}: {seconds_text(row['seconds'])}{others}")
    counts = ", ".join(f"{n} {verdict}" for verdict, n in trials.items())
    labelled("trials", f"{sum(trials.values())}: {counts}")
    spent = summary["time"]  # studies of older versions have no phases
    if parts := phases_text(spent.get("phases") or {part: spent[part] for part in PARTS}):
        labelled("time", f"{spent['total']:.1f} s: {parts}")
        builds, search = spent["building"], (spent.get("phases") or {}).get(SEARCH, 0.0)
        if search and builds >= 0.05:
            labelled("", f"{min(1.0, builds / search):.0%} of the search waited for builds")
    waited = summary["waited"]
    if waited is not None and waited["by"] is not None and waited["disturbed"] is None:
        labelled("waited", f"{waited['seconds']:.0f} s for a quiet machine: {waited['by']}")
    _print_doubts(summary["doubts"])
    labelled("study", shown(study.folder))
    if winner is not None and study.target.computes:
        # Neither indented nor wrapped, so that it can be copied.
        labelled("use it", "from Python:")
        print("import deepgen as dg")
        print(f"folder = {json.dumps(shown(study.folder), ensure_ascii=False)}")
        print("kernel = dg.Study.open(folder).best().load()")


def print_calls(study: Study, times: Mapping[str, Any]) -> None:
    """Print what `deepgen retest --as-called` measured."""
    paragraph(f"{study.describe()} on {study.target.name}, as called")
    labelled("ours", f"{seconds_text(times['seconds'])} a call")
    against = [f"{row['name']}: {compared(row)}" for row in times["baselines"]]
    for number, words in enumerate([*against, *lost_baselines(times)]):
        labelled("" if number else "against", words)


def print_ranking(studies: Sequence[Study]) -> None:
    """If families competed for an operator, print each one's winner, the fastest first.

    Winners that pack constant inputs before the calls are listed separately: the others pack within the timed call.
    """
    for operator in dict.fromkeys(study.describe() for study in studies):
        rivals = [study for study in studies if study.describe() == operator]
        if len(rivals) > 1:
            winners = [study for study in rivals if study.summary()["winner"] is not None]
            ahead = [study for study in winners if study.best().kernel.plan.prepare]
            _print_winners(f"{operator}: families, the fastest first", [s for s in winners if s not in ahead])
            _print_winners("Not comparable with the above: constant inputs are packed before the timed calls", ahead)


def network(studies: Sequence[Study], counts: Mapping[Operator, int]) -> dict[str, Any]:
    """The time of a whole network: each layer's time times its count. A baseline is included if it ran all layers.

    If families competed for a layer, its fastest winner counts.
    """
    best: dict[Operator, dict[str, Any]] = {}
    for study in studies:
        summary: dict[str, Any] = study.summary()
        before = best.get(study.operator)
        if summary["winner"] and (before is None or summary["winner"]["seconds"] < before["winner"]["seconds"]):
            best[study.operator] = summary
    rows = [(counts[operator], one) for operator, one in best.items() if operator in counts]
    timed = [{row["name"]: row["seconds"] for row in one["baselines"] if row.get("seconds")} for _, one in rows]
    everywhere = [name for name in (timed[0] if timed else {}) if all(name in times for times in timed)]
    noisy = sorted({row["name"] for _, one in rows for row in one["baselines"] if row.get("noisy")})
    return {
        "layers": len(counts),
        "tuned": len(rows),
        "calls": sum(counts.values()),
        "seconds": sum(count * one["winner"]["seconds"] for count, one in rows),
        "baselines": {
            name: sum(count * times[name] for (count, _), times in zip(rows, timed, strict=True)) for name in everywhere
        },
        "noisy": noisy,
    }


def print_network(sums: Mapping[str, Any]) -> None:
    """Print the total time of a file's layers."""
    paragraph(f"network of {sums['layers']} layers, {sums['calls']} calls")
    if sums["tuned"] < sums["layers"]:
        labelled("winners", f"of {sums['tuned']} of {sums['layers']} layers, so no total")
        return
    labelled("winners", f"{seconds_text(sums['seconds'])} in all")
    for number, (name, seconds) in enumerate(sums["baselines"].items()):
        ratio = f"ours are {seconds / sums['seconds']:.2f} times as fast"
        words = f"{TOO_NOISY} at some layers" if name in sums["noisy"] else f"{ratio}, {seconds_text(seconds)}"
        labelled("" if number else "against", f"{name}: {words}")


def _print_doubts(doubts: Sequence[str]) -> None:
    sentences, advice = without_advice(doubts)
    for number, doubt in enumerate(sentences):
        labelled("" if number else "doubts", f"- {doubt}")
    if advice:
        labelled("", advice)


def _print_winners(title: str, studies: Sequence[Study]) -> None:
    if not studies:
        return
    paragraph(title)
    winners: list[tuple[Any, str]] = [(s.summary()["winner"], s.definition["generator"]) for s in studies]
    width = max(len(family) for _, family in winners) + 2
    for seconds, family in sorted((winner["seconds"], family) for winner, family in winners):
        labelled(f"{family}:", seconds_text(seconds), width)


def write_counted(study: Study) -> None:
    """After a run with --counters, write all trials in the format of `deepgen export --as-perf-stats`."""
    if _counts(study):
        with appending(study.folder / TABLE) as file:
            file.truncate(0)
            file.write(as_perf_stats(study.rows()))


def print_counted(study: Study) -> None:
    """Print where that table is, and the first sentence of `deepgen analyze`."""
    if not _counts(study):
        return
    from deepgen.report import analysis
    from deepgen.report.analysis import rows_of, summary

    labelled("events", shown(study.folder / TABLE))
    try:
        sentence = summary(analysis.analyze(rows_of(study.read())))
    except DeepgenError as error:  # too few trials to analyze
        sentence = f"none: {error}"
    labelled("analysis", sentence)


def _counts(study: Study) -> bool:
    return bool(study.budget().get("counters"))
