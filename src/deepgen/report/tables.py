"""The tables of a report as rows of words, the same on a page and in Markdown."""

from __future__ import annotations

from deepgen.report.facts import DEFAULT, Facts
from deepgen.report.words import judged
from deepgen.tuning.study.text import seconds_text

Rows = list[tuple[str, ...]]
RATIOS = ("compared with", "times as fast", "99% interval", "its time", "verdict")
STUDIES = ("operator", "target", "family", "state", "trials", "time", "rate", "over the default", "over baselines")
FINALISTS = ("trial", "time", "times the leader's", "99% interval", "config")


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
