"""Shapes that nobody tuned: a library of the suite's GEMMs against studies of their own and the vendor's library.

The shapes are drawn by a seed. For each, what the library chooses by prediction, what it chooses after it has measured
(`dispatch="measure"`, which includes kernels made for the shape), the winner of a short study of that shape and the
baselines are timed side by side. What is measured at one drawn shape is not used for the next. Wanted: within 1.08
of the own study in the geometric mean, at least 80% of the shapes served by a kernel of ours, and never behind the
vendor's library by more than 3%.

    python benchmarks/library_unseen.py [--target cuda:native --dtype bf16 --layout nt] [--work DIR] [--time-limit 540]

Studies, the library and results stay in the work folder: the same command goes on where a time limit ended it. First
comes the library, then all shapes without studies of their own, then these. `--known FILE` takes the suite's winners
from the results of an earlier benchmark in place of studies.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

import deepgen as dg
from deepgen import baselines, generators, targets
from deepgen.libraries import Choice, Library
from deepgen.libraries.adding import entry_of
from deepgen.libraries.candidates import ORIGIN
from deepgen.libraries.choice import choose
from deepgen.libraries.first_use import Raced, time_chosen
from deepgen.libraries.racing import Runners, contender_of, opened, time_across
from deepgen.operators import Gemm
from deepgen.run.measure.base import Contender, Policy, Task
from deepgen.targets import Target
from deepgen.tuning import Study
from harness import Conditions, Options, cases, parser, plain, run_main, write
from library_known import fill

SEED, COUNT = 23, 20
ROUNDS = 60  # short kernels on GPUs take longer in one of five samples: see libraries/first_use.py
NEAR, SERVED, BEHIND = 1.08, 0.8, 1.03


class Over(Exception):
    """The time limit is reached."""


def shapes(options: Options, runner: str) -> list[Gemm]:
    """Sizes are drawn evenly on a logarithmic scale, in multiples of 16: lines of 16 bytes in every format."""
    low, high = (64, 8192) if runner == "gpu" else (32, options.largest)
    rng = np.random.default_rng(options.seed)
    drawn = np.exp(rng.uniform(log(low), log(high), (options.count, 3)))
    return [_gemm(options, *(int(16 * max(1, round(size / 16))) for size in row)) for row in drawn]


def suite(options: Options, runner: str) -> list[Gemm]:
    sizes = [row[1:] for row in cases.suite(runner, batched=False)]
    fitting = [_gemm(options, *row) for row in sizes if runner == "gpu" or max(row) <= 4 * options.largest]
    return [operator for operator in fitting if operator.flops() <= options.most_flops]


def _gemm(options: Options, m: int, n: int, k: int) -> Gemm:
    return dg.gemm(m, n, k, dtype=options.dtype, layout=options.layout)


def tuned(operator: Gemm, target: Target, seconds: float, folder: Path, **words: Any) -> Study:
    """A study within a time budget. One that has its finals is taken as it is."""
    for path in sorted(folder.glob("*/journal.sqlite")):
        study = Study.open(path.parent)
        if study.operator == operator and study.finals() is not None:
            return study
    return dg.tune(operator, target=target, out=folder, trials=100_000, time_budget=seconds, transfer=False, **words)


def general_knobs(operator: Gemm, target: Target) -> dict[str, list[Any]] | None:
    """Values with which a kernel serves other shapes, too. Without them its company would take a race of its own."""
    names = {knob.name for knob in generators.find(operator, target).space(operator, target).knobs}
    return {"FIXED": [False]} if "FIXED" in names else None


@dataclass(frozen=True)
class Chosen:
    """What the library chooses by prediction, and after it has measured."""

    choices: dict[str, Choice]
    raced: Raced | None
    seconds: float  # that measuring took


def chosen(library: Library, operator: Gemm, target: Target, runners: Runners) -> Chosen:
    """Nothing of it stays in the library."""
    content, started = library.content(), time.monotonic()
    predicted = library.choose(operator, target)
    raced = time_chosen(library, predicted, runners)
    taken = time.monotonic() - started
    if raced is None:
        return Chosen({"predict": predicted, "measure": predicted}, None, taken)
    more = {} if raced.fastest is None else {raced.fastest[0].name: raced.fastest[0]}
    after = replace(content, times=(*content.times, raced.times), entries={**content.entries, **more})
    return Chosen({"predict": predicted, "measure": choose(after, operator, target)}, raced, taken)


def race(
    library: Library, created: Chosen, study: Study | None, runners: Runners, threads: int | None
) -> dict[str, Any]:
    """What was chosen, the winner of the shape's own study, if there is one, and the baselines, side by side."""
    choices = created.choices
    operator, target = choices["predict"].operator, choices["predict"].target
    assert isinstance(operator, Gemm), "only these are drawn"
    entries = {choice.entry.name: choice.entry for choice in choices.values() if choice.entry is not None}
    names = baselines.raced(baselines.find(operator, target))
    new = () if created.raced is None or created.raced.fastest is None else (created.raced.fastest,)
    earlier = [contender_of(library, entry) for entry in entries.values() if library.path_of(entry).exists()]
    fresh = [Contender(entry.name, kernel, built) for entry, kernel, built in new if entry.name in entries]
    contenders = [*earlier, *fresh, *map(Contender, names)]
    if study is not None:
        _, kernel, artifact = entry_of(study)
        contenders.append(Contender("own study", kernel, artifact))
    task = Task(operator, target, policy=Policy(threads=threads))
    measured = runners.on(task).compare(contenders, ROUNDS, 0)
    seconds = {c.name: m.seconds for c, m in zip(contenders, measured, strict=True) if m.ok and m.seconds}
    vendor = min((seconds[name] for name in names if name in seconds), default=None)
    report = {how: _served(choice, seconds, vendor) for how, choice in choices.items()}
    return {"shape": _sizes(operator), "seconds": seconds, **_measuring(created), **report}


def _measuring(created: Chosen) -> dict[str, Any]:
    """What was measured, and how long that took."""
    if created.raced is None:
        return {"spent": {"whole": created.seconds}}
    times = created.raced.times
    right = [(at.seconds, one.config) for one, at in created.raced.tried if at.ok and at.seconds]
    best = min(right, key=lambda row: row[0], default=None)
    return {
        "measured": {**times.kernels, **times.baselines},
        "ties": list(times.ties),
        "not_made": times.not_made,
        "made": [seconds for seconds, _ in right],
        "best_made": None if best is None else {"seconds": best[0], "config": dict(best[1])},
        "spent": {**created.raced.spent, "whole": created.seconds},
    }


def _served(choice: Choice, seconds: Mapping[str, float], vendor: float | None) -> dict[str, Any]:
    name = choice.vendor if choice.entry is None else choice.entry.name
    served = seconds.get(name or "")
    return {
        "how": choice.how,
        "name": name,
        "ours": choice.entry is not None,
        "made": choice.entry is not None and choice.entry.provenance.get("origin") == ORIGIN,
        "expected": choice.seconds,
        "to_own_study": None if served is None or "own study" not in seconds else served / seconds["own study"],
        "to_vendor": None if served is None or vendor is None else served / vendor,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"wanted": {"to_own_study": NEAR, "served_by_ours": SERVED, "worst_to_vendor": BEHIND}} | {
        how: _summed([row[how] for row in rows]) for how in ("predict", "measure")
    }


def _summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    ratios = [row["to_own_study"] for row in rows if row["to_own_study"]]
    vendors = [row["to_vendor"] for row in rows if row["to_vendor"]]
    return {
        "shapes": len(rows),
        "to_own_study": exp(sum(map(log, ratios)) / len(ratios)) if ratios else None,
        "served_by_ours": sum(row["ours"] for row in rows) / len(rows) if rows else None,
        "made_for_the_shape": sum(row.get("made", False) for row in rows) / len(rows) if rows else None,
        "worst_to_vendor": max(vendors, default=None),
        "own_studies": len(ratios),
    }


def kept(library: Library) -> dict[str, Any]:
    """What the choices were made from: `library_replay.py` makes them again."""
    content = library.content()
    entries, times = content.entries.values(), content.times
    return {"entries": [entry.to_json() for entry in entries], "times": [row.to_json() for row in times]}


def line(row: Mapping[str, Any]) -> str:
    shape = "x".join(map(str, row["shape"]))
    parts = []
    for how in ("predict", "measure"):
        own, vendor = (_ratio(row[how][name]) for name in ("to_own_study", "to_vendor"))
        parts.append(f"{how}: {row[how]['how']:<9} own {own} vendor {vendor}")
    times = " ".join(f"{name} {value * 1e6:.1f}" for name, value in row["seconds"].items())
    spent = " ".join(f"{what} {value:.1f}" for what, value in row["spent"].items())
    return f"{shape:>16} {'; '.join(parts)}; us: {times}; s: {spent}"


def _ratio(value: float | None) -> str:
    return "    -" if value is None else f"{value:.3f}"


def main() -> None:
    options = _options()
    target = targets.resolve(options.target)
    deadline = options.deadline()
    work: Path = options.work
    results = work / "results.json"
    rows = json.loads(results.read_text())["results"] if results.exists() else []
    library = dg.library(work / "library")

    def go_on() -> None:
        if deadline.over:
            raise Over

    def keep(row: dict[str, Any]) -> None:
        rows[:] = [other for other in rows if other["shape"] != row["shape"]] + [row]
        print(line(row), flush=True)
        report = {"conditions": Conditions.now(), "summary": summary(rows), "library": kept(library), "results": rows}
        for path in (results, options.json):
            if path is not None:
                write(path, json.dumps(plain(report), indent=1) + "\n")

    place, parts = options.part
    drawn = shapes(options, target.runner)[place - 1 :: parts]
    choices: dict[Gemm, Chosen] = {}
    try:
        with opened() as runners:
            _fill(library, options, target, runners, go_on)
            done = [row["shape"] for row in rows]
            for operator in [one for one in drawn if _sizes(one) not in done]:
                go_on()
                choices[operator] = chosen(library, operator, target, runners)
                keep(race(library, choices[operator], None, runners, options.threads))
            whole = [row["shape"] for row in rows if "own study" in row["seconds"]]
            for operator in [one for one in drawn if _sizes(one) not in whole]:
                go_on()
                words = {"threads": options.threads, "baselines": False}
                study = tuned(operator, target, options.own_seconds, work / "own", **words)
                created = choices.get(operator) or chosen(library, operator, target, runners)
                keep(race(library, created, study, runners, options.threads))
    except Over:
        print("the time limit is reached: run the same command again")
    print(json.dumps(summary(rows), indent=1))


def _fill(library: Library, options: Options, target: Target, runners: Runners, go_on: Callable[[], None]) -> None:
    """The library of the suite's shapes."""
    wanted = suite(options, target.runner)
    missing = [one for one in wanted if all(entry.operator != one for entry in library.list())]
    if options.known is not None:
        fill(library, options.known, missing, target, runners, options.threads, go_on)
        return
    for operator in missing:
        go_on()
        words = {"threads": options.threads, "knobs": general_knobs(operator, target)}
        study = tuned(operator, target, options.suite_seconds, options.work / "suite", **words)
        print(f"tuned {operator.describe()}: {library.add(study)}", flush=True)
    if len(library.content().times) < len(wanted):
        go_on()
        print(f"timed all kernels at {time_across(library)} shapes", flush=True)


def _sizes(operator: Gemm) -> list[int]:
    return [operator.m, operator.n, operator.k]


def _part(text: str) -> tuple[int, int]:
    place, _, parts = text.partition("/")
    return int(place), int(parts)


def _options() -> Options:
    words = parser(__doc__, seed=SEED)
    words.add_argument("--target", default="cpu")
    words.add_argument("--dtype", default="f32")
    words.add_argument("--layout", default="nn")
    words.add_argument("--count", type=int, default=COUNT, help="of shapes that are drawn")
    words.add_argument("--part", type=_part, default=(1, 1), metavar="I/N", help="of the shapes: the I-th of N equal")
    words.add_argument("--largest", type=int, default=1024, help="the largest size that is drawn on a processor")
    words.add_argument("--known", type=Path, metavar="FILE", help="results of gemm.py with the suite's winners")
    words.add_argument("--most-flops", type=float, default=float("inf"), help="of the suite's shapes")
    words.add_argument("--suite-seconds", type=float, default=20.0, help="of tuning, for each shape of the suite")
    words.add_argument("--own-seconds", type=float, default=20.0, help="of tuning, for each drawn shape")
    words.add_argument("--threads", type=int, help="of kernels and baselines on a processor, at most")
    words.add_argument("--work", type=Path, default=Path("library_unseen"), help="where everything is kept")
    return words.options()


if __name__ == "__main__":
    run_main(main)
