"""What a run with `--counters` ends with beside its winner: all trials as a table, and what explains their time."""

from __future__ import annotations

from deepgen.frontends.cli.output import labelled, shown, write_text
from deepgen.report import analysis
from deepgen.report.analysis.of_study import rows_of
from deepgen.report.analysis.words import summary
from deepgen.tuning import Study
from deepgen.tuning.study.text import as_perf_stats
from deepgen.vocabulary.errors import DeepgenError

TABLE = "perf_stats.csv"  # in the study's folder


def write(study: Study) -> None:
    """The table, as `deepgen export --as-perf-stats` writes it."""
    if _asked(study):
        write_text(study.folder / TABLE, as_perf_stats(study.rows()))


def show(study: Study) -> None:
    """Where the table is, and the sentence that `deepgen analyze` begins with."""
    if not _asked(study):
        return
    labelled("events", shown(study.folder / TABLE))
    try:
        told = summary(analysis.analyze(rows_of(study.read())))
    except DeepgenError as error:  # too few trials to say anything
        told = f"none: {error}"
    labelled("analysis", told)


def _asked(study: Study) -> bool:
    return bool(study.budget().get("counters"))
