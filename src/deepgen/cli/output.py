"""Output of the command line: results on stdout, everything else on stderr, at most 80 columns wide."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deepgen.tuning.text import knob_text
from deepgen.view.text import WIDTH, console


def print_json(value: object) -> None:
    """The one object of `--json`, in ASCII: the same in every locale, and for any path."""
    print(json.dumps(value, indent=2, allow_nan=False, default=str))


def write_text(path: Path, text: str) -> None:
    """A file that the user named."""
    from deepgen.vocabulary.errors import BadInput

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"{path} cannot be written: {error.strerror}", allowed="a file in a folder that exists"
        ) from error


def shown(path: str | Path) -> str:
    """A path as short as it stays right to copy: relative where it lies below the current folder."""
    absolute = os.path.abspath(path)  # noqa: PTH100  resolve() would follow links
    below = os.path.relpath(absolute)
    return absolute if below.startswith("..") else below


def table(
    title: str | None, columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()
) -> None:
    """Print a table whose last column takes what room is left and wraps; `right` names the columns of numbers."""
    from rich import box
    from rich.table import Table

    out = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, expand=False)
    for i, name in enumerate(columns):
        last = i == len(columns) - 1
        out.add_column(name, justify="right" if name in right else "left", no_wrap=not last, overflow="fold")
    for row in rows:
        out.add_row(*(cell.replace("[", "\\[") for cell in row))
    console().print(out)


def labelled(label: str, text: str, indent: int = 9) -> None:
    """A line of a result: a short word, then what it is about, wrapped below itself."""
    width = WIDTH - indent
    for i, part in enumerate(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]):
        print(f"{label if i == 0 else '':<{indent}}{part}")


def config_text(config: Mapping[str, Any]) -> str:
    """A config in the form that `deepgen build --config` takes."""
    return ", ".join(f"{knob}={knob_text(value)}" for knob, value in config.items())


def bytes_text(size: int) -> str:
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"
