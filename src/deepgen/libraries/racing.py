"""Kernels of a library and baselines timed side by side: at the shapes that were tuned, and where one is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from deepgen import baselines, targets
from deepgen.libraries import defaults
from deepgen.libraries.adding import Added
from deepgen.libraries.choice import Choice, comparable
from deepgen.libraries.entry import Entry, is_resized
from deepgen.libraries.times import Times
from deepgen.libraries.winners import Library
from deepgen.measure import open_runner
from deepgen.measure.base import Contender, Policy, Task
from deepgen.measure.supervisor import Supervisor
from deepgen.operators import Operator
from deepgen.tuning.finals import finals_inputs
from deepgen.vocabulary import Artifact, DeepgenError, Measurement

_FEWEST_ROUNDS, _ROUNDS, _RACE_SECONDS = 3, 20, 4.0
_FIRST = 8  # kernels, of those expected to be the fastest: all of a large library would make the first use slow
_DEFAULT = "default"  # what the default of a family is called in a race


class Runners:
    """One runner at a time, which goes from operator to operator: starting one takes longer than a race."""

    def __init__(self) -> None:
        self._runner: Supervisor | None = None

    def on(self, task: Task) -> Supervisor:
        same = self._runner is not None and (self._runner.task.target, self._runner.task.policy.threads) == (
            task.target,
            task.policy.threads,
        )
        if self._runner is not None and same:
            self._runner.switch_to(task)
            return self._runner
        self.close()
        made = open_runner(task)
        assert isinstance(made, Supervisor), "an entry is for a processor or a GPU"
        self._runner = made
        return made

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
        self._runner = None


@contextmanager
def opened() -> Iterator[Runners]:
    runners = Runners()
    try:
        yield runners
    finally:
        runners.close()


def time_across(library: Library, *, say: Callable[[str], None] = lambda text: None) -> int:
    """Time all kernels of an operator at each other's shapes, and keep the times; gives the number of shapes.

    The choice for shapes that nobody tuned is made from them.
    """
    here = [entry for entry in library.list() if _loadable(library, entry)]
    shapes = {}
    for entry in here:
        for timed in entry.timed:
            shapes[timed.operator, entry.conditions] = entry
    with opened() as runners:
        for (operator, conditions), entry in shapes.items():
            say(f"timing all kernels at {operator.describe()}")
            alike = _once(
                one
                for one in here
                if (one.target, one.conditions) == (entry.target, conditions)
                and is_resized(one.operator, operator)
                and one.serves(operator) is None
            )
            task = _task(operator, entry)
            times = _times(task, _measured(task, [contender_of(library, one) for one in alike], runners), alike)
            with library.store.changing():
                library.store.write_times(times)
    library.reload()
    return len(shapes)


@dataclass(frozen=True)
class Raced:
    """A race at one shape."""

    times: Times
    default: Added | None  # of the shape's family, where it is new and was faster than all entries


def time_chosen(library: Library, choice: Choice, runners: Runners | None = None) -> Raced | None:
    """Time the kernels that are expected to be the fastest at a shape beside the baselines that can run.

    Unless the shape was tuned, the default of its family takes part too, after it was built and verified. None where
    the library has no kernel of this operator in any shape that runs here.
    """
    entries = {entry.name: entry for entry in library.list()}
    able = [entries[one.name] for one in choice.considered if one.seconds is not None and one.name in entries]
    raced = _once(entry for entry in able[:_FIRST] if _loadable(library, entry))
    like = next((e for e in (*raced, *comparable(library.content(), choice.operator, choice.target)) if _here(e)), None)
    if like is None:
        return None
    if runners is not None:
        return _raced(library, choice.operator, raced, like, runners)
    with opened() as own:
        return _raced(library, choice.operator, raced, like, own)


def first_wrong(runner: Supervisor, task: Task, contender: Contender) -> str | None:
    """The first input of finals on which a kernel is not right, in words."""
    assert contender.kernel is not None and contender.artifact is not None
    for shape, seed, probe in finals_inputs(task):
        measured = runner.verify(contender.kernel, contender.artifact, seed, probe, shape)
        if not measured.ok:
            return f"{measured.verdict.value.replace('_', ' ')} on {probe} inputs: {measured.detail}"
    return None


def compared(runner: Supervisor, contenders: Sequence[Contender]) -> list[Measurement]:
    """Rounds in which all take part: a few first, then as many as the time allows, without those that failed."""
    started = time.monotonic()
    out = runner.compare(contenders, _FEWEST_ROUNDS, 0)
    each = (time.monotonic() - started) / _FEWEST_ROUNDS
    more = min(_ROUNDS, int(_RACE_SECONDS / each)) - _FEWEST_ROUNDS
    able = [place for place, one in enumerate(out) if one.ok]
    if more > 0 and able:
        again = runner.compare([contenders[place] for place in able], more, 1)
        for place, then in zip(able, again, strict=True):
            out[place] = replace(then, samples=(*out[place].samples, *then.samples)) if then.ok else then
    return out


def contender_of(library: Library, entry: Entry) -> Contender:
    found = library.store.stored(entry, trusted=library.trusted)
    assert found.binary is not None, "where it was changed, `stored` has said so"
    form = found.binary.suffix.removeprefix(".")
    artifact = Artifact(found.kernel.id, str(found.binary.absolute()), form, "", {}, 0.0, plan=found.plan)
    return Contender(entry.name, found.kernel, artifact)


def _once(entries: Iterable[Entry]) -> list[Entry]:
    """Each kernel once: several entries may have the same."""
    return list({entry.kernel_id: entry for entry in entries}.values())


def _task(operator: Operator, like: Entry) -> Task:
    return Task(operator, like.target, policy=Policy(cold=like.cold, threads=like.threads))


def _raced(library: Library, operator: Operator, entries: Sequence[Entry], like: Entry, runners: Runners) -> Raced:
    """Entries that were timed under like conditions, the default of the shape's family, and the baselines."""
    task = _task(operator, like)
    contenders = [contender_of(library, entry) for entry in entries]
    made, why = None, None
    tuned = (e for e in library.list() if e.conditions == like.conditions and e.at(operator) is not None)
    if next(tuned, None) is None:
        made, why = _default(task, like, runners)
    if made is None and not entries:
        return Raced(replace(_times(task, {}, ()), no_default=why), None)
    if made is None or any(entry.kernel_id == made.kernel.id for entry in entries):
        return Raced(replace(_times(task, _measured(task, contenders, runners), entries), no_default=why), None)
    measured = _measured(task, [*contenders, Contender(_DEFAULT, made.kernel, made.artifact)], runners)
    times = _times(task, measured, entries)
    own = measured[_DEFAULT]
    if not own.ok or not own.seconds:
        return Raced(replace(times, no_default=own.detail), None)
    times = replace(times, kernels={**times.kernels, made.kernel.id: own.seconds})
    fastest = own.seconds <= min(times.kernels.values())
    return Raced(times, defaults.entry_of(made, own, {n: measured[n] for n in times.baselines}) if fastest else None)


def _default(task: Task, like: Entry, runners: Runners) -> tuple[defaults.Default | None, str | None]:
    """The default of the family at a shape, once it was right on all inputs that finals use; or why there is none."""
    try:
        made = defaults.make(task.operator, like)
        wrong = first_wrong(runners.on(task), task, Contender(_DEFAULT, made.kernel, made.artifact))
    except DeepgenError as error:
        return None, str(error)
    return (made, None) if wrong is None else (None, f"{made.family}: {wrong}")


def _measured(task: Task, contenders: Sequence[Contender], runners: Runners) -> dict[str, Measurement]:
    """By name, with the baselines that can run."""
    all_of = [*contenders, *map(Contender, baselines.raced(baselines.find(task.operator, task.target)))]
    return dict(zip((one.name for one in all_of), compared(runners.on(task), all_of), strict=True))


def _times(task: Task, measured: Mapping[str, Measurement], entries: Iterable[Entry]) -> Times:
    seconds = {name: one.seconds for name, one in measured.items() if one.ok and one.seconds}
    ours = {entry.kernel_id: seconds[entry.name] for entry in entries if entry.name in seconds}
    rivals = {name: seconds[name] for name in baselines.find(task.operator, task.target) if name in seconds}
    conditions = (task.target.device_kind, task.policy.cold, task.policy.threads)
    return Times(task.operator, *conditions, ours, rivals)


def _here(entry: Entry) -> bool:
    try:
        targets.device_for(entry.target)
    except DeepgenError:
        return False
    return True


def _loadable(library: Library, entry: Entry) -> bool:
    try:
        library.store.stored(entry, trusted=library.trusted)
    except DeepgenError:
        return False
    return _here(entry)
