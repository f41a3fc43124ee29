"""The choices a library would make by prediction at shapes with recorded races: nothing is built or run.

The record is from an H200: 20 drawn shapes, at which 14 winners of other shapes and the vendor's libraries were timed.
The choice for a shape is based on times at the others; the measurements there show how good it is: whether a kernel of
ours serves, how far it is behind the vendor's fastest library, and the error of the predicted ratio.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log, sqrt
from pathlib import Path
from typing import Any

import deepgen as dg
from deepgen import generators
from deepgen.libraries import Entry, Timed
from deepgen.libraries.choice import decide
from deepgen.libraries.entry import Rival, Times
from deepgen.libraries.store import LibraryContent
from deepgen.operators import Gemm
from deepgen.targets import Target
from gemm_results import read
from harness.race import OURS, fitting

RECORD = Path(__file__).parent / "recorded" / "unseen_h200.json"
_ID = 64  # length of a kernel's id: no baseline has such a long name


@dataclass(frozen=True)
class Race:
    """The times at one shape."""

    operator: Gemm
    kernels: Mapping[str, float]
    baselines: Mapping[str, float]

    @property
    def vendor(self) -> float:
        return min(self.baselines.values())


def races() -> list[Race]:
    out = []
    for row in json.loads(RECORD.read_text())["races"]:
        operator = dg.gemm(*row["shape"], dtype="bf16", layout="nt")
        timed = row["seconds"]
        kernels = {name: seconds for name, seconds in timed.items() if len(name) == _ID}
        out.append(Race(operator, kernels, {name: s for name, s in timed.items() if name not in kernels}))
    return out


def winners(file: Path, target: Target) -> list[Entry]:
    """The winners that `gemm.py` recorded, in the form that serves other shapes.

    Kernels have the ids that the record has for their configs: texts of families change, and ids with them.
    """
    before = json.loads(RECORD.read_text())["kernels"]
    ids = {(row["family"], _key(row["config"])): row["kernel"] for row in before}
    out = []
    for row in read(file):
        operator, family = Gemm.from_json(row["operator"]), generators.by_name(row["generator"])
        fitted = fitting(family.space(operator, target), {**row["config"], "FIXED": False})
        if fitted is None or operator.batch > 1:
            continue
        kernel = family.emit(operator, target, fitted)
        seconds = {name: one["seconds"] for name, one in row["contenders"].items()}
        beside = {name: Rival(seconds[name]) for name in ("cublaslt", "torch-gpu")}
        timed = Timed(operator, seconds[OURS], (0.0, 0.0), beside)
        kernel_id = ids.get((row["generator"], _key(fitted)), kernel.id)
        out.append(_entry(target, row["generator"], fitted, kernel_id, kernel.requirements, timed))
    return out


def _key(config: Mapping[str, Any]) -> str:
    return json.dumps(dict(config), sort_keys=True)


def _entry(
    target: Target,
    family: str,
    config: Mapping[str, Any],
    kernel: str,
    requires: tuple[tuple[str, str], ...],
    timed: Timed,
) -> Entry:
    operator = timed.operator
    assert isinstance(operator, Gemm), "records are of products"
    peak = target.peak(operator.a)
    return Entry(target, True, None, True, family, config, kernel, "", requires, (timed,), peak, target.bandwidth, {})


@dataclass(frozen=True)
class Replayed:
    """A choice at one shape: ours or the vendor's, and times over the vendor's fastest."""

    ours: bool
    expected: float | None  # of our kernel that was predicted to be the fastest
    measured: float | None
    to_vendor: float  # of the chosen kernel or library


def replayed(race: Race, entries: Sequence[Entry], others: Sequence[Race]) -> Replayed:
    """The choice at one shape, from the entries that were timed there and the times at other shapes."""
    untimed = (("M == 0", "a time at this shape"),)
    all_of = [e if e.kernel_id in race.kernels else replace(e, requires=untimed) for e in entries]
    able = [entry for entry in all_of if entry.kernel_id in race.kernels]
    target = entries[0].target
    times = [Times(o.operator, *entries[0].conditions, o.kernels, o.baselines) for o in others]
    results = decide(
        LibraryContent({e.name: e for e in all_of}, {}, tuple(times)), race.operator, target, tuple(race.baselines)
    )
    served = race.baselines[results.vendor or ""] if results.entry is None else race.kernels[results.entry.kernel_id]
    expected = {one.name: one.seconds for one in results.considered if one.seconds is not None}
    first = min((e for e in able if e.name in expected), key=lambda e: expected[e.name] or 0.0, default=None)
    rival = min((expected[name] for name in race.baselines if name in expected), default=None)
    return Replayed(
        results.entry is not None,
        expected[first.name] / rival if first is not None and rival else None,
        None if first is None else race.kernels[first.kernel_id] / race.vendor,
        served / race.vendor,
    )


def error(rows: Sequence[Replayed]) -> float:
    """The root mean square of the logarithms of measured over predicted ratios."""
    errors = [log(row.measured / row.expected) for row in rows if row.expected and row.measured]
    return sqrt(sum(error**2 for error in errors) / len(errors))
