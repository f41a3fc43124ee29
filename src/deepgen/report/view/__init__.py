"""The progress of a run for people, and text for terminals: its width, safe characters, and notes on stderr."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from deepgen.vocabulary.foreign import printable

if TYPE_CHECKING:
    from rich.console import Console


WIDTH = 80  # columns; longer lines of text are hard to read
_LEAST = 20


def columns() -> int:
    """The terminal's width, or 80 if there is no terminal."""
    return max(_LEAST, shutil.get_terminal_size((WIDTH, 24)).columns or WIDTH)


def text_width() -> int:
    """The width for sentences: the terminal's width, but at most 80 columns."""
    return min(WIDTH, columns())


def console(*, stderr: bool = False, widest: int = WIDTH) -> Console:
    """A console as wide as the terminal, but no wider than `widest`."""
    from rich.console import Console

    screen = Console(stderr=stderr, highlight=False)
    screen.width = min(screen.width, widest)
    return screen


def cut(text: str) -> str:
    """The text as one line of at most 80 columns."""
    flat = printable(" ".join(text.split()))
    return flat if len(flat) <= WIDTH else flat[: WIDTH - 1] + "…"


def note(text: str) -> None:
    """A message for the user, on stderr."""
    print(printable(text), file=sys.stderr, flush=True)


__all__ = ["WIDTH", "columns", "console", "cut", "note", "printable", "text_width"]
