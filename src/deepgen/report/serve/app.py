"""The web application: its routes, and who may use them. It never runs a study's code and never writes a journal.

A study's report is rebuilt only when its journal has changed, and rarely while it runs: rebuilding takes seconds of a
core, which would slow down a local study. In between, events update the page.

Access needs the token in the address that `deepgen serve` prints. It is exchanged for a cookie at once, so that it does
not stay in the address bar, the history or a referrer.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import time
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import Request, cookie_parser
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deepgen.report import page
from deepgen.report.facts import Facts, facts_of
from deepgen.report.page import policy
from deepgen.report.serve.hub import Hub
from deepgen.report.serve.looks import Seen, Trials
from deepgen.report.serve.places import changed, run_of
from deepgen.report.view import note
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


POLICY = "content-security-policy"
_DENIED = 403
# A redirect would not work: a browser that followed a link from another site would not send the cookie with it.
_ENTER = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=/">'
    '<title>deepgen</title><p><a href="/">Studies</a></p></html>'
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_OURS_ALONE = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; base-uri 'none'"
)
_CLOSED = "; form-action 'none'; frame-ancestors 'none'"


@dataclass(frozen=True)
class GateRules:
    """Who may connect. Names in `hosts` are allowed in addition to this machine's own addresses."""

    token: str
    hosts: Collection[str] = ()
    loopback: bool = True  # whether only this machine can reach the server

    @property
    def cookie(self) -> tuple[str, str]:
        """Its name and its value. Servers on one machine share cookies, so each uses its own name."""
        value = sha256(f"cookie {self.token}".encode()).hexdigest()
        return f"deepgen-{sha256(value.encode()).hexdigest()[:12]}", value

    def knows_host(self, header: str) -> bool:
        """An unknown name may belong to another site that resolves to this machine to read what this browser can."""
        try:
            name = "" if set(header) & set("/?#@\\ ") else urlsplit(f"//{header}").hostname or ""
            if name in ("localhost", *self.hosts):
                return True
            return ipaddress.ip_address(name).is_loopback or not self.loopback
        except ValueError:
            return False


class Gate:
    """Wraps the application: only requests that the rules allow reach it."""

    def __init__(self, app: ASGIApp, rules: GateRules) -> None:
        self._app, self._rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update({**_HEADERS, POLICY: headers.get(POLICY, _OURS_ALONE) + _CLOSED})
            await send(message)

        await (self._answer(scope) or self._app)(scope, receive, guarded)

    def _answer(self, scope: Scope) -> Response | None:
        """The response of the gate itself; None if the request may pass."""
        headers, query = Headers(scope=scope), QueryParams(scope["query_string"])
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._rules.knows_host(host):
            return _refused("this server does not answer to that host name")
        writes = scope["method"] not in ("GET", "HEAD")
        if (writes or origin is not None) and origin != f"http://{host}":
            return _refused("this request comes from the page of another site")
        name, value = self._rules.cookie
        if scope["path"] == "/" and "token" in query:
            if not _same(query["token"], self._rules.token):
                return _refused("the token is wrong: use the address that `deepgen serve` prints")
            entered = HTMLResponse(_ENTER)
            entered.set_cookie(name, value, httponly=True, samesite="strict", path="/")
            return entered
        if not _same(cookie_parser(headers.get("cookie", "")).get(name, ""), value):
            return _refused("the token is missing: use the address that `deepgen serve` prints")
        return None


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(errors="replace"), other.encode())


def _refused(sentence: str) -> Response:
    return PlainTextResponse(f"deepgen: {sentence}\n", _DENIED)
