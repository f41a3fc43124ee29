"""`deepgen build`: builds one kernel without measuring it, which needs no device. Also parses a user's config."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from deepgen import generators, settings, targets
from deepgen.frontends.cli import options
from deepgen.frontends.cli import words as operator_words
from deepgen.frontends.cli.output import config_text, facts_text, labelled, print_json, shown
from deepgen.settings import Settings
from deepgen.space import Space
from deepgen.targets import Target
from deepgen.toolchains import BuildError, Cache, build_once, disassembled, toolchain_for
from deepgen.toolchains.compilers import judge
from deepgen.tuning import Study
from deepgen.tuning.study.text import knob_text, seconds_text
from deepgen.vocabulary import Artifact, BadInput, DeepgenError, Kernel, Trial

ConfigText = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="KNOB=V,...", help="Knob values; other knobs keep their default.", show_default=False
    ),
]
Rank = Annotated[int | None, typer.Option("--rank", min=0, help="The config's index in the space.", show_default=False)]
Output = Annotated[Path, typer.Option("-o", "--output", help="Output folder.")]


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
    chosen = choose(space, default, config, rank)
    kernel = generator.emit(operator, where, chosen)
    about: dict[str, Any] = {
        "operator": operator.to_json(),
        "target": where.name,
        "generator": generator.name,
        "rank": space.rank(chosen),
        "config": chosen,
        "folder": str(output),
    }
    sources = write_sources(output, kernel, build_files(kernel, where, current))
    try:
        artifact = build_kernel(kernel, where, current)
    except BuildError as error:
        _write_about(output, {**about, "verdict": str(error.verdict), "detail": error.detail, "log": error.log})
        raise
    files: dict[str, Any] = {"source": sources, "assembly": None, "binary": f"{kernel.name}.{artifact.format}"}
    # Without copying times and mode: the file in the cache may be read-only.
    (output / files["binary"]).write_bytes(Path(artifact.binary).read_bytes())
    about |= {**artifact.to_json(), "verdict": "built", "files": files, "binary": str(output / files["binary"])}
    try:
        assembly = assembly_of(kernel, where, current)
    except DeepgenError as error:  # the disassembler is missing, or does not know the architecture
        about["no_assembly"] = str(error)
    else:
        files["assembly"] = f"{kernel.name}.s"
        (output / files["assembly"]).write_text(assembly, encoding="utf-8")
    _write_about(output, about)
    if as_json:
        print_json(about)
    else:
        _print(about)


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
        labelled("lacks", f"assembly: {about['no_assembly']}")
    labelled("folder", shown(about["folder"]))


_SCRIPT = "build.sh"


def build_kernel(kernel: Kernel, target: Target, settings: Settings) -> Artifact:
    """Build one kernel, or get it from the cache. Raises BuildError."""
    cache = Cache(settings.cache)
    return build_once(kernel, target, paths=settings.programs(), cache=cache, limits=settings.build_limits())


def assembly_of(kernel: Kernel, target: Target, settings: Settings) -> str:
    """The kernel's code in the target's assembly language."""
    toolchain = toolchain_for(target, kernel.language, settings.programs())
    with tempfile.TemporaryDirectory(prefix="deepgen-") as folder:
        return toolchain.assembly(kernel, target, Path(folder))


def build_files(kernel: Kernel, target: Target, settings: Settings) -> dict[str, str]:
    """A shell script that builds the kernel from its sources, and further files it needs; empty if there is no compiler
    or recipe.
    """
    try:
        toolchain = toolchain_for(target, kernel.language, settings.programs())
    except DeepgenError:  # no compiler here
        return {}
    recipe = toolchain.recipe(kernel, target)
    if recipe is None:
        return {}
    first = "".join(f"{shlex.join(command)} || exit 1\n" for command in recipe.first)
    about = f"# {kernel.name} for {target.name}, by {toolchain.name} {toolchain.version}"
    script = f'#!/bin/sh\n{about}\ncd "$(dirname "$0")" || exit 1\n{first}exec {shlex.join(recipe.command)}\n'
    return {**recipe.files, _SCRIPT: script}


def write_sources(folder: Path, kernel: Kernel, more: Mapping[str, str]) -> list[str]:
    """Write the kernel's files, and those that build it. Returns their names."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        judge.write_sources(kernel, folder)
        for name, text in more.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"-o {folder} cannot be written: {error.strerror}", allowed="a folder") from error
    return [*(source.name for source in kernel.sources), *more]


def assembly_of_trial(study: Study, trial: Trial, settings: Settings) -> str:
    """A trial's assembly. Files in the study's folder are at most disassembled, never built, since they may be
    untrusted.
    """
    try:
        kernel = study.emitted(trial)
    except DeepgenError:
        stored = study.stored(trial)
        if stored is None or stored.binary is None:
            raise
        return disassembled(stored.binary, settings.programs())
    return assembly_of(kernel, study.target, settings)


def choose(space: Space, default: Mapping[str, Any], text: str | None, rank: int | None) -> dict[str, Any]:
    """The config a user asked for, valid in its space. Knobs that `text` omits keep their default."""
    if text is not None and rank is not None:
        raise BadInput("--config and --rank are both given", allowed="give one of them")
    if rank is not None:
        if rank >= space.ranks:
            raise BadInput(f"--rank {rank} is out of range", allowed=f"0 to {space.ranks - 1}")
        return dict(space.at(rank))
    config = {**default, **(parse(space, text) if text is not None else {})}
    if not space.contains(config):
        broken = "; ".join(str(b) for b in space.explain(config))
        raise BadInput("--config is excluded by the space's constraints", allowed=broken or "see: deepgen space")
    return config


def parse(space: Space, text: str) -> dict[str, Any]:
    """Knobs and values, spelled as `top` and `show` print them."""
    domains = {knob.name: {knob_text(value): value for value in knob.values} for knob in space.knobs}
    config: dict[str, Any] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = word.partition("=")
        if name not in domains:
            raise BadInput(f"--config: {word!r}: there is no knob {name!r}", allowed="one of " + ", ".join(domains))
        if value not in domains[name]:
            raise BadInput(f"--config: {name} cannot be {value!r}", allowed="one of " + ", ".join(domains[name]))
        if name in config:
            raise BadInput(f"--config: {name} is given twice", allowed="once")
        config[name] = domains[name][value]
    return config
