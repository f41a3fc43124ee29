"""NVIDIA's profiler ncu: its command line, and what it prints."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from deepgen.run.counters.base import Counted, Refused, number

DURATION = "gpu__time_duration.sum"  # always collected: by it the kernels of one run are weighed
_NO_PERMISSION = "ERR_NVGPUCTRPERM"
_UNKNOWN = "Failed to find metric"
_ERROR = "==ERROR=="


def command(program: str, events: Sequence[str], folder: Path, *, cold: bool) -> list[str]:
    """What comes before the command that is profiled."""
    metrics = ",".join(dict.fromkeys((*events, DURATION)))
    return [
        program,
        *("--csv", "--page", "raw", "--print-units", "base", "--log-file", str(_log(folder))),
        *("--profile-from-start", "off", "--target-processes", "all"),
        *("--cache-control", "all" if cold else "none", "--clock-control", "none"),
        *("--metrics", metrics),
    ]


def collected(folder: Path, events: Sequence[str], entries: Sequence[str]) -> Counted:
    """What a finished run left. Raises Refused."""
    try:
        text = _log(folder).read_text(errors="replace")
    except FileNotFoundError:
        raise Refused("ncu ended without saying anything") from None
    kernels = parse(text)
    if kernels:
        return combined(kernels, events)
    if _NO_PERMISSION in text:
        raise Refused(
            f"the driver does not let this user read the GPU's counters ({_NO_PERMISSION}): run as root, or load the "
            "module nvidia with NVreg_RestrictProfilingToAdminUsers=0",
            lasting=True,
        )
    errors = [line.partition(_ERROR)[2].strip() for line in text.splitlines() if line.startswith(_ERROR)]
    unknown = [event for event in events for line in errors if _UNKNOWN in line and _names(line, event)]
    if unknown:
        raise Refused("ncu has no such metric for this GPU", events=tuple(unknown))
    raise Refused(f"ncu says: {errors[0]}" if errors else "ncu saw no kernel run")


def parse(text: str) -> list[dict[str, float]]:
    """The metrics of each kernel, from the table with a column for each metric or from that with a row for each.

    A value that is no number, such as n/a, is left out.
    """
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        return []
    rows = list(csv.DictReader(line for line in lines[first:] if line.startswith('"')))
    if rows and "Metric Name" in rows[0]:
        by_kernel: dict[str, dict[str, str]] = {}
        for row in rows:
            by_kernel.setdefault(row["ID"], {})[row["Metric Name"]] = row["Metric Value"]
        metrics = list(by_kernel.values())
    else:
        metrics = [{k: v for k, v in row.items() if "__" in k} for row in rows if row["ID"]]  # below the head are units
    return [
        {name: value for name, text in row.items() if text and (value := number(text)) is not None} for row in metrics
    ]


def combined(kernels: Sequence[Mapping[str, float]], events: Sequence[str]) -> Counted:
    """One run may launch several kernels: sums add up, and what is no sum is averaged by the kernels' times."""
    values, missing = {}, {}
    for event in events:
        parts = [(row[event], row.get(DURATION, 1.0)) for row in kernels if event in row]
        if len(parts) < len(kernels):
            missing[event] = "ncu gives no number for it"
        elif event.endswith(".sum"):
            values[event] = sum(value for value, _ in parts)
        else:
            total = sum(weight for _, weight in parts) or 1.0
            values[event] = sum(value * weight for value, weight in parts) / total
    return Counted(values, missing)


def _log(folder: Path) -> Path:
    return folder / "ncu.log"


def _names(line: str, event: str) -> bool:
    """Whether a line is about this event, whose name may stand in a regular expression."""
    return re.search(rf"(?<![\w.]){re.escape(event)}(?![\w.]\w)", line.replace("\\", "")) is not None
