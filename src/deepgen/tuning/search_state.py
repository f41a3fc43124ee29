"""The strategy and its journal, in step: what was asked and told, and the same again after an interruption."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from deepgen import search
from deepgen.search import Strategy
from deepgen.search.base import Restorable
from deepgen.search.second_look import Opinion, SecondLook
from deepgen.space import Space
from deepgen.tuning.identity import strategy_digest
from deepgen.tuning.journal import Journal
from deepgen.tuning.request import Plan, Request
from deepgen.tuning.rows import Ask, Proposal
from deepgen.tuning.transfer import history
from deepgen.vocabulary import DeepgenError, JsonObject, Trial


def open_search(request: Request, planned: Plan, journal: Journal, look: SecondLook | None = None) -> SearchState:
    """The search of a study, not yet driven through what its journal holds."""
    past = history(request, planned, journal)
    setting = search.Setting(planned.space, request.seed, planned.starts, request.options, past)
    return SearchState(lambda: search.make(request.strategy, setting), planned.space, journal, look)


class SearchState:
    """Asks in a fixed rhythm and tells in the order of asking, so that a search depends on its seed and results only.

    Trials end in any order; those that end early wait here until all before them were told. What the second look
    thinks of a config is settled when the config is asked for, by what was told until then.
    """

    def __init__(
        self, make: Callable[[], Strategy], space: Space, journal: Journal, look: SecondLook | None = None
    ) -> None:
        self.strategy = make()
        self._make = make
        self._code = strategy_digest(self.strategy)
        self._look = look
        self._space = space
        self._journal = journal
        self._restart = journal.restart()
        self._known: dict[int, Trial | None] = {}  # after a new beginning: trials of before by rank, once told
        self._waiting: dict[int, Trial] = {}
        self.proposals: dict[int, Proposal] = {}  # asked for, not ended
        self.opinions: dict[int, Opinion] = {}  # of the proposals, where there is a second look
        self.asked = 0
        self.told = 0
        self.exhausted = False
        self.listen: Callable[[Trial], None] = lambda trial: None  # hears what the strategy is told, when it is told

    @property
    def ended(self) -> int:
        """Trials that have a measurement, told or not."""
        return self.asked - len(self._restart.lost) - len(self.proposals)

    def replay(self) -> list[Trial]:
        """Go through the journal's asks and tells as they happened. Returns the trials that had ended.

        A strategy that can be put where its last ask left it need not be asked and told all that again.
        Where damage cut the search off, it begins again: it is told of all trials of before in their order, as if they
        had been its own, and what is asked for from there on is recorded and repeated as ever.
        """
        ended = self._journal.trials()
        self._waiting = {trial.id: trial for trial in ended}
        recorded = {p.id: p for p in self._journal.proposals()}
        before = [recorded[i] for i in range(self._restart.asked) if i not in self._restart.lost]
        self._known = dict.fromkeys(p.rank for p in before)
        self.asked = self._restart.asked
        self._propose([p for p in before if p.id not in self._waiting])
        asks = self._journal.asks()
        restored = self._restore(asks, [p.rank for p in recorded.values()])
        for ask in asks:
            while self.told < ask.told:
                self._tell_next(strategy=not restored)
            expected = [recorded[i] for i in range(ask.first, ask.first + ask.given)] if ask.given else []
            if not restored and not self._repeats(ask.wanted, expected):
                raise DeepgenError(
                    f"{self._journal.folder}: the strategy does not repeat what this study recorded at trial "
                    f"{self.asked}; it was changed since. Start a new study with another --seed"
                )
            self.asked += ask.given
            self.exhausted = ask.given < ask.wanted
            self._propose([p for p in expected if p.id not in self._waiting])
        return ended

    def _restore(self, asks: Sequence[Ask], ranks: Sequence[int]) -> bool:
        """Whether the strategy is where its last ask left it, which it is only by the code that was asked."""
        kept = self._journal.checkpoint()
        if kept is None or not asks or self._begun_anew or kept.get("code") != self._code:
            return False
        if not isinstance(self.strategy, Restorable) or not isinstance(kept.get("state"), dict):
            return False
        try:
            self.strategy.restore(kept["state"], ranks, [self._waiting[i] for i in range(asks[-1].told)])
        except ValueError:
            self.strategy = self._make()
            return False
        return True

    def _checkpoint(self) -> JsonObject | None:
        if not self._code or self._begun_anew or not isinstance(self.strategy, Restorable):
            return None
        state = self.strategy.state()
        return None if state is None else {"code": self._code, "state": state}

    @property
    def _begun_anew(self) -> bool:
        """Whether damage cut the search off: then the strategy hears more than the asks and tells say."""
        return self._restart.asked > 0

    def _repeats(self, wanted: int, expected: Sequence[Proposal]) -> bool:
        return [self._space.rank(config) for config in self._ask_strategy(wanted)] == [p.rank for p in expected]

    def advance(self, window: int, budget: int, *, more: Callable[[], bool] = lambda: True) -> list[Proposal]:
        """Tell what is ready and ask for more, each at its moment. Returns the new proposals, durable in the journal.

        An ask is due when a batch fits into the window, and happens at exactly that many tells, however many results
        have come in by then. Where `more` says no, nothing is asked for.
        """
        batch = max(1, window // 2)
        fresh: list[Proposal] = []
        while True:
            wanted = min(batch, budget - self.asked + len(self._restart.lost))
            room = self.asked - self.told <= window - batch
            if room and wanted > 0 and not self.exhausted and more():
                fresh += self._ask(wanted)
            elif self.told in self._waiting or self.told in self._restart.lost:
                self._tell_next()
            else:
                return fresh

    def finish(self, trials: list[Trial]) -> None:
        """Trials have ended: durable now, told by the next `advance`."""
        if not trials:
            return
        self._journal.finish(trials)
        for trial in trials:
            del self.proposals[trial.id]
            self.opinions.pop(trial.id, None)
            self._waiting[trial.id] = trial

    def _tell_next(self, *, strategy: bool = True) -> None:
        """Tell the next trial in the order of asking; a lost one is passed over."""
        if self.told not in self._restart.lost:
            trial = self._waiting.pop(self.told)
            if strategy:
                self.strategy.tell(trial)
            if self._look is not None:
                self._look.hear(trial)
            self.listen(trial)
            if trial.rank in self._known:
                self._known[trial.rank] = trial
        self.told += 1

    def _ask_strategy(self, wanted: int) -> list[dict[str, Any]]:
        """New configs. After a restart a strategy may propose configs from before, which it has only been told of."""
        configs: list[dict[str, Any]] = []
        while wanted > len(configs):
            missing = wanted - len(configs)
            given = self.strategy.ask(missing)
            for config in given:
                rank = self._space.rank(config) if self._known else -1
                if rank not in self._known:
                    configs.append(config)
                elif (told := self._known[rank]) is not None:
                    self.strategy.tell(told)  # it waits for an answer
            if len(given) < missing:
                break
        return configs

    def _ask(self, wanted: int) -> list[Proposal]:
        configs = self._ask_strategy(wanted)
        self.exhausted = len(configs) < wanted
        fresh = [Proposal(self.asked + i, self._space.rank(c), c) for i, c in enumerate(configs)]
        self._journal.ask(self.told, wanted, fresh, self._checkpoint())
        self._propose(fresh)
        self.asked += len(fresh)
        return fresh

    def _propose(self, proposals: list[Proposal]) -> None:
        self.proposals.update({p.id: p for p in proposals})
        if self._look is not None and proposals:
            opinions = self._look.opinions([p.rank for p in proposals])
            self.opinions.update({p.id: opinion for p, opinion in zip(proposals, opinions, strict=True)})
