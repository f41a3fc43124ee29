"""Studies on spaces that are not one diagram (unions, or spaces too wide to be counted) are interrupted and resumed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_space_wide import give_up

from deepgen.space.relax import Partial
from deepgen.space.union import Union
from deepgen.tuning import Study
from deepgen.tuning.study.journal import Journal

UNION = ("tune", "gemm", "MNK=16", "--target", "cpu", "--family", "rules", "--strategy", "random", "--keep-top", "1",
         "--baseline", "numpy", "--trials", "5")  # fmt: skip
WIDE = ("tune", "gemm", "MNK=64", "--target", "sim", "--strategy", "evolution", "--trials", "30")


def interrupt_after(trials: int, patch: pytest.MonkeyPatch) -> None:
    """Send Ctrl-C once this many trials are in the journal."""
    finish = Journal.finish

    def finished(journal: Journal, *given: Any) -> None:
        finish(journal, *given)
        if len(journal.ended_from(0)) >= trials:
            patch.setattr(Journal, "finish", finish)
            os.kill(os.getpid(), signal.SIGINT)

    patch.setattr(Journal, "finish", finished)


@pytest.mark.parametrize(("command", "engine"), [(UNION, Union), (WIDE, Partial)], ids=["union", "wide"])
def test_a_resumed_search_goes_on_as_if_it_had_not_been_interrupted(
    command: tuple[str, ...], engine: type, deepgen: Callable, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine is Partial:
        give_up(monkeypatch, lambda _: False)
    with pytest.MonkeyPatch.context() as patch:
        interrupt_after(2, patch)
        said = deepgen(*command, "--out", "one")
    assert said.code == 130, said.err
    (folder,) = (project / "one").iterdir()
    kept = Study.open(folder).trials()
    assert len(kept) >= 2
    assert deepgen("resume", f"one/{folder.name}").code == 0
    assert deepgen(*command, "--out", "other").code == 0
    resumed, whole = Study.open(folder), Study.open(next((project / "other").iterdir()))
    assert isinstance(resumed.space._ready()[0], engine)
    after = {trial.id: trial for trial in resumed.trials()}
    assert [after[trial.id] for trial in kept] == kept
    assert [t.config for t in resumed.trials()] == [t.config for t in whole.trials()]
    assert len(whole.trials()) == int(command[-1])
