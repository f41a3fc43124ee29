"""A study's charts in notebooks and scripts: `study.plot.history()` and the like give altair charts."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from deepgen.report import charts, knob_charts
from deepgen.report.facts import Facts, facts_of
from deepgen.tuning import Study
from deepgen.tuning.study.text import counted
from deepgen.vocabulary import BadInput, DeepgenError


class Plots:
    """Charts of a study as it stood when the first of them was asked for."""

    def __init__(self, study: Study) -> None:
        charts.check_libraries()
        self._study = study

    @cached_property
    def _facts(self) -> Facts:
        return facts_of(self._study)

    def history(self, *, over: str = "trials") -> Any:
        """The time of each trial and the best so far, over trials or over wall time (`over="time"`)."""
        places = {"trials": "trial", "time": "at"}
        if over not in places:
            raise BadInput(f"over is {over!r}", allowed="one of " + ", ".join(places))
        return self._whole(charts.history(self._facts, over=places[over]))

    def roofline(self) -> Any:
        """All trials below what the device can do."""
        return self._whole(charts.roofline(self._facts))

    def importance(self) -> Any:
        """What each knob explains, alone and with others."""
        return self._whole(knob_charts.importance(self._facts))

    def knob(self, name: str) -> Any:
        """The time of each trial over the value of one knob."""
        return self._whole(knob_charts.knob(self._facts, self._field(name)))

    def heatmap(self, first: str | None = None, second: str | None = None) -> Any:
        """The best time for each pair of values of two knobs; without names, of those that interact most."""
        if (first is None) != (second is None):
            raise BadInput("one knob is given", allowed="two knobs, or none")
        pair = self._facts["pair"] if first is None else [self._field(first), self._field(str(second))]
        return self._whole(knob_charts.heatmap(self._facts, *pair) if pair else None)

    def parallel(self) -> Any:
        """The knobs of the best tenth of the trials, a line each."""
        return self._whole(knob_charts.parallel(self._facts))

    def verdicts(self) -> Any:
        """How many trials ended how."""
        return self._whole(charts.verdicts(self._facts))

    def time(self) -> Any:
        """Where the wall time went."""
        return self._whole(charts.time(self._facts))

    def ratios(self) -> Any:
        """The winner over the default and over each baseline."""
        return self._whole(charts.ratios(self._facts["ratios"]))

    def _field(self, name: str) -> str:
        fields = {knob["name"]: str(knob["field"]) for knob in self._facts["knobs"]}
        if name not in fields:
            raise BadInput(f"no knob {name!r} differs among the trials", allowed="one of " + ", ".join(fields))
        return fields[name]

    def _whole(self, chart: Any) -> Any:
        if chart is None:
            ended = self._facts["ended"]
            raise DeepgenError(f"{self._study.folder} has too little to draw this chart of: {counted(ended, 'trial')}")
        return charts.with_data(chart, self._facts)
