"""Finals: the best kernels and the baselines, verified on harder inputs and timed side by side on a quiet machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from deepgen.engines.base import Arena, Entry
from deepgen.operators import Operator
from deepgen.tuning.statistics import Ratio, paired_ratio
from deepgen.vocabulary import Artifact, Json, JsonObject, Kernel, Measurement, Trial, Verdict

CHUNK = 10  # rounds between two looks at the intervals
MAX_ROUNDS = 60
ENOUGH = 0.004  # half-width of the decisive intervals at which more rounds would decide nothing
OTHER_SEEDS = 2  # inputs that a finalist must be right on, beside the study's own


@dataclass(frozen=True)
class Finalist:
    """A trial that is still in the race, with its kernel built."""

    trial: Trial
    kernel: Kernel
    artifact: Artifact

    @property
    def name(self) -> str:
        return f"trial {self.trial.id}"

    def order(self) -> tuple[int, int, int]:
        """Among equals the one with the fewest resources wins, then the lowest rank."""
        facts = self.artifact.facts
        return _fact(facts.get("shared_bytes")), _fact(facts.get("code_bytes")), self.trial.rank


@dataclass(frozen=True)
class Race:
    """The samples of all, round by round, and what they say."""

    samples: dict[str, list[float]]
    ratios: dict[str, Ratio]  # against the leader
    leader: str
    conditions: list[Json] = field(default_factory=list)


def run_finals(
    session: Arena,
    operator: Operator,
    candidates: Sequence[Trial],
    emit: Callable[[Trial], Kernel],
    *,
    keep: int,
    baselines: bool,
    seed: int,
    max_seconds: float = 30.0,
    say: Callable[[str], None] = lambda text: None,
) -> JsonObject:
    """Choose the winner among the candidates (best first): the first `keep` that survive the harder inputs race."""
    with session.quiet():
        say("builds paused: verifying finalists on other inputs")
        finalists, dropped = qualify(session, operator, candidates, emit, keep, seed)
        names = session.baselines() if baselines else []
        if not finalists:
            return {"winner": None, "finalists": [], "dropped": dropped, "baselines": []}
        say(f"builds paused: timing {len(finalists)} finalists and {len(names)} baselines side by side")
        entries = [Entry(f.name, f.kernel) for f in finalists] + [Entry(n) for n in names]
        race, lost = run_race(session, entries, [f.name for f in finalists], seed, max_seconds)
    finalists = [f for f in finalists if f.name not in lost]
    dropped += [
        {"trial": name.replace("trial ", ""), "verdict": m.verdict.value, "detail": f"in the race: {m.detail}"}
        for name, m in lost.items()
    ]
    if race is None or not finalists:
        return {"winner": None, "finalists": [], "dropped": dropped, "baselines": []}
    ties = [f for f in finalists if f.name == race.leader or race.ratios[f.name].tie]
    winner = min(ties, key=Finalist.order)
    return {
        "winner": winner.trial.id,
        "ties": [f.trial.id for f in ties if f is not winner],
        "rounds": len(race.samples[race.leader]),
        "finalists": [_finalist_row(f, race) for f in finalists],
        "baselines": [_baseline_row(n, winner.name, race) for n in names if n in race.samples],
        "dropped": dropped,
        "conditions": race.conditions,
    }


def qualify(
    session: Arena,
    operator: Operator,
    candidates: Sequence[Trial],
    emit: Callable[[Trial], Kernel],
    keep: int,
    seed: int,
) -> tuple[list[Finalist], list[Json]]:
    """Those that are right on other seeds and on extreme inputs too; the rest with the reason why not."""
    finalists: list[Finalist] = []
    dropped: list[Json] = []
    tests = [(seed + i, "normal") for i in range(1, OTHER_SEEDS + 1)]
    tests += [(seed, probe) for probe in operator.probes() if probe != "normal"]
    for trial in candidates:
        if len(finalists) == keep:
            break
        kernel = emit(trial)
        artifact = session.build(kernel)
        for other, probe in tests:
            verdict = session.verify(kernel, other, probe)
            if not verdict.ok:
                where = f"on {probe} inputs of seed {other}"
                row = {"trial": trial.id, "verdict": verdict.verdict.value, "detail": f"{where}: {verdict.detail}"}
                dropped.append(dict(row))
                break
        else:
            finalists.append(Finalist(trial, kernel, artifact))
    return finalists, dropped


def run_race(
    session: Arena, entries: Sequence[Entry], rivals: Sequence[str], seed: int, max_seconds: float
) -> tuple[Race | None, dict[str, Measurement]]:
    """Rounds of everyone until the rivals' order is settled or the time is up; those that failed on the way."""
    samples: dict[str, list[float]] = {e.name: [] for e in entries}
    conditions: list[Json] = []
    lost: dict[str, Measurement] = {}
    started = time.monotonic()
    rounds = 0
    while rounds < MAX_ROUNDS:
        present = [e for e in entries if e.name in samples]
        for entry, measured in zip(present, session.compare(present, CHUNK, seed + rounds), strict=True):
            if measured.verdict is not Verdict.CORRECT or not measured.samples:
                lost[entry.name] = measured
                del samples[entry.name]
                continue
            samples[entry.name].extend(measured.samples)
            conditions.append({"name": entry.name, "rounds_from": rounds, **measured.conditions})
        rounds += CHUNK
        racing = [name for name in rivals if name in samples]
        if not racing:
            return None, lost
        leader = min(racing, key=lambda name: median(samples[name]))
        ratios = {name: paired_ratio(samples[name], samples[leader], seed) for name in samples}
        unsettled = [r for n, r in ratios.items() if n in racing and r.low <= 1.0 and r.half_width > ENOUGH]
        if not unsettled or time.monotonic() - started > max_seconds:
            break
    return Race(samples, ratios, leader, conditions), lost


def dropped_reasons(finals: Mapping[str, Any]) -> list[str]:
    """Why kernels that were right in the search did not reach the end of the finals, a line each."""
    return [f"trial {row['trial']} is {row['verdict']} {row['detail']}" for row in finals.get("dropped", [])]


def _finalist_row(finalist: Finalist, race: Race) -> Json:
    ratio = race.ratios[finalist.name]
    return {
        "trial": finalist.trial.id,
        "rank": finalist.trial.rank,
        "config": dict(finalist.trial.config),
        "kernel_id": finalist.artifact.kernel_id,
        "seconds": median(race.samples[finalist.name]),
        "samples": list(race.samples[finalist.name]),
        "slower_than_leader": {"estimate": ratio.estimate, "low": ratio.low, "high": ratio.high},
    }


def _baseline_row(name: str, winner: str, race: Race) -> Json:
    seconds, ours = median(race.samples[name]), median(race.samples[winner])
    interval = paired_ratio(race.samples[name], race.samples[winner])
    return {
        "name": name,
        "seconds": seconds,
        "ratio": seconds / ours,
        "interval": [interval.low, interval.high],
        "samples": list(race.samples[name]),
    }


def _fact(value: Json) -> int:
    return int(value) if isinstance(value, (int, float)) else 0
