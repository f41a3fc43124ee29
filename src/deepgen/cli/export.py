"""`deepgen export`: the winners of a study as a space, as a tuning config, or as the older tool's result file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from deepgen.cli import options

AsSpace = Annotated[bool, typer.Option("--as-space", help="Write a space of exactly the best configs.")]
AsConfig = Annotated[
    bool, typer.Option("--as-config", help="Write a tuning config with the best values and their neighbors.")
]
AsResults = Annotated[
    str | None,
    typer.Option(
        "--as-results",
        metavar="PREFIX",
        help="Write PREFIX_card<device>.json, the older tool's format.",
        show_default=False,
    ),
]
Device = Annotated[int, typer.Option("--device", min=0, help="Device number in the result file's name.")]
Count = Annotated[int, typer.Option("--top", min=1, help="How many of the best configs.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="The JSON file to write.", show_default=False)]


def export(
    study: options.StudyName,
    output: Output = None,
    as_space: AsSpace = False,
    as_config: AsConfig = False,
    as_results: AsResults = None,
    device: Device = 0,
    top: Count = 10,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Write the best configs as a space, a tuning config or a result file."""
    from deepgen import settings
    from deepgen.cli import studies
    from deepgen.cli.output import print_json, shown, write_text
    from deepgen.tuning import older_results, reuse
    from deepgen.vocabulary.errors import BadInput

    if [as_space, as_config, as_results is not None].count(True) != 1:
        raise BadInput("export needs an output format", allowed="--as-space, --as-config or --as-results PREFIX")
    if (output is None) == (as_results is None):
        allowed = "-o FILE with a space or a config, none with --as-results"
        raise BadInput("the file to write is " + ("missing" if output is None else "given twice"), allowed=allowed)
    found = studies.open_study(study, settings.load(), trust=trust)
    if as_results is not None:
        kind, output = "results", older_results.write_results(found, as_results, device, top)
        use = f"deepgen import {shown(output)}"
    else:
        assert output is not None
        kind = "space" if as_space else "config"
        data = reuse.as_space(found, top).to_json() if as_space else reuse.as_config(found, top)
        write_text(output, json.dumps(data, indent=2) + "\n")
        use = f"deepgen space show {shown(output)}" if as_space else f"deepgen tune {shown(output)}"
    if as_json:
        print_json({"study": str(found.folder), "kind": kind, "file": str(output)})
        return
    print(f"{kind} written to {shown(output)}; use it with: {use}")
