"""Counters of a board, by the `perf` that it has: `perf stat` around a program, as its table says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deepgen.measure.counters.counted import Counted, number

TABLE = "perf.csv"  # the file that it writes
_NOT_COUNTED = "perf on the board counts no such event"
_NO_TABLE = "the board has no perf that works"


def command(events: Sequence[str]) -> tuple[str, ...]:
    """What stands before a program to have its events counted."""
    return ("perf", "stat", "-x", ";", "-o", TABLE, "-e", ",".join(events), "--")


def per_call(few: str, many: str, calls: int, events: Sequence[str]) -> Counted:
    """The events of one call, from the tables of two runs, one of which made that many calls more."""
    first, second = _values(few, events), _values(many, events)
    if not first or not second:
        return Counted.nothing(events, _NO_TABLE)
    found = {event: (second[event] - first[event]) / calls for event in events if event in first and event in second}
    return Counted(found) | Counted.nothing([event for event in events if event not in found], _NOT_COUNTED)


def _values(table: str, events: Sequence[str]) -> Mapping[str, float]:
    """A value for each event that has one; perf writes the name as it was asked for, or with its mode after it."""
    found: dict[str, float] = {}
    for line in table.splitlines():
        value, _, name, *_ = [*line.split(";"), "", "", ""]
        event = next((event for event in events if name in (event, f"{event}:u")), None)
        counted = number(value)
        if event is not None and counted is not None:
            found[event] = counted
    return found
