"""The best so far as a line of blocks, so that a terminal shows at a glance whether a search still finds something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

_BLOCKS, _ASCII = "▁▂▃▄▅▆▇█", "_.-~=*#@"
_WIDEST = 48


@dataclass(frozen=True)
class Spark:
    """Speed over trials, from the first correct one to `done`; `improved` is that of Progress."""

    label: str
    improved: Sequence[tuple[int, float]]
    done: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = max(1, min(_WIDEST, options.max_width - len(self.label) - 1))
        signs = _ASCII if options.ascii_only else _BLOCKS
        yield Text(f"{self.label} {spark(self.improved, self.done, room, signs)}", style="green", no_wrap=True)


def spark(improved: Sequence[tuple[int, float]], done: int, room: int, signs: str = _BLOCKS) -> str:
    """At most `room` characters, each for the best speed at that point of the search."""
    if not improved:
        return ""
    first, last = improved[0][0], max(done, improved[-1][0])
    count = min(room, last - first + 1)
    speeds = []
    for place in range(count):
        moment = last if count == 1 else first + round(place * (last - first) / (count - 1))
        speeds.append(1.0 / next(seconds for after, seconds in reversed(improved) if after <= moment))
    low, high = min(speeds), max(speeds)
    if high == low:
        return signs[-1] * count
    return "".join(signs[round((speed - low) / (high - low) * (len(signs) - 1))] for speed in speeds)
