"""`deepgen export`: the winners of a study as a space or as a tuning config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from deepgen.cli import options

AsSpace = Annotated[bool, typer.Option("--as-space", help="A space of exactly the best configs.")]
AsConfig = Annotated[bool, typer.Option("--as-config", help="A tuning config around them, one step wider.")]
Count = Annotated[int, typer.Option("--top", min=1, help="How many of the best.")]
Output = Annotated[Path, typer.Option("-o", "--output", help="The JSON file to write.", show_default=False)]


def export(
    study: options.StudyName,
    output: Output,
    as_space: AsSpace = False,
    as_config: AsConfig = False,
    top: Count = 10,
    as_json: options.AsJson = False,
) -> None:
    """Write the best configs as a space or a tuning config."""
    from deepgen import settings
    from deepgen.cli import studies
    from deepgen.cli.output import print_json, shown, write_text
    from deepgen.tuning import reuse
    from deepgen.vocabulary.errors import BadInput

    if as_space == as_config:
        raise BadInput("export needs one form", allowed="--as-space or --as-config")
    found = studies.open_study(study, settings.load())
    data = reuse.as_space(found, top).to_json() if as_space else reuse.as_config(found, top)
    write_text(output, json.dumps(data, indent=2) + "\n")
    kind = "space" if as_space else "config"
    if as_json:
        print_json({"study": str(found.folder), "kind": kind, "file": str(output)})
        return
    use = f"deepgen space show {shown(output)}" if as_space else f"deepgen tune {shown(output)}"
    print(f"{kind} written to {shown(output)}; use it with: {use}")
