"""The progress of a tuning run, for the display."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from deepgen.tuning.speed import ARITHMETIC


@dataclass(frozen=True)
class Progress:
    """A moment of a run."""

    phase: str  # preparing, searching, finals, done
    asked: int = 0
    done: int = 0
    budget: int = 0
    resumed: int = 0  # trials that an earlier run had measured
    built: int = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)
    last_failure: str | None = None
    best_seconds: float | None = None
    best_gflops: float | None = None
    best_gbytes_per_second: float | None = None
    share_of_peak: float | None = None
    bound: str = ARITHMETIC  # what limits the operator on this device
    share_of_bound: float | None = None
    elapsed: float = 0.0
    time_left: float | None = None
    builds_running: int = 0
    improved: tuple[tuple[int, float], ...] = ()  # after how many trials there was a better one, and its seconds
    spent: Mapping[str, float] = field(default_factory=dict)  # seconds of this run, by what they went to
    note: str | None = None
