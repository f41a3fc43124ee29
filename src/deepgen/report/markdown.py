"""A report as Markdown, short enough for a pull request."""

from __future__ import annotations

import re
from collections.abc import Sequence

from deepgen.report import tables
from deepgen.report.facts import Facts
from deepgen.report.words import sentence, without_advice
from deepgen.tuning.study.text import counted, seconds_text

_SPECIAL = re.compile(r"([\\`*_\[\]#!|<>~&@])")  # `@` and `#` too: on some hosts they name people and threads
_MESSAGE_LETTERS = 160


def markdown(facts: Facts) -> str:
    """The words of the page, without its charts."""
    parts = _of_several(facts) if facts["kind"] == "studies" else _of_study(facts)
    return "\n\n".join(part for part in parts if part) + "\n"


def _of_several(facts: Facts) -> list[str]:
    found = [f"## {_plain(facts['title'])}", _table(tables.STUDIES, tables.studies(facts))]
    for one in facts["studies"]:
        told, _ = without_advice(one["doubts"])
        if told:
            found.append(f"{_plain(one['operator'])} on {_plain(one['target'])}:\n\n{_list(told)}")
    return found


def _of_study(facts: Facts) -> list[str]:
    doubts, advice = without_advice(facts["doubts"])
    important = [one for one in facts["analysis"].get("knobs", []) if one["knob"] in facts["analysis"]["important"]]
    explains = ", ".join(f"{_plain(one['knob'])} {one['share']:.0%}" for one in important)
    failures = [
        (verdict, count, text[:_MESSAGE_LETTERS]) for verdict, count, text in tables.verdicts(facts) if text.strip()
    ]
    command = facts["reproduce"]["command"] or f"deepgen report {facts['folder']}"
    return [
        f"## {_plain(facts['title'])}",
        _winner(facts),
        _table(tables.RATIOS, tables.ratios(facts)) if facts["ratios"] else "",
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
    """On one line, with everything escaped that has a meaning in Markdown or HTML."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _code(text: str) -> str:
    """A code block whose fence does not occur in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{text}\n{fence}"
