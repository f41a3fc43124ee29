"""`deepgen report`: a study, several, or a cluster run as one page, as pictures, or as Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepgen import settings
from deepgen.frontends.cli import options, studies
from deepgen.frontends.cli.build import assembly_of_trial
from deepgen.frontends.cli.output import print_json, shown, write_text
from deepgen.report import charts
from deepgen.report.facts import Facts, facts_of, facts_of_several
from deepgen.report.page import render
from deepgen.report.reproduce import with_code
from deepgen.report.serve.places import runs_at
from deepgen.settings import Settings
from deepgen.tuning import Study
from deepgen.tuning.study.journal import FILE
from deepgen.vocabulary.errors import BadInput

Names = Annotated[
    list[str],
    typer.Argument(
        metavar="STUDY... | RUN",
        help="Studies, a folder of studies, or the folder of a cluster run.",
        show_default=False,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Output file. [report.html; Markdown: stdout]", show_default=False),
]
Png = Annotated[
    Path | None, typer.Option("--png", metavar="DIR", help="Also write the charts to this folder.", show_default=False)
]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="Write Markdown (for a pull request) instead of HTML.")]
PAGE = "report.html"


def report(
    names: Names,
    output: Output = None,
    png: Png = None,
    as_markdown: AsMarkdown = False,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Write a report: one self-contained HTML page."""
    if as_markdown and as_json and output is None:
        raise BadInput("Markdown and JSON cannot both go to stdout", allowed="give -o FILE for the Markdown")
    if output is None and not as_markdown and Path(PAGE).is_symlink():  # it may have come with the current folder
        raise BadInput(f"{PAGE} is a link, which would be written through", allowed="name the file with -o")
    if not as_markdown or png is not None:
        charts.check_libraries()
    facts = _facts(names, settings.load(), trust=trust, code=not as_markdown)
    files: list[Path] = []
    if png is not None:
        from deepgen.report.plots import write_report

        files = write_report(facts, png)
    text = _text(facts, as_markdown=as_markdown)
    if as_markdown and output is None:
        print(text, end="")
        return
    output = output or Path(PAGE)
    write_text(output, text)
    if as_json:
        print_json({"report": str(output), "bytes": len(text.encode()), "png": [str(path) for path in files]})
        return
    print(f"report written to {shown(output)}")
    if files:
        print(f"{len(files)} charts written to {shown(files[0].parent)}")


def _text(facts: Facts, *, as_markdown: bool) -> str:
    if as_markdown:
        from deepgen.report.markdown import markdown

        return markdown(facts)
    return render(facts)


def _facts(names: list[str], current: Settings, *, trust: bool, code: bool) -> Facts:
    for path in (Path(names[0]), current.studies / names[0]) if len(names) == 1 else ():
        if (runs := runs_at(path)) is not None:
            folders = sorted(journal.parent for journal in path.glob(f"*/*/{FILE}"))
            return facts_of_several(folders, path.name, runs.summary(path))
    folders = _folders(names, current)
    if len(folders) > 1:
        return facts_of_several(folders, Path(names[0]).name if len(names) == 1 else f"{len(folders)} studies")
    study = Study.open(folders[0], trust=trust)
    facts = facts_of(study)
    return with_code(facts, study, lambda trial: assembly_of_trial(study, trial, current)) if code else facts


def _folders(names: list[str], current: Settings) -> list[Path]:
    """The folders of the named studies; a folder with several studies stands for all of them."""
    folders = []
    for name in names:
        inside = [] if studies.is_study(Path(name)) else studies.studies_in(Path(name))
        folders += inside or [studies.find(name, current)]
    return list(dict.fromkeys(folders))
