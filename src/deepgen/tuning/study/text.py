"""A study's results as text: times, rates and knobs for people, and trials as a table.

A row of the table has the columns of `FIXED`, then `knob.NAME`, `fact.NAME` (from the build) and `event.NAME` (a
counter). A knob, fact or event that a trial does not have is absent from its row: it is unknown, not 0.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from deepgen.vocabulary import Missing, Trial, Verdict
from deepgen.vocabulary.errors import install_extra


def counted(number: int, what: str) -> str:
    """A count with its noun: 1 trial, 2 trials."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def seconds_text(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns"


def bytes_text(size: int) -> str:
    value = float(size)
    for unit in (" B", " KiB", " MiB"):
        if value < 1024:
            return f"{value:.4g}{unit}"
        value /= 1024
    return f"{value:.4g} GiB"


def rate_text(fast: Mapping[str, Any]) -> str:
    """The most informative rate of a run: that of its arithmetic, or of its bytes if memory bounds it."""
    from deepgen.tuning.speed import MEMORY  # imported late, as most callers do not need it

    if fast.get("bound") == MEMORY:
        return f"{fast['gbytes_per_second']:.1f} GB/s"
    return f"{fast['gflops']:.1f} GFLOP/s"


def bound_text(fast: Mapping[str, Any]) -> str:
    """How near a run is to its bound, to follow its rate; empty if the bound is unknown."""
    from deepgen.tuning.speed import MEMORY

    share, what = fast["share_of_peak"], "peak"
    if fast.get("bound") == MEMORY:
        share, what = fast["share_of_bound"], "bandwidth"
    return "" if share is None else f", {share_text(share)} of {what}"


def share_text(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def knob_text(value: Any) -> str:
    """A knob's value as `deepgen build --config` takes it: a permutation is written m-n-k."""
    return "-".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def lost_baselines(results: Mapping[str, Any]) -> list[str]:
    """Baselines that the winner is not compared with, and why, one line each."""
    how = {"wrong": " was called wrong", "refused": ""}
    return [
        f"{row['name']}{how.get(row['verdict'], ' ' + row['verdict'].replace('_', ' '))}: {row['detail']}; not compared"
        for row in results.get("baselines_lost", [])
    ]


Row: TypeAlias = "dict[str, Any]"
KNOB, FACT, EVENT = "knob.", "fact.", "event."
PROXY = f"{FACT}proxy"  # what `seconds` measures if it is not a time
# `seconds` is the time that counts, for correct trials only; `finals_seconds` is from finals; `ended_at` is Unix time.
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
    """Flatten nested facts to dotted names, such as those of each entry point of a module."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}.", value)
        elif isinstance(value, (bool, int, float, str)):
            yield prefix + name, value


def columns(rows: Iterable[Row]) -> list[str]:
    """All columns of the rows: the fixed ones, then knobs, facts and events, each in order of first appearance."""
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
    """The rows as CSV. Unknown values are empty fields."""
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


NOT_KNOWN = "N/A"
# The events of the legacy tool that `as_perf_stats` imitates, each with Linux's names for the same event on other CPUs.
EVENTS: Mapping[str, tuple[str, ...]] = {
    "u_mode_cycle": ("cycles",),
    "eu_vfpu_full": (),
    "vidu_total_cycle": (),
    "vector_micro_op": (),
    "vector_load_inst": (),
    "vector_store_inst": (),
    "vector_inst": (),
    "l1d_load_miss": ("L1-dcache-load-misses",),
    "l1d_load_access": ("L1-dcache-loads",),
    "l1d_access": (),
    "l1d_miss": (),
    "l2_access": (),
    "l2_miss": (),
    "l2_load_access": (),
    "l2_store_access": (),
}
# Events that are sums over classes of instructions counted under qemu, with the common prefix of their names.
_CLASSES = {"vector_load_inst": "vector_load_", "vector_store_inst": "vector_store_", "vector_inst": "vector_"}
_RECORDED = "(perf record)"  # how that tool measured L2 events; part of the column names


def as_perf_stats(rows: Sequence[Row]) -> str:
    """The rows as a legacy `perf_stats.csv`, so that scripts written for it still work.

    That tool swept block sizes on a RISC-V board and wrote one line per variant. It wrote 0 for an event that it could
    not read; here such a field is `N/A`, which it wrote for variants with wrong results.
    """
    knobs = [name for name in columns(rows) if name.startswith(KNOB)]
    header = [
        "Timestamp",
        "ELF Name",
        *(name.removeprefix(KNOB) for name in knobs),
        "Valid Output",
        "Kernel Time (s)",
        "Total Time (s)",
        *(event + _RECORDED if event.startswith("l2_") else event for event in EVENTS),
    ]
    return csv_text(header, [_line(row, knobs) for row in rows])


def _line(row: Row, knobs: Sequence[str]) -> list[Any]:
    from deepgen.run.counters import OF_RECORD  # imported late, as most callers need only the texts above

    seconds = row["seconds"]
    return [
        _moment(row["ended_at"]),
        row["kernel_id"],
        *(row.get(name, NOT_KNOWN) for name in knobs),
        "YES" if row["verdict"] == Verdict.CORRECT.value else "NO",
        # Six decimals, as in that tool, are too few for short kernels.
        NOT_KNOWN if seconds is None or PROXY in row else f"{seconds:.9f}",
        NOT_KNOWN,  # the time of a whole program, which does not exist here
        *(_count(row, (event, OF_RECORD + event, *others)) for event, others in EVENTS.items()),
    ]


def _count(row: Row, names: Sequence[str]) -> str:
    value = next((row[EVENT + name] for name in names if EVENT + name in row), None)
    if value is None and names[0] in _CLASSES:
        classes = [count for name, count in row.items() if name.startswith(EVENT + _CLASSES[names[0]])]
        value = sum(classes) if classes else None
    return NOT_KNOWN if value is None else f"{value:.0f}"


def _moment(at: Any) -> str:
    try:
        return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")
    except (TypeError, ValueError, OverflowError, OSError):  # a wrong clock, or a foreign journal
        return NOT_KNOWN
