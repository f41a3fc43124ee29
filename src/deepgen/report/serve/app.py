"""The web application and its routes. It never runs a study's code and never writes a journal.

A study's report is rebuilt only when its journal has changed, and rarely while it runs: rebuilding takes seconds of a
core, which would slow down a local study. In between, events update the page.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from deepgen.report import page
from deepgen.report.facts import Facts, facts_of
from deepgen.report.page import policy
from deepgen.report.serve.gate import POLICY, Gate, GateRules
from deepgen.report.serve.hub import Hub
from deepgen.report.serve.looks import Seen, Trials
from deepgen.report.serve.places import changed, run_of
from deepgen.report.view.text import note
from deepgen.tuning import Study
from deepgen.vocabulary import DeepgenError

# The only static files that are served.
_SCRIPT, _STYLE = "text/javascript", "text/css"
_STATIC = {"list.js": _SCRIPT, "live.js": _SCRIPT, "study.js": _SCRIPT, "list.css": _STYLE, "page.css": _STYLE}
_MISSING, _CONFLICT, _UNREADABLE, _BROKEN, _ENDING = 404, 409, 422, 500, 503
# A study that is just being created can be read a moment later.
_LATER = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="2">'
    '<title>deepgen</title><link rel="stylesheet" href="/static/page.css">'
    '<p>{}</p><p><a href="/">All studies</a></p></html>'
)
# Stops a study or a run and returns a sentence describing how it ended. None: stopping is not allowed here.
Stop: TypeAlias = "Callable[[Path], str] | None"


def make(root: Path, stop: Stop, rules: GateRules) -> tuple[ASGIApp, Hub]:
    """The application for a folder, and its hub, which the caller closes at the end."""
    hub = Hub(root)
    views = _Views(hub, stop)
    routes = [
        Route("/", views.overview),
        Route("/static/{file}", views.static),
        Route("/events", views.events),
        Route("/events/{name:path}", views.study_events),
        Route("/study/{name:path}", views.study),
        Route("/stop/study/{name:path}", views.stop_study, methods=["POST"]),
        Route("/stop/run/{name:path}", views.stop_run, methods=["POST"]),
    ]

    @asynccontextmanager
    async def reading(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(hub.run())
        try:
            yield
        finally:
            hub.close()
            task.cancel()

    handlers = {_MISSING: _not_here, Exception: _broken}
    return Gate(Starlette(routes=routes, lifespan=reading, exception_handlers=handlers), rules), hub


class _Views:
    """The request handlers."""

    def __init__(self, hub: Hub, stop: Stop) -> None:
        self._hub, self._ends = hub, stop
        self._pages = Pages(hub, may_stop=stop is not None)

    async def overview(self, request: Request) -> Response:
        page = _file("list.html").replace("{{stop}}", "yes" if self._ends else "")
        return HTMLResponse(page)

    async def static(self, request: Request) -> Response:
        kind = _STATIC.get(request.path_params["file"])
        if kind is None:
            return _missing("no such file")
        return Response(_file(request.path_params["file"]), media_type=kind)

    async def events(self, request: Request) -> Response:
        return _stream(self._hub.overview())

    async def study_events(self, request: Request) -> Response:
        name = request.path_params["name"]
        if await self._folder(name) is None:
            return _missing("no such study")
        last = request.headers.get("last-event-id") or request.query_params.get("last")
        return _stream(self._hub.study(name, last))

    async def study(self, request: Request) -> Response:
        name = request.path_params["name"]
        if await self._folder(name) is None:
            return _missing("no such study")
        try:
            html = await self._hub.before_end(self._pages.get(name, newest="newest" in request.query_params))
        except DeepgenError as error:
            return HTMLResponse(_LATER.format(escape(str(error))), _UNREADABLE)
        if html is None:
            return PlainTextResponse("deepgen: the server is shutting down\n", _ENDING)
        return HTMLResponse(html, headers={POLICY: policy(live=True)})

    async def stop_study(self, request: Request) -> Response:
        name = request.path_params["name"]
        if run_of(name) is not None:
            return _sentence("this study is part of a cluster run, which is stopped as a whole", _CONFLICT)
        return await self._stop(await self._folder(name), "no such study")

    async def stop_run(self, request: Request) -> Response:
        await self._hub.refresh()
        return await self._stop(self._hub.state.run_folders.get(request.path_params["name"]), "no such run")

    async def _stop(self, folder: Path | None, otherwise: str) -> Response:
        if folder is None or self._ends is None:
            return _missing(otherwise if self._ends else "nothing can be stopped: the server is read-only")
        try:
            return _sentence(await asyncio.to_thread(self._ends, folder))
        except DeepgenError as error:
            return _sentence(str(error), _CONFLICT)

    async def _folder(self, name: str) -> Path | None:
        """The folder of a study by its name. Names are looked up and never part of a path, so none can escape."""
        if name not in self._hub.state.studies:
            await self._hub.refresh()
        seen = self._hub.state.studies.get(name)
        return None if seen is None else seen.folder


def _stream(events: AsyncIterator[str]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream")


def _sentence(sentence: str, status: int = 200) -> Response:
    return JSONResponse({"message": sentence}, status)


def _missing(what: str) -> Response:
    return PlainTextResponse(f"deepgen: {what}\n", _MISSING)


async def _not_here(request: Request, error: Exception) -> Response:
    return _missing("no such page")


async def _broken(request: Request, error: Exception) -> Response:
    note(f"deepgen: unexpected error, a bug in deepgen: {request.url.path}: {type(error).__name__}: {error}")
    return PlainTextResponse("deepgen: unexpected error, a bug in deepgen\n", _BROKEN)


def _file(name: str) -> str:
    package, place = ("deepgen.report", ".") if name == "page.css" else (__package__, "static")
    return (files(package) / place / name).read_text(encoding="utf-8")


_REST = 20.0  # minimum time between two reports of the same study, relative to how long one took
_LEAST_REST = 1.0  # seconds
_MOST = 16  # cached pages


@dataclass(frozen=True)
class _Page:
    html: str
    seen: Seen
    until: float  # monotonic time before which it is not rebuilt while the study runs


class Pages:
    """The cached report of each study that was viewed."""

    def __init__(self, hub: Hub, *, may_stop: bool) -> None:
        self._hub, self._may_stop = hub, may_stop
        self._pages: OrderedDict[str, _Page] = OrderedDict()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def get(self, id: str, *, newest: bool) -> str:
        """The page of a study. `newest` waits for one that shows the current journal."""
        async with self._locks[id]:
            kept = self._pages.get(id)
            seen = await self._hub.seen(id)
            if seen is None:
                raise DeepgenError("this study no longer exists")
            if kept is not None and not changed(kept.seen.mark, seen.mark):
                return kept.html
            while kept is not None and seen.running and (left := kept.until - time.monotonic()) > 0:
                if not newest or self._hub.ended:
                    return kept.html
                await self._hub.rest(min(left, _LEAST_REST))
                seen = await self._hub.seen(id) or seen
            html, seconds = await asyncio.to_thread(self._render, seen)
            # The time of the very first page includes loading libraries and does not predict that of the next one.
            rest = max(_LEAST_REST, _REST * seconds) if self._pages else _LEAST_REST
            self._pages[id] = _Page(html, seen, time.monotonic() + rest)
            self._pages.move_to_end(id)
            while len(self._pages) > _MOST:
                self._pages.popitem(last=False)
            return html

    def _render(self, seen: Seen) -> tuple[str, float]:
        """The page, and the CPU seconds it took."""
        began = time.thread_time()
        facts = facts_of(Study.open(seen.folder))
        stop = f"/stop/study/{seen.id}" if self._may_stop and run_of(seen.id) is None else None
        html = page.render(facts, {**_joined(facts, seen), "stop": stop, "name": seen.name})
        return html, time.thread_time() - began


def _joined(facts: Facts, seen: Seen) -> dict[str, Any]:
    """The data the page's script needs to add trials to those of the report, which use other names and units."""
    trials = seen.trials or Trials()
    return {
        "events": f"/events/{seen.id}?last={trials.epoch}-{len(trials.texts)}",
        "trials_shown": facts["ended"],
        "scale": facts["unit"]["scale"],
        "knobs": {knob["name"]: knob["field"] for knob in facts["knobs"]},
        "last": json.loads(trials.texts[-1]) if trials.texts else None,
    }


__all__ = ["GateRules", "Stop", "make"]
