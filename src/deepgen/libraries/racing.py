"""Kernels of a library and baselines timed side by side: at the shapes that were tuned, and where one is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from deepgen import baselines, targets
from deepgen.libraries.choice import Choice
from deepgen.libraries.entry import Entry, is_resized
from deepgen.libraries.times import Times
from deepgen.libraries.winners import Library
from deepgen.measure import open_runner
from deepgen.measure.base import Contender, Policy, Task
from deepgen.measure.supervisor import Supervisor
from deepgen.operators import Operator
from deepgen.vocabulary import Artifact, DeepgenError, Measurement

_FEWEST_ROUNDS, _ROUNDS, _RACE_SECONDS = 3, 20, 4.0
_FIRST = 8  # kernels, of those expected to be the fastest: all of a large library would make the first use slow


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
            alike = [
                one
                for one in here
                if (one.target, one.conditions) == (entry.target, conditions)
                and is_resized(one.operator, operator)
                and one.serves(operator) is None
            ]
            times = _timed(library, operator, alike, runners)
            with library.store.changing():
                library.store.write_times(times)
    library.reload()
    return len(shapes)


def time_chosen(library: Library, choice: Choice, runners: Runners | None = None) -> Times | None:
    """Time the kernels that are expected to be the fastest at a shape beside the baselines that can run.

    None where no kernel serves the shape, and where none of them runs here.
    """
    entries = {entry.name: entry for entry in library.list()}
    able = [entries[one.name] for one in choice.considered if one.seconds is not None and one.name in entries]
    raced = [entry for entry in able[:_FIRST] if _loadable(library, entry)]
    if not raced:
        return None
    if runners is not None:
        return _timed(library, choice.operator, raced, runners)
    with opened() as own:
        return _timed(library, choice.operator, raced, own)


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


def _timed(library: Library, operator: Operator, entries: Iterable[Entry], runners: Runners) -> Times:
    """All of these, which were timed under like conditions, and the baselines."""
    kernels = {entry.kernel_id: entry for entry in entries}
    first = next(iter(kernels.values()))
    names = baselines.raced(baselines.find(operator, first.target))
    contenders = [*(contender_of(library, entry) for entry in kernels.values()), *map(Contender, names)]
    task = Task(operator, first.target, policy=Policy(cold=first.cold, threads=first.threads))
    measured = zip(contenders, compared(runners.on(task), contenders), strict=True)
    seconds = {contender.name: one.seconds for contender, one in measured if one.ok and one.seconds}
    ours = {kernel: seconds[entry.name] for kernel, entry in kernels.items() if entry.name in seconds}
    return Times(operator, *first.conditions, ours, {name: seconds[name] for name in names if name in seconds})


def _loadable(library: Library, entry: Entry) -> bool:
    try:
        targets.device_for(entry.target)
        library.store.stored(entry, trusted=library.trusted)
    except DeepgenError:
        return False
    return True
