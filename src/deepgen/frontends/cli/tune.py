"""`deepgen tune`, `resume` and `retest`: find the fastest verified kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import typer

from deepgen import settings
from deepgen.frontends.cli import completion, engines, options, requests
from deepgen.run.measure.base import Policy
from deepgen.tuning.request import begin_first_build

# The rest is imported inside the commands, while the first kernel is being built.

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="OPERATOR NAME=VALUE... | FILE",
        help="For example: gemm M=1024 N=2048 K=3072, gemm MN=1024 K=2048, or gemm MNK=4096. t=500 sets --trials, O=0 "
        "detaches. Or a file: kernels of your own or expressions (my.py, my.py:NAME), a tuning config (my.toml, "
        "my.json), or what deepgen.torch.record wrote.",
        show_default=False,
        autocompletion=completion.operators,
    ),
]


@options.taking(
    "dtype", "layout", "epilogue", "fast_sums", "causal", "lengths", "page", "also", "target", "host", "family",
    "threads", "trials", "time_budget", "jobs", "engine", "address", "seed", "strategy", "start_from", "no_transfer",
    "learn_from", "no_second_look", "target_speedup", "patience", "space_strategy", "keep_top", "counters", "baseline",
    "library", "noisy", "out", "warm", "strict_floats", after="words",
)  # fmt: skip
def tune(
    context: typer.Context, words: Words, detach: options.Detach = False, as_json: options.AsJson = False, **values: Any
) -> None:
    """Find the fastest kernel. Run the same command again to resume."""
    engine, address, library, warm = (values[name] for name in ("engine", "address", "library", "warm"))
    noisy, strict = values.pop("noisy"), values["strict_floats"]
    on = engines.chosen(engine, address)
    current = settings.load()
    timing = Policy(cold=not warm, timeout_seconds=current.limits.run_seconds, strict_floats=bool(strict))
    policy = current.limited(timing)
    wanted = requests.from_words(words, options.requested(values), current, policy)
    if wanted.file is not None:
        current = current.with_build_limit(wanted.file.build_seconds)
    if engine == engines.LOCAL and not (detach or wanted.detach) and len(wanted.requests) == 1:
        begin_first_build(wanted.requests[0], current)
    from deepgen.frontends.cli import session
    from deepgen.tuning.progress import Clock
    from deepgen.tuning.work import LEAST_SECONDS

    recorded = None if wanted.file is None else wanted.file.work
    counts = {} if wanted.file is None else wanted.file.counts
    gain = {} if recorded is None else {"gain": session.gain_of(recorded, library)}
    if counts:
        gain = {"gain": lambda request: float(counts[request.operator] * request.operator.flops())}
    budget = wanted.requests[0].time_budget
    whole = session.model_seconds(recorded, budget)  # after the studies
    if whole and budget is not None:
        wanted.requests[:] = [replace(one, time_budget=budget - whole) for one in wanted.requests]
    work = session.jobs_of(wanted.requests, **gain)
    if detach or wanted.detach:
        from deepgen.frontends.cli.processes import start

        start(context.obj.argv, [job.folder for job in work], as_json=as_json)
    else:
        with session.offering(partial(_packing, words, values)):
            again = engines.words(engine, address)
            after = session.filling(library, recorded, noisy=noisy)
            if wanted.file is not None and wanted.file.after is not None:
                after = [wanted.file.after, *after]
            least = 0.0 if recorded is None else LEAST_SECONDS
            session.carry_out(
                work,
                on(current, values["jobs"]),
                go_on=again,
                as_json=as_json,
                after=after,
                least=least,
                started=context.obj.started,
                counts=counts,
            )
            if recorded is not None and whole and engine == engines.LOCAL:
                left = whole if budget is None else min(whole, Clock(budget, context.obj.started).left)
                session.decide_by_model(recorded, library, wanted.requests[0].target, left)


@options.taking("trials", "time_budget", "jobs", "engine", "address", "keep_top", "counters", after="study")
def resume(
    context: typer.Context,
    study: options.StudyName,
    detach: options.Detach = False,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
    **values: Any,
) -> None:
    """Resume a study."""
    from deepgen.frontends.cli import session, studies
    from deepgen.report.view import note

    engine, address, trials = (values[name] for name in ("engine", "address", "trials"))
    on = engines.chosen(engine, address)
    current = settings.load()
    opened = studies.open_study(study, current, trust=trust)
    if engine == "local":
        studies.check_machine(opened)
    if trials is not None and trials <= (done := len(opened.trials())):
        note(f"{done} trials are already done, so --trials {trials} adds none")
        values = {**values, "trials": done}
    job = session.TuningJob(requests.from_study(opened, options.requested(values), current), opened.folder)
    if detach:
        from deepgen.frontends.cli.processes import start

        start(context.obj.argv, [job.folder], as_json=as_json)
    else:
        with session.offering(partial(_packing, [study], values)):
            again = engines.words(engine, address)
            started = context.obj.started
            session.carry_out([job], on(current, values["jobs"]), go_on=again, as_json=as_json, started=started)


def _packing(words: list[str], values: Mapping[str, Any]) -> str:
    """The command that packs the same work for another host."""
    from deepgen.frontends.cli import bundle  # imports bundle code, which few commands need

    return bundle.command(words, values)


Best = Annotated[int, typer.Option("--top", min=1, help="Number of best configs.")]
AsCalled = Annotated[bool, typer.Option("--as-called", help="Time the loaded winner through its public API.")]


def retest(
    study: options.StudyName,
    top: Best = 8,
    as_called: AsCalled = False,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Repeat the final comparison of a study's best kernels."""
    from deepgen.frontends.cli import studies
    from deepgen.frontends.cli.output import print_json
    from deepgen.frontends.cli.result import print_calls, print_result
    from deepgen.tuning import reuse
    from deepgen.tuning.engines import local_engine

    current = settings.load()
    opened = studies.open_study(study, current, trust=trust)
    studies.check_machine(opened)
    if as_called:
        from deepgen.tuning.as_called import as_called as call_times

        times = call_times(opened)
        if as_json:
            print_json({"study": str(opened.folder), **times})
        else:
            print_calls(opened, times)
        return
    reuse.retest(opened, top, engine=local_engine(current), policy=current.limited(opened.task().policy))
    if as_json:
        print_json(opened.summary())
    else:
        print_result(opened)
