"""`deepgen retest`: measure the best of a study once more."""

from __future__ import annotations

from typing import Annotated

import typer

from deepgen.frontends.cli import options

Best = Annotated[int, typer.Option("--top", min=1, help="How many of the best configs.")]
AsCalled = Annotated[bool, typer.Option("--as-called", help="Time the loaded winner through its public call.")]


def retest(
    study: options.StudyName,
    top: Best = 8,
    as_called: AsCalled = False,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Repeat the final comparison of a study's best kernels."""
    from deepgen import settings
    from deepgen.frontends.api import local_engine
    from deepgen.frontends.cli import studies
    from deepgen.frontends.cli.output import print_json
    from deepgen.frontends.cli.result import print_calls, print_result
    from deepgen.tuning import reuse

    current = settings.load()
    found = studies.open_study(study, current, trust=trust)
    studies.check_machine(found)
    if as_called:
        from deepgen.tuning.as_called import as_called as call_times

        told = call_times(found)
        if as_json:
            print_json({"study": str(found.folder), **told})
        else:
            print_calls(found, told)
        return
    reuse.retest(found, top, engine=local_engine(current))
    if as_json:
        print_json(found.summary())
    else:
        print_result(found)
