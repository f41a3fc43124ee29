"""Runs tuning requests for a user: with a live view, clean stops, the result, and winners added to a library."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from deepgen.frontends.cli.output import print_json, shown
from deepgen.frontends.cli.result import (
    network,
    print_counted,
    print_network,
    print_ranking,
    print_result,
    write_counted,
)
from deepgen.frontends.formats import write_results
from deepgen.operators import Operator
from deepgen.report.view import note
from deepgen.report.view.live import Stop, Stopped, stop_on_signals, title_of, watching
from deepgen.settings import LIBRARY
from deepgen.targets import Elsewhere, Target
from deepgen.tuning import Request, Study
from deepgen.tuning import tune as run_tuner
from deepgen.tuning.engines import Engine
from deepgen.tuning.progress import Clock, process_start
from deepgen.tuning.request import StudyPlan, plan
from deepgen.tuning.work import SHORT_SECONDS, SHORT_SHARE, WORTH, RecordedWork, divided, is_short, short_ones
from deepgen.vocabulary.errors import DeepgenError, Missing


@dataclass(frozen=True)
class TuningJob:
    """A request and the folder of its study."""

    request: Request
    folder: Path
    gain: float = 1.0  # expected gain, relative to other jobs
    planned: StudyPlan | None = None  # the plan from which the folder was determined; None: plan again


def jobs_of(requests: Sequence[Request], gain: Callable[[Request], float] = lambda request: 1.0) -> list[TuningJob]:
    """The folder of each study, largest expected gain first; reports errors before the first study starts."""
    if len(requests) == 1:  # keeping the plans of many would take memory
        planned = plan(requests[0])
        return [TuningJob(requests[0], planned.folder, gain(requests[0]), planned)]
    by_folder = {plan(request).folder: request for request in requests}
    jobs = [TuningJob(request, folder, gain(request)) for folder, request in by_folder.items()]
    return sorted(jobs, key=lambda job: -job.gain)


def carry_out(
    jobs: Sequence[TuningJob],
    on: Engine,
    *,
    go_on: str,
    as_json: bool,
    after: Sequence[Callable[[Study], None]] = (),
    least: float = 0.0,
    started: float | None = None,
    counts: Mapping[Operator, int] | None = None,
) -> None:
    """Tune one study after another and print the results.

    `go_on`: options that a resumed run needs again; `after`: what else to do with a completed study. A time budget is
    shared by all studies and counts from `started`, or from the start of this process; a study that would get less than
    `least` seconds of it is skipped, and what cannot be tuned is left out. `counts`: how often a network has each
    operator, to add up its time.
    """
    studies = []
    started = process_start() if started is None else started
    with stop_on_signals() as stop:
        for job in divided_among(jobs, least, started):
            try:
                studies.append(_tune(job, on, stop, as_json=as_json, started=started if len(jobs) == 1 else None))
            except DeepgenError as error:
                if not (counts or least) or isinstance(error, Missing):
                    raise
                note(f"{job.request.operator.describe()}: {error}")  # the model's other operators are still tuned
                continue
            if stop.event.is_set():
                raise Stopped(_how_to_go_on(studies[-1], go_on), stop.signum)
            for do in after:
                do(studies[-1])
            if not as_json:
                print_result(studies[-1])
                print_counted(studies[-1])
    if not as_json:
        print_ranking(studies)
        if counts:
            print_network(network(studies, counts))
    else:
        summaries = [study.summary() for study in studies]
        sums = {"network": network(studies, counts)} if counts else {}
        print_json(summaries[0] if len(summaries) == 1 and not sums else {"studies": summaries, **sums})
    without = [study for study in studies if study.summary()["winner"] is None]
    # Of a recorded model as much is tuned as the time allows.
    if len(without) == len(studies) if least else without or (counts and len(studies) < len(jobs)):
        raise typer.Exit(1)


def divided_among(jobs: Sequence[TuningJob], least: float, started: float | None = None) -> Iterator[TuningJob]:
    """Each job with its share of the time budget, proportional to the expected gain. Unused time goes to later jobs.

    Jobs that would get less than `least` seconds wait for time that others leave, and are reported if there is none.
    Elementwise operators have a short study instead, before the others.
    """
    budget = jobs[0].request.time_budget if len(jobs) > 1 else None
    if budget is None:
        yield from jobs
        return
    clock = Clock(budget, started)
    out: list[TuningJob] = []
    if least:
        chosen = short_ones([job.request.operator for job in jobs], [job.gain for job in jobs])
        short = [jobs[i] for i in chosen]
        out = [job for job in jobs if is_short(job.request.operator) and job not in short]
        jobs = [job for job in jobs if not is_short(job.request.operator)]
        share = SHORT_SHARE * budget if jobs else budget
        while short and clock.elapsed < share:
            job = short.pop(0)
            yield replace(job, request=replace(job.request, time_budget=SHORT_SECONDS))
        out += short
    parts = divided([job.gain for job in jobs], budget, least)
    planned = [(job, seconds) for job, seconds in zip(jobs, parts, strict=True) if seconds]
    others = [job for job, seconds in zip(jobs, parts, strict=True) if not seconds]  # largest expected gain first
    waiting = [job for job in others if job.gain >= WORTH]
    _say_left_out([*out, *others[len(waiting) :]], "too little to gain")
    begun = False
    while planned:
        left, total = max(0.001, clock.left), sum(seconds for _, seconds in planned)
        # Earlier jobs may have taken longer than planned. At least one is tuned in any case.
        if (begun or len(planned) > 1) and left * planned[-1][1] < least * total:
            waiting.insert(0, planned.pop()[0])
            continue
        begun, (job, seconds) = True, planned.pop(0)  # the first has the largest expected gain
        yield replace(job, request=replace(job.request, time_budget=left * seconds / total))
    # Studies of small spaces end long before their time.
    while least and waiting and clock.left >= least:
        yield replace(job := waiting.pop(0), request=replace(job.request, time_budget=clock.left))
    _say_left_out(waiting, "too little time left")


def _say_left_out(jobs: Sequence[TuningJob], why: str) -> None:
    for job in jobs:
        note(f"skipped ({why}): {job.request.operator.describe()}")


@contextmanager
def offering(command: Callable[[], str]) -> Iterator[None]:
    """If the device is not here, raise an error that also gives the command to pack the same work for it."""
    try:
        yield
    except Elsewhere as error:
        remedy = f"Pack the kernels for a host that has one: {command()}"
        raise Missing(error.what, blocks=error.blocks, remedy=remedy) from error


def _tune(job: TuningJob, on: Engine, stop: Stop, *, as_json: bool, started: float | None) -> Study:
    request = job.request
    with watching(title_of(request), quiet=as_json) as watch:
        study = run_tuner(request, engine=on, watch=watch, stop=stop.event, started=started, worked_out=job.planned)
    write_older_results(study)
    write_counted(study)
    return study


def write_older_results(study: Study) -> None:
    """For a study of a legacy config, write its kind of result file next to the journal: results_card0.json."""
    if getattr(study.generator, "results_file", False) and study.finals() is not None:
        write_results(study, study.folder / "results", count=study.budget().get("keep_top", 8))


def _how_to_go_on(study: Study, options: str) -> str:
    ended = len(study.trials())
    resume = f"deepgen resume {shown(study.folder)}{options}"
    return f"stopped after {ended} trials; all results are kept. Resume with: {resume}"


_MODEL_SHARE, _MODEL_SECONDS = 0.15, 60.0  # of a time budget, for the model as a whole; without one


def model_seconds(recorded: RecordedWork | None, budget: float | None) -> float:
    """The seconds in which a recorded model is timed with and without its kernels, at the end."""
    if recorded is None or recorded.calls is None:
        return 0.0
    return _MODEL_SECONDS if budget is None else _MODEL_SHARE * budget


def decide_by_model(recorded: RecordedWork, folder: Path | None, target: Target, seconds: float) -> None:
    """Let the time of the model as a whole decide which kernels of the library serve it."""
    from deepgen.libraries import library

    filled, ends = library(folder or LIBRARY, create=True), time.monotonic() + seconds
    if not filled.list() or target.runner not in ("cpu", "gpu"):
        return
    with stop_on_signals() as stop:
        note(f"timing the model as a whole, in up to {seconds:.0f} s")
        try:
            from deepgen.frontends.torch.deciding import decide  # takes seconds, of torch

            decide(recorded, filled, target, seconds=ends - time.monotonic(), stop=stop.event, say=note)
        except DeepgenError as error:
            note(f"the model was not timed: {error}")
        if stop.event.is_set():
            raise Stopped("stopped while the model was timed; the kernels are in the library", stop.signum)


_AGAIN = 0.02  # expected gain of a further study, relative to the first


def gain_of(recorded: RecordedWork, folder: Path | None) -> Callable[[Request], float]:
    """The expected gain of a study in the model's time: small if the target library already has a kernel."""
    from deepgen.libraries import library

    folder = folder or LIBRARY
    existing = [(entry.operator, entry.target) for entry in library(folder).list()] if folder.exists() else []

    def gain(request: Request) -> float:
        tuned = any(operator == request.operator and on.runs_on(request.target) for operator, on in existing)
        return recorded.gain(request.operator, request.target) * (_AGAIN if tuned else 1.0)

    return gain


def filling(
    folder: Path | None, recorded: RecordedWork | None, *, noisy: bool = False
) -> list[Callable[[Study], None]]:
    """Functions that add winners to a library: the named one, or the default one for a recorded model.

    `noisy`: also add results that were timed on a busy machine.
    """
    if folder is None and recorded is None:
        return []
    from deepgen.libraries import library

    filled = library(folder or LIBRARY, create=True)

    def add(study: Study) -> None:
        try:
            became = filled.add(study, noisy=noisy)
        except DeepgenError as error:  # for example times distorted by a busy machine
            became = f"not added ({error})"
        note(f"{became} in {filled.folder}: {study.describe()}")

    return [add]
