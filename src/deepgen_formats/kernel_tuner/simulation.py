"""A search over a cache file instead of a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepgen.extend import (
    BadInput,
    OwnKernel,
    Setting,
    Space,
    Target,
    Trial,
    make_strategy,
    read_recorded,
    settle_options,
)
from deepgen_formats.kernel_tuner import results as made


@dataclass(frozen=True)
class Search:
    """What is searched, and how."""

    kernel: OwnKernel
    target: Target
    space: Space
    strategy: str
    trials: int
    time_budget: float | None
    iterations: int
    seed: int


def simulated(cache: Path | None, search: Search, names: Sequence[str], metrics: made.Metrics) -> list[dict[str, Any]]:
    """The rows that a strategy asks for, out of a cache file."""
    if cache is None or not cache.is_file():
        raise BadInput("simulation_mode has no cache", allowed="cache, a file of an earlier run")
    known = read_recorded(cache)
    options = settle_options(search.strategy, {})
    strategy = make_strategy(search.strategy, Setting(known.space, search.seed, options=options))
    rows: list[dict[str, Any]] = []
    while len(rows) < search.trials:
        configs = strategy.ask(1)
        if not configs:
            break
        for config in configs:
            trial = Trial(len(rows), known.space.rank(config), config, "", known.measure(config))
            strategy.tell(trial)
            rows.append(made.result_of(trial, names, metrics, 0.0))
    return rows
