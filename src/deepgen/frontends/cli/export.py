"""`deepgen export`: the best of a study as a space, a tuning config or results, or its trials as a table or T4."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepgen.frontends.cli import options

if TYPE_CHECKING:
    from deepgen.tuning import Study

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
AsCsv = Annotated[
    bool, typer.Option("--as-csv", help="Write one row per trial: knobs, verdict, times, facts, counted events.")
]
AsPerfStats = Annotated[
    bool, typer.Option("--as-perf-stats", help="Write one row per trial, with the columns of perf_stats.csv.")
]
AsT4 = Annotated[bool, typer.Option("--as-t4", help="Write all trials in the benchmark hub's T4 format.")]
Device = Annotated[int, typer.Option("--device", min=0, help="Device number in the result file's name.")]
Count = Annotated[int, typer.Option("--top", min=1, help="How many of the best configs; tables have all trials.")]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="The file to write. [a table: stdout]", show_default=False)
]

_FORMS = "--as-space, --as-config, --as-results PREFIX, --as-csv, --as-perf-stats or --as-t4"


def export(
    study: options.StudyName,
    output: Output = None,
    as_space: AsSpace = False,
    as_config: AsConfig = False,
    as_results: AsResults = None,
    as_csv: AsCsv = False,
    as_perf_stats: AsPerfStats = False,
    as_t4: AsT4 = False,
    device: Device = 0,
    top: Count = 10,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Write the best configs in another format, or all trials as a table or T4."""
    from deepgen import settings
    from deepgen.frontends.cli import studies
    from deepgen.frontends.cli.output import print_json, shown, write_text
    from deepgen.tuning import formats, reuse
    from deepgen.vocabulary.errors import BadInput

    table = as_csv or as_perf_stats
    if [as_space, as_config, as_results is not None, as_csv, as_perf_stats, as_t4].count(True) != 1:
        raise BadInput("export needs an output format", allowed=_FORMS)
    if table and as_json and output is None:
        raise BadInput("a table and JSON cannot both go to stdout", allowed="give -o FILE for the table")
    if not table and (output is None) == (as_results is None):
        allowed = "-o FILE with a space, a config or T4, none with --as-results"
        raise BadInput("the file to write is " + ("missing" if output is None else "given twice"), allowed=allowed)
    found = studies.open_study(study, settings.load(), trust=trust)
    use = ""
    if table:
        kind, text = "table", _table(found, perf_stats=as_perf_stats)
        if output is None:
            sys.stdout.write(text)
            return
        write_text(output, text)
    elif as_results is not None:
        kind, output = "results", formats.write_results(found, as_results, device, top)
        use = f"; use it with: deepgen import {shown(output)}"
    elif as_t4:
        assert output is not None
        kind = "T4"
        write_text(output, json.dumps(formats.EXPORTERS.get("t4")(found, top), indent=1) + "\n")
        use = f"; use it with: deepgen replay {shown(output)}"
    else:
        assert output is not None
        kind = "space" if as_space else "config"
        data = reuse.as_space(found, top).to_json() if as_space else reuse.as_config(found, top)
        write_text(output, json.dumps(data, indent=2) + "\n")
        command = "space show" if as_space else "tune"
        use = f"; use it with: deepgen {command} {shown(output)}"
    if as_json:
        print_json({"study": str(found.folder), "kind": kind, "file": str(output)})
        return
    print(f"{kind} written to {shown(output)}{use}")


def _table(study: Study, *, perf_stats: bool) -> str:
    from deepgen.tuning.study.text import as_csv, as_perf_stats

    rows = study.rows()
    return as_perf_stats(rows) if perf_stats else as_csv(rows)
