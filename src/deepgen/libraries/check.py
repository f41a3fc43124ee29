"""Every entry of a library once more, on this machine: is it still right, and still as fast?

After an upgrade of a driver, a compiler or a library. The stored binaries themselves are run, as programs will.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from deepgen import baselines, targets
from deepgen.libraries.entry import Entry, Timed
from deepgen.libraries.racing import Runners, compared, contender_of, first_wrong, opened
from deepgen.libraries.winners import Library
from deepgen.run.measure.base import Contender, Policy, Task
from deepgen.run.measure.race import paired_ratio
from deepgen.run.measure.supervisor import Supervisor
from deepgen.targets import Elsewhere
from deepgen.tuning.study.text import seconds_text
from deepgen.vocabulary import DeepgenError, Measurement

RIGHT, SLOWER, WRONG, REFUSED, ELSEWHERE = "right", "slower", "wrong", "refused", "elsewhere"
FAILED = (SLOWER, WRONG, REFUSED)
TOLERANCE = 0.10  # of the time: noise between two days stays below it
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
        return replace(now, detail=f"the machine is slower than it was: beside {rival} nothing has changed")
    return replace(now, verdict=SLOWER, detail=f"{slower:.2f} times as long as {seconds_text(timed.seconds)}")


def _ratios_kept(ours: Measurement, others: Mapping[str, Measurement], timed: Timed) -> dict[str, float]:
    """How much of our lead over each baseline is left."""
    return {
        name: paired_ratio(measured.samples, ours.samples).estimate / before
        for name, measured in others.items()
        if measured.ok and measured.samples and (before := timed.baselines[name].ratio)
    }
