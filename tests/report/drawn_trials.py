"""Trials in which the time depends on nothing, and others in which it depends on something.

Noise: data sets of several kinds in which no knob, fact or event is related to the time. At most 5% of them may lead to
any finding, with the threshold at 0, that is, with every finding shown.

- plain: knobs, facts and events are drawn independently;
- tails: the times have a few extreme outliers, and events span decades;
- related: events depend on the knobs and on each other, though not on the time;
- sparse: 25 trials, of which not all have all events; many equal values.

Planted: data sets in which the time depends on something that must be found:

- linear: log time rises with the logarithm of an event;
- monotone: time is a steep function of an event;
- interaction: two knobs matter together, and neither does alone;
- confounded: a knob drives both an event and the time, which are related only because of it;
- masked: a knob hides how the time depends on an event; it shows with the knobs held fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from deepgen.report.analysis import LEVEL, Report, analyze

Row = dict[str, Any]
ALLOWED = 0.05
TRIALS = 150
KNOBS = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (16, 32, 64, 128, 256),
    "BLOCK_K": (8, 16, 32),
    "STAGES": (1, 2, 3, 4),
    "ORDER": ("m-n-k", "n-m-k", "k-m-n"),
    "UNROLL": (False, True),
}
EVENTS = ("l2_miss", "l1d_miss", "branch-misses", "vector_inst", "dram__bytes_read.sum", "dTLB-load-misses")


def rows(rng: np.random.Generator, trials: int = TRIALS) -> list[Row]:
    """Trials in which everything is drawn independently."""
    results = []
    for number in range(trials):
        row: Row = {"trial": number, "verdict": "correct", "seconds": float(np.exp(rng.normal(-7.0, 0.3)))}
        row |= {f"knob.{name}": values[rng.integers(len(values))] for name, values in KNOBS.items()}
        row |= {f"fact.{name}": int(rng.integers(16, 256)) for name in ("registers", "spill_bytes", "shared_bytes")}
        row |= {f"event.{name}": float(rng.lognormal(12.0, 1.0)) for name in EVENTS}
        results.append(row)
    return results


def _tails(rng: np.random.Generator) -> list[Row]:
    results = rows(rng)
    for row in results:
        row["seconds"] = float(np.exp(-7.0 + 0.1 * rng.standard_t(1.5)))
        row |= {f"event.{name}": float(10.0 ** rng.uniform(0.0, 9.0)) for name in EVENTS}
    return results


def _related(rng: np.random.Generator) -> list[Row]:
    results = rows(rng)
    for row in results:
        base = float(np.log2(row["knob.BLOCK_M"]) - np.log2(row["knob.BLOCK_K"]) + rng.normal(0.0, 0.2))
        row |= {f"event.{name}": float(np.exp(8.0 + base + rng.normal(0.0, 0.1))) for name in EVENTS}
        row["fact.registers"] = row["knob.BLOCK_M"] + row["knob.BLOCK_N"]
    return results


def _sparse(rng: np.random.Generator) -> list[Row]:
    results = rows(rng, 25)
    for row in results:
        row["seconds"] = round(row["seconds"], 4)
        row |= {f"event.{name}": int(rng.integers(0, 3)) for name in EVENTS}
        for name in EVENTS[:3]:
            if rng.random() < 0.1:
                del row[f"event.{name}"]
    return results


NOISE: dict[str, Callable[[np.random.Generator], list[Row]]] = {
    "plain": rows,
    "tails": _tails,
    "related": _related,
    "sparse": _sparse,
}


def _set(row: Row, log_time: float) -> None:
    row["seconds"] = float(np.exp(-7.0 + log_time))


def _linear(rng: np.random.Generator) -> list[Row]:
    results = rows(rng)
    for row in results:
        _set(row, 0.5 * np.log(row["event.l2_miss"]) + rng.normal(0.0, 0.2))
    return results


def _monotone(rng: np.random.Generator) -> list[Row]:
    results = rows(rng)
    for row in results:
        row["event.l2_miss"] = float(rng.uniform(1.0, 100.0))
        _set(row, (row["event.l2_miss"] / 40.0) ** 4 + rng.normal(0.0, 0.2))
    return results


def _interaction(rng: np.random.Generator) -> list[Row]:
    results = rows(rng)
    for row in results:
        same = (row["knob.BLOCK_M"] > 32) == (row["knob.STAGES"] > 2)
        _set(row, 0.3 * same + rng.normal(0.0, 0.1))
    return results


def _confounded(rng: np.random.Generator) -> list[Row]:
    results = rows(rng)
    for row in results:
        level = float(np.log2(row["knob.BLOCK_K"]))
        row["event.l2_miss"] = float(np.exp(8.0 - level + rng.normal(0.0, 0.2)))
        _set(row, -0.4 * level + rng.normal(0.0, 0.1))
    return results


def _masked(rng: np.random.Generator) -> list[Row]:
    results = rows(rng)
    for row in results:
        level, own = float(np.log2(row["knob.BLOCK_K"])), rng.normal(0.0, 0.4)
        row["event.l2_miss"] = float(np.exp(8.0 + level + own))
        _set(row, own - 0.2 * level + rng.normal(0.0, 0.1))
    return results


def _follows(report: Report) -> bool:
    return any(one.name == "event.l2_miss" for one in report.findings)


def _both_knobs(report: Report) -> bool:
    first = {one.knob: one.partner for one in report.important}
    return first.get("BLOCK_M") == "STAGES" and first.get("STAGES") == "BLOCK_M"


def _knob_behind_it(report: Report) -> bool:
    """The event is related to the time, but not with the knobs held fixed; the knob is named."""
    results = next((one for one in report.findings if one.name == "event.l2_miss"), None)
    held = results is not None and results.partial is not None and results.partial.p > LEVEL
    return held and report.important[:1] != () and report.important[0].knob == "BLOCK_K"


def _shown_when_fixed(report: Report) -> bool:
    results = next((one for one in report.findings if one.name == "event.l2_miss"), None)
    return (
        results is not None and results.partial is not None and results.partial.p <= LEVEL and results.partial.r > 0.8
    )


PLANTED: dict[str, tuple[Callable[[np.random.Generator], list[Row]], Callable[[Report], bool]]] = {
    "linear": (_linear, _follows),
    "monotone": (_monotone, _follows),
    "interaction": (_interaction, _both_knobs),
    "confounded": (_confounded, _knob_behind_it),
    "masked": (_masked, _shown_when_fixed),
}


def says_something(kind: str, seed: int) -> bool:
    """Whether anything is reported for a data set of noise."""
    rng = np.random.default_rng([seed, sorted(NOISE).index(kind)])
    report = analyze(NOISE[kind](rng), threshold=0.0, seed=seed)
    return bool(report.findings or report.important)
