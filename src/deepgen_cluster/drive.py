"""The driver of a cluster run: starts the nodes, tunes every group's tasks, restarts lost nodes, stops them all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from deepgen.extend import BuildLimits, DeepgenError, Progress, Request, Study, tune_request
from deepgen_cluster import nodes, tasks
from deepgen_cluster.folder import Definition, GroupProgress, Row, RunFolder, RunProgress, State, Up
from deepgen_cluster.model import GroupTask, WorkGroup
from deepgen_cluster.ssh import Ask, HostError
from deepgen_cluster.tasks import Fetched, fetch

# Converts the fetched files of a task into requests; a higher layer knows their format.
Requests = Callable[[WorkGroup, Fetched, Path], Sequence[Request]]
_TELL_EVERY = 0.25  # seconds
_LOOK_EVERY = 2.0


@dataclass(frozen=True)
class Means:
    """What a driver needs."""

    password: Ask
    requests: Requests
    line: Callable[[Progress], str]  # a study's progress in one line
    say: Callable[[str], None]  # into the log
    limits: BuildLimits


def drive(folder: RunFolder, means: Means, stop: threading.Event) -> RunProgress:
    """Execute a run, or resume it. Returns its final progress; a failure of one group does not stop the others."""
    definition = folder.definition()
    if definition is None:
        raise DeepgenError(f"{folder.path} is not a cluster run")
    with folder.take():
        board = Board(folder, means.say)
        run = _Run(definition, folder, means, board, stop)
        try:
            run.groups(run.up())
        except DeepgenError as error:
            board.change(state="failed", note=str(error))
        except BaseException as error:
            board.change(state="failed", note=f"an unexpected error: {type(error).__name__}: {error}")
            raise
        finally:
            run.down()
        return board.progress


class Board:
    """Collects the progress reported by the groups' threads."""

    def __init__(self, folder: RunFolder, say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say
        self._lock = threading.Lock()
        self._next = 0.0
        self.progress = RunProgress()
        folder.tell(self.progress)

    def change(self, **changes: object) -> None:
        with self._lock:
            self.progress = replace(self.progress, **changes)  # type: ignore[arg-type]
            self._folder.tell(self.progress)
            if self.progress.note and "note" in changes:
                self._say(self.progress.note)

    def group(self, name: str, *, now: bool = True, **changes: object) -> None:
        with self._lock:
            group = replace(self.progress.groups.get(name, GroupProgress()), **changes)  # type: ignore[arg-type]
            self.progress = replace(self.progress, groups={**self.progress.groups, name: group})
            if now or time.monotonic() >= self._next:
                self._folder.tell(self.progress)
                self._next = time.monotonic() + _TELL_EVERY
            if now:
                self._say(f"{name}: {group.problem or group.line}")

    def result(self, row: Row) -> None:
        with self._lock:
            self.progress = replace(self.progress, results=(*self.progress.results, row))
            self._folder.tell(self.progress)


class _Run:
    """A run in progress."""

    def __init__(
        self, definition: Definition, folder: RunFolder, means: Means, board: Board, stop: threading.Event
    ) -> None:
        self.definition, self.cluster = definition, definition.cluster
        self.folder, self.means, self.board, self.stop = folder, means, board, stop

    def up(self) -> Up:
        """Start all nodes, or reuse those of an earlier driver of this run."""
        self.board.change(note=f"starting {len(self.cluster.hosts)} hosts")
        state = State(self.cluster)
        state.remember_run(self.folder.path)
        before = state.read()
        started = nodes.up(self.cluster, self.means.password, head=self.definition.head)
        # A new head belongs to this run, and so does one that this run started before it was interrupted.
        if before is None or before.cluster != started.up.cluster:
            self.folder.remember_up(started.up.cluster)
        return started.up

    def down(self) -> None:
        """Stop everything that this run started."""
        if self.definition.keep_up or self.folder.brought_up() is None:
            return
        ended = nodes.down(self.cluster, self.means.password)
        failed = [str(outcome) for outcome in ended.values() if isinstance(outcome, HostError)]
        if failed:
            self.board.change(note=f"some nodes could not be stopped: {'; '.join(failed)}")
        else:
            self.folder.remember_up(None)

    def groups(self, up: Up) -> None:
        """Run all groups concurrently, until the last one ends."""
        self.board.change(state="running", note=f"{len(self.cluster.groups)} groups on the cluster at {up.address}")
        work = [
            threading.Thread(target=self._group, args=(group, up), name=group.name) for group in self.cluster.groups
        ]
        for thread in work:
            thread.start()
        looked = time.monotonic()
        while any(thread.is_alive() for thread in work):
            time.sleep(0.1)
            if time.monotonic() - looked > _LOOK_EVERY and not self.stop.is_set():
                self._bring_back()
                looked = time.monotonic()
        if self.stop.is_set():
            self.board.change(state="stopped", note="stopped; run the same command again to resume")
        else:
            failed = any(group.problem for group in self.board.progress.groups.values())
            self.board.change(state="failed" if failed else "done")

    def _group(self, group: WorkGroup, up: Up) -> None:
        """Run a group's tasks in order. Its errors do not affect other groups."""
        tell = partial(self.board.group, group.name)
        try:
            for number, task in enumerate(group.tasks, 1):
                if self.stop.is_set():
                    break
                tell(task=number, tasks=len(group.tasks), line=f"fetching {task.config}")
                self._task(group, task, up)
            tell(ended=True, line="stopped" if self.stop.is_set() else "done")
        except DeepgenError as error:
            tell(ended=True, problem=str(error))
        except Exception as error:  # an internal error must show in the progress, not vanish in a thread
            tell(ended=True, problem=f"an unexpected error: {type(error).__name__}: {error}")
            raise

    def _task(self, group: WorkGroup, task: GroupTask, up: Up) -> None:
        from deepgen_cluster.ray import RayEngine

        own = self.folder.path / group.name
        fetched = fetch(group, task, Path(self.cluster.file).parent, self.means.password)
        requests = self.means.requests(group, fetched, own)
        engine = RayEngine(
            address=up.address,
            group=group.name,
            limits=self.means.limits,
            token=State(self.cluster).token_file,
        )
        for request in requests:
            what = f"{request.operator.describe()} on {request.target.shown}"
            self.board.group(group.name, what=what, line="preparing")

            def watch(progress: Progress) -> None:
                self.board.group(group.name, now=False, line=self.means.line(progress))

            study = tune_request(request, engine=engine, watch=watch, stop=self.stop)
            if self.stop.is_set():
                return
            name = task.results if len(requests) == 1 else f"{task.results}_{request.operator.slug()}"
            self._keep(study, group, own / name, what)

    def _keep(self, study: Study, group: WorkGroup, prefix: Path, what: str) -> None:
        files = tasks.write_all(study, group, prefix)
        if problem := tasks.copy_to_builder(files, group, self.means.password):
            self.board.change(note=problem)
        winner = study.summary()["winner"]
        shown = winner if isinstance(winner, dict) else None
        self.board.result(Row(group.name, what, str(study.folder), len(study.trials()), shown, tuple(map(str, files))))

    def _bring_back(self) -> None:
        """Restart lost nodes: a host that was rebooted is used again as soon as it responds."""
        lost = nodes.lost(self.cluster)
        if not lost:
            return
        names = ", ".join(map(str, lost))
        self.board.change(note=f"lost {names}; starting again")
        try:
            nodes.up(self.cluster, self.means.password, head=self.definition.head, hosts=lost)
        except DeepgenError as error:
            self.board.change(note=f"still lost: {error}")
        else:
            self.board.change(note=f"{names} is back")
