"""A study's summary from a few rows of its journal, without its code, its trials or heavy imports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deepgen import targets
from deepgen.operators import Operator, Recorded
from deepgen.targets import Target
from deepgen.tuning.speed import speed
from deepgen.tuning.study.definition import STRANGE, check
from deepgen.tuning.study.journal import Journal, holder, writer
from deepgen.tuning.study.rows import Tally
from deepgen.tuning.study.text import counted
from deepgen.vocabulary import DeepgenError, Json, JsonObject, foreign


def glance(folder: Path, *, whole: bool = False) -> JsonObject:
    """What `deepgen status` shows of a study; `whole` checks every row, which finds all damage."""
    try:
        with foreign.shaped(str(folder), STRANGE):
            return _glance(folder, whole=whole)
    except DeepgenError as error:
        # One broken folder must not hide the others. A study that is being created is not broken.
        starting = holder(folder) is not None
        return {"study": str(folder), "state": "starting" if starting else "unreadable", "why": str(error)}


def _glance(folder: Path, *, whole: bool) -> JsonObject:
    with Journal(folder) as journal:
        if whole:
            journal.check()
        definition, tally, budget = journal.glance()
        pid, damage = journal.writer, journal.damage_text()
    check(definition, str(folder))
    shapes, target = known_shapes(definition, glance=True), targets.from_json(definition["target"])
    row: JsonObject = {
        "study": str(folder),
        "state": "running" if pid is not None else "stopped" if tally.final is None else "finished",
        "pid": pid,
        "operator": described(shapes),
        "target": target.name,
        **target.proxy_row(),
        "trials": sorted_verdicts(shapes[0], tally),
        "budget": budget.get("trials"),
        "best": winner(shapes, target, tally),
    }
    if pid is not None and (held := writer(folder)) is not None and held.elsewhere:
        row["elsewhere"] = held.elsewhere
    return {**row, "damage": damage} if damage else row


def known_shapes(definition: Mapping[str, Any], *, glance: bool = False) -> tuple[Operator, ...]:
    """The operator as recorded, without its code, at each timed shape.

    `glance`: only the part needed to describe and rate it.
    """
    also = zip(definition.get("also_facts", ()), definition.get("also", ()), strict=True)
    others = [Recorded({**facts, "operator": operator}).checked(glance=glance) for facts, operator in also]
    return Recorded({**definition["facts"], "operator": definition["operator"]}).checked(glance=glance), *others


def described(shapes: Sequence[Operator]) -> str:
    """What is tuned, in one line."""
    more = len(shapes) - 1
    return shapes[0].describe() + (f" and {counted(more, 'more shape')}" if more else "")


def sorted_verdicts(operator: Operator, tally: Tally) -> dict[str, Json]:
    """The number of trials by verdict, the most frequent first."""
    return {operator.verdict_text(verdict): count for verdict, count in Counter(tally.verdicts).most_common()}


def winner(shapes: Sequence[Operator], target: Target, tally: Tally) -> JsonObject | None:
    """The winner of the finals, or the fastest trial so far before any finals."""
    final: Mapping[str, Any] = tally.final or {}
    best: Mapping[str, Any] | None = tally.best if tally.final is None else final["winner"]
    if best is None:
        return None
    rates = speed(shapes, best["seconds"], final.get("peak_gflops"), final.get("bandwidth") or target.bandwidth)
    ties = {"ties": final.get("ties") or [], "tie_broken_by": final.get("tie_broken_by")}
    return {
        **best,
        **rates,
        "verdict": shapes[0].verdict_text("correct"),
        **ties,
        "serves": final.get("serves"),
        "properties": final.get("properties") or {},
    }
