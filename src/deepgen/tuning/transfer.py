"""Transfer from earlier studies: found in the studies' folder, and recorded in the new study's journal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deepgen import operators
from deepgen.space import Space
from deepgen.tuning.request import Plan, Request
from deepgen.tuning.search import Past, recorded
from deepgen.tuning.study.journal import FILE, Journal
from deepgen.tuning.study.study import Study
from deepgen.vocabulary import BadInput, DeepgenError, Json, Measurement, Trial, Verdict

STUDIES = 3  # the most similar ones; more add little and cost time at every ask
TRIALS = 600  # of each study
LEAST = 20  # trials; a smaller study is not used


def history(request: Request, planned: Plan, journal: Journal) -> list[Past]:
    """The earlier studies that this one learns from: chosen when it begins, the same whenever it is resumed."""
    if not request.transfer and not request.learn_from:
        return []
    kept = journal.history()
    if kept is None:
        studies = _alike(request, planned) if request.transfer else []
        kept = [] if journal.asks() else [*map(_recording, request.learn_from), *map(_kept, studies)]
        journal.keep_history(kept)
        if kept:
            names = ", ".join(str(row["name"]) for row in kept)
            journal.note(f"the search starts from the results of earlier studies: {names}")
    known = {row["name"] for row in kept}
    late = next((path.name for path in request.learn_from if path.name not in known), None)
    if late is not None:
        raise BadInput(f"{planned.folder} has begun without {late}", allowed="another folder for a new study: --out")
    return [_past(row) for row in kept]


def _alike(request: Request, planned: Plan) -> list[Study]:
    """Studies of the same generator, those of the most similar work first."""
    scored = [
        (
            study.folder != planned.after,
            _distance(study.definition["operator"], request.operator.to_json()),
            study.target.name != request.target.name,
            study.folder.name,
            study,
        )
        for study in _neighbours(planned)
    ]
    return [study for *_, study in sorted(scored, key=lambda row: row[:4])[:STUDIES]]


def _neighbours(planned: Plan) -> Iterator[Study]:
    for folder in sorted(planned.folder.parent.iterdir()):
        if folder == planned.folder or not (folder / FILE).is_file():
            continue
        try:
            study = Study.open(folder)
            least = 1 if folder == planned.after else LEAST
            if _same_family(study.definition, planned.definition) and len(study.trials()) >= least:
                yield study
        except DeepgenError:
            continue  # a study that cannot be read is skipped


def _same_family(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether both are of one generator; kernels of the user's own are one each."""
    kernels = [definition["operator"].get("kernel") for definition in (one, other)]
    return bool(one["generator"] == other["generator"]) and kernels[0] == kernels[1]


def _distance(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """How different the work is: sizes on a logarithmic scale; another layout or dtype counts like a factor of two."""
    total = 0.0
    for key in mine.keys() | theirs.keys():
        a, b = mine.get(key), theirs.get(key)
        if isinstance(a, (int, float)) and isinstance(b, (int, float)) and a > 0 and b > 0:
            total += abs(math.log2(a / b))
        elif a != b:
            total += 1.0
    return total


def _kept(study: Study) -> dict[str, Json]:
    """What a journal keeps of another study: its later trials must not change this search."""
    trials: list[Json] = [[t.rank, t.seconds, t.measurement.verdict.value] for t in study.trials()[:TRIALS]]
    return {
        "name": study.folder.name,
        "operator": study.definition["operator"],
        "describe": study.about.describe(),
        "space": study.space.to_json(),
        "trials": trials,
    }


def _recording(path: Path) -> dict[str, Json]:
    """What a journal keeps of a recording: of a large one, fast and slow configs in equal steps."""
    known = recorded.read(path)
    trials = sorted(known.past.trials, key=lambda trial: (trial.seconds is None, trial.seconds))
    step = max(1, math.ceil(len(trials) / TRIALS))
    rows: list[Json] = [
        [known.space.rank(dict(t.config)), t.seconds, t.measurement.verdict.value] for t in trials[::step]
    ]
    return {"name": path.name, "describe": known.name, "space": known.space.to_json(), "trials": rows}


def _past(row: Mapping[str, Any]) -> Past:
    space = Space.from_json(row["space"])
    trials = [
        Trial(i, rank, space.at(rank), "", Measurement(Verdict(verdict), samples=() if seconds is None else (seconds,)))
        for i, (rank, seconds, verdict) in enumerate(row["trials"])
    ]
    described = row["describe"] if "describe" in row else operators.from_json(row["operator"]).describe()
    return Past(f"{row['name']} ({described})", space, trials)
