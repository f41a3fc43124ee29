"""A session of the Ray engine for one task."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import replace
from math import inf
from queue import Empty
from typing import TYPE_CHECKING, Any

from deepgen.extend import (
    Artifact,
    Contender,
    DeepgenError,
    Kernel,
    Look,
    Measurement,
    Operator,
    Outcome,
    Scratch,
    Task,
    completed,
    handed,
    helpers_for,
)
from deepgen_cluster.ray import builder, connection, devices
from deepgen_cluster.ray.builder import TRIES, RemoteBuilds
from deepgen_cluster.ray.device_pool import DevicePool, Member, Opening, gone
from deepgen_cluster.ray.flow import TICK_SECONDS, Flow, lost_object, placed
from deepgen_cluster.ray.lease import kept

if TYPE_CHECKING:
    from deepgen_cluster.ray.engine import RayEngine

CLOSE_SECONDS = 10.0
DISMISS_SECONDS = 2.0
Ask = Callable[[Member], Any]


class RaySession:
    """Trials are distributed over the cluster; finals stay on one device."""

    def __init__(self, engine: RayEngine, task: Task, look: Look | None = None) -> None:
        self.task = task
        self._patience = engine.wait_seconds
        self._finalists: dict[str, tuple[Artifact, str, Any]] = {}
        self._handed: dict[str, Any] = {}
        self._home: Member | None = None
        with ExitStack() as undo:
            self._ray = connection.connect(engine.cluster(), engine.token)
            undo.callback(connection.disconnect)
            self._scratch = undo.enter_context(Scratch("ray-session")).path
            devices.require(devices.living(self._ray.nodes()), engine.group)
            ordered = builder.order(task.target, engine.toolchains, engine.limits, engine.cache)
            self._builds = RemoteBuilds(self._ray, engine.group, ordered)
            self._flow = Flow(
                self._ray,
                self._builds,
                look,
                group=engine.group,
                build_slots=engine.build_slots,
                wait_seconds=engine.wait_seconds,
            )
            cache = str(engine.cache) if engine.cache else None
            setting = json.dumps({"cache": cache, "toolchains": dict(engine.toolchains)})
            self._pool = DevicePool(
                self._ray,
                Opening(f"session-{secrets.token_hex(8)}", task, setting, self._timed_on(), self._helpers()),
                self._flow.call,
                group=engine.group,
                most=engine.testers,
                wanted=engine.devices,
                give_back=self._flow.take_back,
            )
            undo.callback(self._stop)
            self._flow.start(self._pool)
            self._peak, self._bandwidth = self._device().peak, self._device().bandwidth
            self._loaded: list[str] | None = None  # baselines, if they were loaded ahead
            self._undo = undo.pop_all()

    until = inf  # testers measure as if without a budget

    @property
    def slots(self) -> int:
        return self._flow.window

    @property
    def builds_running(self) -> int:
        return min(self._flow.building, self._flow.build_slots)

    @property
    def measuring(self) -> bool:
        return False  # finals are sent to a device's queue

    def submit(self, trial_id: int, kernel: Kernel, *, first: bool = False) -> None:
        self._flow.submit(trial_id, json.dumps(kernel.to_json()))  # in the order of submission

    def results(self, timeout: float) -> list[Outcome]:
        outcomes: list[Outcome] = []
        try:
            first = self._flow.ended.get(timeout=timeout)
            while True:
                if isinstance(first, Exception):
                    raise first
                outcomes.append(first)
                first = self._flow.ended.get_nowait()
        except Empty:
            return outcomes

    def beat(self, seconds: float) -> None:
        self._flow.beat = seconds

    def quiet(self) -> AbstractContextManager[None]:
        # Nothing to do: while finals are timed, all builds on the device's host are paused, including those of other
        # studies. Builds on other hosts do not disturb them.
        return nullcontext()

    def disturbed(self) -> str | None:
        return None  # disturbances are detected on the device's host and reported with each measurement

    def load(self, baselines: Sequence[str], seconds: float) -> None:
        if seconds < inf:  # otherwise importing a framework may take longer than the time reserved for the finals
            self.compare([Contender(name) for name in baselines], 1, self.task.seed)
            self._loaded = [*baselines]

    def loaded(self, seconds: float) -> list[str] | None:
        return self._loaded

    def reference_seconds(self) -> tuple[float, bool]:
        return 0.0, True  # not known here

    def drop(self) -> bool:
        return False

    def build(self, kernel: Kernel) -> Artifact:
        for _ in range(TRIES):
            artifact, _, binary = self._finalist(kernel)
            path = self._scratch / f"{artifact.kernel_id}.{artifact.format}"
            try:
                return replace(artifact, binary=str(kept(path, self._ray.get(binary))))
            except self._ray.exceptions.ObjectLostError:
                self._finalists.clear()
        raise DeepgenError(f"the nodes that built {kernel.name} were lost {TRIES} times in a row")

    def verify(self, kernel: Kernel, seed: int, probe: str, shape: int = 0) -> Measurement:
        def ask(member: Member) -> Any:
            _, artifact, binary = self._finalist(kernel)
            text = json.dumps(kernel.to_json())
            arrays = self._arrays(self.task.shapes[shape], seed, handed.drawn_as(probe))
            return member.handle.verify.remote(self._pool.session, text, artifact, seed, probe, shape, binary, arrays)

        return self._measured(ask)[0]

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int) -> list[Measurement]:
        def ask(member: Member) -> Any:
            rows, binaries = [], []
            for one in contenders:
                row: dict[str, Any] = {"name": one.name, "kernel": None, "timed": one.timed, "behind": one.behind}
                if one.kernel is not None:
                    _, artifact, binary = self._finalist(one.kernel)
                    row |= {"kernel": json.dumps(one.kernel.to_json()), "artifact": artifact}
                    binaries.append(binary)
                rows.append(row)
            return member.handle.compare.remote(self._pool.session, json.dumps(rows), rounds, seed, *binaries)

        return self._measured(ask)

    def baselines(self) -> list[str]:
        reply, _ = self._asked(lambda member: member.handle.baselines.remote(self._pool.session))
        return [str(name) for name in reply["baselines"]]

    def peak(self, *, again: bool = False) -> float | None:
        return self._peak

    def bandwidth(self) -> float | None:
        return self._bandwidth

    def rates(self) -> tuple[float | None, float | None]:
        return self._peak, self._bandwidth

    def close(self) -> None:
        self._undo.close()

    def __enter__(self) -> RaySession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _stop(self) -> None:
        """Stop builds and kernels of this study, so that others get the slots and the devices."""
        self._flow.stop(CLOSE_SECONDS)
        if waited := self._pool.dismiss():
            # Only for a short time: another study that ends at this moment may end the actor too.
            self._ray.wait(waited, num_returns=len(waited), timeout=DISMISS_SECONDS)
        # References keep actors and objects alive.
        self._pool.members.clear()
        self._finalists.clear()
        self._handed.clear()
        self._home = None

    def _device(self) -> Member:
        """The device of the finals: the same one until it is lost."""
        until = time.monotonic() + self._patience
        while time.monotonic() < until:
            with self._flow.lock:
                ready = self._pool.ready
                if self._home not in ready:
                    self._home = ready[0] if ready else None
                if self._home is not None:
                    return self._home
            if not self._flow.alive:
                self.results(timeout=0.0)  # raises the error that ended it
                raise DeepgenError("the Ray session has ended")
            time.sleep(TICK_SECONDS)
        raise DeepgenError(f"no device of the Ray cluster has answered for {self._patience:g} seconds")

    def _measured(self, ask: Ask) -> list[Measurement]:
        reply, member = self._asked(ask)
        return [placed(Measurement.from_json(m), member) for m in reply["measurements"]]

    def _asked(self, ask: Ask) -> tuple[dict[str, Any], Member]:
        """The answer of the finals' device, or of another one if it is lost."""
        errors = self._ray.exceptions
        for _ in range(TRIES):
            member = self._device()
            try:
                reply: dict[str, Any] = json.loads(self._ray.get(ask(member)))
            except gone(errors):
                with self._flow.lock:
                    self._pool.lose(member)
                continue
            except errors.RayError as error:
                if not lost_object(errors, error):
                    raise DeepgenError(f"a measurement on the Ray cluster failed: {error}") from error
                self._finalists.clear()
                continue
            if "error" in reply:
                raise DeepgenError(reply["error"])
            if "unopened" not in reply and "set_aside" not in reply:
                return reply, member
            with self._flow.lock:
                if "set_aside" in reply:
                    self._pool.set_aside(member, reply["set_aside"])
                elif member.ready:
                    self._pool.reopen(member)
        raise DeepgenError(f"the devices of the Ray cluster were lost {TRIES} times in a row")

    def _finalist(self, kernel: Kernel) -> tuple[Artifact, str, Any]:
        """Its artifact, the same as JSON, and its binary in Ray's store, where it stays until the session ends."""
        if kernel.id not in self._finalists:
            artifact, binary = self._builds.now(kernel)
            self._finalists[kernel.id] = artifact, json.dumps(artifact.to_json()), binary
        return self._finalists[kernel.id]

    def _arrays(self, operator: Operator, seed: int, probe: str) -> Any:
        """Nodes have no user code: inputs and answers of an operator are computed here and put in Ray's store."""
        if not handed.needed(operator):
            return None
        name = handed.name(operator, seed, probe)
        if name not in self._handed:
            self._handed[name] = self._ray.put(handed.packed(operator, seed, probe))
        return self._handed[name]

    def _timed_on(self) -> list[Any]:
        """What a device needs for an operator that is not deepgen's own: the arrays of each timed shape, in order."""
        drawn = [self._arrays(operator, self.task.seed, "normal") for operator in self.task.timed]
        return [arrays for arrays in drawn if arrays is not None]

    def _helpers(self) -> dict[str, tuple[Kernel, Any]]:
        """Our own code for the device, built on nodes with compilers: hosts that only measure may have none."""
        built: dict[str, tuple[Kernel, Any]] = {}
        for name, kernel in helpers_for(self.task).items():
            with suppress(DeepgenError):  # the device's own host may be able to build it
                artifact, binary = self._builds.now(kernel)
                built[name] = completed(kernel, artifact.plan).without_sources(), binary
        return built
