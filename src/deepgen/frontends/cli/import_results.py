"""`deepgen import`: the result files of the older tool as a list or a space, and recordings as studies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepgen.frontends.cli import options

if TYPE_CHECKING:
    from deepgen.space import Space
    from deepgen.tuning.formats import MeasuredConfig

ResultsFile = Annotated[
    Path, typer.Argument(metavar="RESULTS.json", help="A result file of the older tool; with --as-study, a recording.")
]
ListFile = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", help="Also write the list to this JSON file; a study: to this folder.", show_default=False
    ),
]
ResultsAsSpace = Annotated[bool, typer.Option("--as-space", help="Write a space of exactly the correct configs.")]
AsStudy = Annotated[bool, typer.Option("--as-study", help="Make a study of a recording (Kernel Tuner's cache format).")]
On = Annotated[
    str | None,
    typer.Option("--target", help="With --as-study: where it was recorded, such as cuda:h200.", show_default=False),
]


def import_results(
    file: ResultsFile,
    output: ListFile = None,
    as_space: ResultsAsSpace = False,
    as_study: AsStudy = False,
    target: On = None,
    as_json: options.AsJson = False,
) -> None:
    """Read a result file of the older tool, or make a study of a recording."""
    from deepgen.frontends.cli.output import print_json, shown, write_text
    from deepgen.tuning import formats
    from deepgen.vocabulary.errors import BadInput

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
        use = f"; look at it with: deepgen space show {shown(output)}" if as_space else ""
        print(f"{'space' if as_space else 'results'} written to {shown(output)}{use}")


def _import_study(file: Path, output: Path | None, target: str | None, *, as_json: bool) -> None:
    from deepgen import settings, targets
    from deepgen.frontends.cli.output import print_json, shown
    from deepgen.tuning.study.recorded_study import import_study
    from deepgen.vocabulary.errors import BadInput

    if target is None:
        raise BadInput("a recording does not say its target", allowed="name it, such as --target cuda:h200")
    study = import_study(file, targets.resolve(target), output or settings.load().studies)
    if as_json:
        print_json({"file": str(file), "study": str(study.folder), "trials": len(study.trials())})
        return
    print(f"study written to {shown(study.folder)}")
    print(f"report   deepgen report {shown(study.folder)}")


def _space(results: Sequence[MeasuredConfig], file: Path) -> Space:
    """A space of exactly the configs that were right."""
    from deepgen.space import Space
    from deepgen.vocabulary.errors import BadInput

    right = [result.config for result in results if result.correct]
    if not right:
        raise BadInput("no result is correct, so there is no space of them", where=str(file))
    return Space.from_points(file.stem, right)


def _print_results(results: Sequence[MeasuredConfig], file: Path) -> None:
    from deepgen.frontends.cli.output import config_text, labelled, table
    from deepgen.tuning.study.text import seconds_text

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
