"""Who takes part in finals: the fastest trials and those that were disturbed. Finals themselves add the default."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from deepgen.vocabulary import Trial

RESERVES = 4  # candidates per finalist: some may fail on harder inputs
_DISTURBED, _MOST_DISTURBED = 0.75, 2  # of the usual time, and how many such trials take part


def entrants(trials: Iterable[Trial], keep: int) -> tuple[list[Trial], int]:
    """The candidates, best first, and how many of them shall race: the first `keep`, and those that were disturbed."""
    right = sorted((t for t in trials if t.ok), key=lambda trial: (trial.seconds or 0.0, trial.rank))
    doubtful = [t for t in _disturbed(right) if t not in right[:keep]]
    reserves = [t for t in right[keep : RESERVES * keep] if t not in doubtful]
    return [*right[:keep], *doubtful, *reserves], keep + len(doubtful)


def _disturbed(right: Sequence[Trial]) -> list[Trial]:
    """Those that may be the fastest of all, though something else had the machine in most of their runs.

    Their fastest run took much less than the others, and less than the best trial's usual one. Finals are undisturbed.
    """
    leader = right[0].seconds or 0.0 if right else 0.0
    found = [
        (least, trial.id, trial)
        for trial in right
        if trial.seconds and (least := min(trial.measurement.samples)) < min(leader, _DISTURBED * trial.seconds)
    ]
    return [trial for *_, trial in sorted(found, key=lambda row: row[:2])[:_MOST_DISTURBED]]
