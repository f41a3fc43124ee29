"""Trials as numeric columns: the numbers compared with the time, and those held fixed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Row = Mapping[str, Any]
KNOB = "knob."
KINDS = ("event.", "fact.", "derived.", KNOB)
FEWEST = 20  # values; with fewer, a number is not analyzed
# Robust standard deviations from the median. 3 is customary. In six recorded spaces and a disturbed study on a CPU, 2
# and 2.5 find the same knobs; 4 misses two of them in one space, and both in the study.
_FAR = 3.0
# These describe the compilation, not how the kernel runs.
_OF_THE_BUILD = frozenset({"fact.build_seconds", "fact.cpu_seconds"})
TIME, OTHER = "time", "other"
# A name belongs to the first group whose pattern matches. `time` holds what follows the time by definition.
_GROUPS: Mapping[str, str] = {
    TIME: r"^(?!.*(stall|active)).*(?<![a-z])(cycles?|clock|duration|elapsed|seconds)(?![a-z])",
    "cache": r"cache|l1|l2|llc|lts__|tlb|tex__",
    "vector": r"vector|vfpu|simd|fma|tensor|mma|pipe_|neon|sve|avx|flop|matrix",
    "memory": r"dram|mem|(?<!code_)bytes|load|store|spill|stack|shared|sector|page|bandwidth|global|local",
    "control": r"branch|barrier|sync|stall|switch|inst|predicate|warp|occupancy|issue|jump|divergen|code",
}
_PATTERNS = {group: re.compile(pattern, re.IGNORECASE) for group, pattern in _GROUPS.items()}
# Names of events and facts that get a readable description.
_WORDS: Mapping[str, str] = {
    "cache-misses": "cache misses",
    "cache-references": "cache references",
    "L1-dcache-loads": "L1 loads",
    "L1-dcache-load-misses": "L1 load misses",
    "LLC-loads": "last-level cache loads",
    "LLC-load-misses": "last-level cache misses",
    "dTLB-load-misses": "TLB misses",
    "branch-misses": "branch misses",
    "l1d_miss": "L1 misses",
    "l1d_access": "L1 accesses",
    "l2_miss": "L2 misses",
    "l2_access": "L2 accesses",
    "vector_inst": "vector instructions",
    "dram__bytes_read.sum": "bytes read from DRAM",
    "dram__bytes_write.sum": "bytes written to DRAM",
    "smsp__inst_executed.sum": "instructions executed",
    "registers": "registers",
    "spill_bytes": "spilled bytes",
    "shared_bytes": "shared memory",
    "stack_bytes": "stack bytes",
    "code_bytes": "code size",
    "occupancy": "occupancy",
}


@dataclass(frozen=True, eq=False)
class NumberColumn:
    """A number of each trial, NaN if a trial does not have it; as logarithms if all are positive."""

    name: str
    values: Floats

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        return ~np.isnan(self.values)


def usable(rows: Sequence[Row]) -> list[Row]:
    """The trials that have a time."""
    correct = (row for row in rows if row.get("verdict") == "correct")
    return [row for row in correct if _number(row.get("seconds")) and row["seconds"] > 0]


def log_times(rows: Sequence[Row]) -> Floats:
    return np.log([float(row["seconds"]) for row in rows])


def pulled_in(log_time: Floats) -> Floats:
    """Times with outliers clipped to a limit.

    A trial disturbed by another process may take 100 times as long; a few of them would dominate the sums of squares.
    """
    middle = float(np.median(log_time))
    reach = _FAR * 1.4826 * float(np.median(np.abs(log_time - middle)))
    return np.clip(log_time, middle - reach, middle + reach) if reach > 0 else log_time


def columns_of(rows: Sequence[Row]) -> tuple[list[NumberColumn], list[str]]:
    """The numbers that differ between trials, and the names of those present in too few trials.

    A column identical to an earlier one is left out.
    """
    distinct: dict[bytes, NumberColumn] = {}
    scarce = []
    for name in _names(rows, KINDS):
        cells = [row.get(name) for row in rows]
        if name in _OF_THE_BUILD or not all(value is None or _number(value) for value in cells):
            continue
        values = np.array([math.nan if value is None else float(value) for value in cells])
        present = values[~np.isnan(values)]
        if len(np.unique(present)) < 2:
            continue
        if len(present) < FEWEST:
            scarce.append(name)
            continue
        scaled = np.log(values) if present.min() > 0 else values / np.abs(present).max()
        distinct.setdefault(np.round(scaled, 12).tobytes(), NumberColumn(name, scaled))
    return list(distinct.values()), scarce


def knobs_of(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """The knobs that differ between trials: one value per trial, None if a knob is absent."""
    columns = {name: [row.get(name) for row in rows] for name in _names(rows, (KNOB,))}
    return {name.removeprefix(KNOB): values for name, values in columns.items() if len({*map(repr, values)}) > 1}


def distances(values: Sequence[Any]) -> Floats:
    """The distances between a knob's values, from 0 to 1: numbers lie on a line, other values are all equally far
    apart.
    """
    keys = np.array([repr(value) for value in values])
    apart: Floats = (keys[:, None] != keys[None, :]).astype(np.float64)
    present = [i for i, value in enumerate(values) if value is not None]
    if all(_number(values[i]) for i in present):
        at = _positions(np.array([float(values[i]) for i in present]))
        apart[np.ix_(present, present)] = np.abs(at[:, None] - at[None, :])
    return apart


def design(knobs: Mapping[str, Sequence[Any]], *, fine: bool) -> Floats:
    """The knobs as columns of a linear model: one for each value, or (not `fine`) a curve for numeric knobs."""
    parts: list[Floats] = []
    for values in knobs.values():
        if not fine and all(map(_number, values)):
            at = _positions(np.array([float(value) for value in values]))
            parts += [at, (at - at.mean()) ** 2]
            continue
        keys = [repr(value) for value in values]
        parts += [np.array([float(key == level) for key in keys]) for level in sorted(set(keys))[1:]]
    size = len(next(iter(knobs.values()), ()))
    return np.column_stack(parts) if parts else np.empty((size, 0))


def _positions(values: Floats) -> Floats:
    """Numbers mapped to 0 to 1: half by order, half by logarithm, since sizes mostly double."""
    levels, place = np.unique(values, return_inverse=True)
    if len(levels) < 2:
        return np.zeros(len(values))
    logs = np.log(levels) if levels[0] > 0 else np.log1p(levels - levels[0])
    order = np.arange(len(levels)) / (len(levels) - 1)
    return np.asarray((0.5 * order + 0.5 * (logs - logs[0]) / (logs[-1] - logs[0]))[place])


def _names(rows: Sequence[Row], prefixes: tuple[str, ...]) -> list[str]:
    seen = dict.fromkeys(name for row in rows for name in row)
    return [name for prefix in prefixes for name in seen if name.startswith(prefix)]


def _number(value: Any) -> bool:
    try:
        return isinstance(value, (bool, int, float)) and math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


def group_of(name: str) -> str:
    """The group of a column such as `event.l2_miss`; a knob and a value derived from knobs are groups of their own."""
    kind, _, plain = name.partition(".")
    if kind in ("knob", "derived"):
        return kind
    return next((group for group, pattern in _PATTERNS.items() if pattern.search(plain)), OTHER)


def words_for(name: str) -> str:
    """The readable name of a column."""
    plain = name.partition(".")[2]
    return _WORDS.get(plain, plain)
