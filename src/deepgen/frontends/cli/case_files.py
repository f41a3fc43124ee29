"""What is written for a case of Heron's, in the folder `case` of its study.

The journal holds all of this; these are copies for other programs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from deepgen.frontends.cli import config_file
from deepgen.kernels.base import Scheduled
from deepgen.settings import Settings, read_json
from deepgen.tuning import Study
from deepgen.vocabulary.errors import BadInput
from deepgen_formats import heron as heron_file

FOLDER = "case"


def read(words: Sequence[str]) -> heron_file.HeronFile | None:
    """The file with Heron's cases that is tuned; None if something else is."""
    if len(words) != 1 or not words[0].endswith(".json"):
        return None
    data = read_json(Path(words[0]), allowed=config_file.CONTENT)
    return heron_file.read(data, words[0]) if heron_file.is_heron(data) else None


def limited(settings: Settings, cases: heron_file.HeronFile) -> Settings:
    """The settings with the limit on builds that the file asks for."""
    if cases.build_seconds is None:
        return settings
    return replace(settings, limits=replace(settings.limits, build_seconds=float(cases.build_seconds)))


def write(study: Study) -> None:
    """constraints.json, records.jsonl, statistics.json and, where rules made the winner, schedule.txt."""
    summary = study.summary()
    files = {
        "constraints.json": json.dumps(study.space.to_json(), indent=2) + "\n",
        "records.jsonl": "".join(json.dumps(row) + "\n" for row in study.rows()),
        "statistics.json": json.dumps(summary, indent=2) + "\n",
    }
    family = study.generator
    if summary["winner"] is not None and isinstance(family, Scheduled):
        config = study.best().trial.config
        files["schedule.txt"] = family.schedule_text(study.operator, study.target, config)
    folder = study.folder / FOLDER
    try:
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{folder} cannot be written: {error.strerror}", allowed="a folder with room") from error
