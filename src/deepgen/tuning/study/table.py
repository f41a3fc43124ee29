"""A study's trials as a table: one flat row per trial, for CSV files, data frames and analysis.

A row has the columns of `FIXED`, then `knob.NAME`, `fact.NAME` (of the build) and `event.NAME` (counted). A knob, fact
or event that a trial does not have is absent from its row: it is unknown, not 0.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from deepgen.tuning.study.text import knob_text
from deepgen.vocabulary import Missing, Trial
from deepgen.vocabulary.errors import install_extra

Row = dict[str, Any]
KNOB, FACT, EVENT = "knob.", "fact.", "event."
PROXY = f"{FACT}proxy"  # what `seconds` are where they are not times
# `seconds` is the time that counts, of correct trials alone; `finals_seconds` that of finals; `ended_at` is Unix time.
FIXED = (
    "trial",
    "rank",
    "kernel_id",
    "verdict",
    "detail",
    "ended_at",
    "seconds",
    "seconds_min",
    "seconds_max",
    "runs",
    "finals_seconds",
)


def trial_row(trial: Trial, ended_at: float | None, finals_seconds: float | None) -> Row:
    measured = trial.measurement
    samples = measured.samples
    spread = (min(samples), max(samples)) if samples else (None, None)
    fixed = (trial.id, trial.rank, trial.kernel_id, str(measured.verdict), measured.detail, ended_at)
    times = (trial.seconds, *spread, len(samples), finals_seconds)
    return {
        **dict(zip(FIXED, (*fixed, *times), strict=True)),
        **{KNOB + name: _knob(value) for name, value in trial.config.items()},
        **dict(_flat(FACT, trial.build_facts)),
        **({PROXY: str(measured.conditions["proxy"])} if "proxy" in measured.conditions else {}),
        **{EVENT + name: count for name, count in measured.counters.items() if type(count) in (int, float)},
    }


def _knob(value: Any) -> Any:
    return knob_text(value) if isinstance(value, (list, tuple)) else value


def _flat(prefix: str, facts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Nested facts by dotted names, such as those of each entry point of a module."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}.", value)
        elif isinstance(value, (bool, int, float, str)):
            yield prefix + name, value


def columns(rows: Iterable[Row]) -> list[str]:
    """All columns of some rows: the fixed ones, then knobs, facts and events, each in the order of its first row."""
    seen = dict.fromkeys(name for row in rows for name in row)
    kinds = [[name for name in seen if name.startswith(prefix)] for prefix in (KNOB, FACT, EVENT)]
    return [*FIXED, *(name for kind in kinds for name in kind)]


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def as_csv(rows: Sequence[Row]) -> str:
    """An empty field stands for what is not known."""
    header = columns(rows)
    return csv_text(header, ([row.get(name) for name in header] for row in rows))


def as_frame(rows: Sequence[Row]) -> Any:
    """A pandas DataFrame with one row per trial, indexed by the trial's number."""
    try:
        import pandas
    except ImportError as error:
        blocks = "a study's table is a DataFrame; study.rows() needs nothing"
        raise Missing("pandas", blocks=blocks, remedy=install_extra("analysis")) from error
    return pandas.DataFrame(rows, columns=columns(rows)).set_index("trial")
