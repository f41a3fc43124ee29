"""Where sentences for a person go: consoles at most 80 columns wide, notes on stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 80


def console(*, stderr: bool = False) -> Console:
    """A console no wider than 80 columns, whatever the terminal."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False)
    made.width = min(made.width, WIDTH)
    return made


def note(text: str) -> None:
    """A message for the user, on stderr."""
    print(text, file=sys.stderr, flush=True)
