"""The progress of a tuning run for the display, the accounting of its time, and the conditions that stop it early."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from deepgen.tuning.costs import END, TRIAL, StepCosts
from deepgen.tuning.speed import ARITHMETIC
from deepgen.vocabulary import BadInput, JsonObject, Trial


@dataclass(frozen=True)
class Progress:
    """A snapshot of a run."""

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
    time_left: float | None = None  # until the end, including finals
    builds_running: int = 0
    improved: tuple[tuple[int, float], ...] = ()  # trials before each improvement, and its seconds
    spent: Mapping[str, float] = field(default_factory=dict)  # seconds of this run, by activity
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds of this run, by phase, in the order of PHASES
    note: str | None = None


PARTS = ("building", "measuring", "verifying", "waiting", "search")
PREPARING, SEARCH, FINALISTS, WAITING, RACE, WINNER = (
    "preparing", "search", "verifying finalists", "waiting", "timing finalists and baselines", "verifying the winner"
)  # fmt: skip
PHASES = (PREPARING, SEARCH, FINALISTS, WAITING, RACE, WINNER)
_FINALS = PHASES[2:]
_PHASE = "phase "  # prefix of a phase's name where the time of a run is recorded
FINALS_SHARE = 0.25  # the largest share of the budget that is reserved for finals
FINALS_SECONDS = 60.0  # and the most seconds
_NEEDLESS = 0.2  # share of the time left that may go to steps no result needs
_RUNNING = 0.05  # the largest share of the budget reserved for the trial that runs when the search ends
_CLOSING = 0.1  # the largest share of the budget reserved for what follows the finals


_TIME = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d*)?|\.\d+)s?)?", re.ASCII)


def seconds_of(time_text: object) -> float:
    """The seconds in a number or in texts such as 20, 20s, 1.5s, 5m and 1h30m."""
    match = _TIME.fullmatch(time_text.strip()) if isinstance(time_text, str) else None
    seconds = 0.0
    if match is not None:
        seconds = sum(float(part or 0) * unit for part, unit in zip(match.groups(), (3600, 60, 1), strict=True))
    elif isinstance(time_text, (int, float)) and not isinstance(time_text, bool):
        seconds = float(time_text)
    if not 0 < seconds < inf:
        raise BadInput(f"{time_text!r} is not a positive time", allowed="such as 20, 20s, 5m or 1h30m")
    return seconds


@contextmanager
def timed_part(seconds: dict[str, float], part: str) -> Iterator[None]:
    """Add the time spent inside to this part."""
    started = time.monotonic()
    try:
        yield
    finally:
        seconds[part] += time.monotonic() - started


_LONG = 120.0  # seconds: no command takes so long to start, so a larger value from the system is ignored


def process_start() -> float:
    """When this process started, in the time of `time.monotonic`; now, if the system does not report it."""
    now = time.monotonic()
    try:
        # The process name is in parentheses and may contain anything; the time is in ticks since boot.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        age = 0.0
    return now - age if 0.0 < age < _LONG else now - min(_LONG, time.process_time())


class Clock:
    """The time of one run, from its start: that of the command's process, or the call from Python.

    Measuring is the time when the device was busy with trials or the race, building is waiting for builds, verifying
    belongs to the finals, waiting is for a quiet machine, and search is the strategy's own time.
    """

    def __init__(
        self, budget: float | None = None, started: float | None = None, costs: StepCosts | None = None
    ) -> None:
        """`started` is when the run began, in the time of `time.monotonic`; None means now."""
        self.costs = costs or StepCosts()
        self._budget = inf if budget is None else budget
        self.for_finals = min(FINALS_SECONDS, FINALS_SHARE * self._budget)  # seconds that the search leaves to finals
        self._started = time.monotonic() if started is None else started
        self.started_at = round(time.time() - self.elapsed, 3)  # in Unix time, like the end of trials in a journal
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._trials = (0.0, 0)  # seconds and samples
        self._phases, self._phase, self._entered = {PREPARING: 0.0}, PREPARING, self._started
        self.finals_seconds = self.for_finals  # expected duration of the finals

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started

    @property
    def left(self) -> float:
        """Seconds of the budget, never below 0; infinite without one."""
        return max(0.0, self._budget - self.elapsed)

    @property
    def spare(self) -> float:
        """Seconds of the budget that can be spent: the rest is reserved for the process to exit."""
        return max(0.0, self.left - min(self.costs.of(END), _CLOSING * self._budget))

    @property
    def search_over(self) -> bool:
        """Whether the time left belongs to the finals; a running trial may still end."""
        running = min(self.costs.of(TRIAL), _RUNNING * self._budget)
        return self.spare <= self.for_finals + running if self._budget < inf else False

    def samples_left(self, share: float) -> float:
        """How many samples fit into this share of the time left, at the pace of the trials so far."""
        seconds, samples = self._trials
        return share * self.left * samples / seconds if seconds else inf

    def fits(self, step: str, times: int = 1) -> bool:
        """Whether a step is expected to fit into the time left."""
        return times * self.costs.of(step) <= self.spare

    def spends(self, step: str) -> bool:
        """Whether an optional step leaves the search and the finals most of their time."""
        return self.costs.of(step) <= _NEEDLESS * (self.spare - self.for_finals)

    @contextmanager
    def hearing(self, step: str) -> Iterator[None]:
        """Time a step, and record its cost."""
        started = time.monotonic()
        yield
        self.costs.hear(step, time.monotonic() - started)

    def on(self, part: str) -> AbstractContextManager[None]:
        """Count the time spent inside as this part."""
        return timed_part(self._seconds, part)

    def enter(self, phase: str) -> None:
        """End the current phase and begin another."""
        self._phases, self._entered = {**self.phases(), phase: self.phases().get(phase, 0.0)}, time.monotonic()
        self._phase = phase

    def phases(self) -> dict[str, float]:
        """Seconds so far by phase, including the current one."""
        now = self._phases[self._phase] + time.monotonic() - self._entered
        return {**self._phases, self._phase: now}

    def until_end(self, trials: int, measured: int) -> float | None:
        """Seconds until the finals end, at the pace of the trials so far; None if it cannot be estimated."""
        phases, left = self.phases(), None if self._budget == inf else self.left
        if self._phase in _FINALS:
            rest = self.finals_seconds - sum(phases.get(phase, 0.0) for phase in (FINALISTS, RACE, WINNER))
        elif measured > 0 and SEARCH in phases:
            rest = trials * phases[SEARCH] / measured + self.finals_seconds
        else:
            return left
        return left if rest <= 0.0 else min(rest, inf if left is None else left)

    def measured(self, seconds: float, samples: int) -> None:
        """Trials with that many samples kept the device busy for `seconds`, while the search waited or computed.

        The time of a trial besides timing, for loading and verifying, is part of a sample's cost.
        """
        self._trials = (self._trials[0] + seconds, self._trials[1] + samples)
        self._seconds["building"] = max(0.0, self._seconds["building"] - seconds)
        self._seconds["measuring"] += seconds

    def spent(self) -> dict[str, float]:
        """Seconds so far, by part."""
        return dict(self._seconds)

    def record(self) -> JsonObject:
        """The times recorded for a run. Measuring that overlapped with the strategy's work counts only as search."""
        total, parts = self.elapsed, dict(self._seconds)
        twice = max(0.0, sum(parts.values()) - total)
        parts["measuring"] = max(0.0, parts["measuring"] - twice)
        rounded = {part: round(seconds, 3) for part, seconds in parts.items()}
        rounded |= {_PHASE + phase: round(seconds, 3) for phase, seconds in self.phases().items()}
        return {**rounded, "total": round(total, 3), "started_at": self.started_at}


def summed(runs: Sequence[Mapping[str, float]]) -> JsonObject:
    """The sum over all runs of a study."""

    def total(part: str) -> float:
        return round(sum(run.get(part, 0.0) for run in runs), 3)

    phases: JsonObject = {phase: total(_PHASE + phase) for phase in PHASES if any(_PHASE + phase in r for r in runs)}
    return {**{part: total(part) for part in (*PARTS, "total")}, "phases": phases}


def phases_text(phases: Mapping[str, float]) -> str:
    """Seconds by phase, without phases that took no time."""
    return ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in phases.items() if seconds >= 0.05)


@dataclass(frozen=True)
class Goals:
    """Conditions that stop a search early; None disables a condition."""

    target_speedup: float | None = None  # over the reference
    patience: int | None = None  # trials without an improvement of the best time by more than `gain`
    gain: float = 0.005

    def __post_init__(self) -> None:
        if self.target_speedup is not None and self.target_speedup <= 0.0:
            raise BadInput(f"target speedup is {self.target_speedup:g}", allowed="a positive number, such as 1.5")
        if self.patience is not None and self.patience < 1:
            raise BadInput(f"patience is {self.patience}", allowed="must be an integer of at least 1")


class Stopping:
    """Gets trials in the same order as the strategy, so that a resumed study stops at the same trial.

    `reference` is the time to beat, such as a baseline's; without one, it is the time of the first correct trial.
    """

    def __init__(self, goals: Goals, reference: float | None = None) -> None:
        self._goals, self._reference = goals, reference
        self._best: float | None = None
        self._mark: float | None = None  # the best time at its last clear improvement
        self._since = 0

    def hear(self, trial: Trial) -> None:
        self._since += 1
        if trial.seconds is None:
            return
        if self._reference is None:
            self._reference = trial.seconds
        if self._best is None or trial.seconds < self._best:
            self._best = trial.seconds
        if self._mark is None or trial.seconds < self._mark * (1.0 - self._goals.gain):
            self._mark, self._since = trial.seconds, 0

    def reason(self) -> str | None:
        """Why the search may stop now; None if it may not."""
        goals = self._goals
        if goals.target_speedup is not None and self._best is not None and self._reference is not None:
            speedup = self._reference / self._best
            if speedup >= goals.target_speedup:
                return f"it is {speedup:.2f} times as fast as the reference (target: {goals.target_speedup:g})"
        if goals.patience is not None and self._best is not None and self._since >= goals.patience:
            return f"no improvement of at least {goals.gain:.1%} in {self._since} trials"
        return None
