"""The best of a study as a result file of the older tool."""

from __future__ import annotations

import json
from pathlib import Path

from deepgen.tuning.study.study import Study
from deepgen.vocabulary import BadInput
from deepgen_formats.older import results

_TORCH = ("torch", "torch-gpu")


def write_results(study: Study, prefix: str | Path, device: int = 0, count: int = 10) -> Path:
    """Write the best of a study to `<prefix>_card<device>.json`; times of the finals are preferred."""
    finals = study.finals() or {}
    raced = {row["trial"]: row["seconds"] for row in finals.get("finalists", [])}
    torch = next((row["seconds"] for row in finals.get("baselines", []) if row["name"] in _TORCH), None)
    best = study.top(count)
    if not best:
        raise BadInput(f"{study.folder} has no correct kernel yet")
    times = [(dict(trial.config), raced.get(trial.id) or trial.seconds or 0.0) for trial in best]
    path = Path(f"{prefix}_card{device}.json")
    try:
        path.write_text(json.dumps(results.to_json(study.operator, times, torch), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}", allowed="a folder that exists") from error
    return path
