"""`deepgen build`: one kernel, built but not measured. Needs no device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from deepgen import generators, settings, targets
from deepgen.frontends.cli import options, toolchain
from deepgen.frontends.cli import words as operator_words
from deepgen.frontends.cli.output import config_text, facts_text, labelled, print_json, shown
from deepgen.toolchains import BuildError
from deepgen.tuning.study.text import seconds_text
from deepgen.vocabulary import Artifact, Kernel
from deepgen.vocabulary.errors import DeepgenError

ConfigText = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="KNOB=V,...", help="Knob values; knobs left out keep their default.", show_default=False
    ),
]
Rank = Annotated[int | None, typer.Option("--rank", min=0, help="The config's index in the space.", show_default=False)]
Output = Annotated[Path, typer.Option("-o", "--output", help="The folder to write to.")]


@options.taking(*options.OF_OPERATOR, "target", "one_family", "threads", after="output")
def build(
    words: options.Words,
    output: Output,
    config: ConfigText = None,
    rank: Rank = None,
    as_json: options.AsJson = False,
    **values: Any,
) -> None:
    """Build one kernel without measuring it. Needs no device."""
    current = settings.load()
    operator, _ = operator_words.parse(words, **options.of_operator(values))
    where = targets.resolve(values["target"] or current.target)
    generator = generators.find(operator, where, values["family"])
    space = generator.space(operator, where)
    threads = values["threads"]
    if threads is not None:
        space = space.restrict(generators.on_threads(generator, space, threads))
    default = generator.default(operator, where.limited_to(threads))
    chosen = toolchain.choose(space, default, config, rank)
    kernel = generator.emit(operator, where, chosen)
    about: dict[str, Any] = {
        "operator": operator.to_json(),
        "target": where.name,
        "generator": generator.name,
        "rank": space.rank(chosen),
        "config": chosen,
        "folder": str(output),
    }
    sources = toolchain.write_sources(output, kernel, toolchain.build_files(kernel, where, current))
    try:
        artifact = toolchain.build_kernel(kernel, where, current)
    except BuildError as error:
        _write_about(output, {**about, "verdict": str(error.verdict), "detail": error.detail, "log": error.log})
        raise
    files: dict[str, Any] = {"source": sources, "assembly": None, "binary": _write_built(output, kernel, artifact)}
    about |= {**artifact.to_json(), "verdict": "built", "files": files, "binary": str(output / files["binary"])}
    try:
        assembly = toolchain.assembly_of(kernel, where, current)
    except DeepgenError as error:  # a disassembler that is missing, or knows fewer architectures than the compiler
        about["no_assembly"] = str(error)
    else:
        files["assembly"] = f"{kernel.name}.s"
        (output / files["assembly"]).write_text(assembly, encoding="utf-8")
    _write_about(output, about)
    if as_json:
        print_json(about)
    else:
        _print(about)


def _write_built(folder: Path, kernel: Kernel, artifact: Artifact) -> str:
    binary = folder / f"{kernel.name}.{artifact.format}"
    # Not a copy of times and mode: the cache's file may be read-only.
    binary.write_bytes(Path(artifact.binary).read_bytes())
    return binary.name


def _write_about(folder: Path, about: dict[str, Any]) -> None:
    (folder / "build.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def _print(about: dict[str, Any]) -> None:
    labelled("config", config_text(about["config"]))
    labelled("rank", str(about["rank"]))
    labelled("built by", f"{about['toolchain']} in {seconds_text(about['seconds'])}")
    if about["facts"]:
        labelled("facts", facts_text(about["facts"]))
    if about["log"].strip():
        labelled("said", about["log"].strip())
    files = about["files"]
    labelled("files", ", ".join(filter(None, [*files["source"], files["assembly"], files["binary"], "build.json"])))
    if "no_assembly" in about:
        labelled("lacks", f"the assembly: {about['no_assembly']}")
    labelled("folder", shown(about["folder"]))
