"""The winner of a study, and loading it as a function."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deepgen.generators import Generator
from deepgen.operators import Operator
from deepgen.run.call.loaded import Loaded, load
from deepgen.toolchains.base import require_plain
from deepgen.tuning.study.text import bound_text, rate_text, seconds_text
from deepgen.vocabulary import DeepgenError, Kernel, Trial, foreign

if TYPE_CHECKING:
    from deepgen.tuning.study.study import Study


@dataclass(frozen=True)
class Best:
    """The winner of a study."""

    study: Study
    trial: Trial
    seconds: float
    judged: bool = True  # whether finals chose it

    @property
    def kernel(self) -> Kernel:
        return self.study.kernel(self.trial)

    def load(self) -> Loaded:
        """The winner as a function on arrays. It can be pickled: another process of this user loads it again.

        Warns if no finals were run.
        """
        if not self.judged:
            what = "no finals were run, so this kernel was verified only on the search's inputs"
            warnings.warn(f"{self.study.folder}: {what} (deepgen retest runs them)", stacklevel=2)
        loaded = self._load()
        loaded.origin = (_load_again, (*self.study.opened_by(), self.trial.id, self.trial.kernel_id))
        return loaded

    def _load(self) -> Loaded:
        study = self.study
        requires, exclusive = study.serves_only(), study.exclusive()
        stored = study.stored(self.trial)
        if stored is None:
            return load(study.kernel(self.trial), study.operator, study.target, requires=requires, exclusive=exclusive)
        if stored.binary is None and not stored.own:
            require_plain(stored.kernel, str(study.folder))
        return load(stored.kernel, study.operator, study.target, stored.binary, stored.plan, requires, exclusive)

    def __repr__(self) -> str:
        return f"<deepgen winner of {self.study.describe()} on {self.study.target.shown}: {self._speed()}>"

    def _repr_html_(self) -> str:
        facts = {
            "operator": self.study.describe(),
            "target": self.study.target.shown,
            "speed": self._speed(),
            "config": ", ".join(f"{knob}={value}" for knob, value in self.trial.config.items()),
            "folder": str(self.study.folder),
        }
        return foreign.html_table("deepgen winner", facts)

    def _speed(self) -> str:
        fast = self.study.speed(self.seconds)
        return f"{rate_text(fast)} ({seconds_text(self.seconds)}{bound_text(fast)})"


def _load_again(
    folder: Path, operator: Operator | None, generator: Generator | None, number: int, kernel_id: str
) -> Loaded:
    """Load a pickled kernel from its study, under the same rules as the first time."""
    from deepgen.tuning.study.study import Study  # imported late, as that module imports this one

    study = Study.open(folder, operator=operator, generator=generator)
    trial = study.trial(number)
    if trial.kernel_id != kernel_id:
        raise DeepgenError(f"{folder} now has a kernel other than the pickled one, as trial {number}")
    return Best(study, trial, trial.seconds or 0.0).load()
