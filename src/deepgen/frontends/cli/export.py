"""`deepgen export` and `import`: studies as spaces, configs, tables and results, and the results of other tools."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from deepgen import settings, targets
from deepgen.frontends import formats
from deepgen.frontends.cli import options, studies
from deepgen.frontends.cli.output import config_text, labelled, print_json, shown, table, write_text
from deepgen.frontends.formats import MeasuredConfig
from deepgen.report.view import printable
from deepgen.space import Space
from deepgen.tuning import Study, reuse
from deepgen.tuning.study.recorded_study import import_study
from deepgen.tuning.study.text import as_csv, as_perf_stats, seconds_text
from deepgen.vocabulary.errors import BadInput

AsSpace = Annotated[bool, typer.Option("--as-space", help="Write a space of exactly the best configs.")]
AsConfig = Annotated[
    bool, typer.Option("--as-config", help="Write a tuning config with the best values and their neighbors.")
]
AsResults = Annotated[
    str | None,
    typer.Option(
        "--as-results",
        metavar="PREFIX",
        help="Write PREFIX_card<device>.json, the legacy result format.",
        show_default=False,
    ),
]
AsCsv = Annotated[
    bool,
    typer.Option(
        "--as-csv", help="Write one row per trial: knobs, verdict, times, build statistics, hardware counters."
    ),
]
AsPerfStats = Annotated[
    bool, typer.Option("--as-perf-stats", help="Write one row per trial, with the columns of perf_stats.csv.")
]
AsT4 = Annotated[bool, typer.Option("--as-t4", help="Write all trials in the benchmark hub's T4 format.")]
Device = Annotated[int, typer.Option("--device", min=0, help="Device number in the result file's name.")]
Count = Annotated[int, typer.Option("--top", min=1, help="Number of best configs; tables contain all trials.")]
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
    """Write the best configs or all trials in another format."""
    table = as_csv or as_perf_stats
    if [as_space, as_config, as_results is not None, as_csv, as_perf_stats, as_t4].count(True) != 1:
        raise BadInput("export needs an output format", allowed=_FORMS)
    if table and as_json and output is None:
        raise BadInput("a table and JSON cannot both go to stdout", allowed="give -o FILE for the table")
    if not table and (output is None) == (as_results is None):
        allowed = "a space, a config and T4 need -o FILE; --as-results takes none"
        raise BadInput("the file to write is " + ("missing" if output is None else "given twice"), allowed=allowed)
    opened = studies.open_study(study, settings.load(), trust=trust)
    use = ""
    if table:
        kind, text = "table", _table(opened, perf_stats=as_perf_stats)
        if output is None:
            sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
            return
        write_text(output, text)
    elif as_results is not None:
        kind, output = "results", formats.write_results(opened, as_results, device, top)
        use = f"; use it with: deepgen import {shown(output)}"
    elif as_t4:
        assert output is not None
        kind = "T4"
        write_text(output, json.dumps(formats.EXPORTERS.get("t4")(opened, top), indent=1) + "\n")
        use = f"; use it with: deepgen replay {shown(output)}"
    else:
        assert output is not None
        kind = "space" if as_space else "config"
        data = reuse.as_space(opened, top).to_json() if as_space else reuse.as_config(opened, top)
        write_text(output, json.dumps(data, indent=2) + "\n")
        command = "space show" if as_space else "tune"
        use = f"; use it with: deepgen {command} {shown(output)}"
    if as_json:
        print_json({"study": str(opened.folder), "kind": kind, "file": str(output)})
        return
    print(f"{kind} written to {shown(output)}{use}")


def _table(study: Study, *, perf_stats: bool) -> str:
    rows = study.rows()
    return as_perf_stats(rows) if perf_stats else as_csv(rows)


ResultsFile = Annotated[
    Path, typer.Argument(metavar="RESULTS.json", help="A legacy result file; with --as-study, a recording.")
]
ListFile = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="Also write the list to this JSON file; with --as-study, the folder of the study.",
        show_default=False,
    ),
]
ResultsAsSpace = Annotated[bool, typer.Option("--as-space", help="Write a space of exactly the correct configs.")]
AsStudy = Annotated[
    bool, typer.Option("--as-study", help="Make a study from a recording (Kernel Tuner's cache format).")
]
On = Annotated[
    str | None,
    typer.Option(
        "--target", help="With --as-study: the target it was recorded on, such as cuda:h200.", show_default=False
    ),
]


def import_results(
    file: ResultsFile,
    output: ListFile = None,
    as_space: ResultsAsSpace = False,
    as_study: AsStudy = False,
    target: On = None,
    as_json: options.AsJson = False,
) -> None:
    """Read another tuner's results, or make a study of a recording."""
    if as_study:
        _import_study(file, output, target, as_json=as_json)
        return
    if target is not None:
        raise BadInput(f"--target {target} is given", allowed="with --as-study")
    if as_space and output is None:
        raise BadInput("--as-space writes a file", allowed="name it with -o FILE")
    results = formats.results_of(formats.opened(file), "older_results")
    about = {"file": str(file), "results": [result.to_json() for result in results]}
    if output is not None:
        data = _space(results, file).to_json() if as_space else about
        write_text(output, json.dumps(data, indent=2) + "\n")
    if as_json:
        print_json(about | ({} if output is None else {"written": str(output)}))
        return
    _print_results(results, file)
    if output is not None:
        use = f"; show it with: deepgen space show {shown(output)}" if as_space else ""
        print(f"{'space' if as_space else 'results'} written to {shown(output)}{use}")


def _import_study(file: Path, output: Path | None, target: str | None, *, as_json: bool) -> None:
    if target is None:
        raise BadInput("a recording does not name its target", allowed="name it, such as --target cuda:h200")
    study = import_study(file, targets.resolve(target), output or settings.load().studies)
    if as_json:
        print_json({"file": str(file), "study": str(study.folder), "trials": len(study.trials())})
        return
    print(f"study written to {shown(study.folder)}")
    print(f"report   deepgen report {shown(study.folder)}")


def _space(results: Sequence[MeasuredConfig], file: Path) -> Space:
    """A space of exactly the correct configs."""
    right = [result.config for result in results if result.correct]
    if not right:
        raise BadInput("no result is correct, so there is no space to write", where=str(file))
    return Space.from_points(file.stem, right)


def _print_results(results: Sequence[MeasuredConfig], file: Path) -> None:
    first = results[0].config
    same = {k: v for k, v in first.items() if all(k in r.config and r.config[k] == v for r in results)}
    rows = []
    for result in results:
        own = {k: v for k, v in result.config.items() if k not in same}
        rows.append(
            (
                seconds_text(result.ms * 1e-3) if result.ms is not None else "wrong",
                f"{result.speedup:.3f}" if result.speedup is not None else "-",
                f"{result.gflops:.1f}" if result.gflops is not None else "-",
                config_text(own) or "-",
            )
        )
    table(file.name, ("time", "over torch", "GFLOP/s", "config"), rows, right=("time", "over torch", "GFLOP/s"))
    if same:
        labelled("in all", config_text(same))
