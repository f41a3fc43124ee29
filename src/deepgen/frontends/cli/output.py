"""Output of the command line: results on stdout, everything else on stderr, no wider than the terminal."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deepgen.report.view import columns, console, printable, text_width
from deepgen.tuning.study.text import knob_text

_ROOM = 24  # minimum width of a table's last column; with less, rows are printed as lists
_GAP = 3  # columns between two columns of a table


def print_json(value: object) -> None:
    """Print the single object of `--json`, in ASCII: the same in every locale, and for any path."""
    print(json.dumps(value, indent=2, allow_nan=False, default=str))


def say(text: str) -> None:
    """Print a line of a result that may contain untrusted text."""
    print(printable(text))


def write_text(path: Path, text: str) -> None:
    """Write a file that the user named."""
    from deepgen.vocabulary.errors import BadInput

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        hint = "a file in a folder that exists" if isinstance(error, FileNotFoundError) else None
        raise BadInput(f"{path} cannot be written: {error.strerror}", allowed=hint) from error


def shown(path: str | Path) -> str:
    """The shortest form of a path that can still be copied: relative if it is below the current folder."""
    absolute = os.path.abspath(path)  # noqa: PTH100  resolve() would follow links
    here = os.getcwd()  # noqa: PTH109  relpath() takes long, and thousands of paths are shown
    return printable("." if absolute == here else absolute.removeprefix(here.rstrip("/") + "/"))


def table(title: str | None, names: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Print a table as wide as the terminal; `right` names the numeric columns.

    The last column uses the remaining width and wraps. If that is too little, every row is printed as a list.
    """
    cells, names = [[printable(cell) for cell in row] for row in rows], [*map(printable, names)]
    widths = [max(map(len, column)) + _GAP for column in zip(names, *cells, strict=True)]
    if title:
        paragraph(title)
    if columns() - sum(widths[:-1]) < min(widths[-1], _ROOM):
        _print_lists(names, cells)
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    out = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(names):
        last = i == len(names) - 1
        out.add_column(name, justify="right" if name in right else "left", no_wrap=not last, overflow="fold")
    for row in cells:
        out.add_row(*map(Text, row))
    console(widest=columns()).print(out)


def print_rules(of: str, answers: Sequence[Mapping[str, Any]]) -> None:
    """What each schedule rule answered for each stage, in the order in which they are asked."""
    rows = []
    for answer in answers:
        if answer["sketches"]:
            text = f"{'chosen' if answer['chosen'] else 'takes part'}: {', '.join(answer['sketches'])}"
        else:
            text = f"{'declines' if answer['asked'] else 'not asked'}: {answer['why']}"
        rows.append((answer["stage"], answer["rule"], text))
    table(f"Schedule rules for {of}", ("stage", "rule", "answer"), rows)


def _print_lists(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    indent = max(map(len, names)) + 2
    for row in rows:
        print()
        for name, cell in zip(names, row, strict=True):
            labelled(name, cell, indent)


def paragraph(text: str) -> None:
    """Sentences, wrapped at the terminal's width."""
    labelled("", text, indent=0)


def labelled(label: str, text: str, indent: int = 9, width: int | None = None) -> None:
    """Print a line of a result: a short label, then text that wraps with an indent.

    `width` is that of the terminal; a caller that prints thousands of lines determines it once.
    """
    width = (text_width() if width is None else width) - indent
    parts = [plain := printable(text)]
    if len(plain) > width or not plain.isprintable():
        parts = textwrap.wrap(plain, width, break_long_words=False, break_on_hyphens=False) or [""]
    label = printable(label)
    if len(label) >= indent > 0:  # it would touch the text
        print(label)
        label = ""
    for i, part in enumerate(parts):
        print(f"{label if i == 0 else '':<{indent}}{part}".rstrip())


def facts_text(facts: Mapping[str, Any]) -> str:
    """Names and values in one line, with numbers rounded to four digits."""
    return ", ".join(f"{name} {f'{value:.4g}' if isinstance(value, float) else value}" for name, value in facts.items())


def config_text(config: Mapping[str, Any]) -> str:
    """A config in the syntax of `deepgen build --config`."""
    return ", ".join(f"{knob}={knob_text(value)}" for knob, value in config.items())
