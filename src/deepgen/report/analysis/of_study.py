"""The rows of a study, with the values that its space derives from knobs."""

from __future__ import annotations

from deepgen.report.analysis.numbers import Row
from deepgen.space.definition import value_from_json
from deepgen.tuning.study.reading import Reading


def rows_of(reading: Reading) -> list[Row]:
    """The rows of `Study.rows()`, and `derived.NAME` where the study keeps its space. Imports no user code."""
    rows = reading.rows()
    space = reading.study.kept_space()
    if space is None:
        return [*rows]
    configs = {t.id: {name: value_from_json(value) for name, value in t.config.items()} for t in reading.trials}
    return [
        {**row, **{f"derived.{name}": value for name, value in space.derived(configs[row["trial"]]).items()}}
        for row in rows
    ]
