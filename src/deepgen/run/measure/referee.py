"""How a worker answers requests on any device: verify, time, verify again; or time several contenders interleaved."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from deepgen.run.counters import Counted
from deepgen.run.measure import handed
from deepgen.run.measure.base import MANY_CALLS, SEVERAL_THREADS, SINGLE, STRIDED, Helper, Task
from deepgen.run.measure.bench import Rejected
from deepgen.run.measure.channel import DOING, WorkerStage
from deepgen.run.measure.endurance import WORN_SHARE, exit_handlers, repeated
from deepgen.run.measure.entrant import ROUGH, Entrant
from deepgen.run.measure.guarded import Placement
from deepgen.run.measure.race import enough, interleaved, race
from deepgen.vocabulary import DeepgenError, JsonObject, Measurement, Verdict


class ContextLost(Exception):
    """A kernel has left the device or this process unusable: a new worker process is needed."""

    def __init__(self, detail: str, verdict: Verdict = Verdict.CRASHED) -> None:
        super().__init__(detail)
        self.detail, self.verdict = detail, verdict


@dataclass(frozen=True)
class Inputs:
    """The inputs of a run: the index of a shape in the task, and the seed and probe that inputs are drawn from."""

    seed: int
    probe: str = "normal"
    shape: int = 0

    @property
    def first(self) -> Inputs:
        """The first of the sets that alternate on one bench."""
        return replace(self, seed=handed.pair(self.seed, self.probe)[0])


E = TypeVar("E", bound=Entrant)


class Referee(ABC, Generic[E]):
    """Judges many kernels for one operator on one device."""

    places_apart = False  # whether finalists also run on tensors that are each aligned in another way
    task: Task
    _worn: set[str]  # binaries that have already been called many times in this process
    announce: Callable[[], None]  # tells the supervisor that timing begins or has ended
    judge: Helper | None  # the kernel to compare with if the operator has no reference

    @abstractmethod
    def entrant(self, inputs: Inputs, who: int, beat: float | None, placed: Placement = Placement.LINES) -> E:
        """A contender with these inputs and nothing loaded yet."""

    def strided_entrant(self, inputs: Inputs) -> E | None:
        """A contender whose tensors have padded rows; None if all are dense."""
        return None

    @abstractmethod
    def load(self, entrant: E, entry: Mapping[str, Any]) -> None:
        """Load a kernel or a baseline. Raises Rejected."""

    @abstractmethod
    def limited(self) -> AbstractContextManager[None]:
        """While this context is open, kernels cannot use up the machine's memory."""

    @abstractmethod
    def look(self) -> None:
        """Called before timing begins."""

    @abstractmethod
    def conditions(self, entrant: E) -> JsonObject: ...

    @abstractmethod
    def stray(self) -> bool:
        """Whether this process is in a state in which nothing more should be timed."""

    @abstractmethod
    def counted(self, entrant: E, events: Sequence[str]) -> Counted:
        """Run the kernel as often as needed to count these events."""

    def inspect(self, entrant: E, *, finished: bool = False) -> None:
        """Check the process after a run. Raises ContextLost if it was left changed, or, when `finished`, busy."""
        return

    def close(self) -> None:
        """Release what another operator in this process does not need."""
        return

    def give_answers(self, entrant: E) -> None:
        """Compute answers by running the kernel that others are compared with."""
        try:
            if self.judge is None:
                raise DeepgenError("the reference kernel could not be built")
            entrant.load(self.judge.kernel, str(self.judge.binary))
            entrant.answer()
        except Rejected as error:
            raise DeepgenError(f"the reference kernel: {error}") from error
        finally:
            entrant.close()

    def measure(self, request: Mapping[str, Any]) -> list[Measurement]:
        """Verify, time, verify again, and run once more with arrays aligned only as promised."""
        policy, beat = self.task.policy, request["beat"]
        samples: list[float] = []

        def work(entrant: E) -> None:
            entrant.first()
            self.look()
            entrant.partly = True  # in finals it is not
            with self._timing(request):
                latest = time.monotonic() + 10.0 + 4.0 * policy.max_seconds
                while not enough(samples, policy, beat) and time.monotonic() < latest:
                    samples.append(entrant.timed())
            entrant.last()
            self.inspect(entrant, finished=True)

        inputs = self._usual(request)
        measured = self._attempted(self.entrant(inputs, 0, beat), request, work, samples)
        return [self._also_off(measured, inputs, request)]

    @contextmanager
    def _timing(self, request: Mapping[str, Any]) -> Iterator[None]:
        """Announce that timing begins and ends, if requested, so that other activity is held; also when a run fails."""
        announce = self.announce if request.get("announced") else _nothing
        announce()
        yield
        announce()

    def count(self, request: Mapping[str, Any]) -> list[Measurement]:
        """Count events of a kernel on the task's own inputs. No samples are taken, as counting may slow it down."""
        counted = Counted()

        def work(entrant: E) -> None:
            nonlocal counted
            entrant.first()
            self.look()
            with self._timing(request):
                counted = self.counted(entrant, request["events"])
            self.inspect(entrant, finished=True)

        measured = self._attempted(self.entrant(self._usual(request), 0, None), request, work)
        return [counted.kept_in(measured) if measured.ok else measured]

    def verify(self, request: Mapping[str, Any]) -> list[Measurement]:
        """The verdict on other inputs with tensors against the guard pages, and for usual inputs also one element off;
        or on usual inputs in another way of calling."""
        inputs = Inputs(request["seed"], handed.drawn_as(request["probe"]), request.get("shape", 0))
        if request["probe"] in (MANY_CALLS, SEVERAL_THREADS):
            work = self._many_calls if request["probe"] == MANY_CALLS else self._several_threads
            return [self._attempted(self.entrant(inputs, 0, None), request, partial(work, request))]
        strided = request["probe"] == STRIDED
        entrant = self.strided_entrant(inputs) if strided else self.entrant(inputs, 0, None, Placement.TIGHT)
        if entrant is None:
            return [Measurement(Verdict.REFUSED, "arrays must be dense here")]

        def verify(entrant: E) -> None:
            entrant.changing = request["probe"] == "normal"
            entrant.first()
            entrant.last()
            self.inspect(entrant)

        verified = self._attempted(entrant, request, verify)
        if request["probe"] != "normal":
            return [verified]
        verified = self._also_off(verified, inputs, request)
        return [self._also_apart(verified, inputs, request) if self.places_apart else verified]

    def _many_calls(self, request: Mapping[str, Any], entrant: E) -> None:
        """Call it many times, compare every result, and check for growing resources."""
        entrant.first()
        if (grown := repeated(entrant.again, self.task.policy.calls_seconds)) is not None:
            raise ContextLost(grown, Verdict.WRONG)
        entrant.last()
        self.inspect(entrant, finished=True)
        if exit_handlers(os.path.realpath(request["binary"])):
            raise ContextLost("registered functions to be called at process exit (atexit)", Verdict.WRONG)

    def _several_threads(self, request: Mapping[str, Any], entrant: E) -> None:
        entrant.first()
        entrant.last()
        if (wrong := entrant.at_once()) is not None:
            raise Rejected(Verdict.WRONG, f"{wrong}, {DOING[WorkerStage.THREADS]}")
        self.inspect(entrant)

    def _also_off(self, right: Measurement, inputs: Inputs, request: Mapping[str, Any]) -> Measurement:
        """The measurement of a correct kernel, unless another run with tensors aligned only as promised is wrong."""
        return self._also(right, inputs, request, Placement.OFF, WorkerStage.OFF)

    def _also_apart(self, right: Measurement, inputs: Inputs, request: Mapping[str, Any]) -> Measurement:
        """The same with tensors that are each aligned in another way. Every seed and shape has the next of three ways:
        so a winner meets all of them."""
        placed = Placement.apart(inputs.shape + inputs.seed // 2)
        return self._also(right, inputs, request, placed, WorkerStage.APART)

    def _also(
        self, right: Measurement, inputs: Inputs, request: Mapping[str, Any], placed: Placement, stage: WorkerStage
    ) -> Measurement:
        if not right.ok or not request.get("kernel"):
            return right

        def work(entrant: E) -> None:
            entrant.first()
            self.inspect(entrant)

        entrant = self.entrant(inputs, 0, None, placed)
        entrant.verifying = stage
        tried = self._attempted(entrant, request, work)
        if tried.verdict is Verdict.WRONG:
            return replace(tried, detail=f"{tried.detail}, {DOING[stage]}")
        return replace(right, error=max(right.error or 0.0, tried.error or 0.0)) if tried.ok else tried

    def prepare(self, request: Mapping[str, Any]) -> list[Measurement]:
        """Compute the usual inputs and answers before the first kernel is built."""
        self.entrant(self._usual(request), 0, None).close()
        return []

    def try_baselines(self, request: Mapping[str, Any]) -> list[Measurement]:
        """Load baselines and run each once on the usual inputs, so that a race need not wait for that."""

        def work(entrant: E) -> None:
            entrant.first()
            self.inspect(entrant)

        entries = enumerate(request["contenders"])
        return [self._attempted(self._entered(request, who), entry, work) for who, entry in entries]

    def compare(self, request: Mapping[str, Any]) -> list[Measurement]:
        """Time all contenders in a new random order each round. One that fails drops out; the others continue."""
        entries = request["contenders"]
        racing: dict[int, E] = {}
        out: dict[int, Measurement] = {}

        def attempt(who: int, work: Callable[[E], None]) -> None:
            try:
                work(racing[who])
                self.inspect(racing[who])
            except Rejected as rejected:
                lost = racing.pop(who)
                lost.close()
                out[who] = self._rejected(lost, rejected)
                self.inspect(lost)  # otherwise the next contender would be blamed for what this one changed

        def sample(who: int) -> float | None:
            seconds: list[float] = []
            single = entries[who].get("timed", SINGLE) == SINGLE
            attempt(who, lambda entrant: seconds.append(entrant.timed() if single else entrant.burst()))
            return seconds[0] if who in racing else None

        for who in range(len(entries)):
            racing[who] = self._entered(request, who)
            attempt(who, partial(self.load, entry=entries[who]))
        with self.limited():
            for who in list(racing):
                attempt(who, lambda entrant: entrant.first())
            for who in list(racing):
                if (worn := entries[who].get("worn", 0)) and entries[who]["binary"] not in self._worn:
                    attempt(who, partial(_wear, worn, WORN_SHARE * self.task.policy.calls_seconds))
                    self._worn.add(entries[who]["binary"])
            self.look()
            timers = {who: partial(sample, who) for who in range(len(entries))}
            samples = race(racing, interleaved(timers, request["seed"]), request["rounds"]).samples
            for who in list(racing):
                attempt(who, lambda entrant: entrant.last())
        for who, entrant in racing.items():
            out[who] = self._right(entrant, samples[who])
            entrant.close()
        return [out[who] for who in range(len(entries))]

    def _entered(self, request: Mapping[str, Any], who: int) -> E:
        """A contender of a race. A less accurate baseline is timed nevertheless."""
        placed = Placement.BEHIND if request["contenders"][who].get("behind") else Placement.LINES
        entrant = self.entrant(self._usual(request), who, None, placed)
        entrant.leeway = 1.0 if request["contenders"][who].get("kernel") else ROUGH
        return entrant

    def _usual(self, request: Mapping[str, Any]) -> Inputs:
        """The task's own inputs, at the requested shape."""
        return Inputs(self.task.seed, shape=request.get("shape", 0))

    def _attempted(
        self, entrant: E, request: Mapping[str, Any], work: Callable[[E], None], samples: Sequence[float] = ()
    ) -> Measurement:
        """Load the requested kernel and run `work` on it; its faults become its verdict."""
        try:
            self.load(entrant, request)
            with self.limited():
                work(entrant)
        except Rejected as rejected:
            return self._rejected(entrant, rejected)
        finally:
            entrant.close()
        return self._right(entrant, samples)

    def _rejected(self, entrant: E, why: Rejected) -> Measurement:
        return Measurement(why.verdict, why.detail, error=why.error, conditions=self.conditions(entrant))

    def _right(self, entrant: E, samples: Sequence[float]) -> Measurement:
        return Measurement(Verdict.CORRECT, "", tuple(samples), entrant.error, conditions=self.conditions(entrant))


def _nothing() -> None:
    return


def _wear(calls: int, seconds: float, entrant: Entrant) -> None:
    if (grown := entrant.wear(calls, seconds)) is not None:
        raise ContextLost(grown, Verdict.WRONG)
