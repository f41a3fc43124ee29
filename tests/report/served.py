"""A server of studies in a thread of this process, studies to serve, and a viewer that reads its events."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("starlette", reason="the extra `view` is not installed")
pytest.importorskip("uvicorn", reason="the extra `view` is not installed")

from deepgen.frontends.cli.serve import stop
from deepgen.report.serve import server
from deepgen.report.serve.app import GateRules
from deepgen.tuning.study.journal import Journal
from deepgen.tuning.study.rows import Proposal
from deepgen.vocabulary import Measurement, Trial, Verdict

PATIENCE = 240.0  # seconds; nothing here takes long, but a machine may be busy


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str


@dataclass(frozen=True)
class Served:
    """The server's address and credentials."""

    port: int
    rules: GateRules

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def cookie(self) -> str:
        return "=".join(self.rules.cookie)

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """One request as the server's own page would make it, except for the given headers; "" omits one."""
        own = {"host": self.host, "cookie": self.cookie, "origin": f"http://{self.host}" if method == "POST" else ""}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.putrequest(method, path, skip_host=True)
        for name, value in {**own, **headers}.items():
            if value:
                connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        told = Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode())
        connection.close()
        return told


@contextmanager
def serving(root: Path, *, may_stop: bool = True, port: int = 0) -> Iterator[Served]:
    made = server.listen("127.0.0.1", port)
    rules = server.rules_for(root, made, "127.0.0.1", read_only=not may_stop)
    ready, end = threading.Event(), threading.Event()
    arguments = (root, stop if may_stop else None, rules, made, ready.set, end)
    thread = threading.Thread(target=server.serve, args=arguments)
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        yield Served(made.getsockname()[1], rules)
    finally:
        end.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


@dataclass
class Viewer:
    """Reads a stream of server-sent events."""

    stream: asyncio.StreamReader
    last: str | None = None
    trials: list[int] = field(default_factory=list)

    async def event(self) -> tuple[str, Any]:
        """The next event; comments are skipped."""
        return await asyncio.wait_for(self._event(), PATIENCE)

    async def _event(self) -> tuple[str, Any]:
        kind = ""
        while True:
            line = (await self.stream.readline()).decode().rstrip("\r\n")
            assert line or not self.stream.at_eof(), "the stream ended"
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("id: "):
                self.last = line.removeprefix("id: ")
            elif line.startswith("data: "):
                data = json.loads(line.removeprefix("data: "))
                if kind == "trials":
                    self.trials = [*([] if data["again"] else self.trials), *(one["trial"] for one in data["trials"])]
                return kind, data

    async def next(self, wanted: str) -> Any:
        """The data of the next event of this kind."""
        while True:
            kind, data = await self.event()
            if kind == wanted:
                return data

    async def until_trials(self, count: int) -> None:
        while len(self.trials) < count:
            await self.event()


@asynccontextmanager
async def watching(served: Served, path: str, last: str = "") -> AsyncIterator[Viewer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1 << 24)
    again = f"Last-Event-ID: {last}\r\n" if last else ""
    # An HTTP/1.0 request, so that the answer is not chunked.
    head = f"GET {path} HTTP/1.0\r\nHost: {served.host}\r\nCookie: {served.cookie}\r\n{again}\r\n"
    writer.write(head.encode())
    status = await asyncio.wait_for(reader.readline(), PATIENCE)
    assert b" 200 " in status, status
    while (await reader.readline()).strip():
        pass
    try:
        yield Viewer(reader)
    finally:
        writer.close()


T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run it in a separate thread: a browser's events run in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


@contextmanager
def started(*argv: str) -> Iterator[subprocess.Popen[str]]:
    """A command line in a separate process; nothing of it is left afterwards."""
    program = [sys.executable, "-m", "deepgen", *argv]
    pipe = subprocess.PIPE
    process = subprocess.Popen(program, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


class Writer:
    """Writes trials into a study like a tuner."""

    def __init__(self, folder: Path) -> None:
        self.journal = Journal(folder, write=True)
        self._config = self.journal.proposals()[0].config

    def end(self, count: int = 1, verdict: Verdict = Verdict.CORRECT, detail: str = "", **conditions: str) -> None:
        for _ in range(count):
            number = self.journal.tally().trials
            rank = 10**6 + number
            self.journal.ask(number, 1, [Proposal(number, rank, self._config)])
            samples = (1e-5,) if verdict is Verdict.CORRECT else ()
            measured = Measurement(verdict, detail, samples, conditions=conditions)
            self.journal.finish([Trial(number, rank, self._config, f"k{number}", measured)])

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.journal.close()
