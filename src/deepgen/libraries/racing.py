"""Times a library's kernels and baselines side by side, at tuned and other shapes, and rechecks every entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count

from deepgen import baselines, targets
from deepgen.libraries.entry import Entry, Timed, Times, is_resized
from deepgen.libraries.winners import Library
from deepgen.operators import Operator
from deepgen.run.measure import conditions, open_runner
from deepgen.run.measure.base import Contender, Policy, Task
from deepgen.run.measure.race import RaceResult, paired_ratio, race
from deepgen.run.measure.supervisor import Supervisor
from deepgen.targets import Elsewhere
from deepgen.tuning.finals.qualifying import finals_inputs
from deepgen.tuning.study.text import seconds_text
from deepgen.vocabulary import Artifact, DeepgenError, Measurement

_FEWEST_ROUNDS, _ROUNDS, _RACE_SECONDS = 3, 20, 4.0


class Runners:
    """One runner at a time, reused across operators: starting one takes longer than a race."""

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
        runner = open_runner(task)
        assert isinstance(runner, Supervisor), "an entry is for a CPU or a GPU"
        self._runner = runner
        return runner

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
    """Time all kernels of an operator at each other's shapes, and store the times; returns the number of shapes.

    Choices for untuned shapes are based on these times.
    """
    here = [entry for entry in library.list() if is_loadable(library, entry)]
    shapes = {}
    for entry in here:
        for timed in entry.timed:
            shapes[timed.operator, entry.conditions] = entry
    with opened() as runners:
        for (operator, conditions), entry in shapes.items():
            say(f"timing all kernels at {operator.describe()}")
            alike = once(
                one
                for one in here
                if (one.target, one.conditions) == (entry.target, conditions)
                and is_resized(one.operator, operator)
                and one.serves(operator) is None
            )
            task = task_at(operator, entry)
            names = {one.name: one.kernel_id for one in alike}
            results = measured(task, [contender_of(library, one) for one in alike], runners)
            if why := noise(task, results):
                say(f"timing too noisy at {operator.describe()}: {why}")
                continue
            times = times_of(task, results, names)
            with library.store.changing():
                library.store.write_times(times)
    library.reload()
    return len(shapes)


def first_wrong(runner: Supervisor, task: Task, contender: Contender) -> str | None:
    """The first input of the finals on which a kernel is wrong, described in words; None if there is none."""
    assert contender.kernel is not None and contender.artifact is not None
    for shape, seed, probe in finals_inputs(task):
        measured = runner.verify(contender.kernel, contender.artifact, seed, probe, shape)
        if not measured.ok:
            return f"{measured.verdict.value.replace('_', ' ')} on {probe} inputs: {measured.detail}"
    return None


def compared(runner: Supervisor, contenders: Sequence[Contender], rounds: int | None = None) -> list[Measurement]:
    """Rounds in which all take part: a few at first, then as many as fit in the time limit, without those that failed.

    `rounds`: an upper limit other than the default. The duration of a round is taken from the second batch, since the
    first loads everything, including the frameworks of baselines.
    """
    measured: dict[str, Measurement] = {}
    by_name, seeds = {one.name: one for one in contenders}, count()

    def time_rounds(names: Sequence[str], rounds: int, start: int) -> Mapping[str, Sequence[float]]:
        results = runner.compare([by_name[name] for name in names], rounds, next(seeds))
        able = {name: one for name, one in zip(names, results, strict=True) if one.ok}
        for name, one in zip(names, results, strict=True):
            before = measured[name].samples if name in able and name in measured else ()
            measured[name] = replace(one, samples=(*before, *one.samples))
        return {name: one.samples for name, one in able.items()}

    def more(result: RaceResult[str]) -> int:
        if len(result.seconds) == 1:
            return _FEWEST_ROUNDS
        fitting = int(_RACE_SECONDS * _FEWEST_ROUNDS / result.seconds[1])
        return min(rounds or _ROUNDS, fitting) - 2 * _FEWEST_ROUNDS if len(result.seconds) == 2 else 0

    race(by_name, time_rounds, _FEWEST_ROUNDS, more)
    return [measured[one.name] for one in contenders]


def contender_of(library: Library, entry: Entry) -> Contender:
    stored = library.store.stored(entry, trusted=library.trusted)
    assert stored.binary is not None, "`stored` has already reported a changed binary"
    form = stored.binary.suffix.removeprefix(".")
    artifact = Artifact(stored.kernel.id, str(stored.binary.absolute()), form, "", {}, 0.0, plan=stored.plan)
    return Contender(entry.name, stored.kernel, artifact)


def once(entries: Iterable[Entry]) -> list[Entry]:
    """Each kernel once: several entries may share one."""
    return list({entry.kernel_id: entry for entry in entries}.values())


def task_at(operator: Operator, like: Entry) -> Task:
    return Task(operator, like.target, policy=Policy(cold=like.cold, threads=like.threads))


def measured(
    task: Task, contenders: Sequence[Contender], runners: Runners, rounds: int | None = None
) -> dict[str, Measurement]:
    """Measurements by name, including those of the baselines that can run."""
    all_of = [*contenders, *map(Contender, baselines.raced(baselines.find(task.operator, task.target)))]
    return dict(zip((one.name for one in all_of), compared(runners.on(task), all_of, rounds), strict=True))


def noise(task: Task, measured: Mapping[str, Measurement]) -> str | None:
    """Why these times must not be kept, in words: on a CPU a busy machine may have distorted them."""
    rows = [one.conditions for one in measured.values() if one.ok] if task.target.runner == "cpu" else []
    return conditions.noise(rows)


def times_of(task: Task, measured: Mapping[str, Measurement], kernels: Mapping[str, str]) -> Times:
    """`kernels`: the ids of our kernels whose times are kept, keyed by their names in the race."""
    able = {name: one for name, one in measured.items() if one.ok and one.seconds}
    seconds = {name: one.seconds or 0.0 for name, one in able.items()}
    ours = [name for name in kernels if name in able]
    rivals = [name for name in baselines.find(task.operator, task.target) if name in able]
    best = min(ours, key=lambda name: seconds[name], default=None)
    ties = [name for name in rivals if best is not None and _is_tie(able[best].samples, able[name].samples)]
    conditions = (task.target.device_kind, task.policy.cold, task.policy.threads)
    timed = ({kernels[name]: seconds[name] for name in ours}, {name: seconds[name] for name in rivals})
    return Times(task.operator, *conditions, *timed, tuple(ties))


def _is_tie(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Whether ours is not significantly slower, based on the rounds of one race."""
    return len(ours) == len(theirs) and paired_ratio(ours, theirs).no_slower


def is_here(entry: Entry) -> bool:
    try:
        targets.device_for(entry.target)
    except DeepgenError:
        return False
    return True


def is_loadable(library: Library, entry: Entry) -> bool:
    try:
        library.store.stored(entry, trusted=library.trusted)
    except DeepgenError:
        return False
    return is_here(entry)


RIGHT, SLOWER, WRONG, REFUSED, ELSEWHERE = "right", "slower", "wrong", "refused", "elsewhere"
FAILED = (SLOWER, WRONG, REFUSED)
TOLERANCE = 0.10  # of the time: the noise between two days is smaller
_RETRIES = 2  # of a comparison that seems slower, since a busy machine makes a kernel look slow


@dataclass(frozen=True)
class Checked:
    """The result for one entry."""

    name: str
    verdict: str
    before: float | None = None  # seconds
    now: float | None = None
    detail: str = ""

    @property
    def failed(self) -> bool:
        return self.verdict in FAILED


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
        if (wrong := first_wrong(runner, task, contender)) is not None:
            return replace(result, verdict=WRONG, detail=wrong)
        rivals = [name for name in timed.baselines if name in baselines.find(timed.operator, entry.target)]
        current = result
        for _ in range(1 + _RETRIES):
            current = _timed(runner, contender, timed, rivals, result, tolerance)
            if current.verdict != SLOWER:
                break
        if current.verdict != RIGHT or timed is entry.timed[-1]:
            return current
    return result


def _timed(
    runner: Supervisor, contender: Contender, timed: Timed, rivals: Sequence[str], result: Checked, tolerance: float
) -> Checked:
    contenders = [contender, *map(Contender, rivals)]
    ours, *others = compared(runner, contenders)
    if not ours.ok or ours.seconds is None:
        return replace(result, verdict=WRONG, detail=ours.detail)
    now = replace(result, before=timed.seconds, now=ours.seconds)
    slower = ours.seconds / timed.seconds
    if slower <= 1.0 + tolerance:
        return now
    kept = _ratios_kept(ours, dict(zip(rivals, others, strict=True)), timed)
    if kept and min(kept.values()) >= 1.0 / (1.0 + tolerance):
        rival = min(kept, key=lambda name: kept[name])
        return replace(now, detail=f"the machine is slower than before: relative to {rival} nothing has changed")
    return replace(now, verdict=SLOWER, detail=f"{slower:.2f} times as long as {seconds_text(timed.seconds)}")


def _ratios_kept(ours: Measurement, others: Mapping[str, Measurement], timed: Timed) -> dict[str, float]:
    """The share of our lead over each baseline that remains."""
    return {
        name: paired_ratio(measured.samples, ours.samples).estimate / before
        for name, measured in others.items()
        if measured.ok and measured.samples and (before := timed.baselines[name].ratio)
    }
