"""First use of an untuned shape: the candidates that are likely to be fastest are timed side by side.

Candidates need no search: the default of the shape's family, the configs that the family ranks next, and the winners of
other shapes with this shape's sizes compiled in. Further steps vary the fastest of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain, islice, zip_longest
from math import inf
from pathlib import Path
from typing import Any

from deepgen import __version__, baselines, generators
from deepgen.kernels import Generator, Modelled, Ranked
from deepgen.libraries.adding import Added, is_general, origin
from deepgen.libraries.choice import Choice, comparable, related
from deepgen.libraries.entry import Entry, Rival, Timed, Times
from deepgen.libraries.racing import (
    Runners,
    contender_of,
    first_wrong,
    is_here,
    is_loadable,
    measured,
    noise,
    once,
    opened,
    task_at,
    times_of,
)
from deepgen.libraries.winners import Library
from deepgen.operators import Operator
from deepgen.run.measure.base import Contender, Task
from deepgen.run.measure.race import median_interval, paired_ratio
from deepgen.space import Space
from deepgen.targets import host
from deepgen.toolchains import build_once
from deepgen.toolchains.base import require_plain
from deepgen.tuning.progress import timed_part
from deepgen.tuning.study.finals import Serves
from deepgen.tuning.study.winner import sha256
from deepgen.vocabulary import Artifact, DeepgenError, Kernel, Measurement, Verdict, completed, digest

_FIRST = 8  # kernels, of those expected to be fastest: all of a large library would make the first use slow
_LEADERS = 1.1  # kernels slower than the fastest by more than this factor do not race again
_STEPS = 3  # steps that generate variants of the fastest, at most
_STEPS_BEHIND = 6  # the same, while a baseline is faster
_GAIN = 0.995  # of the best time so far: a step that gains less than this ends the race
_CLOSE, _FINALISTS = 1.03, 4  # ratio to the fastest time, and the number of kernels that are timed again
# They are timed in at most this many rounds. On an H200 one sample in five is 0.9 us longer, for any kernel. By chance
# most of 20 rounds may be, and then the median of a kernel of 9 us is wrong by 10%.
_CONFIRMING = 60


@dataclass(frozen=True)
class Raced:
    """A race at one shape."""

    times: Times
    fastest: Added | None = None  # the fastest kernel generated for the shape, if it was faster than all entries
    tried: tuple[tuple[Candidate, Measurement], ...] = ()  # all kernels generated for it
    spent: Mapping[str, float] = field(default_factory=dict)  # seconds by activity
    noisy: str | None = None  # why its results must not be kept


def time_chosen(library: Library, choice: Choice, runners: Runners | None = None) -> Raced | None:
    """Time the kernels that are expected to be fastest at a shape, together with the baselines that can run.

    Unless the shape was tuned, kernels generated for it take part, and the fastest of all is verified. None if the
    library has no kernel for this operator, at any shape, that runs here.
    """
    entries = {entry.name: entry for entry in library.list()}
    able = [entries[one.name] for one in choice.considered if one.seconds is not None and one.name in entries]
    raced = once(entry for entry in able[:_FIRST] if is_loadable(library, entry))
    content = library.content()
    alike = (*raced, *comparable(content, choice.operator, choice.target), *related(content, choice.operator))
    like = next((entry for entry in alike if is_here(entry) and entry.target.runs_on(choice.target)), None)
    if like is None:
        return None
    if runners is not None:
        return _raced(library, choice.operator, raced, like, runners)
    with opened() as own:
        return _raced(library, choice.operator, raced, like, own)


def _raced(library: Library, operator: Operator, entries: Sequence[Entry], like: Entry, runners: Runners) -> Raced:
    """Race entries timed under the same conditions, kernels generated for the shape, and the baselines."""
    race = _Race(task_at(operator, like), runners, like, [contender_of(library, entry) for entry in entries])
    tuned = (e for e in library.list() if e.conditions == like.conditions and e.at(operator) is not None)
    if next(tuned, None) is None:
        race.make_first(entries)
    race.run()
    step = 0
    while step < (_STEPS_BEHIND if race.is_behind else _STEPS):
        step, before = step + 1, race.best
        race.make_variants()
        if not race.run() or (race.best > _GAIN * before and not race.is_behind):
            break
    fastest = race.confirmed()
    names = {entry.name: entry.kernel_id for entry in entries}
    names |= {} if fastest is None else {fastest.kernel.id: fastest.kernel.id}
    times = replace(times_of(race.task, race.measured, names), not_made=race.why_none)
    rivals = {name: race.measured[name] for name in times.baselines}
    added = None if fastest is None else entry_of(fastest, race.measured[fastest.kernel.id], rivals)
    return Raced(times, added, race.tried, race.spent, noise(race.task, race.measured))


class _Race:
    """The contenders at one shape, and their measurements. Kernels generated for the shape are named by their ids."""

    def __init__(self, task: Task, runners: Runners, like: Entry, entries: Sequence[Contender]) -> None:
        self.task, self._runners, self._like = task, runners, like
        self._contenders = {one.name: one for one in entries}
        self._built: dict[str, Candidate] = {}
        self._failures: list[str] = []
        self.measured: dict[str, Measurement] = {}
        self._last: list[str] = []  # contenders of the last race: only their rounds can be paired
        self.spent = dict.fromkeys(("building", "racing", "verifying"), 0.0)

    @property
    def tried(self) -> tuple[tuple[Candidate, Measurement], ...]:
        return tuple((candidate, self.measured[name]) for name, candidate in self._built.items())

    @property
    def why_none(self) -> str | None:
        """Why no kernel generated for the shape took part, if that was tried."""
        failed = [f"{candidate.family}: {one.detail}" for candidate, one in self.tried if not one.ok]
        return None if len(failed) < len(self._built) else next(iter([*self._failures, *failed]), None)

    @property
    def best(self) -> float:
        """Seconds of the fastest kernel."""
        return min(map(self._seconds, self._fastest_first()), default=inf)

    def make_first(self, entries: Sequence[Entry]) -> None:
        with timed_part(self.spent, "building"):
            try:
                self._make(first_candidates(self.task.operator, self._like, entries))
            except DeepgenError as error:
                self._failures.append(str(error))

    def make_variants(self) -> None:
        """Generate variants of the fastest kernel generated so far."""
        able = [name for name in self._fastest_first() if name in self._built]
        if able:
            with timed_part(self.spent, "building"):
                self._make(
                    varied_candidates(self._built[able[0]], [candidate.config for candidate in self._built.values()])
                )

    @property
    def is_behind(self) -> bool:
        """Whether a baseline is faster than all kernels."""
        able = baselines.find(self.task.operator, self.task.target)
        return any(0.0 < self._seconds(name) < self.best for name in able if name in self.measured)

    def run(self) -> bool:
        """Time the new contenders together with the leaders and the baselines; returns whether there were any."""
        order = self._fastest_first()
        new = [name for name in self._contenders if name not in self.measured]
        leaders = [name for name in order if self._seconds(name) <= _LEADERS * self._seconds(order[0])]
        if new:
            self._time([*new, *leaders])
        return bool(new)

    def confirmed(self) -> Candidate | None:
        """The fastest, timed again with the baselines: the first of many looks faster than it is.

        None if it was not generated for the shape. Kernels that fail on an input of the finals are skipped.
        """
        order = self._fastest_first()
        while order:
            close = [name for name in order if self._seconds(name) <= _CLOSE * self._seconds(order[0])]
            self._time(close[:_FINALISTS], _CONFIRMING)
            fastest = self._verified()
            if self._fastest_first():
                return fastest
            order = [name for name in order if name not in self._last]
        return None

    def _time(self, names: list[str], rounds: int | None = None) -> None:
        """Time these contenders. The machine may be faster or slower than in the previous race, so the times of those
        that no longer take part are scaled like that of the fastest one: a slower kernel stays slower in the stored
        times.
        """
        before = self._fastest_first()[:1]
        with timed_part(self.spent, "racing"):
            self._last = names
            now = measured(self.task, [self._contenders[name] for name in names], self._runners, rounds)
        for name in before:
            seconds = now[name].seconds if name in now and now[name].ok else None
            if seconds:
                self._change(seconds / self._seconds(name), self.measured.keys() - now.keys())
        self.measured |= now

    def _change(self, ratio: float, names: Iterable[str]) -> None:
        for name in names:
            one = self.measured[name]
            self.measured[name] = replace(one, samples=tuple(ratio * seconds for seconds in one.samples))

    def _verified(self) -> Candidate | None:
        """The fastest of the last race, if it was generated for the shape and is correct on all inputs of finals."""
        for name in self._fastest_first():
            if name not in self._built:
                return None
            with timed_part(self.spent, "verifying"):
                wrong = self._first_wrong(self._contenders[name])
            if wrong is None:
                return self._built[name]
            self.measured[name] = Measurement(Verdict.WRONG, wrong)
        return None

    def _first_wrong(self, contender: Contender) -> str | None:
        try:
            return first_wrong(self._runners.on(self.task), self.task, contender)
        except DeepgenError as error:
            return str(error)

    def _make(self, wanted: Sequence[tuple[Generator, Config]]) -> None:
        existing = {one.kernel.id for one in self._contenders.values() if one.kernel is not None}
        for one in build_candidates(self.task.operator, self._like, wanted):
            if isinstance(one, str):
                self._failures.append(one)
            elif one.kernel.id not in existing:
                self._built[one.kernel.id] = one
                self._contenders[one.kernel.id] = one.contender

    def _fastest_first(self) -> list[str]:
        """The correct kernels of the last race."""
        return sorted(filter(self._seconds, self._last), key=self._seconds)

    def _seconds(self, name: str) -> float:
        one = self.measured[name]
        return (one.ok and one.seconds) or 0.0


ORIGIN = "made for the shape, measured at first use"
_RANKED, _OTHERS, _VARIED = (
    12,
    4,
    12,
)  # at most: by the family's own ranking, winners of other shapes, in the second step
_ALIKE = 1.02  # ratio of modelled times up to which a config is worth trying: the model hardly distinguishes them
_SIZES_KNOB = "FIXED"  # whether sizes are compiled into a kernel

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Candidate:
    """A kernel built for one shape, to be timed in the same way as other entries."""

    operator: Operator
    like: Entry  # its target and conditions
    family: str
    config: Config
    kernel: Kernel
    artifact: Artifact

    @property
    def contender(self) -> Contender:
        return Contender(self.kernel.id, self.kernel, self.artifact)


def first_candidates(operator: Operator, like: Entry, winners: Sequence[Entry]) -> list[tuple[Generator, Config]]:
    """The configs worth trying at a shape, the default of its family first. Raises DeepgenError if none serves it."""
    family = generators.find(operator, like.target)
    target = like.target.limited_to(like.threads)
    space = family.space(operator, target)
    ranked = islice(family.ranked(operator, target), _RANKED) if isinstance(family, Ranked) else ()
    others = (dict(entry.config) for entry in winners if entry.family == family.name and _SIZES_KNOB in entry.config)
    fitting = islice((config for config in others if space.contains(config)), _OTHERS)
    return _once((family, sized(space, config)) for config in (family.default(operator, target), *ranked, *fitting))


def varied_candidates(best: Candidate, existing: Sequence[Config]) -> list[tuple[Generator, Config]]:
    """The fastest candidate with one knob changed, where the family's model predicts about the same time.

    Existing configs are left out. Empty if the family cannot rank configs: then only the default is built.
    """
    family = generators.by_name(best.family)
    if not isinstance(family, Ranked) or not isinstance(family, Modelled):
        return []
    target = best.like.target.limited_to(best.like.threads)
    space = family.space(best.operator, target)
    modelled = family.modelled_seconds(best.operator, target, best.config)
    by_knob: dict[str, list[tuple[int, Config]]] = {}
    for config in space.neighbors(best.config):
        if config in existing:
            continue
        knob = next(knob for knob in space.knobs if config.get(knob.name) != best.config.get(knob.name))
        expected = family.modelled_seconds(best.operator, target, config)
        if knob.name != _SIZES_KNOB and modelled is not None and expected is not None and expected <= _ALIKE * modelled:
            places = [knob.values.index(one[knob.name]) if knob.name in one else 0 for one in (config, best.config)]
            by_knob.setdefault(knob.name, []).append((abs(places[0] - places[1]), config))
    nearest_first = (sorted(rows, key=lambda row: row[0]) for rows in by_knob.values())
    interleaved = chain.from_iterable(zip_longest(*nearest_first))
    return [(family, row[1]) for row in islice(filter(None, interleaved), _VARIED)]


def sized(space: Space, config: Config) -> Config:
    """The config with the sizes compiled in, if the family supports that: it then serves no other shape."""
    fixed = {**config, _SIZES_KNOB: True}
    return fixed if _SIZES_KNOB in config and space.contains(fixed) else config


def build_candidates(
    operator: Operator, like: Entry, wanted: Sequence[tuple[Generator, Config]]
) -> Iterator[Candidate | str]:
    """Build each of them in parallel on all CPUs; one that cannot be built gives the reason, such as no compiler."""

    def built(one: tuple[Generator, Config]) -> Candidate | str:
        try:
            return _built(operator, like, *one)
        except DeepgenError as error:
            return str(error)

    with ThreadPoolExecutor(host.usable_cores()) as pool:
        yield from pool.map(built, wanted)


def _built(operator: Operator, like: Entry, family: Generator, config: Config) -> Candidate:
    kernel = family.emit(operator, like.target, config)
    require_plain(kernel, like.name)  # the target may come from a library of somebody else
    artifact = build_once(kernel, like.target)
    plan = completed(kernel, artifact.plan).plan
    untried = Serves((dict(operator.sizes()),), why="not verified at any other shape", dense="never verified")
    requires = (*plan.requires, *kernel.implied, *untried.requirements(operator.signature()))
    signed = replace(artifact, plan=replace(plan, requires=requires))
    return Candidate(operator, like, family.name, config, kernel, signed)


def entry_of(candidate: Candidate, measured: Measurement, rivals: Mapping[str, Measurement]) -> Added:
    """The candidate as an entry, from a race with the baselines."""
    assert measured.seconds is not None and candidate.artifact.plan is not None, "it was built, and timed"
    beside = {
        name: Rival(rival.seconds, paired_ratio(rival.samples, measured.samples).estimate)
        for name, rival in rivals.items()
        if rival.ok and rival.seconds
    }
    requires, like = candidate.artifact.plan.requires, candidate.like
    entry = Entry(
        target=like.target,
        cold=like.cold,
        threads=like.threads,
        general=is_general(requires, candidate.operator),
        family=candidate.family,
        config=dict(candidate.config),
        kernel_id=candidate.kernel.id,
        binary=sha256(Path(candidate.artifact.binary)),
        requires=requires,
        timed=(Timed(candidate.operator, measured.seconds, median_interval(measured.samples), beside),),
        peak_gflops=like.peak_gflops,
        bandwidth=like.bandwidth,
        provenance={"origin": ORIGIN, "rounds": len(measured.samples), **origin(__version__, candidate.artifact)},
    )
    return entry, candidate.kernel, candidate.artifact


def _once(wanted: Iterable[tuple[Generator, Config]]) -> list[tuple[Generator, Config]]:
    return list({digest([family.name, dict(config)]): (family, config) for family, config in wanted}.values())
