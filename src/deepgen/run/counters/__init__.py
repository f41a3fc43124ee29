"""Counters: hardware events and instruction mix of a kernel, collected in separate runs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from deepgen.targets import Target
from deepgen.vocabulary import BadInput, Json, Measurement

NOT_COUNTED = "not_counted"  # key in a measurement's conditions: reason -> events
SCALED = "scaled"  # another key: events that shared a hardware counter, and were scaled to the whole run


class Refused(Exception):
    """Why a profiler counted nothing. `events`: the only ones at fault; `lasting`: the same holds for other kernels."""

    def __init__(self, why: str, *, events: tuple[str, ...] = (), lasting: bool = False) -> None:
        super().__init__(why)
        self.why, self.events, self.lasting = why, events, lasting


@dataclass(frozen=True)
class Counted:
    """The counters of one kernel. An event that could not be counted is in `missing` with the reason, and never 0."""

    values: Mapping[str, float] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    scaled: tuple[str, ...] = ()

    @staticmethod
    def nothing(events: Iterable[str], why: str) -> Counted:
        return Counted(missing=dict.fromkeys(events, why))

    @staticmethod
    def of(measured: Measurement, events: Iterable[str]) -> Counted:
        """The counters in a worker's answer; a failed run counted nothing."""
        if not measured.ok:
            return Counted.nothing(events, f"counting failed: {measured.verdict}, {measured.detail}")
        conditions: Any = measured.conditions
        return Counted(measured.counters, missing_of(measured), tuple(conditions.get(SCALED, ())))

    def __or__(self, other: Counted) -> Counted:
        """Both combined; the other's values take precedence. An event counted by either is not missing."""
        values = {**self.values, **other.values}
        missing = {name: why for name, why in {**self.missing, **other.missing}.items() if name not in values}
        return Counted(values, missing, (*(n for n in self.scaled if n not in other.values), *other.scaled))

    def kept_in(self, measured: Measurement) -> Measurement:
        """The measurement with these counters added to its own."""
        whole = Counted.of(measured, ()) | self if measured.ok else self
        others = {key: value for key, value in measured.conditions.items() if key not in (NOT_COUNTED, SCALED)}
        notes: dict[str, Json] = {NOT_COUNTED: {**by_reason(whole.missing)}, SCALED: list(whole.scaled)}
        conditions = {**others, **{key: value for key, value in notes.items() if value}}
        return replace(measured, counters=whole.values, conditions=conditions)


def missing_of(measured: Measurement) -> dict[str, str]:
    """The events that could not be counted, each with the reason."""
    reasons: Any = measured.conditions.get(NOT_COUNTED) or {}
    return {event: why for why, events in reasons.items() for event in events}


def by_reason(missing: Mapping[str, str]) -> dict[str, list[Json]]:
    """The uncounted events, by reason."""
    out: dict[str, list[Json]] = {}
    for event, why in missing.items():
        out.setdefault(why, []).append(event)
    return out


def number(text: str) -> float | None:
    """A number as profilers print it, with or without commas between thousands; None for other text."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


DEFAULT, MIX, OCCUPANCY = "default", "mix", "occupancy"
OF_MIX = f"{MIX}."  # from the disassembly
OF_RECORD = "record."  # prefix of an event that `perf record` samples on a board
MIX_NAMES = tuple(
    OF_MIX + part for part in ("instructions", "vector", "matrix", "loads", "stores", "branches", "other")
)
ALLOWED = (
    f"{DEFAULT}, {MIX}, or names as the device's profiler lists them: perf list, ncu --query-metrics, rocprofv3 -L"
)
_PROCESSOR = (
    "cycles", "instructions", "branches", "branch-misses",
    "cache-references", "cache-misses", "L1-dcache-loads", "L1-dcache-load-misses",
    "LLC-loads", "LLC-load-misses", "dTLB-load-misses",
    "task-clock", "page-faults", "context-switches",
)  # fmt: skip
# Events of vector units and caches, with perf's names on boards with SpacemiT's X60; the last four are sampled.
_BOARD = (
    "u_mode_cycle", "eu_vfpu_full", "vidu_total_cycle", "vector_micro_op", "vector_load_inst", "vector_store_inst",
    "vector_inst", "l1d_load_miss", "l1d_load_access", "l1d_access", "l1d_miss",
    "record.l2_access", "record.l2_miss", "record.l2_load_access", "record.l2_store_access",
)  # fmt: skip
_NVIDIA = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum", "dram__bytes_write.sum",
    "lts__t_sectors_op_read.sum", "lts__t_sectors_op_write.sum", "lts__t_sector_hit_rate.pct",
    "l1tex__t_sector_hit_rate.pct", "l1tex__data_bank_conflicts_pipe_lsu.sum",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__inst_executed.sum",
    "launch__registers_per_thread", "launch__occupancy_limit_registers", "launch__occupancy_limit_shared_mem",
)  # fmt: skip
_AMD = (
    "GRBM_GUI_ACTIVE", "SQ_WAVES", "SQ_INSTS_VALU", "SQ_INSTS_SALU", "SQ_INSTS_LDS", "SQ_INSTS_VMEM_RD",
    "SQ_INSTS_VMEM_WR", "SQ_LDS_BANK_CONFLICT", "TCC_HIT_sum", "TCC_MISS_sum",
)  # fmt: skip
_BY_LANGUAGE = {"c": _PROCESSOR, "cuda": _NVIDIA, "hip": _AMD}
_BY_RUNNER = {"gpu": (OCCUPANCY,), "riscv": _BOARD}
_COMMA = re.compile(r",(?=(?:[^/]*/[^/]*/)*[^/]*$)")  # outside cpu/event=0x3c,umask=0x1/
_NAME = re.compile(r"[A-Za-z][\w.:/=,-]*")


def requested(counters: str | Sequence[str] | None) -> tuple[str, ...]:
    """The names that a user requested, each once. Raises BadInput for invalid names."""
    if counters is None:
        return ()
    words = _COMMA.split(counters) if isinstance(counters, str) else counters
    if not isinstance(words, (list, tuple)) or not words:
        raise BadInput(f"counters is {counters!r}", allowed=ALLOWED)
    for word in words:
        if not isinstance(word, str) or not _NAME.fullmatch(word.strip()):
            raise BadInput(f"counters has {word!r}", allowed=ALLOWED)
    return _once(word.strip() for word in words)


def events_of(names: Iterable[str], target: Target) -> tuple[str, ...]:
    """The counters that these names stand for on a target: groups are expanded, each name once."""
    # If costs stand in for times, there are no CPU events either.
    counted = () if target.proxy else (*_BY_LANGUAGE.get(target.languages[0], ()), *_BY_RUNNER.get(target.runner, ()))
    default = (*counted, *MIX_NAMES)
    meant = {DEFAULT: default, MIX: MIX_NAMES}
    return _once(one for name in names for one in meant.get(name, (name,)))


def is_static(event: str) -> bool:
    """Whether it is known without a run."""
    return event == OCCUPANCY or event.startswith(OF_MIX)


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
