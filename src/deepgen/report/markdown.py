"""A report as Markdown, short enough for a pull request; the page uses its tables too."""

from __future__ import annotations

import re
from collections.abc import Sequence

from deepgen.report.facts import DEFAULT, Facts, important_knobs
from deepgen.report.words import judged, sentence, without_advice
from deepgen.tuning.study.text import counted, seconds_text
from deepgen.vocabulary.foreign import printable

_SPECIAL = re.compile(r"([\\`*_\[\]#!|<>~&@])")  # includes `@` and `#`: on some hosts they refer to people and threads
_MESSAGE_LETTERS = 160
Rows = list[tuple[str, ...]]
RATIOS = ("compared with", "times as fast", "99% interval", "its time", "verdict")
STUDIES = ("operator", "target", "family", "state", "trials", "time", "rate", "over the default", "over baselines")
FINALISTS = ("trial", "time", "times the leader's", "99% interval", "config")


def markdown(facts: Facts) -> str:
    """The text of the page, without its charts."""
    parts = _of_several(facts) if facts["kind"] == "studies" else _of_study(facts)
    return printable("\n\n".join(part for part in parts if part) + "\n")


def _of_several(facts: Facts) -> list[str]:
    parts = [f"## {_plain(facts['title'])}", _table(STUDIES, studies(facts))]
    for one in facts["studies"]:
        doubts, _ = without_advice(one["doubts"])
        if doubts:
            parts.append(f"{_plain(one['operator'])} on {_plain(one['target'])}:\n\n{_list(doubts)}")
    return parts


def _of_study(facts: Facts) -> list[str]:
    doubts, advice = without_advice(facts["doubts"])
    explains = ", ".join(f"{_plain(one['knob'])} {one['share']:.0%}" for one in important_knobs(facts))
    failures = [(verdict, count, text[:_MESSAGE_LETTERS]) for verdict, count, text in verdicts(facts) if text.strip()]
    command = facts["reproduce"]["command"] or f"deepgen report {facts['folder']}"
    return [
        f"## {_plain(facts['title'])}",
        _winner(facts),
        _table(RATIOS, ratios(facts)) if facts["ratios"] else "",
        f"{counted(facts['ended'], 'trial')}, {_plain(facts['state_words'])}: "
        + ", ".join(f"{one['count']} {_plain(one['verdict'])}" for one in facts["verdicts"]),
        f"Knobs that explain the time: {explains}." if explains else "",
        f"Doubts:\n\n{_list(doubts)}" if doubts else "",
        advice,
        _table(("verdict", "trials", "example"), failures) if failures else "",
        f"Reproduce:\n\n{_code(command)}",
    ]


def _winner(facts: Facts) -> str:
    best = facts["winner"]
    if best is None:
        return "No kernel gave a correct result." if facts["ended"] else "No trial has ended yet."
    interval = ""
    if best["low"] is not None:
        interval = f", 99% interval {seconds_text(best['low'])} to {seconds_text(best['high'])}"
    bound = f", {best['bound']}" if best["bound"] else ""
    config = ", ".join(f"{name}={value}" for name, value in best["config"].items())
    return f"**{seconds_text(best['seconds'])}**, {best['rate']}{bound}{interval}\n\nConfig: {_plain(config)}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([_plain(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _list(texts: Sequence[str]) -> str:
    return "\n".join(f"- {_plain(sentence(text))}" for text in texts)


def _plain(text: str) -> str:
    """On one line, with all characters escaped that are special in Markdown or HTML."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _code(text: str) -> str:
    """A code block whose fence does not occur in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{text}\n{fence}"


def ratios(facts: Facts) -> Rows:
    return [
        (
            row["name"],
            f"{row['ratio']:.2f}",
            _interval(row),
            seconds_text(row["seconds"]),
            judged(row["ratio"], row["low"], row["high"]),
        )
        for row in facts["ratios"]
    ]


def shapes(facts: Facts) -> Rows:
    return [
        (
            row["operator"],
            seconds_text(row["seconds"]),
            ", ".join(f"{name} {seconds_text(taken)}" for name, taken in row["baselines"].items()),
        )
        for row in facts["shapes"]
    ]


def finalists(facts: Facts) -> Rows:
    rows: Rows = []
    for row in facts["finalists"]:
        who = " (winner)" if row["winner"] else " (default)" if row["default"] else ""
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.3f}"
        rows.append((f"{row['trial']}{who}", seconds_text(row["seconds"]), ratio, _interval(row), row["config"]))
    return rows


def conditions(facts: Facts) -> Rows:
    return [(row["name"], row["search"] or "-", row["finals"] or "-") for row in facts["conditions"]]


def verdicts(facts: Facts) -> Rows:
    return [
        (row["verdict"], str(row["count"]), row["examples"][0]["text"] if row["examples"] else "")
        for row in facts["verdicts"]
    ]


def studies(facts: Facts) -> Rows:
    rows: Rows = []
    for one in facts["studies"]:
        best = one["winner"] or {}
        others = [f"{row['name']} {row['ratio']:.2f}" for row in one["ratios"] if row["name"] != DEFAULT]
        rows.append(
            (
                one["operator"],
                one["target"],
                one["family"],
                one["state"],
                str(one["ended"]),
                seconds_text(best.get("seconds")),
                best.get("rate", "-"),
                best.get("gained") or "-",
                ", ".join(others) or "-",
            )
        )
    return rows


def _interval(row: Facts) -> str:
    return "-" if row["low"] is None else f"{row['low']:.2f} to {row['high']:.2f}"
