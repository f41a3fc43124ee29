"""One reader for all viewers: it looks at what has changed a few times a second, and tells everyone who waits.

What a viewer is sent is the difference between the state now and the state that it was sent before. So a slow viewer
costs no memory, and every one gets every trial.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from deepgen.report.serve import looks, places
from deepgen.report.serve.looks import Seen, Trials
from deepgen.report.serve.places import Mark, Places, Runs

T = TypeVar("T")
PAUSE = 0.3  # seconds between two looks
_REST = 4.0  # times as long as a look took, at least: it takes a fifth of a core at most
_ALIVE = 15.0  # seconds after which a silent stream says that it is there
_MOST_RECENT = 15  # trials of a study that the list of studies begins with
_HERE = ": \n\n"  # says nothing
_BEGIN = "retry: 1000\n\n"  # milliseconds, after which a browser connects again


@dataclass(frozen=True)
class State:
    """Everything that is known at one moment. Rows are JSON texts by the ids that addresses use."""

    studies: Mapping[str, Seen] = field(default_factory=dict)
    runs: Mapping[str, str] = field(default_factory=dict)
    bundles: Mapping[str, str] = field(default_factory=dict)
    run_folders: Mapping[str, Path] = field(default_factory=dict)
    marks: Mapping[str, Mark] = field(default_factory=dict, compare=False)  # of runs and bundles, by their paths


class Hub:
    """The state, who waits for news of it, and who looks."""

    def __init__(self, root: Path, runs: Runs) -> None:
        self.root = root
        self.state = State()
        self._runs = runs
        self._version = 0  # of the state; another state of the same version differs in nothing that is shown
        self._viewers = 0
        self._open: Counter[str] = Counter()  # studies that somebody has open
        self._news = asyncio.Event()
        self._someone = asyncio.Event()
        self._looking = asyncio.Lock()
        self._next = 0.0  # when the next look may begin
        self._end = asyncio.Event()

    # The reader

    async def run(self) -> None:
        """Look for as long as there is somebody to tell."""
        while not self.ended:
            await self._someone.wait()
            took = await self.refresh()
            await self.rest(max(PAUSE, _REST * took))

    async def refresh(self, id: str | None = None) -> float:
        """Look now, unless that was a moment ago; with all trials of this study. Gives the seconds that it took."""
        async with self._looking:
            began = time.monotonic()
            known = self.state.studies.get(id or "")
            if began < self._next and (id is None or (known is not None and known.followed)):
                return 0.0
            after = await asyncio.to_thread(_look, self.root, self._runs, self.state, frozenset(self._open))
            before, self.state = self.state, after
            if after != before:
                self._version += 1
                self._tell()
            now = time.monotonic()
            self._next = now + PAUSE
            return now - began

    def close(self) -> None:
        """All streams end, and so does the reader."""
        self._end.set()
        self._someone.set()
        self._tell()

    @property
    def ended(self) -> bool:
        return self._end.is_set()

    async def rest(self, seconds: float) -> None:
        """Wait, but not beyond the end."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._end.wait(), seconds)

    async def before_end(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What some work gives; None where the server ends before."""
        both = asyncio.create_task(work), asyncio.create_task(self._end.wait())
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        both[1].cancel()
        return both[0].result() if both[0].done() else None

    def _tell(self) -> None:
        before, self._news = self._news, asyncio.Event()
        before.set()

    # Viewers

    async def seen(self, id: str) -> Seen | None:
        """A study as it is now, with its trials."""
        with self._viewer(id):
            await self.refresh(id)
        return self.state.studies.get(id)

    async def overview(self) -> AsyncIterator[str]:
        """The list of studies as server-sent events: all of it, then what changes."""
        sent = None
        with self._viewer(None):
            yield _BEGIN
            await self.refresh()
            async for now in self._states():
                if sent is None:
                    trials = _recent(now)
                    yield _event("all", f'{{"folder": {json.dumps(str(self.root))}, {_rows(now, State(), trials)}}}')
                elif now is sent:
                    yield _HERE
                else:
                    yield _event("some", f"{{{_rows(now, sent, _fresh(now, sent))}}}")
                sent = now

    async def study(self, name: str, last: str | None) -> AsyncIterator[str]:
        """One study as server-sent events: its row, and its trials from the one after the `last` that arrived."""
        epoch, _, count = (last or "").partition("-")
        sent, row, before = int(count) if count.isdecimal() else 0, None, None
        with self._viewer(name):
            yield _BEGIN
            await self.refresh(name)
            async for now in self._states():
                seen = now.studies.get(name)
                if seen is None:
                    yield _event("gone", "{}")
                    return
                parts = []
                if (trials := seen.trials) is not None and (epoch, sent) != (trials.epoch, len(trials.texts)):
                    again = epoch != trials.epoch or sent > len(trials.texts)
                    new = trials.texts[0 if again else sent :]
                    epoch, sent = trials.epoch, len(trials.texts)
                    data = f'{{"again": {json.dumps(again)}, "trials": [{", ".join(new)}]}}'
                    parts.append(_event("trials", data, f"{epoch}-{sent}"))
                if seen.row != row:
                    row = seen.row
                    parts.append(_event("study", row))
                if parts or now is before:
                    yield "".join(parts) or _HERE
                before = now

    async def _states(self) -> AsyncIterator[State]:
        """The state now and whenever it has changed; the same again where nothing did for a while."""
        version, state = -1, self.state
        while not self.ended:
            if version == self._version:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._news.wait(), _ALIVE)
            if version != self._version:
                version, state = self._version, self.state
            if not self.ended:
                yield state

    @contextmanager
    def _viewer(self, name: str | None) -> Iterator[None]:
        self._viewers += 1
        self._open += Counter([name] if name else [])
        self._someone.set()
        try:
            yield
        finally:
            self._viewers -= 1
            self._open -= Counter([name] if name else [])
            if not self._viewers and not self.ended:
                self._someone.clear()


def _look(root: Path, runs: Runs, before: State, followed: frozenset[str]) -> State:
    """The state now; only what has changed is read. Where nothing has, one more study is looked at as a whole."""
    found = places.find(root, runs)
    studies = {
        id: _study(Seen(id, str(path.relative_to(found.top)), path), before, followed)
        for id, path in found.studies.items()
    }
    idle = all(before.studies.get(name) == seen for name, seen in studies.items())
    unchecked = [seen for seen in studies.values() if not (seen.checked or seen.running or places.is_fresh(seen.mark))]
    if idle and unchecked:
        seen = unchecked[0]
        studies[seen.id] = looks.look(seen, seen.mark, whole=True, follow=seen.followed)
    marks = _marks(found, runs)
    return State(
        studies,
        _others(found.runs, before.runs, before.marks, marks, lambda path, n: looks.run_row(path, n, runs.row)),
        _others(found.bundles, before.bundles, before.marks, marks, looks.bundle_row),
        found.runs,
        marks,
    )


def _study(new: Seen, before: State, followed: frozenset[str]) -> Seen:
    known = before.studies.get(new.id, new)
    mark = places.study_mark(new.folder)  # before it is read: what is written meanwhile is read next time
    follow = new.id in followed
    if (follow and not known.followed) or places.changed(known.mark, mark):
        # Damage that is known must not be forgotten for a moment; a study that runs was not checked.
        return looks.look(known, mark, whole=known.checked, follow=follow)
    return known


def _marks(found: Places, runs: Runs) -> dict[str, Mark]:
    return {
        **{str(path): runs.mark(path) for path in found.runs.values()},
        **{str(path): places.file_mark(path) for path in found.bundles.values()},
    }


def _others(
    found: Mapping[str, Path],
    rows: Mapping[str, str],
    before: Mapping[str, Mark],
    now: Mapping[str, Mark],
    read: Callable[[Path, str], str | None],
) -> dict[str, str]:
    out = {}
    for name, path in found.items():
        same = name in rows and not places.changed(before.get(str(path)), now[str(path)])
        row = rows[name] if same else read(path, name)
        if row is not None:
            out[name] = row
    return out


# Server-sent events


def _event(kind: str, data: str, number: str | None = None) -> str:
    mark = f"id: {number}\n" if number is not None else ""
    return f"event: {kind}\n{mark}data: {data}\n\n"


def _rows(now: State, before: State, trials: Iterable[tuple[str, str]]) -> str:
    """What is new or has changed, the names of what is gone, and trials that ended: the inside of a JSON object."""
    parts = []
    for kind in ("studies", "runs", "bundles"):
        rows, old = _texts(now, kind), _texts(before, kind)
        changed = ", ".join(row for name, row in rows.items() if old.get(name) != row)
        gone = json.dumps([name for name in old if name not in rows])
        parts.append(f'"{kind}": [{changed}], "{kind}_gone": {gone}')
    ended = ", ".join(f'{{"study": {json.dumps(name)}, "ended": {text}}}' for name, text in trials)
    return ", ".join([*parts, f'"trials": [{ended}]'])


def _texts(state: State, kind: str) -> Mapping[str, str]:
    return {name: seen.row for name, seen in state.studies.items()} if kind == "studies" else getattr(state, kind)


def _fresh(now: State, before: State) -> Iterator[tuple[str, str]]:
    """The trials that ended between two states; the latest of studies that were not followed before."""
    for id, seen in now.studies.items():
        old = before.studies.get(id)
        if seen.trials is None or old == seen:
            continue
        if old is not None and old.trials is not None and old.trials.epoch == seen.trials.epoch:
            yield from ((id, text) for text in seen.trials.texts[len(old.trials.texts) :])
        elif seen.running:
            yield from _latest(seen)


def _recent(state: State) -> Iterator[tuple[str, str]]:
    for seen in state.studies.values():
        if seen.running:
            yield from _latest(seen)


def _latest(seen: Seen) -> Iterator[tuple[str, str]]:
    yield from ((seen.id, text) for text in (seen.trials or Trials()).texts[-_MOST_RECENT:])
