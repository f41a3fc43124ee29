"""Counters on a board, from its own `perf`: counted events and sampled events.

`perf` fails completely on one unknown event, so each event is first tried alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from deepgen.run.counters import OF_RECORD, Counted, number

TABLE, _SAMPLES, _DATA = "perf.csv", "samples", "perf.data"  # files of a run
_NO_PERF = "the board has no perf"
_UNKNOWN = "perf on the board has no such event"
_NOT_SUPPORTED = "the board's CPU or OS does not count it"
_NOT_PERMITTED = "not permitted: lower /proc/sys/kernel/perf_event_paranoid on the board"
_NOT_COUNTED = "perf on the board did not count it"
_NO_SAMPLE = "perf on the board took no sample of it"
_BURIED = "two runs of the program differ by more than the kernel's own count"
_WHOLE = 100.0  # percent of the time that an event was counted
_NANOSECONDS = {"msec": 1e6}  # clocks in nanoseconds, as elsewhere
_SAMPLE = re.compile(r"\s*(\d+)\s+(\S+?):?\s*")


@dataclass(frozen=True)
class Profile:
    """The words before a program's command, the shell command after it, and the file with the results."""

    before: tuple[str, ...] = ()
    after: str = ":"
    output: str = ""

    @property
    def sampled(self) -> bool:
        return self.output == _SAMPLES


def profiles(events: Sequence[str]) -> list[tuple[Profile, tuple[str, ...]]]:
    """How to count events: each profile with its events."""
    recorded = tuple(event for event in events if event.startswith(OF_RECORD))
    counted = tuple(event for event in events if event not in recorded)
    ways = ((_counting(counted), counted), (_recording(recorded), recorded))
    return [(profile, meant) for profile, meant in ways if meant]


def question(events: Sequence[str]) -> str:
    """A script that prints perf's reply to each event, on a line that begins with the event's name."""
    lines = ["command -v perf >/dev/null || exit 0", "set -f  # what perf says is split into words below, no more"]
    for event in events:
        lines.append(f"echo {shlex.quote(event)} $({_tried(event)} -- sh -c : 2>&1)")
    return "\n".join(lines)


def answer(text: str, events: Sequence[str]) -> Mapping[str, str]:
    """Why events cannot be counted, from the output of that script; countable events are omitted."""
    replies = {line.partition(" ")[0]: line.partition(" ")[2] for line in text.splitlines()}
    if not replies:
        return dict.fromkeys(events, _NO_PERF)
    reasons = {event: _why(replies.get(event, "")) for event in events}
    return {event: why for event, why in reasons.items() if why}


def per_call(profile: Profile, few: str, many: str, calls: int, events: Sequence[str]) -> Counted:
    """The events of one call, from two runs, the second of which made `calls` calls more."""
    read: Callable[[str], Mapping[str, tuple[float, bool]]] = _samples if profile.sampled else _table
    first, second = read(few), read(many)
    values: dict[str, float] = {}
    missing = dict.fromkeys(events, _NO_SAMPLE if profile.sampled else _NOT_COUNTED)
    scaled = []
    for event in events:
        name = _bare(event)
        # For an event without samples in the shorter run, the longer run cannot measure so small a number.
        before, after = first.get(name, (0.0, True) if profile.sampled else None), second.get(name)
        if before is None or after is None:
            continue
        if after[0] < before[0]:
            missing[event] = _BURIED
            continue
        values[event] = (after[0] - before[0]) / calls
        scaled += [] if before[1] and after[1] else [event]
    return Counted(missing=missing) | Counted(values, scaled=tuple(scaled))


def _counting(events: Sequence[str]) -> Profile:
    return Profile(("perf", "stat", "-x", ";", "-o", TABLE, "-e", ",".join(events), "--"), output=TABLE)


def _recording(events: Sequence[str]) -> Profile:
    names = ",".join(_bare(event) for event in events)
    after = f"perf script -i {_DATA} -F period,event >{_SAMPLES} 2>/dev/null || :; rm -f {_DATA}"
    return Profile(("perf", "record", "-q", "-o", _DATA, "-e", names, "--"), after, _SAMPLES)


def _tried(event: str) -> str:
    name = shlex.quote(_bare(event))
    return f"perf record -q -o /dev/null -e {name}" if event.startswith(OF_RECORD) else f"perf stat -x ';' -e {name}"


def _bare(event: str) -> str:
    return event[len(OF_RECORD) :] if event.startswith(OF_RECORD) else event


def _user(name: str) -> str:
    """perf prints the name as requested, or with its mode appended."""
    return name[:-2] if name.endswith(":u") else name


def _why(reply: str) -> str:
    """Why an event cannot be counted, from perf's reply; empty if it can."""
    low = reply.lower()
    if "not found" in low or "syntax error" in low or "invalid" in low:
        return _UNKNOWN
    if "permission" in low or "paranoid" in low or "not permitted" in low:
        return _NOT_PERMITTED
    if "not supported" in low or "no such device" in low or "failed to open" in low:
        return _NOT_SUPPORTED
    return ""


def _table(text: str) -> Mapping[str, tuple[float, bool]]:
    """The value of each counted event, and whether it was counted all the time."""
    values = {}
    for line in text.splitlines():
        value, unit, name, _, share, *_ = [*line.split(";"), "", "", "", "", ""]
        counted, of_the_time = number(value), number(share)
        if counted is not None and name:
            scale = _NANOSECONDS.get(unit, 1.0)
            values[_user(name)] = scale * counted, of_the_time is None or of_the_time >= _WHOLE
    return values


def _samples(text: str) -> Mapping[str, tuple[float, bool]]:
    """How often each event happened: each sample counts as its period."""
    totals: dict[str, tuple[float, bool]] = {}
    for line in text.splitlines():
        if sample := _SAMPLE.fullmatch(line):
            name = _user(sample[2])
            totals[name] = totals.get(name, (0.0, True))[0] + float(sample[1]), True
    return totals
