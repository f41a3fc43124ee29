"""What a library would choose by prediction at shapes where races were recorded: nothing is built or run.

Each shape of a record of `library_unseen.py` is left out in turn, and chosen for from the times at all others, or with
`--alone` from those at the suite's shapes. What was measured there tells how good the choice is: how many shapes are
served by kernels of ours, and how far behind the vendor's fastest library the choice is. `could` tells how many would
be served within 3% of the vendor's time if all times were known, and `error` how far predictions of the ratio are off
(the root of the mean square of logarithms). Kernels that were not timed at a shape take no part there.

    python benchmarks/library_replay.py RECORD [--known FILE] [--alone] [--json FILE]

Older records do not tell what the library held. For them `--known FILE`, as given to `library_unseen.py`, tells the
suite's winners and times; without it nothing is known of kernels but their times at the drawn shapes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from pathlib import Path
from typing import Any

import deepgen as dg
from deepgen import generators, targets
from deepgen.libraries import Entry, Timed
from deepgen.libraries.choice import decide
from deepgen.libraries.entry import Rival, Times
from deepgen.libraries.store import LibraryContent
from deepgen.operators import Gemm
from deepgen.targets import Target
from gemm_results import read
from harness import Conditions, Options, parser, plain, run_main, write
from harness.race import OURS, fitting, general

BEHIND = 1.03
_ID = 64  # letters of a kernel's id: no baseline has such a long name


@dataclass(frozen=True)
class Race:
    """What was timed at one shape."""

    operator: Gemm
    kernels: Mapping[str, float]
    baselines: Mapping[str, float]

    @property
    def vendor(self) -> float:
        return min(self.baselines.values())


def races(record: Mapping[str, Any], dtype: str, layout: str) -> list[Race]:
    out = []
    for row in record["results"]:
        operator = dg.gemm(*row["shape"], dtype=dtype, layout=layout)
        timed = row["measured"]
        kernels = {name: seconds for name, seconds in timed.items() if len(name) == _ID}
        out.append(Race(operator, kernels, {name: s for name, s in timed.items() if name not in kernels}))
    return out


def recorded(record: Mapping[str, Any]) -> tuple[list[Entry], list[Race]]:
    """What the library held: its entries, and what was timed side by side at the suite's shapes."""
    times = [Times.from_json(row) for row in record["library"]["times"]]
    races = [Race(row.operator, row.kernels, row.baselines) for row in times if isinstance(row.operator, Gemm)]
    return [Entry.from_json(row) for row in record["library"]["entries"]], races


def known_entries(file: Path, target: Target, record: Mapping[str, Any]) -> list[Entry]:
    """The suite's winners in the form that serves other shapes, as `library_known.py` builds them.

    Kernels have the ids that the record has for their configs: texts of families change, and ids with them.
    """
    before = recorded(record)[0] if "library" in record else []
    ids = {(entry.family, _key(entry.config)): entry.kernel_id for entry in before}
    out = []
    for row in read(file):
        operator, family = Gemm.from_json(row["operator"]), generators.by_name(row["generator"])
        fitted = fitting(family.space(operator, target), general(row["config"]))
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


def plain_entries(results: Sequence[Race], target: Target) -> list[Entry]:
    """Kernels of which nothing is known but times: each is taken for the winner of the shape that it was best at."""
    out = []
    for kernel in dict.fromkeys(kernel for race in results for kernel in race.kernels):
        at = [race for race in results if kernel in race.kernels]
        if len(at) > 1:  # others were made for one shape alone
            best = min(at, key=lambda race: race.kernels[kernel] / min(race.kernels.values()))
            rivals = {name: Rival(seconds) for name, seconds in best.baselines.items()}
            timed = Timed(best.operator, best.kernels[kernel], (0.0, 0.0), rivals)
            out.append(_entry(target, "", {}, kernel, (), timed))
    return out


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


def replayed(race: Race, entries: Sequence[Entry], others: Sequence[Race]) -> dict[str, Any]:
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
    best = min((race.kernels[entry.kernel_id] for entry in able), default=float("inf"))
    expected = {one.name: one.seconds for one in results.considered if one.seconds is not None}
    first = min((e for e in able if e.name in expected), key=lambda e: expected[e.name] or 0.0, default=None)
    rival = min((expected[name] for name in race.baselines if name in expected), default=None)
    return {
        "shape": [race.operator.m, race.operator.n, race.operator.k],
        "ours": results.entry is not None,
        "expected": expected[first.name] / rival if first is not None and rival else None,
        "found": None if first is None else race.kernels[first.kernel_id] / race.vendor,
        "best": best / race.vendor,
        "to_vendor": served / race.vendor,
        "reason": results.reason,
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    ours = [row["to_vendor"] for row in rows if row["ours"]]
    errors = [log(row["found"] / row["expected"]) for row in rows if row["expected"]]
    return {
        "shapes": len(rows),
        "served_by_ours": len(ours) / len(rows),
        "could": sum(row["best"] <= BEHIND for row in rows) / len(rows),
        "error": sqrt(sum(error**2 for error in errors) / len(errors)) if errors else None,
        "worst_of_ours": max(ours, default=None),
        "worst": max(row["to_vendor"] for row in rows),
        "mean": exp(sum(log(row["to_vendor"]) for row in rows) / len(rows)),
    }


def main() -> None:
    options = _options()
    target = targets.resolve(options.target)
    record = json.loads(options.record.read_text())
    results = races(record, options.dtype, options.layout)
    entries, timed = recorded(record) if "library" in record else ([], [])
    if options.known is not None:
        entries = known_entries(options.known, target, record)
    rows = []
    for race in results:
        others = [*timed, *(other for other in results if other is not race and not options.alone)]
        rows.append(replayed(race, entries or plain_entries(others, target), others))
    for row in rows:
        expected, real = (f"{row[name]:.3f}" if row[name] else "    -" for name in ("expected", "found"))
        shape, served = "x".join(map(str, row["shape"])), "ours" if row["ours"] else "vendor"
        best = f"{row['best']:.3f}"
        print(f"{shape:>16} expected {expected} found {real} best {best} {served:>6} {row['to_vendor']:.3f}")
    print(json.dumps(summary(rows), indent=1))
    if options.json is not None:
        content = {"conditions": Conditions.now(), "summary": summary(rows), "results": rows}
        write(options.json, json.dumps(plain(content), indent=1) + "\n")


def _options() -> Options:
    words = parser(__doc__)
    words.add_argument("record", type=Path, help="results of library_unseen.py")
    words.add_argument("--target", default="cuda:h200", help="of an older record")
    words.add_argument("--dtype", default="bf16")
    words.add_argument("--layout", default="nt")
    words.add_argument("--known", type=Path, metavar="FILE", help="results of gemm.py with the suite's winners")
    words.add_argument("--alone", action="store_true", help="choose from the suite's shapes alone")
    return words.options()


if __name__ == "__main__":
    run_main(main)
