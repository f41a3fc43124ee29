"""Imports a recording as a study, so that every command that reads studies accepts it.

The study is marked as recorded in the conditions of its trials, in a note, and by its strategy, so it cannot be
resumed. It has no kernels and no finals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from deepgen import generators, operators
from deepgen.space import Space
from deepgen.targets import Target
from deepgen.tuning.request import Request, plan
from deepgen.tuning.search import recorded
from deepgen.tuning.study.journal import Journal, Proposal
from deepgen.tuning.study.study import Study
from deepgen.vocabulary import BadInput, Json, Measurement, Trial, digest, foreign

RECORDED = "recorded"  # the strategy of such a study, and a condition of its trials
_NEEDED = "a recording with `operator`, `kernel_name` and `device_name`, as benchmarks/record.py writes them"


def import_study(file: Path, target: Target, out: Path) -> Study:
    """Create a study from a recording in Kernel Tuner's cache format that also names its operator and its family."""
    data = recorded.document(file)
    if not isinstance(data, dict) or not {"operator", "kernel_name", "device_name", "cache"} <= set(data):
        raise BadInput("is not a recording that a study can be made from", where=str(file), allowed=_NEEDED)
    with foreign.shaped(str(file), "is not a recording that a study can be made from", allowed=_NEEDED):
        records = sorted(data["cache"].values(), key=lambda record: str(record.get("timestamp", "")))
        request = Request(
            operators.from_json(data["operator"]),
            target,
            trials=max(1, len(records)),
            generator=generators.by_name(str(data["kernel_name"])),
            out=out,
        )
        names = list(data["tune_params_keys"])
        configs = [recorded.config_of(names, record) for record in records]
        around = _conditions(data, file)
        measured = [_measured(record, around) for record in records]
        ended = [_moment(record) for record in records]
    definition = plan(request).definition
    # The space of the recorded configs, not the family's current one, which may have gained knobs.
    space = Space.from_points(str(data["kernel_name"]), configs)
    folder = out / f"{RECORDED}-{request.operator.slug()}-{digest(definition, 8)}"
    if folder.exists():
        raise BadInput(f"{folder} exists", allowed="remove it, or choose another folder")
    proposals = [Proposal(i, space.rank(config), config) for i, config in enumerate(configs)]
    trials = [
        Trial(p.id, p.rank, p.config, "", measurement) for p, measurement in zip(proposals, measured, strict=True)
    ]
    moments = {i: at for i, at in enumerate(ended) if at is not None}
    with Journal(folder, write=True) as journal:
        journal.define({**definition, "space": space.fingerprint(), "strategy": RECORDED, "options": {}})
        journal.keep_space(space)
        journal.begin_run({"trials": len(trials)})
        journal.ask(0, len(proposals), proposals, at=min(moments.values(), default=None))
        journal.finish(trials, moments)
        journal.note(f"recorded on {data['device_name']} and imported from {file.name}; no search chose these trials")
    return Study.open(folder)


def is_recorded(study: Study) -> bool:
    """Whether it was imported rather than tuned."""
    return bool(study.definition["strategy"] == RECORDED)


def _measured(record: Mapping[str, Any], around: Mapping[str, Json]) -> Measurement:
    """A measurement with all recorded runs; a failed kernel has none."""
    measurement = recorded.measurement_of(record)
    runs = tuple(float(ms) * 1e-3 for ms in record.get("times") or () if ms > 0)
    return replace(measurement, samples=runs if measurement.ok and runs else measurement.samples, conditions=around)


def _conditions(data: Mapping[str, Any], file: Path) -> dict[str, Json]:
    conditions = {str(name): str(value) for name, value in dict(data.get("conditions") or {}).items()}
    return {RECORDED: f"on {data['device_name']}, in {file.name}", **conditions}


def _moment(record: Mapping[str, Any]) -> float | None:
    moment = record.get("timestamp")
    return datetime.fromisoformat(moment).timestamp() if isinstance(moment, str) and moment else None
