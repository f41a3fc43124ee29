"""From a study to an entry of a library."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from deepgen import __version__
from deepgen.build import build_once
from deepgen.build.flags import require_plain
from deepgen.libraries.entry import Entry, Rival, Timed
from deepgen.operators import OPERATORS
from deepgen.tuning import Study
from deepgen.tuning.statistics import median_interval
from deepgen.tuning.study import WINNER
from deepgen.tuning.winner import ABOUT, sha256
from deepgen.vocabulary import Artifact, BadInput, DeepgenError, JsonObject, Kernel, Trial, completed, foreign


def entry_of(study: Study) -> tuple[Entry, Kernel, Artifact]:
    """A study's winner as an entry, with its kernel and its binary; the binary is built where the study has none."""
    if study.target.runner not in ("cpu", "gpu"):
        raise BadInput(f"{study.folder} is of {study.target.name}", allowed="a study for a processor or a GPU")
    if study.operator.name not in OPERATORS or study.operator.judge() is not None:
        what = f"{study.folder} is of {study.describe()}, an operator of your own"
        raise BadInput(what, allowed="an operator that deepgen or an installed package provides")
    best = study.best()
    kernel, artifact = _built(study, best.trial)
    plan = completed(kernel, artifact.plan).plan
    # All that a shape must satisfy becomes part of the plan, which is signed.
    requires = (*plan.requires, *kernel.implied, *study.serves_only())
    artifact = replace(artifact, plan=replace(plan, requires=requires))
    finals = study.finals() or {}
    policy = study.task().policy
    entry = Entry(
        target=study.target,
        cold=policy.cold,
        threads=policy.threads,
        family=study.definition["generator"],
        config=dict(best.trial.config),
        kernel_id=kernel.id,
        binary=sha256(Path(artifact.binary)),
        requires=requires,
        timed=_timed(study, best.trial, finals),
        peak_gflops=finals.get("peak_gflops"),
        bandwidth=finals.get("bandwidth") or study.target.bandwidth,
        provenance=_provenance(study, best.trial, finals, artifact),
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
        stored.kernel.id, str(stored.binary), form, _toolchain(study), {}, 0.0, plan=stored.plan
    )


def _toolchain(study: Study) -> str:
    """What built the winner; older studies did not keep it."""
    try:
        about = foreign.read_json(study.folder / WINNER / ABOUT, plain=True)
    except DeepgenError:
        return "unknown"
    return str(about.get("toolchain", "unknown")) if isinstance(about, dict) else "unknown"


def _timed(study: Study, trial: Trial, finals: Mapping[str, Any]) -> tuple[Timed, ...]:
    shapes = (study.operator, *study.also)
    row = next((r for r in finals.get("finalists", []) if r["trial"] == trial.id), None)
    samples = trial.measurement.samples if row is None else row["samples"]
    low, high = median_interval(samples)
    if len(shapes) > 1:
        return tuple(
            Timed(shape, at["seconds"], (at["seconds"], at["seconds"]), _rivals_at(at["baselines"]))
            for shape, at in zip(shapes, finals.get("shapes", []), strict=True)
        )
    rivals = {
        r["name"]: Rival(r["seconds"], r["ratio"], (r["interval"][0], r["interval"][1]))
        for r in finals.get("baselines", [])
    }
    return (Timed(study.operator, median(samples), (low, high), rivals),)


def _rivals_at(baselines: Mapping[str, float | None]) -> dict[str, Rival]:
    return {name: Rival(value) for name, value in baselines.items() if value is not None}


def _provenance(study: Study, trial: Trial, finals: Mapping[str, Any], artifact: Artifact) -> JsonObject:
    around = [row for row in finals.get("conditions", []) if row.get("name") == f"trial {trial.id}"]
    return {
        "study": study.folder.absolute().name,
        "trial": trial.id,
        "rounds": finals.get("rounds", 0),
        "conditions": dict(around[-1]) if around else {},
        "waited": finals.get("waited"),
        "versions": {
            "deepgen": study.definition.get("deepgen", "unknown"),
            "toolchain": artifact.toolchain,
            "added_by": __version__,
            "system": platform.platform(),
        },
        "added": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
