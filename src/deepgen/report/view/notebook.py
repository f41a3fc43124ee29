"""A run's progress in a notebook: one block below the cell, replaced as the run goes on.

It is an updatable display and not a widget, so that it needs no extension, and a saved notebook keeps its last state.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType

from deepgen.report.view.text import WIDTH
from deepgen.tuning.progress import Progress

EVERY = 0.25  # seconds between updates
_BLOCK = '<pre style="white-space:pre;line-height:normal;font-family:monospace">{code}</pre>'


@contextmanager
def block(render: Callable[[Progress], RenderableType]) -> Iterator[Callable[[Progress], None]]:
    """A callback that shows a moment of a run; the last one is always shown."""
    from IPython.display import HTML, display

    shown = display(HTML(""), display_id=True)
    latest: list[Progress] = []
    updated = 0.0

    def show(progress: Progress) -> None:
        nonlocal updated
        latest[:] = [progress]
        if time.monotonic() >= updated + EVERY:
            shown.update(HTML(as_html(render(progress))))
            updated = time.monotonic()

    try:
        yield show
    finally:
        for progress in latest:
            shown.update(HTML(as_html(render(progress))))


def as_html(drawn: RenderableType) -> str:
    """What a terminal of 80 columns would show."""
    console = Console(
        file=io.StringIO(), record=True, width=WIDTH, highlight=False, force_jupyter=False, color_system="standard"
    )
    console.print(drawn)
    return console.export_html(inline_styles=True, code_format=_BLOCK)
