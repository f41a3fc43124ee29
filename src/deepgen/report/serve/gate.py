"""Access control: the token, the host name, no cross-site requests; and security headers.

The token is part of the address that `deepgen serve` prints. It is exchanged for a cookie at once, so that it does not
stay in the address bar, the history or a referrer.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
