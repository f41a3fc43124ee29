"""Turns a study's winner into a library entry."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median

from deepgen import __version__
from deepgen.generators import named_member
from deepgen.libraries.entry import Entry, Requirements, Rival, Timed
from deepgen.operators import OPERATORS, Operator
from deepgen.run.call import plans
from deepgen.run.measure.race import median_interval
from deepgen.targets import device_for, host
from deepgen.toolchains import build_once
from deepgen.toolchains.base import require_plain
from deepgen.tuning import Study
from deepgen.tuning.engines import Engine, LocalEngine
from deepgen.tuning.finals import run_finals
from deepgen.tuning.study.finals import Finals
from deepgen.tuning.study.reading import RETEST
from deepgen.tuning.study.winner import built_by, sha256
from deepgen.vocabulary import Artifact, BadInput, DeepgenError, JsonObject, Kernel, Missing, Trial, completed
from deepgen.vocabulary.measurement import Properties

Added = tuple[Entry, Kernel, Artifact]
_MOST = 200  # trials searched for a kernel that serves other shapes
_RACED = 3  # the fastest of those are raced
_RACE_SECONDS = 10.0
_LARGE, _VECTOR = 64, 16  # sizes of at least the first are enlarged by the second


def entry_of(study: Study, *, noisy: bool = False) -> Added:
    """A study's winner as an entry, with its kernel and its binary, which is built if the study has none.

    Times distorted by a busy machine are refused unless `noisy`, since a library bases its choices on them.
    """
    if study.target.runner not in ("cpu", "gpu"):
        raise BadInput(f"{study.folder} is for {study.target.name}", allowed="a study on a CPU or a GPU")
    if study.operator.name not in OPERATORS or study.operator.judge() is not None:
        what = f"{study.folder} is of {study.describe()}, an operator of your own"
        raise BadInput(what, allowed="an operator that deepgen or an installed package provides")
    finals = study.finals() or Finals(None)
    if finals.noisy is not None and not noisy:
        raise DeepgenError(f"{study.folder}: too noisy to tell ({finals.noisy}); {RETEST}, or add it with `--noisy`")
    trial = study.best().trial
    kernel, artifact = _built(study, trial)
    return _entry(study, trial, kernel, artifact, finals)


def general_of(study: Study, engine: Engine | None = None) -> Added | None:
    """The fastest of a study's kernels that also serves other shapes, if the winner serves only its own.

    It is verified and timed like the winner. None if the winner serves other shapes itself, if no kernel does, or if
    the kernels cannot run here.
    """
    if is_general(study.kernel(study.best().trial).requirements, study.operator):
        return None
    able = []
    for trial in study.top(_MOST):
        if is_general(study.emitted(trial).requirements, study.operator):
            able.append(trial)
        if len(able) == _RACED:
            break
    try:
        device_for(study.target)
    except Missing:
        return None
    if not able:
        return None
    raced = [row.name for row in (study.finals() or Finals(None)).baselines]
    task = study.task()
    with (engine or LocalEngine()).open(task) as session:
        finals = run_finals(
            session, task, able, study.emitted, default=None, keep=_RACED, baselines=raced, max_seconds=_RACE_SECONDS
        )
        finals = replace(finals, peak_gflops=session.peak(), bandwidth=session.bandwidth())
        winners = [trial for trial in able if trial.id == finals.winner]
        if not winners:
            return None
        kernel = study.emitted(winners[0])
        return _entry(study, winners[0], kernel, session.build(kernel), finals)


def is_general(requires: Requirements, operator: Operator) -> bool:
    """Whether somewhat larger shapes are served, whose sizes are multiples of whole vectors but not of whole tiles."""
    larger = {name: size + _VECTOR if size >= _LARGE else size for name, size in operator.sizes().items()}
    try:
        scalars = operator.resized(larger, {}, {}).scalars()
    except (BadInput, TypeError, ValueError):
        return True
    return all(plans.holds(expression, scalars) for expression, _ in requires)


def _entry(study: Study, trial: Trial, kernel: Kernel, artifact: Artifact, finals: Finals) -> Added:
    plan = completed(kernel, artifact.plan).plan
    # Everything a shape must satisfy becomes part of the plan, which is signed.
    requires = (*plan.requires, *kernel.implied, *study.serves_only(finals))
    artifact = replace(artifact, plan=replace(plan, requires=requires, exclusive=study.exclusive(finals)))
    policy = study.task().policy
    family, config = named_member(study.definition["generator"], trial.config)
    entry = Entry(
        target=study.target,
        cold=policy.cold,
        threads=policy.threads,
        general=is_general(requires, study.operator),
        family=family,
        config=config,
        kernel_id=kernel.id,
        binary=sha256(Path(artifact.binary)),
        requires=requires,
        timed=_timed(study, trial, finals),
        peak_gflops=finals.peak_gflops,
        bandwidth=finals.bandwidth or study.target.bandwidth,
        provenance=_provenance(study, trial, finals, artifact),
        properties=finals.properties or Properties(),
    )
    return entry, kernel, artifact


def _built(study: Study, trial: Trial) -> tuple[Kernel, Artifact]:
    stored = study.stored(trial)
    if stored is None:
        kernel = study.kernel(trial)
        return kernel, build_once(kernel, study.target)
    if stored.binary is None:
        if not stored.own:
            require_plain(stored.kernel, str(study.folder))
        return stored.kernel, build_once(stored.kernel, study.target)
    form = stored.binary.suffix.removeprefix(".")
    return stored.kernel, Artifact(
        stored.kernel.id, str(stored.binary), form, built_by(study.folder) or "unknown", {}, 0.0, plan=stored.plan
    )


def _timed(study: Study, trial: Trial, finals: Finals) -> tuple[Timed, ...]:
    shapes = (study.operator, *study.also)
    row = finals.finalist(trial.id)
    samples = trial.measurement.samples if row is None else row.samples
    low, high = median_interval(samples)
    if len(shapes) > 1:
        return tuple(
            Timed(shape, at.seconds or 0.0, (at.seconds or 0.0, at.seconds or 0.0), _rivals_at(at.baselines))
            for shape, at in zip(shapes, finals.shapes, strict=True)
        )
    rivals = {row.name: Rival(row.seconds, row.ratio, row.interval) for row in finals.baselines}
    return (Timed(study.operator, median(samples), (low, high), rivals),)


def _rivals_at(baselines: Mapping[str, float | None]) -> dict[str, Rival]:
    return {name: Rival(value) for name, value in baselines.items() if value is not None}


def _provenance(study: Study, trial: Trial, finals: Finals, artifact: Artifact) -> JsonObject:
    around = [row for row in finals.conditions if row.get("name") == f"trial {trial.id}"]
    return {
        "study": study.folder.absolute().name,
        "trial": trial.id,
        "rounds": finals.rounds,
        "conditions": dict(around[-1]) if around else {},
        "waited": finals.waited.to_json() if finals.waited is not None else None,
        **origin(study.definition.get("deepgen", "unknown"), artifact),
    }


def origin(made_by: str, artifact: Artifact) -> JsonObject:
    """The provenance that every entry records: versions, and when it was added. `made_by`: deepgen's version."""
    return {
        "versions": {
            "deepgen": made_by,
            "toolchain": artifact.toolchain,
            "added_by": __version__,
            "system": host.system(),
        },
        "added": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
