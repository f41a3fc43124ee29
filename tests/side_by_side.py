"""Parallel tests: `pytest --workers auto` collects them once, and forks of that process run them, one file at a time.

Collecting takes ten seconds of CPU time, most of it for imports. A new process would collect everything again for each
worker; a fork has it already, and shares the memory. What a test leaves behind in its process is only seen by later
files of the same worker, as with any other way to distribute tests.
"""

from __future__ import annotations

import atexit
import builtins
import marshal
import os
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from traceback import format_exc
from typing import Any, cast

import pytest

_LOWER = 10  # nice value of most tests: they get an eighth of a core's time beside an urgent one


@dataclass
class Worker:
    """A fork, as seen by its parent process."""

    pid: int
    alive: int  # readable once it has ended
    line: Connection
    left: deque[int] = field(default_factory=deque)  # of the file that it runs, including the current test
    last: int = 0  # the test that started last


class SideBySide:
    """The loop over all tests. `place`: tests whose node ids map to the same place run in sequence, in one worker.

    Tests of the place `urgent` keep the priority of this process; all others run at a lower one.
    """

    def __init__(self, workers: int, place: Callable[[str], str], urgent: str = "") -> None:
        self.count, self.place, self.urgent = workers, place, urgent
        self.workers: list[Worker] = []
        self.number = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.option.collectonly:
            return None  # as without workers
        self.session, self.config = session, session.config
        self.places = deque(_places(session.items, self.place))
        try:
            for _ in range(min(self.count, len(self.places))):
                self.start(self.places.popleft())
            while self.workers:
                self.listen()
        finally:
            for worker in self.workers:
                worker.line.close()  # this tells it to end
            for worker in self.workers:
                os.waitpid(worker.pid, 0)
        return True

    def start(self, tests: deque[int]) -> None:
        ours, theirs = Pipe()
        base = self.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        self.number += 1
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            for line in (ours, *(worker.line for worker in self.workers)):
                line.close()
            _work(self.session, theirs, base / f"worker-{self.number}", lambda test: self.place(test) == self.urgent)
        theirs.close()
        worker = Worker(pid, os.pidfd_open(pid), ours)
        self.workers.append(worker)
        self.give(worker, tests)

    def give(self, worker: Worker, tests: deque[int] | None) -> None:
        worker.left = tests or deque()
        with suppress(BrokenPipeError):  # it has just ended, which is noticed next
            worker.line.send_bytes(marshal.dumps(list(worker.left)))

    def listen(self) -> None:
        ready = wait([end for worker in self.workers for end in (worker.line, worker.alive)])
        for worker in [*self.workers]:
            try:
                while worker.line.poll():
                    for message in marshal.loads(worker.line.recv_bytes()):
                        self.take(worker, *message)
                over = worker.alive in ready and not worker.line.poll()
            except (EOFError, ConnectionResetError):
                over = True
            if over:
                self.ended(worker)

    def take(self, worker: Worker, what: str, data: Any = None) -> None:
        """Handle a message from a worker."""
        if what == "next":
            self.give(worker, self.places.popleft() if self.places else None)
        elif what == "begun":
            worker.last = data
            while worker.left[0] != data:
                worker.left.popleft()
        elif what == "passed":
            self.report(_passed(self.session.items[worker.last], *data))
        elif what == "report":
            self.report(self.config.hook.pytest_report_from_serializable(config=self.config, data=data))
        else:
            *seen, when, nodeid, location = data
            words = {"warning_message": _warning(*seen), "when": when, "nodeid": nodeid, "location": location}
            self.config.hook.pytest_warning_recorded.call_historic(kwargs=words)

    def report(self, report: pytest.TestReport) -> None:
        self.config.hook.pytest_runtest_logreport(report=report)
        if self.session.shouldfail or self.session.shouldstop:
            for worker in self.workers:
                os.kill(worker.pid, signal.SIGINT)
            if self.session.shouldfail:
                raise self.session.Failed(self.session.shouldfail)
            raise self.session.Interrupted(self.session.shouldstop)

    def ended(self, worker: Worker) -> None:
        """A worker that ended during a test only fails that test."""
        self.workers.remove(worker)
        worker.line.close()
        os.close(worker.alive)
        code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if code == 0 and not worker.left:
            return
        item = self.session.items[worker.left.popleft() if worker.left else worker.last]
        why = f"the process that ran {item.nodeid} ended with exit code {code}"
        self.report(pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call"))
        if worker.left or self.places:
            self.start(worker.left or self.places.popleft())


class Sender:
    """In a worker: sends the events of a test to the process that reports to the user."""

    def __init__(self, config: pytest.Config, line: Connection) -> None:
        self.config, self.line = config, line
        self.listening = False  # earlier warnings are already known there
        self.kept: list[tuple[Any, ...]] = []

    def send(self, *words: Any) -> None:
        """Sent together with the buffered messages: a message takes longer than most tests."""
        self.line.send_bytes(marshal.dumps([*self.kept, words]))
        self.kept.clear()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.passed and report.longrepr is None and not report.user_properties and not hasattr(report, "wasxfail"):
            times = report.duration, report.start, report.stop
            self.kept.append(("passed", (report.when, report.sections, *times)))
            return
        self.send("report", self.config.hook.pytest_report_to_serializable(config=self.config, report=report))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        if not self.listening:
            return
        shown = (str(warning_message.message), warning_message.category.__name__)
        place = (str(warning_message.filename), warning_message.lineno)
        self.send("warning", (*shown, *place, when, nodeid, location and tuple(location)))


def _work(session: pytest.Session, line: Connection, base: Path, urgent: Callable[[str], bool]) -> None:
    """Run a worker from its first test to its end."""
    lowered = 0
    config = session.config
    capture = config.pluginmanager.get_plugin("capturemanager")
    capture.stop_global_capturing()  # its files, and the positions in them, are shared by all
    config.get_terminal_writer()._file = open(os.devnull, "w")  # noqa: SIM115, PTH123
    capture.start_global_capturing()
    base.mkdir(mode=0o700)
    config._tmp_path_factory._basetemp = base  # type: ignore[attr-defined]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background processes of a shell
    sender = Sender(config, line)
    config.pluginmanager.register(sender)
    sender.listening = True
    item, nothing_else = None, cast(pytest.Item, session)
    try:
        while tests := marshal.loads(line.recv_bytes()):
            if not lowered and not urgent(session.items[tests[0]].nodeid):
                lowered = os.nice(_LOWER)
            for number, then in zip(tests, (*tests[1:], None), strict=True):
                item = session.items[number]
                sender.send("begun", number)
                # The next file is not known yet, so everything of this one is torn down.
                following = nothing_else if then is None else session.items[then]
                item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            sender.send("next")
        assert item is not None
        call = pytest.CallInfo.from_call(lambda: session._setupstate.teardown_exact(None), when="teardown")
        if call.excinfo is not None:
            sender.pytest_runtest_logreport(pytest.TestReport.from_item_and_call(item, call))
    except (EOFError, BrokenPipeError, KeyboardInterrupt, pytest.exit.Exception):
        with suppress(BaseException):
            session._setupstate.teardown_exact(None)
    except BaseException:
        os.write(2, format_exc().encode())
        os._exit(1)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    os._exit(0)


def _passed(item: pytest.Item, when: Any, sections: Any, *times: float) -> pytest.TestReport:
    """A report reconstructed from the short form, since nearly all reports are alike."""
    keywords = dict.fromkeys(item.keywords, 1)
    return pytest.TestReport(item.nodeid, item.location, keywords, "passed", None, when, sections, *times)


def _places(items: list[pytest.Item], place: Callable[[str], str]) -> Iterator[deque[int]]:
    """The tests of each place, ordered by the first occurrence of the place."""
    places: dict[str, deque[int]] = {}
    for number, item in enumerate(items):
        places.setdefault(place(item.nodeid), deque()).append(number)
    yield from places.values()


def _warning(text: str, category: str, filename: str, line: int) -> warnings.WarningMessage:
    kind = getattr(builtins, category, type(category, (UserWarning,), {}))
    return warnings.WarningMessage(kind(text), kind, filename, line)
