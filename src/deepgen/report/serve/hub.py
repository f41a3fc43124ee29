"""One reader for all viewers: it polls for changes a few times a second, and notifies everyone who waits.

A viewer is sent the difference between the current state and the last one it received. So a slow viewer costs no
memory, and every viewer gets every trial.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from deepgen.report.serve import looks
from deepgen.report.serve.looks import FolderState, Seen
from deepgen.report.view import note

T = TypeVar("T")
PAUSE = 0.3  # seconds between two polls
_REST = 4.0  # minimum pause, relative to how long a poll took, so that polling uses at most a fifth of a core
_AFTER_ERROR = 10.0  # seconds
_ALIVE = 15.0  # seconds of silence after which a stream sends a keep-alive
BEGIN = "retry: 1000\n\n"  # milliseconds after which a browser reconnects
HERE = ": \n\n"  # an empty comment, as keep-alive
_MOST_RECENT = 15  # trials of a study at the start of the list of studies


class Hub:
    """The state, the viewers waiting for changes, and the poller."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = FolderState()
        self._version = 0  # of the state; states of the same version show the same
        self._viewers = 0
        self._open: Counter[str] = Counter()  # studies that a viewer has open
        self._news = asyncio.Event()
        self._someone = asyncio.Event()
        self._looking = asyncio.Lock()
        self._next = 0.0  # when the next poll may start
        self._end = asyncio.Event()

    # The reader

    async def run(self) -> None:
        """Poll as long as there are viewers."""
        while not self.ended:
            await self._someone.wait()
            try:
                took = await self.refresh()
            except Exception as error:  # one broken file must not stop the view of all others
                note(f"deepgen: unexpected error, a bug in deepgen: {type(error).__name__}: {error}")
                took = _AFTER_ERROR / _REST
            await self.rest(max(PAUSE, _REST * took))

    async def refresh(self, id: str | None = None) -> float:
        """Poll now, unless that was just done; read all trials of this study. Returns the seconds it took."""
        async with self._looking:
            began = time.monotonic()
            seen = self.state.studies.get(id or "")
            if began < self._next and (id is None or (seen is not None and seen.followed)):
                return 0.0
            after = await asyncio.to_thread(looks.look_around, self.root, self.state, frozenset(self._open))
            before, self.state = self.state, after
            if after != before:
                self._version += 1
                self._tell()
            now = time.monotonic()
            self._next = now + PAUSE
            return now - began

    def close(self) -> None:
        """End all streams and the reader."""
        self._end.set()
        self._someone.set()
        self._tell()

    @property
    def ended(self) -> bool:
        return self._end.is_set()

    async def rest(self, seconds: float) -> None:
        """Wait, but not beyond shutdown."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._end.wait(), seconds)

    async def before_end(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of some work; None if the server shuts down first."""
        both = asyncio.create_task(work), asyncio.create_task(self._end.wait())
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        return both[0].result() if both[0] in done else None

    def _tell(self) -> None:
        before, self._news = self._news, asyncio.Event()
        before.set()

    # Viewers

    async def seen(self, id: str) -> Seen | None:
        """The current state of a study, with its trials."""
        with self._viewer(id):
            await self.refresh(id)
        return self.state.studies.get(id)

    async def overview(self) -> AsyncIterator[str]:
        """The list of studies as server-sent events: first everything, then changes."""
        sent = None
        with self._viewer(None):
            yield BEGIN
            await self.refresh()
            async for now in self._states():
                if now is sent:
                    yield HERE
                elif sent is None:
                    yield event("all", f'{{"folder": {json.dumps(str(self.root))}, {changes(now, FolderState())}}}')
                else:
                    yield event("some", f"{{{changes(now, sent)}}}")
                sent = now

    async def study(self, name: str, last: str | None) -> AsyncIterator[str]:
        """One study as server-sent events: its row, and its trials after the `last` one received."""
        epoch, _, count = (last or "").partition("-")
        sent, row, before = int(count[:12]) if count.isdecimal() else 0, None, None
        with self._viewer(name):
            yield BEGIN
            await self.refresh(name)
            async for now in self._states():
                seen = now.studies.get(name)
                if seen is None:
                    yield event("gone", "{}")
                    return
                parts = []
                if (trials := seen.trials) is not None and (epoch, sent) != (trials.epoch, len(trials.texts)):
                    again = epoch != trials.epoch or sent > len(trials.texts)
                    new = trials.texts[0 if again else sent :]
                    epoch, sent = trials.epoch, len(trials.texts)
                    data = f'{{"again": {json.dumps(again)}, "trials": [{", ".join(new)}]}}'
                    parts.append(event("trials", data, f"{epoch}-{sent}"))
                if seen.row != row:
                    row = seen.row
                    parts.append(event("study", row))
                if parts or now is before:
                    yield "".join(parts) or HERE
                before = now

    async def _states(self) -> AsyncIterator[FolderState]:
        """The current state, again after each change, and the same state again if nothing changes for a while."""
        version, latest = -1, self.state
        while not self.ended:
            if version == self._version:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._news.wait(), _ALIVE)
            if version != self._version:
                version, latest = self._version, self.state
            if not self.ended:
                yield latest

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


def event(kind: str, data: str, number: str | None = None) -> str:
    mark = f"id: {number}\n" if number is not None else ""
    return f"event: {kind}\n{mark}data: {data}\n\n"


def changes(now: FolderState, before: FolderState) -> str:
    """What is new or changed, the names of what was removed, and trials that ended: the members of a JSON object."""
    parts = []
    for kind in ("studies", "runs", "bundles"):
        new, old = _texts(now, kind), _texts(before, kind)
        changed = ", ".join(row for name, row in new.items() if old.get(name) != row)
        gone = json.dumps([name for name in old if name not in new])
        parts.append(f'"{kind}": [{changed}], "{kind}_gone": {gone}')
    ended = ", ".join(f'{{"study": {json.dumps(name)}, "ended": {text}}}' for name, text in _ended(now, before))
    return ", ".join([*parts, f'"trials": [{ended}]'])


def _texts(state: FolderState, kind: str) -> Mapping[str, str]:
    return {name: seen.row for name, seen in state.studies.items()} if kind == "studies" else getattr(state, kind)


def _ended(now: FolderState, before: FolderState) -> Iterator[tuple[str, str]]:
    """The trials that ended between two states; for studies that were not followed before, the most recent ones."""
    for id, seen in now.studies.items():
        old = before.studies.get(id)
        if seen.trials is None or old == seen:
            continue
        if old is not None and old.trials is not None and old.trials.epoch == seen.trials.epoch:
            yield from ((id, text) for text in seen.trials.texts[len(old.trials.texts) :])
        elif seen.running:
            yield from ((id, text) for text in seen.trials.texts[-_MOST_RECENT:])
