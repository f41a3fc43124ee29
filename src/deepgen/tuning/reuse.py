"""Reuses a study's results: as a list, as a space of the best configs, as a config around them, or for new finals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from deepgen.operators import Operator, words_of
from deepgen.space.definition import value_from_json
from deepgen.tuning.speed import with_rates
from deepgen.tuning.study.definition import check_config
from deepgen.tuning.study.journal import Journal
from deepgen.tuning.study.study import Study
from deepgen.vocabulary import BadInput, Json, JsonObject, Trial

if TYPE_CHECKING:
    from deepgen.run.measure.base import Policy
    from deepgen.space import Space
    from deepgen.tuning.engines import Engine
    from deepgen.tuning.study.finals import Finals


def top_rows(study: Study, count: int) -> list[JsonObject]:
    """The best trials as data: the winner, the other finalists, then the rest, each group by time. `seconds` is the
    trial's time in the search, `finals` its time in the finals."""
    finals = study.finals()
    raced = finals.seconds() if finals is not None else {}
    winner = None if finals is None else finals.winner

    def order(trial: Trial) -> tuple[bool, bool, float]:
        return trial.id != winner, trial.id not in raced, raced.get(trial.id) or trial.seconds or 0.0

    return [
        {
            "trial": trial.id,
            "rank": trial.rank,
            "config": dict(trial.config),
            "seconds": trial.seconds,
            **study.speed(trial.seconds, finals),
            "finals": {"seconds": raced[trial.id], **study.speed(raced[trial.id], finals)}
            if trial.id in raced
            else None,
            "kernel_id": trial.kernel_id,
        }
        for trial in sorted(study.top(count), key=order)
        if trial.seconds
    ]


def as_space(study: Study, count: int) -> Space:
    """A space that consists of the best configs."""
    from deepgen.space import Space

    best = _best(study, count)
    configs = [{name: value_from_json(value) for name, value in t.config.items()} for t in best]
    return Space.from_points(f"{study.folder.name} top {len(best)}", configs)


def as_config(study: Study, count: int) -> JsonObject:
    """A tuning config whose domains are the values of the best configs, widened by one step of the knob's domain."""
    best = _best(study, count)
    knobs: dict[str, Json] = {}
    for trial in best:
        check_config(study.space, trial.config, str(study.folder))
    for knob in study.space.knobs:
        used = {_hashable(t.config[knob.name]) for t in best if knob.name in t.config}
        # A conditional knob that none of them has stays unrestricted.
        if used:
            knobs[knob.name] = [_plain(v) for v in widened(knob.values, used)]
    shape, others = _as_words(study.operator)
    run: JsonObject = {"target": study.target.name, "knobs": knobs, "strategy": study.definition["strategy"]}
    return {"operator": study.operator.name, "shapes": [shape], **others, **run}


def _as_words(operator: Operator) -> tuple[JsonObject, JsonObject]:
    """The operator as words of a config file: those of its shape, and the others."""
    parameters = operator.parameters()
    if type(operator).make(parameters) != operator:
        raise BadInput(
            f"{operator.describe()} cannot be expressed as a tuning config",
            allowed="only operators that NAME=VALUE parameters describe",
        )
    words = words_of(type(operator))
    sizes = {name: value for name, value in parameters.items() if words[name].kind == "size"}
    return sizes, {name: value for name, value in parameters.items() if name not in sizes}


def widened(domain: Sequence[Any], used: set[Any]) -> list[Any]:
    """The used values and their direct neighbours in the domain's order."""
    places = {i for i, value in enumerate(domain) if _hashable(value) in used}
    near = {j for i in places for j in (i - 1, i, i + 1) if 0 <= j < len(domain)}
    return [domain[i] for i in sorted(near)]


def retest(
    study: Study, count: int, *, engine: Engine | None = None, baselines: bool = True, policy: Policy | None = None
) -> Finals:
    """Repeat the finals for the best `count` trials and the default, while deepgen runs nothing else.

    `policy`: a policy to use instead of the study's, such as one with other limits for finals.
    """
    from deepgen.tuning.engines import LocalEngine
    from deepgen.tuning.finals import run_finals
    from deepgen.tuning.request import first_configs

    task = study.task() if policy is None else replace(study.task(), policy=policy)
    domains = study.definition["domains"]
    firsts = first_configs(study.generator, study.operator, study.target, study.space, domains, task.policy)
    with Journal(study.folder, write=True) as journal:
        trials = journal.trials()
        if not any(trial.ok for trial in trials):
            raise BadInput(f"{study.folder} has no correct kernel to test again")
        with (engine or LocalEngine()).open(task) as session:
            result = run_finals(
                session,
                task,
                trials,
                study.kernel,
                default=journal.right(study.space.rank(dict(firsts[0])) if firsts else None),
                keep=count,
                baselines=baselines,
            )
            journal.add_finals(replace(with_rates(result, session, task.timed), trials=len(trials), retest=True))
    return result


def _best(study: Study, count: int) -> list[Trial]:
    best = study.top(count)
    if not best:
        raise BadInput(f"{study.folder} has no correct kernel yet")
    return best


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _plain(value: Any) -> Json:
    return list(value) if isinstance(value, tuple) else value
