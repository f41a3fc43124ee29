"""Studies measured elsewhere: pack the configs a strategy asks for next, and merge the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deepgen.run.measure import handed
from deepgen.run.measure.base import Task
from deepgen.run.measure.helpers import build_helpers
from deepgen.run.measure.peak import peak_gflops
from deepgen.targets import device_for, host
from deepgen.toolchains import BuildError, BuildPool, Cache, build_once, default_cache_folder, toolchains_for
from deepgen.tuning.bundles import archive as bundle_archive
from deepgen.tuning.bundles import pack as bundle_pack
from deepgen.tuning.bundles import results as bundle_results
from deepgen.tuning.bundles.results import Results, TrialResult
from deepgen.tuning.bundles.runner import UNMEASURED
from deepgen.tuning.counting import Uncounted
from deepgen.tuning.engines import LocalEngine
from deepgen.tuning.finals.qualifying import entrants, finals_inputs, special_inputs
from deepgen.tuning.request import Request, StudyPlan, own_baselines, plan, task_of
from deepgen.tuning.search_state import open_search
from deepgen.tuning.speed import floor
from deepgen.tuning.study.finals import Finals
from deepgen.tuning.study.identity import open_journal
from deepgen.tuning.study.journal import Journal
from deepgen.tuning.study.rows import Proposal
from deepgen.tuning.study.study import Study
from deepgen.tuning.study.winner import keep_winner
from deepgen.vocabulary import Artifact, BadInput, DeepgenError, Json, Kernel, Measurement, Trial, digest


@dataclass(frozen=True)
class PackedBundle:
    """A bundle that has been written."""

    archive: Path
    study: Path
    id: str
    trials: int
    failed: int  # trials that could not be built; the study has recorded them


@dataclass(frozen=True)
class Merged:
    """What merging results added to the study."""

    new: int
    before: int  # trials that the study already had
    finals: bool


def pack(
    request: Request,
    archive: Path,
    *,
    engine: LocalEngine | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> PackedBundle:
    """Ask the strategy for the rest of the request's trials, build them here, and write them as a bundle."""
    bundle_archive.check(archive)
    engine = engine or LocalEngine()
    if request.own_baselines == (type(request.operator),):
        request = replace(request, baselines=False)  # a kernel's own baseline stays here, like all of a user's Python
    if request.own_baselines:
        names = ", ".join(own_baselines(request.own_baselines))
        raise BadInput(f"{names}: baselines of your own do not travel in a bundle", allowed="pass baselines by name")
    with _Builds(engine, request) as builds, open_journal(request, plan(request)) as (planned, journal):
        journal.begin_run(request.budget())
        state = open_search(request, planned, journal)
        state.replay()
        while state.advance(2 * request.trials, request.trials):
            pass
        waiting = sorted(state.proposals.values(), key=lambda proposal: proposal.id)
        if not waiting:
            raise BadInput(
                f"{planned.folder}: all {state.ended} trials are done, so there is nothing to pack",
                allowed=f"request more with --trials {2 * state.ended}",
            )
        task = task_of(request)
        say(f"building {len(waiting)} kernels")
        built, failed = builds.all([(p, planned.emit(request, p.config)) for p in waiting])
        best = [(t, planned.emit(request, t.config)) for t in _earlier(journal, planned, request)]
        earlier = [(trial, kernel, builds.one(kernel)) for trial, kernel in best]
        helpers = build_helpers(task, builds.one, needed=("harness",))
        state.finish(failed)
        if not built:
            raise DeepgenError(f"none of {len(failed)} kernels could be built: {failed[0].measurement.detail}")
        identity = bundle_pack.write(
            archive,
            task,
            study=study_id(journal),
            name=planned.folder.name,
            trials=built,
            earlier=earlier,
            helpers=helpers,
            default=next((p.id for p in journal.proposals() if p.rank == planned.first), None),
            keep=request.keep_top,
            baselines=request.raced,
            arrays=_arrays(task),
        )
        journal.note(f"packed {len(built)} trials into bundle {identity[:12]}")
    return PackedBundle(archive, planned.folder, identity, len(built), len(failed))


def _arrays(task: Task) -> dict[str, bytes]:
    """Inputs and reference results of an operator that is not deepgen's own: its code is not packed."""
    if not handed.needed(task.operator):
        return {}
    wanted = [(i, task.seed, "normal") for i in range(len(task.timed))] + [*finals_inputs(task), *special_inputs(task)]
    cases = [(task.shapes[shape], seed, probe) for shape, seed, probe in wanted]
    return {handed.name(*one): handed.packed(*one) for one in cases}


def _earlier(journal: Journal, planned: StudyPlan, request: Request) -> list[Trial]:
    """Measured trials that may enter the finals: the current candidates and the default."""
    candidates, _ = entrants(journal.trials(), request.keep_top)
    default = journal.right(planned.first)
    return candidates if default is None or default in candidates else [*candidates, default]


def merge(study: Study, path: Path, *, engine: LocalEngine | None = None) -> Merged:
    """Merge a bundle's results into their study. Merging the same results again changes nothing."""
    results = bundle_results.read(path)
    with Journal(study.folder, write=True) as journal:
        if results.head["study"] != study_id(journal):
            raise BadInput(
                "contains results of another study", where=str(path), allowed=f"those of {study.folder.name}"
            )
        _check_device(study, journal, results, path)
        proposals = {proposal.id: proposal for proposal in journal.proposals()}
        trials = [_trial(study, proposals, result, path) for result in results.trials.values()]
        ended = {trial.id: trial for trial in journal.trials()}
        fresh = [trial for trial in trials if trial.id not in ended]
        ended.update((trial.id, trial) for trial in fresh)
        finals = None if results.finals is None else replace(results.finals, bundle=results.head["bundle"])
        # All checks run before anything is written.
        _check(study, journal, fresh, finals, ended, path, engine or LocalEngine())
        uncounted = Uncounted(journal.trials())
        journal.finish(fresh)
        for reason in uncounted.of(fresh):
            journal.note(reason)
        raced = finals is not None and _keep_finals(study, journal, finals, ended, engine or LocalEngine())
        if fresh or raced:
            journal.note(
                f"merged {len(fresh)} trials of bundle {results.head['bundle'][:12]} from {results.head['device']}"
            )
    return Merged(len(fresh), len(trials) - len(fresh), raced)


def study_id(journal: Journal) -> str:
    """The name of a study in a bundle and its results. It is not the folder, which may be moved."""
    return digest(journal.definition())


class _Builds:
    """The build pool, as used for packing."""

    def __init__(self, engine: LocalEngine, request: Request) -> None:
        self._engine, self._target = engine, request.target
        self._cache = Cache(engine.cache or default_cache_folder())
        toolchains = toolchains_for(request.target, engine.toolchains)
        toolchains(request.target.languages[0])  # raises at once if it is missing
        jobs = engine.jobs or host.usable_cores()
        self._pool = BuildPool(toolchains, request.target, self._cache, jobs, engine.limits)

    def all(
        self, wanted: Sequence[tuple[Proposal, Kernel]]
    ) -> tuple[list[tuple[Trial, Kernel, Artifact]], list[Trial]]:
        """The trials whose kernels were built, and those whose build failed."""
        futures: list[Future[Artifact]] = [self._pool.submit(kernel) for _, kernel in wanted]
        built: list[tuple[Trial, Kernel, Artifact]] = []
        failed: list[Trial] = []
        for (proposal, kernel), future in zip(wanted, futures, strict=True):
            try:
                artifact = future.result()
            except BuildError as error:
                measured = Measurement(error.verdict, error.detail)
                failed.append(Trial(proposal.id, proposal.rank, proposal.config, kernel.id, measured))
                continue
            facts: dict[str, Json] = {**artifact.facts, "build_seconds": artifact.seconds}
            built.append((_waiting(proposal, kernel, facts), kernel, artifact))
        return built, failed

    def one(self, kernel: Kernel) -> Artifact:
        return _built(kernel, self._target, self._engine, self._cache)

    def __enter__(self) -> _Builds:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.close(cancel=True)


def _waiting(proposal: Proposal, kernel: Kernel, facts: Mapping[str, Json]) -> Trial:
    return Trial(proposal.id, proposal.rank, proposal.config, kernel.id, UNMEASURED, facts)


def _built(kernel: Kernel, target: Any, engine: LocalEngine, cache: Cache) -> Artifact:
    return build_once(kernel, target, paths=engine.toolchains, cache=cache, limits=engine.limits)


def _trial(study: Study, proposals: Mapping[int, Proposal], result: TrialResult, path: Path) -> Trial:
    """A result as a trial of the study, after checking that the study would build the same kernel."""
    proposal = proposals.get(result.trial)
    if proposal is None:
        raise BadInput(f"holds trial {result.trial}, which {study.folder.name} never requested", where=str(path))
    kernel = study.emit(proposal.config)
    if kernel.id != result.kernel_id:
        raise BadInput(
            f"trial {result.trial} is of a different kernel: generator {study.generator.name} has changed since",
            where=str(path),
            allowed="pack the study again and run the new bundle",
        )
    return Trial(proposal.id, proposal.rank, proposal.config, kernel.id, result.measurement, result.facts)


def _check_device(study: Study, journal: Journal, results: Results, path: Path) -> None:
    """Check that the results come from the study's device: times of different devices cannot be compared."""
    at_home = getattr(study.target, "model", None) if study.target.runner == "cpu" else None
    for trial in journal.trials():
        if trial.measurement.samples:
            device = trial.measurement.conditions.get("device", at_home)
            if device is not None and device != results.head["device"]:
                what = f"was measured on {results.head['device']}, and {study.folder.name} on {device}"
                raise BadInput(
                    what,
                    where=str(path),
                    allowed="a study is tied to one device: for another device, start one with another --seed",
                )
            return


def _check(
    study: Study,
    journal: Journal,
    fresh: Sequence[Trial],
    finals: Finals | None,
    ended: Mapping[int, Trial],
    path: Path,
    engine: LocalEngine,
) -> None:
    """Refuse results that are incomplete, belong to another study, or contain impossible times."""
    try:
        for trial in fresh:
            bundle_results.check_measurement(trial.id, trial.measurement)
        if finals is not None:
            bundle_results.check_finalists(finals, ended)
        cold = study.definition["policy"]["cold"]
        least = floor(study.shapes, study.target, _peak(study, journal, engine), cold=cold)
        bundle_results.check_times(fresh, finals, least)
    except bundle_results.Flawed as flaw:
        raise BadInput(str(flaw), where=str(path), allowed="nothing of it was merged") from flaw


def _peak(study: Study, journal: Journal, engine: LocalEngine) -> float | None:
    """The peak in GFLOP/s as measured here: in the study's finals, or on this machine if the study was tuned for it."""
    held = journal.finals()
    recorded = held.peak_gflops if held is not None else None
    if recorded is not None or study.target.runner != "cpu":
        return float(recorded) if recorded is not None else None
    try:
        if device_for(study.target).fingerprint() != study.target.fingerprint():
            return None
        cache = Cache(engine.cache or default_cache_folder())
        return peak_gflops(study.operator, study.target, cache=cache, toolchains=engine.toolchains)
    except DeepgenError:  # another machine, or no compiler
        return None


def _keep_finals(
    study: Study, journal: Journal, finals: Finals, ended: Mapping[int, Trial], engine: LocalEngine
) -> bool:
    """Record finals and their winner like any finals, unless finals on all these trials are already recorded."""
    over = {*ended, *journal.restart().lost}
    reported = next(number for number in range(len(over) + 1) if number not in over) - len(journal.restart().lost)
    before = journal.finals()
    if before is not None and before.trials == reported:
        return False
    if finals.winner is not None:
        trial = ended[finals.winner]
        kernel = study.emit(trial.config)
        artifact = _built(kernel, study.target, engine, Cache(engine.cache or default_cache_folder()))
        operator = study.definition["operator"]
        keep_winner(study.folder, operator, study.target.name, trial.config, kernel, artifact)
    journal.add_finals(replace(finals, trials=reported))
    return True
