"""`deepgen resume`: resume a study."""

from __future__ import annotations

import typer

from deepgen.frontends.cli import options


def resume(
    context: typer.Context,
    study: options.StudyName,
    trials: options.Trials = None,
    time_budget: options.TimeBudget = None,
    jobs: options.Jobs = None,
    engine: options.Engine = "local",
    address: options.Address = None,
    keep_top: options.KeepTop = None,
    counters: options.Counters = None,
    detach: options.Detach = False,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Resume a study."""
    from deepgen import settings
    from deepgen.frontends.cli import bundle, engines, requests, session, studies
    from deepgen.frontends.cli.detach import start
    from deepgen.report.view.text import note

    on = engines.chosen(engine, address)
    current = settings.load()
    found = studies.open_study(study, current, trust=trust)
    if engine == "local":
        studies.check_machine(found)
    if trials is not None and trials <= (done := len(found.trials())):
        note(f"{done} trials are done already: --trials {trials} adds none")
    given = {"trials": trials, "time_budget": time_budget, "keep_top": keep_top, "counters": counters}
    job = session.Job(requests.from_study(found, given), found.folder)
    if detach:
        start(context.obj.argv, [job.folder], as_json=as_json)
    else:
        with session.offering(bundle.command([study], given, warm=False)):
            session.carry_out([job], on(current, jobs), go_on=engines.words(engine, address), as_json=as_json)
