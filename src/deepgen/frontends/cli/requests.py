"""Builds tuning requests from the user's input: words, a config file or a study, then options, then settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepgen import generators, targets
from deepgen.frontends import formats
from deepgen.frontends.cli import words
from deepgen.frontends.cli.completion import EVERY_FAMILY
from deepgen.frontends.cli.options import IN_FILES, OF_A_RUN, OF_OPERATOR
from deepgen.frontends.formats import TuningFile
from deepgen.operators import Operator
from deepgen.report.view import note
from deepgen.run.measure.base import Policy
from deepgen.settings import Settings
from deepgen.targets import Target
from deepgen.tuning.request import Request, generator_of, narrow, on_threads, own_baselines
from deepgen.tuning.work import RecordedWork
from deepgen.vocabulary.errors import BadInput

if TYPE_CHECKING:
    from deepgen.tuning import Study

OF_A_FILE = tuple(option.name for option in IN_FILES if option.name in OF_A_RUN)
PLACEMENT = ("family", "threads")


@dataclass(frozen=True)
class WantedStudies:
    """The requests, one per study, and how to run them."""

    requests: list[Request]
    file: TuningFile | None = None  # from which they were read
    detach: bool = False


def from_words(
    arguments: Sequence[str], options: Mapping[str, Any], settings: Settings, policy: Policy
) -> WantedStudies:
    """The studies that a command's words request. `options` holds None for options that are not given."""
    file = None
    if arguments and formats.is_file_name(arguments[0]):
        file = formats.read(Path(arguments[0]), options.get("space_strategy"))
        for sentence in file.notes:
            note(f"note: {file.file}: {sentence}")
        if file.kernel is None:
            return WantedStudies(_from_file(file, arguments, options, settings, policy), file)
    _no_space_strategy(options)
    fields = {name: options[name] for name in OF_OPERATOR if options.get(name) is not None}
    operator, extras = words.parse(arguments, None if file is None else file.kernel, **fields)
    if extras.trials is not None and options.get("trials") is not None:
        raise BadInput(f"t={extras.trials} and --trials {options['trials']} are both given", allowed="give one of them")
    from_file = {} if file is None else {"trials": file.trials, "time_budget": file.time_budget}
    chosen = _chosen(from_file if extras.trials is None else {**from_file, "trials": extras.trials}, options)
    target = _target(options, settings.target)
    also = tuple(words.another_shape(operator, text) for text in options.get("also") or ())
    chosen = {"out": settings.studies, **chosen, **_named_baselines(options)}
    request = Request(operator=operator, target=target, also=also, policy=policy, **chosen)
    return WantedStudies(_placed([request], options), file, bool(extras.detach))


def from_study(study: Study, options: Mapping[str, Any], settings: Settings | None = None) -> Request:
    """The request that resumes a study."""
    definition, run = study.definition, study.budget()
    policy = Policy(**definition["policy"])
    return Request(
        operator=study.operator,
        target=study.target,
        also=study.also,
        seed=definition["seed"],
        strategy=study.strategy,
        options=definition["options"],
        transfer=definition.get("transfer", True),
        second_look=definition.get("second_look", True),
        domains=definition["domains"],
        policy=policy if settings is None else settings.limited(policy),
        baselines=_baselines(study),
        generator=study.generator,
        out=study.folder.parent,
        study=study.folder,
        **_chosen(run, options),
    )


def _baselines(study: Study) -> bool | list[Any]:
    """The baselines that the study began with."""
    named = study.budget().get("baselines", True)
    if isinstance(named, bool):
        return named
    own = dict(zip(own_baselines(study.own_baselines), study.own_baselines, strict=True))
    return [own.get(name, name) for name in named]


def _from_file(
    file: TuningFile, arguments: Sequence[str], options: Mapping[str, Any], settings: Settings, policy: Policy
) -> list[Request]:
    if len(arguments) > 1:
        raise BadInput(f"{arguments[1]!r} follows a tuning config file", allowed="give only the file and options")
    for name in (*OF_OPERATOR, "also"):
        if options.get(name):
            option = f"--{name.replace('_', '-')}"
            key = "one_kernel and the shapes" if name == "also" else name
            raise BadInput(f"{option} is given with a tuning config file", allowed=f"write {key} in {arguments[0]}")
    if file.generator is None:
        _no_space_strategy(options)
    if file.work is not None:
        return _from_work(file.work, arguments[0], options, settings, policy)
    if file.run_seconds is not None:
        policy = replace(policy, timeout_seconds=file.run_seconds)
    if file.runs is not None:
        policy = replace(policy, min_samples=file.runs, max_samples=file.runs)
    common = {
        "target": _target(options, file.target or settings.target),
        "policy": policy,
        "domains": file.knobs,
        "generator": file.generator,
        "out": settings.studies,
        **_chosen({name: getattr(file, name) for name in OF_A_FILE}, options),
        **_named_baselines(options),
    }
    groups = [file.operators] if file.one_kernel else [(operator,) for operator in file.operators]
    wanted = [Request(operator=first, also=tuple(others), **common) for first, *others in groups]
    placement = {name: getattr(file, name) if options.get(name) is None else options[name] for name in PLACEMENT}
    wanted = _placed(wanted, placement)
    for request in wanted if file.generator is None else ():
        for operator in (request.operator, *request.also):
            _check_knobs(replace(request, operator=operator, also=()), file)
    return wanted


def _from_work(
    work: RecordedWork, where: str, options: Mapping[str, Any], settings: Settings, policy: Policy
) -> list[Request]:
    """One request for each recorded operator that a family serves."""
    target = _target(options, work.target)
    chosen = {"out": settings.studies, **_chosen({}, options), **_named_baselines(options)}
    wanted = []
    for part in work.tunable():
        assert isinstance(part.what, Operator), "the other operators cannot be tuned"
        try:
            one = Request(operator=part.what, also=part.also, target=target, policy=policy, **chosen)
            wanted += _placed([one], options)
            generator_of(wanted[-1])
        except BadInput as error:
            wanted = [request for request in wanted if request.operator != part.what]
            note(f"not tuned: {part.what.describe()}, {work.share(part):.1%} of the time: {error}")
    if not wanted:
        raise BadInput("none of its operators can be tuned", where=where, allowed="products, softmax, normalisations")
    return wanted


def _check_knobs(request: Request, file: TuningFile) -> None:
    try:
        narrow(generator_of(request).space(request.operator, request.target), request.domains)
    except BadInput as error:
        where = f"{file.file}: {request.operator.describe()}"
        raise BadInput(f"knobs: {error.what}", where=where, allowed=error.allowed) from error


def _placed(wanted: list[Request], options: Mapping[str, Any]) -> list[Request]:
    """The requests restricted to the family and the threads of the options."""
    family, threads = (options.get(name) for name in PLACEMENT)
    if family is not None:
        wanted = [chosen for request in wanted for chosen in _by_family(request, family)]
    return wanted if threads is None else [on_threads(request, threads) for request in wanted]


def _by_family(request: Request, name: str) -> list[Request]:
    """The request with that family, or one per family that serves: a study has one space, so one family."""
    if request.generator is not None:
        raise BadInput(f"--family {name} cannot be used here", allowed="a legacy tuning config has its own family")
    if name == EVERY_FAMILY:
        served = generators.serving(request.operator, request.target)
    else:
        served = [generators.by_name(name)]
    return [replace(request, generator=family) for family in served]


def _target(options: Mapping[str, Any], otherwise: str | None) -> Target:
    named, host = options.get("target"), options.get("host")
    if named == "":  # an unset variable in a script must not select the best local device
        raise BadInput("--target is empty", allowed="give a name such as x86:native, or omit the option")
    target = targets.resolve(named or otherwise)
    return target if host is None else targets.on_host(target, host)


def _named_baselines(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"baselines": options["baselines"]} if options.get("baselines") else {}


def _no_space_strategy(options: Mapping[str, Any]) -> None:
    if options.get("space_strategy") is not None:
        raise BadInput("--space-strategy cannot be used here", allowed="it applies to legacy tuning configs")


def _chosen(otherwise: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Command line options take precedence over other sources; anything unset is left to Request's defaults."""
    both = {name: options.get(name) if options.get(name) is not None else otherwise.get(name) for name in OF_A_RUN}
    return {name: value for name, value in both.items() if value is not None}
