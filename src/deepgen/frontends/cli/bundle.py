"""`deepgen bundle`: build here, measure on a host without network or deepgen, and bring the results back."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from deepgen import settings
from deepgen.frontends.cli import options, requests, session, studies
from deepgen.frontends.cli.completion import OperatorCommand
from deepgen.frontends.cli.output import print_json, say, shown
from deepgen.frontends.cli.result import print_result
from deepgen.frontends.cli.words import names_code
from deepgen.frontends.formats import is_file_name
from deepgen.report.view import note
from deepgen.run.measure.base import Policy
from deepgen.settings import Settings
from deepgen.tuning import Request, Study
from deepgen.tuning.bundles import archive as bundle_archive
from deepgen.tuning.bundles import exchange as bundles
from deepgen.tuning.bundles.archive import stem
from deepgen.tuning.engines import local_engine
from deepgen.tuning.study import trust as trusted
from deepgen.vocabulary.errors import BadInput

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Measure a study on another machine, without network or deepgen."
)

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="STUDY | OPERATOR NAME=VALUE... | FILE",
        help="An existing study, or the arguments of `deepgen tune`.",
        show_default=False,
    ),
]
Archive = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="The bundle: NAME.tar.gz or NAME.tar.zst. [STUDY.tar.gz]", show_default=False),
]


# The options of `tune`, except those that end a search: a bundle is packed as a whole.
PACKED = (
    "dtype", "layout", "epilogue", "fast_sums", "causal", "lengths", "page", "also", "target", "family", "threads",
    "trials", "jobs", "seed", "strategy", "space_strategy", "keep_top", "counters", "out", "warm", "strict_floats",
)  # fmt: skip


@app.command("pack", cls=OperatorCommand)
@options.taking(*PACKED, after="output")
def pack(
    words: Words,
    output: Archive = None,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
    **values: Any,
) -> None:
    """Build and pack a study's next kernels. Measuring them needs only Python and numpy."""
    current = settings.load()
    request = _request(words, values, current, trust=trust)
    [job] = session.jobs_of([request])
    archive = output or Path(f"{job.folder.name}.tar.gz")
    packed = bundles.pack(request, archive, engine=local_engine(current, values["jobs"]), say=note)
    if as_json:
        size = archive.stat().st_size
        print_json({"bundle": str(archive), "bytes": size, "study": str(packed.study), "trials": packed.trials})
        return
    failed = f"; {packed.failed} more could not be built" if packed.failed else ""
    say(f"{shown(archive)}: {packed.trials} kernels of {packed.study.name}{failed}")
    for line in _what_next(archive, packed.study):
        print(line)


@app.command("run")
def run(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="NAME.tar.gz or NAME.tar.zst.", show_default=False)],
    results: Annotated[
        Path | None,
        typer.Option("-o", "--results", help="File for the results. [NAME.results.jsonl]", show_default=False),
    ] = None,
    trust: options.Trust = False,
) -> None:
    """Measure a bundle's kernels on this machine. Run the same command again to resume.

    A bundle holds programs. One that you packed yourself, as this user, runs as it is; any other asks for --trust.
    """
    where = results or Path(f"{bundle_archive.stem(bundle)}.results.jsonl")
    with tempfile.TemporaryDirectory(prefix="deepgen-bundle-") as scratch:
        folder = bundle_archive.unpack(bundle, Path(scratch))
        manifest, _ = bundle_archive.read_manifest(folder)
        signature = manifest.pop(bundle_archive.SIGNATURE, None)
        trusted.require(manifest, signature, trust=trust, origin=bundle, holds="programs")
        # In a separate process, with the packed code: the same code measures on every host.
        code = subprocess.run([sys.executable, str(folder / "run.py"), "-o", str(where)], check=False).returncode
    if code:
        raise typer.Exit(code)


@app.command("merge")
def merge(
    study: options.StudyName,
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS", help="The file that `bundle run` wrote.", show_default=False)
    ],
    trust: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Merge a bundle's results into its study. Merging twice changes nothing."""
    current = settings.load()
    opened = studies.open_study(study, current, trust=trust)
    merged = bundles.merge(opened, results, engine=local_engine(current))
    opened = Study.open(opened.folder, trust=trust)
    session.write_older_results(opened)
    if as_json:
        print_json({**opened.summary(), "merged": merged.new, "known_before": merged.before})
        return
    print(f"{shown(opened.folder)}: {merged.new} new trials, {merged.before} known before")
    if opened.finals() is not None and opened.summary()["winner"] is not None:
        print_result(opened)


def command(words: Sequence[str], values: Mapping[str, Any]) -> str:
    """The command that packs the work of a `deepgen tune` call, ready to be copied."""
    plain = [word for word in words if not word.startswith("O=")]
    packed = [name for name in PACKED if name != "jobs"]
    return shlex.join(["deepgen", "bundle", "pack", *plain, *options.as_words(values, packed)])


def _request(words: list[str], values: Mapping[str, Any], current: Settings, *, trust: bool) -> Request:
    requested = options.requested(values)
    one = words[0] if len(words) == 1 else None
    if one is not None and "=" not in one and not is_file_name(one) and not names_code(one):
        return requests.from_study(studies.open_study(one, current, trust=trust), requested, current)
    strict = bool(values["strict_floats"])
    timing = Policy(cold=not values["warm"], timeout_seconds=current.limits.run_seconds, strict_floats=strict)
    policy = current.limited(timing)
    wanted = requests.from_words(words, requested, current, policy).requests
    if len(wanted) > 1:
        raise BadInput(
            f"{words[0]} asks for {len(wanted)} studies", allowed="a bundle holds one study: pack each shape separately"
        )
    return wanted[0]


def _what_next(archive: Path, study: Path) -> list[str]:
    name = stem(archive)
    results = f"{name}.results.jsonl"
    unpack = f"tar xf {archive.name}"
    return [
        "on the machine with the device (needs Python 3.8 or newer and numpy):",
        f"  {unpack} && python3 {name}/run.py -o {results}",
        f"  or, if deepgen is installed there: deepgen bundle run {archive.name}",
        "then, back here:",
        f"  deepgen bundle merge {shown(study)} {results}",
    ]
