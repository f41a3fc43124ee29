"""Counts events for trials that are already measured, and reports why some events were not counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from deepgen.run.counters import by_reason, events_of, missing_of, requested
from deepgen.run.measure import RunnerOptions, open_runner
from deepgen.toolchains import BuildError, Cache, build_once, default_cache_folder
from deepgen.tuning.engines import LocalEngine
from deepgen.tuning.study.journal import Journal
from deepgen.tuning.study.study import Study
from deepgen.vocabulary import BadInput, Trial


class Uncounted:
    """The events that were not counted, each reported once per study."""

    def __init__(self, before: Iterable[Trial]) -> None:
        self._reported = {event for trial in before for event in missing_of(trial.measurement)}

    def new(self, missing: Mapping[str, str]) -> list[str]:
        """Sentences about the events that have not been reported yet."""
        fresh = {event: why for event, why in missing.items() if event not in self._reported}
        self._reported.update(fresh)
        return sentences(fresh)

    def of(self, trials: Iterable[Trial]) -> list[str]:
        return self.new({event: why for trial in trials for event, why in missing_of(trial.measurement).items()})


@dataclass(frozen=True)
class Count:
    """The result of `count`: the trials with their counters, and the events that could not be counted, with reasons."""

    trials: tuple[Trial, ...]
    missing: Mapping[str, str]


def sentences(missing: Mapping[str, str]) -> list[str]:
    """One sentence per reason."""
    return [f"not counted: {', '.join(map(str, events))}: {why}" for why, events in by_reason(missing).items()]


def count(
    study: Study,
    counters: str | Sequence[str],
    top: int,
    *,
    engine: LocalEngine | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Count:
    """Count events of a study's best kernels, and store them with their trials."""
    engine = engine or LocalEngine()
    events = events_of(requested(counters), study.target)
    task = replace(study.task(), counters=requested(counters))
    cache = Cache(engine.cache or default_cache_folder())
    with Journal(study.folder, write=True) as journal:
        best = journal.best(top)
        if not best:
            raise BadInput(f"{study.folder} has no correct kernel to count events for")
        uncounted = Uncounted(journal.trials())
        counted: list[Trial] = []
        missing: dict[str, str] = {}
        runner = open_runner(task, RunnerOptions(cache=cache, toolchains=engine.toolchains))
        try:
            for trial in best:
                kernel = study.kernel(trial)
                try:
                    artifact = build_once(
                        kernel, study.target, paths=engine.toolchains, cache=cache, limits=engine.limits
                    )
                except BuildError as error:
                    say(f"trial {trial.id} cannot be built again: {error.detail}")
                    continue
                counts = runner.count(kernel, artifact, events)
                counted.append(replace(trial, measurement=counts.kept_in(trial.measurement)))
                missing.update(counts.missing)
                journal.recount(counted[-1:])
                say(f"[{len(counted)}/{len(best)}] trial {trial.id}: {len(counts.values)} of {len(events)} counted")
        finally:
            runner.close()
        for reason in uncounted.new(missing):
            journal.note(reason)
    return Count(tuple(counted), missing)
