"""Every entry of a library once more, on this machine: is it still right, and still as fast?

After an upgrade of a driver, a compiler or a library. The stored binaries themselves are run, as programs will.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from deepgen import baselines, targets
from deepgen.libraries.entry import Entry, Timed, is_resized
from deepgen.libraries.times import Times
from deepgen.libraries.winners import Library
from deepgen.measure import open_runner
from deepgen.measure.base import Contender, Policy, Task
from deepgen.measure.supervisor import Supervisor
from deepgen.targets import Elsewhere
from deepgen.tuning.finals import finals_inputs
from deepgen.tuning.statistics import paired_ratio
from deepgen.tuning.text import seconds_text
from deepgen.vocabulary import Artifact, DeepgenError, Measurement

RIGHT, SLOWER, WRONG, REFUSED, ELSEWHERE = "right", "slower", "wrong", "refused", "elsewhere"
FAILED = (SLOWER, WRONG, REFUSED)
TOLERANCE = 0.10  # of the time: noise between two days stays below it
_FEWEST_ROUNDS, _ROUNDS, _RACE_SECONDS = 3, 20, 4.0
_RETRIES = 2  # of a comparison that seems slower: a busy machine looks like a slow kernel


@dataclass(frozen=True)
class Checked:
    """What became of an entry."""

    name: str
    verdict: str
    before: float | None = None  # seconds
    now: float | None = None
    detail: str = ""

    @property
    def failed(self) -> bool:
        return self.verdict in FAILED


class Runners:
    """One runner at a time, which goes from operator to operator: starting one takes longer than a check."""

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


def check(
    library: Library, *, tolerance: float = TOLERANCE, say: Callable[[str], None] = lambda text: None
) -> list[Checked]:
    """Verify and time every entry that runs here. Damaged files are among the results."""
    out = [Checked(name, REFUSED, detail=why) for name, why in library.damaged().items()]
    with opened() as runners:
        for entry in sorted(library.list(), key=lambda e: (e.target.name, e.threads or 0)):
            say(f"checking {entry.name}")
            out.append(_checked(library, entry, runners, tolerance))
    return out


def time_across(library: Library, *, say: Callable[[str], None] = lambda text: None) -> int:
    """Time all kernels of an operator at each other's shapes, and keep the times; gives the number of shapes.

    The choice for shapes that nobody tuned is made from them.
    """
    here = [entry for entry in library.list() if _loadable(library, entry)]
    shapes = {}
    for entry in here:
        for timed in entry.timed:
            shapes[timed.operator, entry.conditions] = entry
    with opened() as runners, library.store.changing():
        for (operator, conditions), entry in shapes.items():
            say(f"timing all kernels at {operator.describe()}")
            alike = {
                one.kernel_id: one
                for one in here
                if (one.target, one.conditions) == (entry.target, conditions)
                and is_resized(one.operator, operator)
                and one.serves(operator) is None
            }
            names = baselines.raced(baselines.find(operator, entry.target))
            task = Task(operator, entry.target, policy=Policy(cold=entry.cold, threads=entry.threads))
            contenders = [contender_of(library, one) for one in alike.values()] + [Contender(name) for name in names]
            measured = _compared(runners.on(task), contenders)
            seconds = {c.name: m.seconds for c, m in zip(contenders, measured, strict=True) if m.ok and m.seconds}
            kernels = {one.kernel_id: seconds[one.name] for one in alike.values() if one.name in seconds}
            rivals = {name: seconds[name] for name in names if name in seconds}
            library.store.write_times(Times(operator, *conditions, kernels, rivals))
    library.reload()
    return len(shapes)


def _checked(library: Library, entry: Entry, runners: Runners, tolerance: float) -> Checked:
    try:
        contender = contender_of(library, entry)
        targets.device_for(entry.target)
    except Elsewhere as error:
        return Checked(entry.name, ELSEWHERE, entry.seconds, detail=error.why)
    except DeepgenError as error:
        return Checked(entry.name, REFUSED, entry.seconds, detail=str(error))
    result = Checked(entry.name, RIGHT, entry.seconds)
    for timed in entry.timed:
        task = Task(timed.operator, entry.target, policy=Policy(cold=entry.cold, threads=entry.threads))
        runner = runners.on(task)
        if (wrong := _wrong(runner, task, contender)) is not None:
            return replace(result, verdict=WRONG, detail=wrong)
        rivals = [name for name in timed.baselines if name in baselines.find(timed.operator, entry.target)]
        found = result
        for _ in range(1 + _RETRIES):
            found = _timed(runner, contender, timed, rivals, result, tolerance)
            if found.verdict != SLOWER:
                break
        if found.verdict != RIGHT or timed is entry.timed[-1]:
            return found
    return result


def _wrong(runner: Supervisor, task: Task, contender: Contender) -> str | None:
    """The first input on which the kernel is not right, in words."""
    assert contender.kernel is not None and contender.artifact is not None
    for shape, seed, probe in finals_inputs(task):
        measured = runner.verify(contender.kernel, contender.artifact, seed, probe, shape)
        if not measured.ok:
            return f"{measured.verdict.value.replace('_', ' ')} on {probe} inputs: {measured.detail}"
    return None


def _timed(
    runner: Supervisor, contender: Contender, timed: Timed, rivals: Sequence[str], result: Checked, tolerance: float
) -> Checked:
    contenders = [contender, *map(Contender, rivals)]
    ours, *others = _compared(runner, contenders)
    if not ours.ok or ours.seconds is None:
        return replace(result, verdict=WRONG, detail=ours.detail)
    now = replace(result, before=timed.seconds, now=ours.seconds)
    slower = ours.seconds / timed.seconds
    if slower <= 1.0 + tolerance:
        return now
    kept = _ratios_kept(ours, dict(zip(rivals, others, strict=True)), timed)
    if kept and min(kept.values()) >= 1.0 / (1.0 + tolerance):
        rival = min(kept, key=lambda name: kept[name])
        return replace(now, detail=f"the machine is slower than it was: beside {rival} nothing has changed")
    return replace(now, verdict=SLOWER, detail=f"{slower:.2f} times as long as {seconds_text(timed.seconds)}")


def _compared(runner: Supervisor, contenders: Sequence[Contender]) -> list[Measurement]:
    """Rounds in which all take part: a few first, then as many as the time allows."""
    started = time.monotonic()
    first = runner.compare(contenders, _FEWEST_ROUNDS, 0)
    each = (time.monotonic() - started) / _FEWEST_ROUNDS
    more = min(_ROUNDS, int(_RACE_SECONDS / each)) - _FEWEST_ROUNDS
    if more <= 0 or not all(one.ok for one in first):
        return first
    again = runner.compare(contenders, more, 1)
    both = zip(first, again, strict=True)
    return [replace(then, samples=(*one.samples, *then.samples)) if then.ok else then for one, then in both]


def _ratios_kept(ours: Measurement, others: Mapping[str, Measurement], timed: Timed) -> dict[str, float]:
    """How much of our lead over each baseline is left."""
    return {
        name: paired_ratio(measured.samples, ours.samples).estimate / before
        for name, measured in others.items()
        if measured.ok and measured.samples and (before := timed.baselines[name].ratio)
    }


def contender_of(library: Library, entry: Entry) -> Contender:
    found = library.store.stored(entry, trusted=library.trusted)
    assert found.binary is not None, "where it was changed, `stored` has said so"
    form = found.binary.suffix.removeprefix(".")
    artifact = Artifact(found.kernel.id, str(found.binary.absolute()), form, "", {}, 0.0, plan=found.plan)
    return Contender(entry.name, found.kernel, artifact)


def _loadable(library: Library, entry: Entry) -> bool:
    try:
        targets.device_for(entry.target)
        library.store.stored(entry, trusted=library.trusted)
    except DeepgenError:
        return False
    return True
