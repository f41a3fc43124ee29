"""The builds that a study begins with, begun before all that a search needs is imported."""

from __future__ import annotations

from contextlib import suppress

from deepgen.settings import Settings
from deepgen.tuning.request import Request, generator_of, guesses, task_of

_ON_DEVICE = ("cpu", "gpu")


def begin(request: Request, settings: Settings) -> None:
    """Build the family's best guess in the background, and our own code that runs beside it. Where the study begins
    with another kernel, or has it built already, that costs little; those that plan the study say what is wrong."""
    if request.target.runner not in _ON_DEVICE or not isinstance(request.strategy, str):
        return
    with suppress(Exception):
        family, operator, target = generator_of(request), request.operator, request.target
        kernel = family.emit(operator, target, guesses(family, operator, target, request.domains, request.policy)[0])
        from deepgen.run.measure.helpers import helpers_for
        from deepgen.toolchains import ahead

        for one in (kernel, *helpers_for(task_of(request)).values()):
            ahead.begin(one, target, settings.cache, settings.programs(), settings.build_limits())
