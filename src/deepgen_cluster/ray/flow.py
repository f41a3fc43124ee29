"""Trials in flight on a cluster: from any build slot to the suitable devices.

One thread tracks all of them. Whatever is lost with a process or a node is retried elsewhere, by the rules below and
not by Ray's own, so that every trial is reported once.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import Any

from deepgen.extend import (
    NOT_WORTH_IT,
    Artifact,
    BuildError,
    DeepgenError,
    JsonObject,
    Look,
    Measurement,
    Outcome,
    Verdict,
)
from deepgen_cluster.ray import builder, devices
from deepgen_cluster.ray.builder import TRIES, RemoteBuilds
from deepgen_cluster.ray.device_pool import DevicePool, Member, gone

BUFFER = 6  # trials built or being measured per device, so that uneven build times do not leave a device idle
REFRESH_SECONDS = 1.0
TICK_SECONDS = 0.02


@dataclass(eq=False)
class _Trial:
    """A trial in flight. Its kernel is kept until it ends, since it may have to be rebuilt."""

    id: int
    kernel: str  # JSON
    built: str = ""  # the artifact, JSON
    artifact: Artifact | None = None
    binary: Any = None
    deaths: int = 0


class Flow:
    """The trials of one session, and the thread that tracks them."""

    def __init__(
        self,
        ray: Any,
        builds: RemoteBuilds,
        look: Look | None,
        *,
        group: str | None,
        build_slots: int | None,
        wait_seconds: float,
    ) -> None:
        self._ray, self._builds, self._look = ray, builds, look
        self._group, self._most_slots, self._wait_seconds = group, build_slots, wait_seconds
        self._calls: dict[Any, Callable[[Any], None]] = {}
        self._waiting: deque[_Trial] = deque()
        self._built: deque[_Trial] = deque()
        self._under_way = 0
        self._slots = 1  # over all nodes that build
        self._closing = False
        self._alone_since: float | None = None
        self._next_refresh = 0.0
        self._pool: DevicePool
        self._thread = threading.Thread(target=self._follow, name="deepgen-ray", daemon=True)
        self.lock = threading.RLock()
        self.ended: SimpleQueue[Outcome | Exception] = SimpleQueue()
        self.beat: float | None = None
        self.building = 0

    def start(self, pool: DevicePool) -> None:
        self._pool = pool
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def build_slots(self) -> int:
        return self._slots

    @property
    def window(self) -> int:
        """The maximum number of trials in flight: one per build slot, and a few per device."""
        return self._slots + BUFFER * max(1, len(self._pool.ready))

    def submit(self, trial_id: int, kernel: str) -> None:
        with self.lock:
            self._waiting.append(_Trial(trial_id, kernel))
            self._feed()

    def stop(self, seconds: float) -> None:
        """Stop, and cancel everything in flight, so that others get the slots."""
        self._closing = True
        if self._thread.is_alive():
            self._thread.join(timeout=seconds)
        for ref in self._calls:
            try:
                self._ray.cancel(ref, force=False)
            except (TypeError, ValueError, self._ray.exceptions.RayError):  # it has already ended
                continue
        self._calls.clear()

    def call(self, ref: Any, heard: Callable[[Any], None]) -> None:
        """Call `heard(ref)` when ref is ready."""
        self._calls[ref] = heard

    def take_back(self, member: Member) -> None:
        """A device was lost: the trial that was running there may be the cause, those queued behind it are not."""
        for place, trial in reversed(list(enumerate(member.trials))):
            self._again(trial, at_work=place == 0)
        member.trials.clear()

    def _follow(self) -> None:
        try:
            while not self._closing:
                with self.lock:
                    if time.monotonic() >= self._next_refresh:
                        self._refresh()
                        self._next_refresh = time.monotonic() + REFRESH_SECONDS
                    pending = list(self._calls)
                for ref in self._arrived(pending):
                    with self.lock:
                        heard = self._calls.pop(ref, None)
                        if heard is not None and not self._closing:
                            heard(ref)
        except Exception as error:  # an internal error must reach the tuner, not vanish in this thread
            self.ended.put(error)

    def _arrived(self, pending: list[Any]) -> list[Any]:
        if not pending:
            time.sleep(TICK_SECONDS)
            return []
        some, _ = self._ray.wait(pending, num_returns=1, timeout=TICK_SECONDS)
        return list(self._ray.wait(pending, num_returns=len(pending), timeout=0)[0]) if some else []

    def _refresh(self) -> None:
        nodes = devices.living(self._ray.nodes())
        self._slots = max(1, sum(node.count(devices.BUILD, self._group) for node in nodes))
        if self._most_slots is not None:
            self._slots = min(self._slots, self._most_slots)
        self._pool.refresh(nodes)
        self._end_without_devices()
        self._feed()

    def _end_without_devices(self) -> None:
        """Lost devices may come back; a study that has none for a long time ends, and can be resumed later."""
        if self._pool.ready:
            self._alone_since = None
            return
        if (why := self._pool.hopeless()) is not None:
            raise DeepgenError(f"no device of the Ray cluster can be used for this study: {why}")
        self._alone_since = self._alone_since or time.monotonic()
        if time.monotonic() - self._alone_since > self._wait_seconds:
            raise DeepgenError(
                f"no device of the Ray cluster has answered for {self._wait_seconds:g} seconds; finished trials "
                "are kept: bring a measuring node back and run the same command again"
            )

    def _feed(self) -> None:
        """Send built trials to devices and waiting ones to build slots, without building far ahead of the devices."""
        while self._built and (free := [m for m in self._pool.ready if m.free > 0]):
            self._measure(self._built.popleft(), max(free, key=lambda member: member.free))
        ahead = math.ceil(self._slots / 4)  # submitted to Ray early, so that no slot is idle
        while self._waiting and self.building < self._slots + ahead and self._under_way < self.window + ahead:
            self._under_way += 1
            self._build(self._waiting.popleft())

    def _build(self, trial: _Trial) -> None:
        answer, trial.binary = self._builds.start(trial.kernel)
        self.building += 1
        self.call(answer, partial(self._hear_build, trial))

    def _hear_build(self, trial: _Trial, ref: Any) -> None:
        self.building -= 1
        try:
            trial.artifact = builder.read(self._ray.get(ref))
            trial.built = json.dumps(trial.artifact.to_json())
        except BuildError as error:
            self._end(trial, Measurement(error.verdict, error.detail))
        except DeepgenError as error:
            self.ended.put(error)
        except self._ray.exceptions.RayTaskError as error:
            self.ended.put(DeepgenError(f"a build on the Ray cluster failed: {error}"))
        except self._ray.exceptions.RayError as error:
            self._rebuild(trial, error)
        else:
            self._built.append(trial)
        self._feed()

    def _rebuild(self, trial: _Trial, why: Exception) -> None:
        """Its process or node was lost. A lost node says nothing about the build, but a process may have died of it."""
        errors = self._ray.exceptions
        trial.deaths += isinstance(why, (errors.WorkerCrashedError, errors.OutOfMemoryError))
        if trial.deaths >= TRIES:
            self._end(trial, Measurement(Verdict.BUILD_FAILED, f"the process that built it died {TRIES} times"))
        else:
            self._build(trial)

    def _measure(self, trial: _Trial, member: Member) -> None:
        assert trial.artifact is not None
        try:
            if self._look is not None and not self._look(trial.id, trial.artifact):
                self._end(trial, NOT_WORTH_IT)
                return
        except Exception as error:  # the caller's code: reported to the caller
            self.ended.put(error)
            return
        kernel = _without_sources(trial.kernel)
        ref = member.handle.measure.remote(self._pool.session, kernel, trial.built, self.beat, trial.binary)
        member.trials.append(trial)
        self.call(ref, partial(self._hear_measurement, trial, member))

    def _hear_measurement(self, trial: _Trial, member: Member, ref: Any) -> None:
        if trial not in member.trials:
            return  # already taken back and resubmitted elsewhere
        errors = self._ray.exceptions
        try:
            reply = json.loads(self._ray.get(ref))
        except gone(errors):
            self._pool.lose(member)  # this returns all its trials
        except errors.RayError as error:
            member.trials.remove(trial)
            if lost_object(errors, error):
                self._build(trial)  # the node that built it was lost, and the binary with it
            else:
                self.ended.put(DeepgenError(f"a measurement on the Ray cluster failed: {error}"))
        else:
            member.trials.remove(trial)
            self._hear_reply(trial, member, reply)
        self._feed()

    def _hear_reply(self, trial: _Trial, member: Member, reply: dict[str, Any]) -> None:
        if "measurements" in reply:
            self._end(trial, placed(Measurement.from_json(reply["measurements"][0]), member))
        elif "unopened" in reply:
            self._built.appendleft(trial)
            if member.ready:
                self._pool.reopen(member)
        elif "set_aside" in reply:
            self._built.appendleft(trial)
            self._pool.set_aside(member, reply["set_aside"])
        else:
            self.ended.put(DeepgenError(reply["error"]))

    def _again(self, trial: _Trial, *, at_work: bool) -> None:
        trial.deaths += at_work
        if trial.deaths >= TRIES:
            self._end(trial, Measurement(Verdict.CRASHED, f"the process that measured it was lost {TRIES} times"))
        else:
            self._built.appendleft(trial)

    def _end(self, trial: _Trial, measurement: Measurement) -> None:
        self._under_way -= 1
        self.ended.put(Outcome(trial.id, trial.artifact, measurement))


def placed(measured: Measurement, member: Member) -> Measurement:
    """The measurement with the host and the device that made it."""
    device = member.device
    where: JsonObject = {"host": device.host, "slot": device.slot, "card": device.card} if device else {}
    return replace(measured, conditions={**measured.conditions, **where})


def lost_object(errors: Any, error: Exception) -> bool:
    """Whether an object that a call needed was lost with its node."""
    return any(isinstance(one, errors.ObjectLostError) for one in (error, getattr(error, "cause", None)))


def _without_sources(kernel: str) -> str:
    """A device needs only the launch plan; the simulated one also reads the source."""
    data: dict[str, Any] = json.loads(kernel)
    return kernel if data["language"] == "sim" else json.dumps({**data, "sources": []})
