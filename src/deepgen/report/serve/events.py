"""What changed between two states, as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from deepgen.report.serve.looks import Seen, Trials
from deepgen.report.serve.state import State

BEGIN = "retry: 1000\n\n"  # milliseconds, after which a browser connects again
HERE = ": \n\n"  # says nothing
_MOST_RECENT = 15  # trials of a study that the list of studies begins with


def event(kind: str, data: str, number: str | None = None) -> str:
    mark = f"id: {number}\n" if number is not None else ""
    return f"event: {kind}\n{mark}data: {data}\n\n"


def rows(now: State, before: State, trials: Iterable[tuple[str, str]]) -> str:
    """What is new or has changed, the names of what is gone, and trials that ended: the inside of a JSON object."""
    parts = []
    for kind in ("studies", "runs", "bundles"):
        found, old = _texts(now, kind), _texts(before, kind)
        changed = ", ".join(row for name, row in found.items() if old.get(name) != row)
        gone = json.dumps([name for name in old if name not in found])
        parts.append(f'"{kind}": [{changed}], "{kind}_gone": {gone}')
    ended = ", ".join(f'{{"study": {json.dumps(name)}, "ended": {text}}}' for name, text in trials)
    return ", ".join([*parts, f'"trials": [{ended}]'])


def _texts(state: State, kind: str) -> Mapping[str, str]:
    return {name: seen.row for name, seen in state.studies.items()} if kind == "studies" else getattr(state, kind)


def fresh(now: State, before: State) -> Iterator[tuple[str, str]]:
    """The trials that ended between two states; the latest of studies that were not followed before."""
    for id, seen in now.studies.items():
        old = before.studies.get(id)
        if seen.trials is None or old == seen:
            continue
        if old is not None and old.trials is not None and old.trials.epoch == seen.trials.epoch:
            yield from ((id, text) for text in seen.trials.texts[len(old.trials.texts) :])
        elif seen.running:
            yield from _latest(seen)


def recent(state: State) -> Iterator[tuple[str, str]]:
    for seen in state.studies.values():
        if seen.running:
            yield from _latest(seen)


def _latest(seen: Seen) -> Iterator[tuple[str, str]]:
    yield from ((seen.id, text) for text in (seen.trials or Trials()).texts[-_MOST_RECENT:])
