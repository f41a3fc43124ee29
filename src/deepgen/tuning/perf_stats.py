"""A study's trials with the columns of an older tool's `perf_stats.csv`, so that scripts written for it still work.

That tool swept block sizes on a RISC-V board and wrote one line per variant. It wrote 0 for an event that it could not
read; here such a field is `N/A`, which it wrote for variants with wrong results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from deepgen.run.counters.names import OF_RECORD
from deepgen.tuning.study.table import EVENT, KNOB, PROXY, Row, columns, csv_text
from deepgen.vocabulary import Verdict

NOT_KNOWN = "N/A"
# The events of that tool, each with the other names under which Linux counts the same on other processors.
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
# Events that are sums of the classes of instructions that are counted under qemu: how the names of these begin.
_CLASSES = {"vector_load_inst": "vector_load_", "vector_store_inst": "vector_store_", "vector_inst": "vector_"}
_RECORDED = "(perf record)"  # how that tool measured L2 events; part of their columns' names


def as_perf_stats(rows: Sequence[Row]) -> str:
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
    seconds = row["seconds"]
    return [
        _moment(row["ended_at"]),
        row["kernel_id"],
        *(row.get(name, NOT_KNOWN) for name in knobs),
        "YES" if row["verdict"] == Verdict.CORRECT.value else "NO",
        # That tool's six decimals are too few for short kernels.
        NOT_KNOWN if seconds is None or PROXY in row else f"{seconds:.9f}",
        NOT_KNOWN,  # of a whole program, which does not exist here
        *(_count(row, (event, OF_RECORD + event, *others)) for event, others in EVENTS.items()),
    ]


def _count(row: Row, names: Sequence[str]) -> str:
    found = next((row[EVENT + name] for name in names if EVENT + name in row), None)
    if found is None and names[0] in _CLASSES:
        classes = [count for name, count in row.items() if name.startswith(EVENT + _CLASSES[names[0]])]
        found = sum(classes) if classes else None
    return NOT_KNOWN if found is None else f"{found:.0f}"


def _moment(at: Any) -> str:
    try:
        return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")
    except (TypeError, ValueError, OverflowError, OSError):  # a clock that was off, or somebody else's journal
        return NOT_KNOWN
