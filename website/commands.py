"""The reference of the command line: a page for each command, from the same data that `--help` prints."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

import typer

from deepgen.frontends.cli import main
from deepgen.frontends.cli.completion import OperatorCommand, named_operators
from deepgen.operators import OPERATORS, words_of

FOLDER = "reference/commands"
OPERATOR_PAGE = f"{FOLDER}/operators.md"


def pages() -> dict[str, str]:
    index = ["# Every command\n", "Each page lists the arguments and options that `--help` shows.\n"]
    out = {}
    for title, names in _groups().items():
        index += [f"\n## {title}\n", "| command | what it does |", "|---|---|"]
        for name in names:
            command = _command(name)
            out[f"{FOLDER}/{name}.md"] = "\n".join(_page(f"deepgen {name}", command))
            index.append(f"| [`deepgen {name}`]({name}.md) | {_cell(_summary(command))} |")
    index += ["\n[The parameters of every operator](operators.md) have a page of their own."]
    return out | {f"{FOLDER}/index.md": "\n".join(index) + "\n", OPERATOR_PAGE: "\n".join(_operators()) + "\n"}


def navigation() -> list[Any]:
    groups: list[Any] = [f"{FOLDER}/index.md"]
    groups += [{title: [{name: f"{FOLDER}/{name}.md"} for name in names]} for title, names in _groups().items()]
    return [*groups, {"Operators and their parameters": OPERATOR_PAGE}]


def _groups() -> dict[str, list[str]]:
    groups = {title: list(commands) for title, commands in main._GROUPS.items()}
    return groups | {"Plug-ins": list(main.PLUGGED.names())}


def _command(name: str) -> Any:
    group: Any = typer.main.get_command(main.app_for([name]))
    return group.get_command(typer.Context(group), name)


def _summary(command: Any) -> str:
    return str(command.get_short_help_str(limit=200))


def _page(name: str, command: Any, level: int = 1) -> Iterator[str]:
    context = typer.Context(command, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"{'#' * level} {name}\n"
    yield f"{command.help or ''}\n".replace("\b\n", "")
    yield f"    {name} {usage}\n"
    for title, kind in (("Argument", "argument"), ("Option", "option")):
        records = [
            record
            for parameter in command.get_params(context)
            if parameter.param_type_name == kind and (record := parameter.get_help_record(context)) is not None
        ]
        if records:
            yield f"| {title.lower()} | what it does |\n|---|---|"
            yield from (f"| {_code(flags)} | {_cell(text)} |" for flags, text in records)
            yield ""
    if isinstance(command, OperatorCommand):
        yield "The parameters of operators, such as `M=512`, are on [a page of their own](operators.md).\n"
    for sub in getattr(command, "commands", {}).values():
        yield from _page(f"{name} {sub.name}", sub, level + 1)


def _operators() -> Iterator[str]:
    yield "# Operators and their parameters\n"
    yield "Parameters are written `NAME=VALUE` after the operator's name, and are keys of config files.\n"
    for name in named_operators():
        words = words_of(OPERATORS.get(name))
        yield f"## {name}\n"
        yield "| parameter | meaning | allowed | default |\n|---|---|---|---|"
        for key, word in words.items():
            default = "needed" if word.needed else "" if word.default is None else f"`{word.default}`"
            names, values = ", ".join((key, *word.aliases)), ", ".join(word.choices) or word.allowed()
            yield f"| `{names}` | {_cell(word.help)} | {_cell(values)} | {default} |"
        yield ""


def _code(flags: str) -> str:
    """HTML, because code in Markdown tables cannot contain a bar; each word by itself, which lines do not break."""
    return " ".join(f"<code>{escape(word).replace('|', '&#124;')}</code>" for word in flags.split())


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")
