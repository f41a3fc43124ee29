"""The conditions of a measurement, and whether they invalidate it.

These are readings of a Linux host.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from deepgen.vocabulary import Json, JsonObject, Measurement

STOLEN = 0.03  # share of the cores' time taken by a hypervisor above which a measurement counts as disturbed
OTHERS = 0.15  # the same for other processes
THROTTLED = 0.02  # the same for a container's CPU limit, which stops all its threads at once
# Above these, times are meaningless: shares of the time that threads waited for a core, that a hypervisor took, and
# that other processes took. On a slightly busy machine, medians are still correct.
WAITED, MUCH, CROWDED = 0.2, 0.1, 0.3
_LEAST_SECONDS = 0.05  # a share of less than a few ticks of the system's clock is meaningless
_CPUS = Path("/sys/devices/system/cpu")
_GROUPS, _OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@dataclass(frozen=True)
class MachineReading:
    """The state of the machine at one moment. Times are seconds summed over the cores that we may use."""

    at: float
    busy: float = 0.0
    stolen: float = 0.0
    ours: float = 0.0  # CPU time of the measuring processes themselves
    builds: int = 0
    throttled: float = 0.0  # by a container's CPU limit


def read(ours: float, builds: int) -> MachineReading:
    """Take a reading; cheap enough for every trial."""
    busy, stolen = _cpu_times()
    return MachineReading(time.monotonic(), busy, stolen, ours, builds, _throttled())


def describe(before: MachineReading, after: MachineReading) -> JsonObject:
    """The conditions to store with a measurement."""
    out: JsonObject = {
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "builds": max(before.builds, after.builds),
        "stolen_share": round(_share(after.stolen - before.stolen, before, after), 4),
        "others_share": round(_share(_others(before, after), before, after), 4),
    }
    if after.throttled > before.throttled:
        out["throttled_share"] = round(_share(after.throttled - before.throttled, before, after), 4)
    optional = {"mhz": _mhz(), "governor": _governor(), "celsius": _celsius()}
    return {**out, **{k: v for k, v in optional.items() if v is not None}}


def contaminated(before: MachineReading, after: MachineReading) -> str | None:
    """Why a measurement between these readings should be repeated, in words."""
    stolen, others = after.stolen - before.stolen, _others(before, after)
    if stolen >= _LEAST_SECONDS and _share(stolen, before, after) > STOLEN:
        return f"the hypervisor took {_share(stolen, before, after):.0%} of the CPU time"
    throttled = _share(after.throttled - before.throttled, before, after)
    if throttled > THROTTLED:
        return f"the container's limit took {throttled:.0%} of the CPU time"
    # Builds during the search are expected; they are paused when they would affect a decision.
    quiet = before.builds == 0 and after.builds == 0
    if quiet and others >= _LEAST_SECONDS and _share(others, before, after) > OTHERS:
        return f"other processes took {_share(others, before, after):.0%} of the CPU time"
    return None


def noted(measured: Measurement, **notes: Json) -> Measurement:
    """The measurement with these notes among its conditions, except empty ones."""
    kept = {k: v for k, v in notes.items() if v}
    return replace(measured, conditions={**measured.conditions, **kept}) if kept else measured


def noise(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Why a contender's times under these conditions are meaningless, in words.

    If it is known how long threads waited for a core, that decides: load on cores that we do not need disturbs little.
    In interleaved runs threads sleep between runs, and there the load decides.
    """
    waited = [row["waited_share"] for row in rows if row.get("waited_share") is not None]
    if waited and (share := sum(waited) / len(waited)) > WAITED:
        return f"threads waited for a core for {share:.0%} of their runnable time"
    most = {"stolen_share": MUCH, "throttled_share": MUCH, "others_share": inf if waited else CROWDED}
    disturbed = [row for row in rows if any(float(row.get(name) or 0.0) > share for name, share in most.items())]
    sentences = [str(row["contaminated"]) for row in disturbed if row.get("contaminated")]
    return sentences[0] if 2 * len(sentences) > len(rows) else None


def disturbance(seconds: float = 0.3) -> str | None:
    """What disturbs this machine now, in words. None of our own processes may run meanwhile."""
    before = read(time.process_time(), 0)
    time.sleep(seconds)
    return contaminated(before, read(time.process_time(), 0))


def _share(seconds: float, before: MachineReading, after: MachineReading) -> float:
    span = (after.at - before.at) * len(_cores())
    return min(1.0, max(0.0, seconds / span)) if span > 0 else 0.0


def _others(before: MachineReading, after: MachineReading) -> float:
    return max(0.0, (after.busy - before.busy) - (after.ours - before.ours))


def _cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _cpu_times() -> tuple[float, float]:
    """Busy and stolen seconds of our cores since boot."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return 0.0, 0.0
    tick = 1.0 / os.sysconf("SC_CLK_TCK")
    cores = {f"cpu{n}" for n in _cores()}
    busy = stolen = 0
    for line in lines:
        name, *rest = line.split()
        if name in cores:
            times = [int(x) for x in rest]
            user, nice, system, _idle, _waiting, irq, softirq, steal = times[:8]
            busy += user + nice + system + irq + softirq
            stolen += steal
    return busy * tick, stolen * tick


def _throttled() -> float:
    """Seconds for which a container's limit has stopped our threads so far."""
    file = _container()
    words = ((_text(file) if file else None) or "").split()
    rows = dict(zip(words[::2], words[1::2], strict=False))
    # Control groups v2 count microseconds, v1 nanoseconds.
    return int(rows.get("throttled_usec", 0)) * 1e-6 + int(rows.get("throttled_time", 0)) * 1e-9


@cache
def _container() -> Path | None:
    """The file with the statistics of a container's limit."""
    groups = [line.split(":", 2) for line in (_text(_OWN_GROUP) or "").splitlines()]
    places = [f"{kinds}{path}" for _, kinds, path in groups if kinds == "" or "cpu" in kinds.split(",")]
    candidates = [_GROUPS / place.lstrip("/") / "cpu.stat" for place in places]
    candidates += [_GROUPS / "cpu.stat", _GROUPS / "cpu" / "cpu.stat"]  # inside the container's own namespace
    return next((file for file in candidates if "throttled" in (_text(file) or "")), None)


def _mhz() -> float | None:
    """The mean current clock frequency of our cores, if the kernel reports it."""
    clocks = []
    for core in sorted(_cores())[:8]:
        text = _text(_CPUS / f"cpu{core}" / "cpufreq" / "scaling_cur_freq")
        if text and text.isdigit():
            clocks.append(int(text) / 1000.0)
    return round(sum(clocks) / len(clocks), 1) if clocks else None


def _governor() -> str | None:
    return _text(_CPUS / f"cpu{min(_cores())}" / "cpufreq" / "scaling_governor")


def _celsius() -> float | None:
    """The temperature of the hottest sensor."""
    readings = [_text(p) for p in Path("/sys/class/thermal").glob("thermal_zone*/temp")]
    values = [int(r) / 1000.0 for r in readings if r and r.lstrip("-").isdigit()]
    return max(values) if values else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
