"""From what the user gave to tuning requests: words, a config file or a study, then options, then settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from deepgen import generators, targets
from deepgen.frontends.cli import config_file, words, work_file
from deepgen.frontends.cli.completion import EVERY_FAMILY
from deepgen.frontends.cli.options import OF_OPERATOR
from deepgen.operators import Operator
from deepgen.report.view.text import note
from deepgen.run.measure.base import Policy
from deepgen.settings import Settings
from deepgen.targets import Target
from deepgen.tuning import Request, Study
from deepgen.tuning.request import generator_of, narrow, on_threads
from deepgen.tuning.work import Work
from deepgen.vocabulary.errors import BadInput
from deepgen_formats.older.generator import OlderGenerator

# What the command line, a config file or an earlier run may say of a request, under the names that Request gives them.
OF_A_RUN = (
    "trials", "time_budget", "seed", "strategy", "options", "transfer", "learn_from", "second_look", "target_speedup",
    "patience", "keep_top", "counters", "out",
)  # fmt: skip
PLACEMENT = ("family", "threads")


def from_words(
    given: Sequence[str], options: Mapping[str, Any], settings: Settings, policy: Policy
) -> tuple[list[Request], bool]:
    """The requests, one per study, and whether to detach. `options` holds None where nothing was given."""
    said: Mapping[str, Any] = {}
    if given and words.names_a_t1_file(given[0]):
        said = _told_by_t1(given[0])
    elif given and config_file.is_config_file(given[0]):
        return _from_file(given, options, settings, policy), False
    _no_space_strategy(options)
    fields = {name: options[name] for name in OF_OPERATOR if options.get(name) is not None}
    operator, extras = words.parse(given, **fields)
    if extras.trials is not None and options["trials"] is not None:
        raise BadInput(f"t={extras.trials} and --trials {options['trials']} are both given", allowed="give one of them")
    trials = said.get("trials") if extras.trials is None else extras.trials
    chosen = _chosen({**said, "trials": trials}, options)
    target = _target(options, settings.target)
    also = tuple(words.another_shape(operator, text) for text in options.get("also") or ())
    chosen = {"out": settings.studies, **chosen, **_named_baselines(options)}
    request = Request(operator=operator, target=target, also=also, policy=policy, **chosen)
    return _placed([request], options), bool(extras.detach)


def _told_by_t1(file: str) -> Mapping[str, Any]:
    """What a T1 file says of a run. What it says in vain is told to the user."""
    found = words.t1_file(Path(file))
    for sentence in found.notes:
        note(f"note: {file}: {sentence}")
    return {"trials": found.trials, "time_budget": found.time_budget}


def from_study(study: Study, options: Mapping[str, Any]) -> Request:
    """The request that resumes a study."""
    definition, run = study.definition, study.budget()
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
        policy=Policy(**definition["policy"]),
        baselines=_baselines(study),
        generator=study.generator,
        out=study.folder.parent,
        study=study.folder,
        **_chosen(run, options),
    )


def _baselines(study: Study) -> bool | list[Any]:
    """Those that the study began with."""
    named = study.budget().get("baselines", True)
    if isinstance(named, bool):
        return named
    own = {one.name: one for one in study.own_baselines}  # type: ignore[attr-defined]
    return [own.get(name, name) for name in named]


def _from_file(given: Sequence[str], options: Mapping[str, Any], settings: Settings, policy: Policy) -> list[Request]:
    if len(given) > 1:
        raise BadInput(f"{given[1]!r} follows a tuning config file", allowed="the file alone, with options")
    for name in (*OF_OPERATOR, "also"):
        if options.get(name):
            option = f"--{name.replace('_', '-')}"
            key = "one_kernel and the shapes" if name == "also" else name
            raise BadInput(f"{option} is given with a tuning config file", allowed=f"write {key} in {given[0]}")
    work = work_file.read(given)
    if work is not None:
        return _from_work(work, given[0], options, settings, policy)
    older = config_file.read_older(Path(given[0]))
    if older is not None:
        return _placed([_from_older(older, given[0], options, settings, policy)], options)
    _no_space_strategy(options)
    config = config_file.read(Path(given[0]))
    if config.run_seconds is not None:
        policy = replace(policy, timeout_seconds=config.run_seconds)
    if config.runs is not None:
        policy = replace(policy, min_samples=config.runs, max_samples=config.runs)
    target = _target(options, config.target or settings.target)
    said = {name: getattr(config, name) for name in config_file.OF_A_RUN}
    chosen = {"out": settings.studies, **_chosen(said, options), **_named_baselines(options)}
    groups = [config.operators] if config.one_kernel else [(operator,) for operator in config.operators]
    wanted = [
        Request(operator=first, also=tuple(others), target=target, policy=policy, domains=config.knobs, **chosen)
        for first, *others in groups
    ]
    placement = {name: getattr(config, name) if options.get(name) is None else options[name] for name in PLACEMENT}
    wanted = _placed(wanted, placement)
    for request in wanted:
        for operator in (request.operator, *request.also):
            _check_knobs(replace(request, operator=operator, also=()), config)
    return wanted


def _from_work(work: Work, where: str, options: Mapping[str, Any], settings: Settings, policy: Policy) -> list[Request]:
    """One for each operator that was recorded and that some family serves."""
    _no_space_strategy(options)
    target = _target(options, work.target)
    chosen = {"out": settings.studies, **_chosen({}, options), **_named_baselines(options)}
    wanted = []
    for part in work.tunable():
        assert isinstance(part.what, Operator), "the others are not tunable"
        try:
            wanted += _placed([Request(operator=part.what, target=target, policy=policy, **chosen)], options)
            generator_of(wanted[-1])
        except BadInput as error:
            wanted = [request for request in wanted if request.operator != part.what]
            note(f"not tuned: {part.what.describe()}, {work.share(part):.1%} of the time: {error}")
    if not wanted:
        raise BadInput("no operator in it can be tuned", where=where, allowed="products, softmax, normalisations")
    return wanted


def _check_knobs(request: Request, config: config_file.TuningConfig) -> None:
    try:
        narrow(generator_of(request).space(request.operator, request.target), request.domains)
    except BadInput as error:
        where = f"{config.file}: {request.operator.describe()}"
        raise BadInput(f"knobs: {error.what}", where=where, allowed=error.allowed) from error


def _from_older(
    data: Mapping[str, Any], where: str, options: Mapping[str, Any], settings: Settings, policy: Policy
) -> Request:
    """The older tool's files say what to tune and over which space; the rest comes from options and settings."""
    strategy = options.get("space_strategy")
    generator = OlderGenerator(data, 1 if strategy is None else strategy, where)
    target = _target(options, settings.target)
    chosen = {"out": settings.studies, **_chosen({}, options), **_named_baselines(options)}
    return Request(operator=generator.operator, target=target, policy=policy, generator=generator, **chosen)


def _placed(wanted: list[Request], options: Mapping[str, Any]) -> list[Request]:
    """The requests with the family and the threads that the options name."""
    family, threads = (options.get(name) for name in PLACEMENT)
    if family is not None:
        wanted = [chosen for request in wanted for chosen in _by_family(request, family)]
    return wanted if threads is None else [on_threads(request, threads) for request in wanted]


def _by_family(request: Request, name: str) -> list[Request]:
    """The request with that family, or one for each that serves: a study has one space, and so one family."""
    if request.generator is not None:
        raise BadInput(
            f"--family {name} cannot be used here", allowed="a tuning config of the older tool has its own family"
        )
    if name == EVERY_FAMILY:
        served = generators.serving(request.operator, request.target)
    else:
        served = [generators.by_name(name)]
    return [replace(request, generator=family) for family in served]


def _target(options: Mapping[str, Any], otherwise: str | None) -> Target:
    given, host = options["target"], options.get("host")
    if given == "":  # a variable of a script that was not set: not to be taken for the best device here
        raise BadInput("--target is empty", allowed="a name such as x86:native, or leave the option out")
    found = targets.resolve(given or otherwise)
    return found if host is None else targets.on_host(found, host)


def _named_baselines(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"baselines": [*options["baselines"]]} if options.get("baselines") else {}


def _no_space_strategy(options: Mapping[str, Any]) -> None:
    if options.get("space_strategy") is not None:
        raise BadInput("--space-strategy cannot be used here", allowed="it applies to tuning configs of the older tool")


def _chosen(said: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """An option of the command line before what was said elsewhere; what nobody said is left to Request's defaults."""
    both = {name: options.get(name) if options.get(name) is not None else said.get(name) for name in OF_A_RUN}
    return {name: value for name, value in both.items() if value is not None}
