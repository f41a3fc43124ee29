"""The renewal of a guide, made in a thread while the guide of before goes on proposing.

Fitting a kernel, drawing a pool and predicting it take as long as several trials on a quick device. When the renewed
guide is used depends on what was asked and told alone, so a search repeats whatever the thread's pace.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from typing import TypeVar

from deepgen.tuning.search.one_thread import one_thread
from deepgen.vocabulary.codec import Serializable

T = TypeVar("T")

_LEAST_LAG = 3  # trials: a batch with two compilers
_LAG = 16  # later, one for so many trials: a renewal takes longer the more there are


@dataclass(frozen=True)
class Renewal(Serializable):
    """What a renewal starts from, and when its guide is used."""

    after: int  # trials told when it began
    due: int  # trials told from which on its guide is used
    drawn: int  # trials told when its pool was drawn
    fit: bool
    pending: tuple[int, ...]  # ranks that were under way when it began

    def fits(self, ranks: frozenset[int], learned: int) -> bool:
        """Whether it can be of a search of such proposals and lessons."""
        return 0 <= self.drawn <= self.after <= min(self.due, learned) and ranks.issuperset(self.pending)


def lag(trials: int) -> int:
    """Trials that are told while a renewal is made."""
    return max(_LEAST_LAG, trials // _LAG)


def in_background(work: Callable[[], T]) -> Future[T]:
    """Its result, or what it raised. A thread that nobody waits for ends with the process."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            with one_thread():
                future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name="deepgen-model", daemon=True).start()
    return future
