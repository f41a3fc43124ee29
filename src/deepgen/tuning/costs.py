"""The cost of each step of a run on this machine: measured now, stored by earlier runs, or assumed.

Time budgets are divided according to these costs. They are stored in a small file in the user's cache folder, per
machine, target and operator. A damaged file is ignored.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from statistics import fmean, median
from typing import Any

from deepgen.operators import Operator
from deepgen.targets import Target
from deepgen.vocabulary import DeepgenError, foreign
from deepgen.vocabulary.folders import default_cache_folder, write_whole

TRIAL, REFERENCE, VERIFY, SAMPLE, CALLS, FRESH = "trial", "reference", "verify", "sample", "calls", "fresh"
LOAD, PEAK, END = "load", "peak", "end"
# Seconds assumed if nothing was measured: for measuring a trial; verifying a kernel on inputs without a reference yet,
# and on others; a sample in a race; many calls; calls in a fresh process; loading the baselines; measuring the device's
# peak; and everything after the finals until the process exits.
ASSUMED: Mapping[str, float] = {
    TRIAL: 0.3,
    REFERENCE: 0.3,
    VERIFY: 0.03,
    SAMPLE: 0.01,
    CALLS: 0.4,
    FRESH: 1.5,
    LOAD: 3.0,
    PEAK: 2.0,
    END: 0.5,
}
_GROW = (TRIAL, REFERENCE, VERIFY, SAMPLE)  # steps whose cost grows with the operator's size
_MOST_PER_SIZE = 1e-9  # seconds per unit of size, on slow machines
_LEAST = 0.1  # least share of the cost at a larger size
_RECENT = 20  # recent measurements of a step that count
_SLOWLY = 0.3  # the weight of a new value below the stored one; a larger one replaces it at once
_FORMAT, _FILE, _MOST_KINDS, _MOST_SECONDS = "deepgen rates 1", "rates.json", 300, 1e4


class StepCosts:
    """Seconds of each step, by name."""

    def __init__(self, earlier: Mapping[str, float] | None = None) -> None:
        self._earlier = dict(earlier or {})
        self._guessed: dict[str, float] = {}
        self._measured: dict[str, list[float]] = {}

    def hear(self, step: str, seconds: float) -> None:
        """Record how long a step took."""
        self._measured.setdefault(step, []).append(seconds)

    def guess(self, step: str, seconds: float) -> None:
        """Set an upper estimate for a step from other steps: better than the assumed value, and not stored."""
        self._guessed[step] = seconds

    def of(self, step: str) -> float:
        """The expected cost of a step. References differ between kinds of inputs, so their mean counts. For samples the
        minimum counts, as trials that are given up early spend most of their time on other work."""
        recent = self._measured.get(step, [])[-_RECENT:]
        if not recent:
            return self._earlier.get(step, self._guessed.get(step, ASSUMED[step]))
        if step == REFERENCE:
            return fmean(recent)
        return min(recent) if step == SAMPLE else median(recent)

    def knows(self, step: str) -> bool:
        """Whether it was measured, now or in an earlier run."""
        return step in self._measured or step in self._earlier

    def kept(self) -> dict[str, float]:
        """The costs to store for the next run."""
        out = dict(self._earlier)
        for step in self._measured:
            now, before = self.of(step), self._earlier.get(step, 0.0)
            out[step] = now if now >= before else _SLOWLY * now + (1.0 - _SLOWLY) * before
        return out


def earlier(operator: Operator, target: Target, folder: Path | None = None) -> StepCosts:
    """The costs that earlier runs of the same operator had on this machine, scaled to this size."""
    row = _rows(folder).get(_kind(operator, target))
    if row is None:
        return StepCosts()
    larger: float = _size(operator) / row["size"]
    grown: float = larger if larger > 1.0 else max(_LEAST, larger**0.5)  # part of the cost does not depend on the size
    most = _MOST_PER_SIZE * _size(operator)

    def here(step: str, seconds: float) -> float:
        """Scale a step's cost; for a tiny operator most of it does not depend on the size."""
        usual = min(seconds, ASSUMED[step])
        return min(seconds * grown, usual + (seconds - usual) * grown + most)

    return StepCosts({step: here(step, s) if step in _GROW else s for step, s in row["seconds"].items()})


def keep(operator: Operator, target: Target, costs: StepCosts, folder: Path | None = None) -> None:
    """Store the costs for the next run, if the folder can be written."""
    rows = {kind: row for kind, row in _rows(folder).items() if kind != _kind(operator, target)}
    rows = dict([*rows.items()][1 - _MOST_KINDS :])  # the newest rows are last
    seconds = {step: round(seconds, 6) for step, seconds in costs.kept().items()}
    rows[_kind(operator, target)] = {"size": _size(operator), "seconds": seconds}
    with suppress(OSError, DeepgenError):
        write_whole((folder or default_cache_folder()) / _FILE, json.dumps({"format": _FORMAT, "kinds": rows}))


def _rows(folder: Path | None) -> dict[str, Any]:
    """The valid rows; none if the file is invalid."""
    try:
        path = (folder or default_cache_folder()) / _FILE
        data = foreign.read_json(path, most=1 << 20, plain=True) if path.exists() else {}
        kinds = data["kinds"] if data.get("format") == _FORMAT else {}
        return {kind: row for kind, row in kinds.items() if _is_sound(row)}
    except (OSError, DeepgenError, AttributeError, KeyError, TypeError):
        return {}


def _is_sound(row: Any) -> bool:
    seconds = row.get("seconds") if isinstance(row, dict) else None
    if not isinstance(seconds, dict) or not _is_number(row.get("size"), inf) or not row["size"]:
        return False
    return all(step in ASSUMED and _is_number(value, _MOST_SECONDS) for step, value in seconds.items())


def _is_number(value: Any, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0.0 <= value < most


def _kind(operator: Operator, target: Target) -> str:
    return f"{platform.node()} {target.name} {operator.name}"


def _size(operator: Operator) -> float:
    """References and comparisons take time for each operation, and more for each byte."""
    return 1.0 + operator.flops() + 100.0 * operator.least_bytes()
