"""Which of a library's kernels serve a recorded model: decided by the time of all its calls, replayed in each form.

A kernel may win its own race and slow a model down, by what it leaves in caches or takes from other threads. So all of
them are timed together, and all but each one of them, in interleaved rounds. Those without which the model is faster
are left out, and what remains must be faster than torch in rounds of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from threading import Event
from typing import Any, TypeAlias

import torch
from torch.fx import GraphModule

from deepgen.frontends.torch.benching import ModelWay, Only, of_the_users, often_enough, sample
from deepgen.frontends.torch.calls import kinds_of
from deepgen.frontends.torch.optimizing import Optimized
from deepgen.frontends.torch.race import COMPILED, EAGER, GAIN, GRAPH, OPTIMIZED, Met, decided
from deepgen.frontends.torch.replaying import Replay, as_called, replay
from deepgen.frontends.torch.routes import TORCH
from deepgen.frontends.torch.using import Use
from deepgen.libraries import Library
from deepgen.libraries.entry import DecidedKernel, ModelTimes
from deepgen.operators import Operator
from deepgen.run.measure.race import RaceResult, Ratio, interleaved, paired_ratio, race
from deepgen.targets import Target
from deepgen.tuning.work import RecordedWork
from deepgen.vocabulary import DeepgenError, digest

_ROUNDS, _LEAST = 30, 8  # the most, and those after which intervals mean something
_PARTS = 0.6  # of the time, in which kernels are timed one by one
_PREPARING = 0.5  # of that time may go to preparing them, as compiling does
_COMPILING = 10.0  # seconds: with less, compiled code is left undecided
_SCATTER = 0.1  # width of an interval
_FAILS, _TOO_LITTLE = "the recorded calls fail", "too little time is left: give it a larger budget"

Say: TypeAlias = "Callable[[str], None]"
Kernels: TypeAlias = "frozenset[Operator]"


@dataclass(frozen=True)
class _Variant:
    """A model in one form with some kernels, ready to be timed."""

    way: ModelWay
    met: Callable[[], Sequence[Met]] = tuple


# Makes a variant with a library; None: torch's own.
_Start: TypeAlias = "Callable[[Any], _Variant]"


def decide(work: RecordedWork, library: Library, target: Target, *, seconds: float, stop: Event, say: Say) -> None:
    """Time a recorded model in each form, and keep in the library what serves it. A form that the time or a stop does
    not allow to finish is left undecided.
    """
    assert work.calls is not None
    ends, on_gpu = time.monotonic() + seconds, target.runner != "cpu"
    if on_gpu and not torch.cuda.is_available():
        raise DeepgenError("torch has no GPU here")
    with torch.no_grad(), _threads(work.calls.threads):
        plain = replay(work.calls, "cuda" if on_gpu else "cpu")
        patterns = any(not kinds_of(entry.operator) for entry in library.list())
        forms: dict[str, _Start] = {EAGER: partial(_eager, plain)}
        forms |= {OPTIMIZED: partial(_optimized, plain)} if patterns else {}
        forms |= {GRAPH: partial(_captured, plain)} if on_gpu else {}
        forms |= {COMPILED: partial(_compiled, plain)}
        for left, (form, start) in zip(range(len(forms), 0, -1), forms.items(), strict=True):
            until = time.monotonic() + (ends - time.monotonic()) / left
            about = f"the model, {form}"
            if until - time.monotonic() < (_COMPILING if form == COMPILED else 0.0):
                say(f"{about}: not decided: {_TOO_LITTLE}")
                continue
            try:
                outcome = _FormDecision(start, library, target, until, stop, partial(_prefixed, say, about)).outcome()
            except DeepgenError as error:
                if stop.is_set():
                    return
                say(f"{about}: not decided: {error}")
                continue
            times = _times(work, form, target, outcome, torch.get_num_threads())
            library.add_model(times)
            served = sum(one.serves for one in times.kernels)
            faster = f"{times.without / times.seconds:.3f} times as fast as torch's"
            say(f"{about}: {served} of {len(times.kernels)} kernels serve, {faster}")


def _prefixed(say: Say, about: str, text: str) -> None:
    say(f"{about}: {text}")


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class _Outcome:
    kept: Mapping[Operator, str]  # ids of the kernels that serve
    left: Mapping[Operator, str]  # and of those that do not
    seconds: float
    without: float


def _times(work: RecordedWork, form: str, target: Target, outcome: _Outcome, threads: int) -> ModelTimes:
    assert work.calls is not None
    kernels = tuple(
        DecidedKernel(operator, kernel, serves)
        for each, serves in ((outcome.kept, True), (outcome.left, False))
        for operator, kernel in each.items()
    )
    own = None if target.runner != "cpu" else threads
    model = digest(work.calls.to_json(), 8)
    return ModelTimes(model, form, target.device_kind, own, outcome.seconds, outcome.without, kernels)


def _is_open(ratio: Ratio) -> bool:
    """Whether a gain that would show in a race of its own cannot be excluded, as times scatter."""
    return ratio.high > 1.0 / GAIN and ratio.width > _SCATTER


class _FormDecision:
    """Decides for one form."""

    def __init__(self, start: _Start, library: Library, target: Target, until: float, stop: Event, say: Say) -> None:
        self._start, self._library, self._target = start, library, target
        self._begun, self._until, self._stop, self._say = time.monotonic(), until, stop, say
        self._variants: dict[Kernels | None, _Variant] = {}

    def outcome(self) -> _Outcome:
        """Raises DeepgenError if no kernel would serve, or if the time does not suffice."""
        began = time.monotonic()
        self._variant(None)
        if 2 * time.monotonic() - began > self._until:
            raise DeepgenError(_TOO_LITTLE)
        every = of_the_users(lambda: self._start(Only(self._library, None)), _FAILS)
        served = dict.fromkeys(met.operator for met in every.met() if met.ours and met.calls.served)
        kernels = {one: kernel for one in served if (kernel := self._kernel(one)) is not None}
        if not kernels:
            raise DeepgenError("the library has no kernel for its calls")
        self._variants[frozenset(kernels)] = every
        kept, proven = self._eliminated(frozenset(kernels), (time.monotonic() - began) / 2)
        sets = dict.fromkeys(one for one in (kept, proven) if one)
        samples = self._raced([None, *sets], self._until)
        if samples is None:
            raise DeepgenError(_TOO_LITTLE)
        chosen = next((one for one in sets if decided(samples[one], samples[None]).won), None)
        if chosen is None and any(_is_open(paired_ratio(samples[None], samples[one])) for one in sets):
            raise DeepgenError("its times scatter too much: run the command again on a quiet machine")
        left = {one: kernel for one, kernel in kernels.items() if chosen is None or one not in chosen}
        serving = {one: kernel for one, kernel in kernels.items() if one not in left}
        return _Outcome(serving, left, median(samples[chosen]), median(samples[None]))

    def _eliminated(self, kernels: Kernels, preparing: float) -> tuple[Kernels, Kernels]:
        """Those without which the model is not faster, and those without which it is slower beyond noise."""
        kept, proven = kernels, frozenset[Operator]()
        until = self._begun + _PARTS * (self._until - self._begun)
        while len(kept) > 1:
            left = until - time.monotonic()
            each = max(preparing / _PREPARING, _LEAST * sample(self._variant(kept).way), 1e-3)
            alone = [one for one in kernels if one in kept][: int(max(0.0, left) / each)]
            if not alone or self._stop.is_set():
                break
            self._say(f"timing it without each of {len(alone)} kernels")
            samples = self._raced([kept, *(kept - {one} for one in alone)], until)
            if samples is None:
                break
            gains = {one: paired_ratio(samples[kept - {one}], samples[kept]) for one in alone}
            lose = {one for one, ratio in gains.items() if ratio.high < 1.0}
            proven = frozenset(one for one, ratio in gains.items() if ratio.low > 1.0)
            if not lose:
                kept = kept.difference(one for one, ratio in gains.items() if ratio.estimate < 1.0)
                break
            kept = kept - lose
        return kept, proven & kept

    def _raced(self, sets: Sequence[Kernels | None], until: float) -> Mapping[Kernels | None, Sequence[float]] | None:
        """Seconds in interleaved rounds; None if there were too few."""

        def more(result: RaceResult[Kernels | None]) -> int:
            return int(not self._stop.is_set() and result.rounds < _ROUNDS and time.monotonic() < until)

        timers = {one: partial(sample, often_enough(self._variant(one).way)) for one in sets}
        result = race(timers, interleaved(timers, seed=0), 1, more)
        return None if self._stop.is_set() or result.rounds < _LEAST else result.samples

    def _variant(self, kernels: Kernels | None) -> _Variant:
        if kernels not in self._variants:
            library = None if kernels is None else Only(self._library, kernels)
            self._variants[kernels] = of_the_users(lambda: self._start(library), _FAILS)
        return self._variants[kernels]

    def _kernel(self, operator: Operator) -> str | None:
        entry = self._library.choose(operator, self._target, TORCH).entry
        return None if entry is None else entry.kernel_id


def _eager(plain: Replay, library: Any) -> _Variant:
    return _called(as_called(plain), library)


def _called(run: Callable[[], Any], library: Any) -> _Variant:
    if library is None:
        run()
        return _Variant(ModelWay("", run))
    used = Use(library, race=False, warns=False)
    with used:
        run(), run()  # the first decides what serves, and graphs count what follows
    return _Variant(ModelWay("", run, lambda: used), lambda: used.met)


def _optimized(plain: Replay, library: Any) -> _Variant:
    run = as_called(plain, late=False)
    if library is None:
        return _called(run, None)
    optimized = Optimized(run.graph, library, race=False)
    run(), run()
    return _Variant(ModelWay("", run), lambda: optimized.met)


def _compiled(plain: Replay, library: Any) -> _Variant:
    fast = torch.compile(GraphModule(torch.nn.Module(), plain.graph.graph))
    return _called(lambda: fast(*plain.inputs), library)


def _captured(plain: Replay, library: Any) -> _Variant:
    called = _eager(plain, library)
    graph = torch.cuda.CUDAGraph()
    with called.way.within(), torch.cuda.graph(graph):
        called.way.run()
    return _Variant(ModelWay("", graph.replay), called.met)
