"""Keeps the strategy and the journal in step: every ask and tell, replay after an interruption, and transfer from
earlier studies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from deepgen import generators
from deepgen.space import Space
from deepgen.tuning import search
from deepgen.tuning.request import Request, StudyPlan
from deepgen.tuning.search import Past, Strategy, recorded
from deepgen.tuning.search.base import Restorable
from deepgen.tuning.search.one_thread import one_thread
from deepgen.tuning.search.second_look import Opinion, SecondLook
from deepgen.tuning.study.identity import strategy_digest
from deepgen.tuning.study.journal import FILE, Journal
from deepgen.tuning.study.rows import Ask, Proposal
from deepgen.tuning.study.study import Study
from deepgen.vocabulary import BadInput, DeepgenError, Json, JsonObject, Measurement, Trial, Verdict


def open_search(request: Request, planned: StudyPlan, journal: Journal, look: SecondLook | None = None) -> SearchState:
    """The search state of a study, before its journal is replayed."""
    past = history(request, planned, journal)
    setting = search.Setting(planned.space, request.seed, planned.starts, request.options, past, planned.members)
    return SearchState(lambda: search.make(request.strategy, setting), planned.space, journal, look)


BATCHES = 4  # per window: with few large ones, engines run out of work while the last of a batch is built
LEAST_BATCH = 4  # configs, unless that exceeds half the window: each ask has a fixed cost


class SearchState:
    """Asks at fixed points and tells in the order of asking, so that a search depends on its seed and results only.

    Trials end in any order; early ones wait here until all trials before them were told. The second look's opinion of a
    config is fixed when the config is asked for, based on the trials told until then.
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
        self._earlier: dict[int, Trial | None] = {}  # after a restart: earlier trials by rank, None until told
        self._waiting: dict[int, Trial] = {}
        self.proposals: dict[int, Proposal] = {}  # asked for and not ended
        self.opinions: dict[int, Opinion] = {}  # of the proposals, if there is a second look
        self.asked = 0
        self.reported = 0
        self.exhausted = False
        self.listen: Callable[[Trial], None] = lambda trial: None  # called with each trial told to the strategy

    @property
    def ended(self) -> int:
        """Trials that have a measurement, whether told or not."""
        return self.asked - len(self._restart.lost) - len(self.proposals)

    @one_thread()
    def replay(self) -> list[Trial]:
        """Repeat the journal's asks and tells in order. Returns the trials that had ended.

        A strategy whose state was saved with its last ask is restored instead of replayed. If damage interrupted the
        search, it restarts: the strategy gets all earlier trials in order, as if they were its own, and later asks are
        recorded and replayed as usual.
        """
        ended = self._journal.trials()
        self._waiting = {trial.id: trial for trial in ended}
        recorded = {p.id: p for p in self._journal.proposals()}
        before = [recorded[i] for i in range(self._restart.asked) if i not in self._restart.lost]
        self._earlier = dict.fromkeys(p.rank for p in before)
        self.asked = self._restart.asked
        self._propose([p for p in before if p.id not in self._waiting])
        asks = self._journal.asks()
        restored = self._restore(asks, [p.rank for p in recorded.values()])
        for ask in asks:
            while self.reported < ask.after:
                self._tell_next(strategy=not restored)
            expected = [recorded[i] for i in range(ask.first, ask.first + ask.count)] if ask.count else []
            if not restored and not self._repeats(ask.wanted, expected):
                raise DeepgenError(
                    f"{self._journal.folder}: the strategy does not repeat what this study recorded at trial "
                    f"{self.asked}; its code has changed since. Start a new study with another --seed"
                )
            self.asked += ask.count
            self.exhausted = ask.count < ask.wanted
            self._propose([p for p in expected if p.id not in self._waiting])
        return ended

    def _restore(self, asks: Sequence[Ask], ranks: Sequence[int]) -> bool:
        """Restore the state after the last ask, if the same code saved it. Returns whether it did."""
        kept = self._journal.checkpoint()
        if kept is None or not asks or self._restarted or kept.get("code") != self._code:
            return False
        if not isinstance(self.strategy, Restorable) or not isinstance(kept.get("state"), dict):
            return False
        try:
            self.strategy.restore(kept["state"], ranks, [self._waiting[i] for i in range(asks[-1].after)])
        except ValueError:
            self.strategy = self._make()
            return False
        return True

    def _checkpoint(self) -> JsonObject | None:
        if not self._code or self._restarted or not isinstance(self.strategy, Restorable):
            return None
        state = self.strategy.state()
        return None if state is None else {"code": self._code, "state": state}

    @property
    def _restarted(self) -> bool:
        """Whether damage interrupted the search: then the strategy was told more than its asks and tells show."""
        return self._restart.asked > 0

    def _repeats(self, wanted: int, expected: Sequence[Proposal]) -> bool:
        return [self._space.rank(config) for config in self._ask_strategy(wanted)] == [p.rank for p in expected]

    @one_thread()
    def advance(self, window: int, budget: int, *, more: Callable[[], bool] = lambda: True) -> list[Proposal]:
        """Tell what is ready and ask for more, each when it is due. Returns new proposals, durable in the journal.

        An ask is due when a batch fits into the window: after a fixed number of tells, however many results have come
        in by then. The first ask is for one config, which needs no model. Each call makes at most one ask, so that its
        proposals are in progress during the next one; if nothing is due, the list is empty. If `more` returns False,
        nothing is asked for.
        """
        batch = max(1, window // BATCHES, min(window // 2, LEAST_BATCH))
        while True:
            wanted = min(batch if self.asked else 1, budget - self.asked + len(self._restart.lost))
            room = self.asked - self.reported <= window - batch
            if room and wanted > 0 and not self.exhausted and more():
                if fresh := self._ask(wanted):
                    return fresh
            elif self.reported in self._waiting or self.reported in self._restart.lost:
                self._tell_next()
            else:
                return []

    def finish(self, trials: list[Trial]) -> None:
        """Record that trials have ended; the next `advance` tells the strategy."""
        if not trials:
            return
        self._journal.finish(trials)
        for trial in trials:
            del self.proposals[trial.id]
            self.opinions.pop(trial.id, None)
            self._waiting[trial.id] = trial

    def _tell_next(self, *, strategy: bool = True) -> None:
        """Tell the next trial in the order of asking; a lost one is skipped."""
        if self.reported not in self._restart.lost:
            trial = self._waiting.pop(self.reported)
            if strategy:
                self.strategy.tell(trial)
            if self._look is not None:
                self._look.hear(trial)
            self.listen(trial)
            if trial.rank in self._earlier:
                self._earlier[trial.rank] = trial
        self.reported += 1

    def _ask_strategy(self, wanted: int) -> list[dict[str, Any]]:
        """New configs. After a restart a strategy may propose earlier configs, which it was only told about."""
        configs: list[dict[str, Any]] = []
        while wanted > len(configs):
            missing = wanted - len(configs)
            proposed = self.strategy.ask(missing)
            for config in proposed:
                rank = self._space.rank(config) if self._earlier else -1
                if rank not in self._earlier:
                    configs.append(config)
                elif (earlier := self._earlier[rank]) is not None:
                    self.strategy.tell(earlier)  # it expects a result for each proposal
            if len(proposed) < missing:
                break
        return configs

    def _ask(self, wanted: int) -> list[Proposal]:
        configs = self._ask_strategy(wanted)
        self.exhausted = len(configs) < wanted
        fresh = [Proposal(self.asked + i, self._space.rank(c), c) for i, c in enumerate(configs)]
        self._journal.ask(self.reported, wanted, fresh, self._checkpoint())
        self._propose(fresh)
        self.asked += len(fresh)
        return fresh

    def _propose(self, proposals: list[Proposal]) -> None:
        self.proposals.update({p.id: p for p in proposals})
        if self._look is not None and proposals:
            opinions = self._look.opinions([p.rank for p in proposals])
            self.opinions.update({p.id: opinion for p, opinion in zip(proposals, opinions, strict=True)})


STUDIES = 3  # the most similar ones; more add little and cost time at every ask
TRIALS = 600  # of each study
LEAST = 20  # trials; a smaller study is not used


def history(request: Request, planned: StudyPlan, journal: Journal) -> list[Past]:
    """The earlier studies that this one learns from: chosen at the start, and the same after every resume."""
    if not request.transfer and not request.learn_from:
        return []
    kept = journal.history()
    if kept is None:
        studies = _alike(request, planned) if request.transfer and not journal.asks() else []
        kept = [] if journal.asks() else [*map(_recording, request.learn_from), *studies]
        journal.keep_history(kept)
        if kept:
            names = ", ".join(str(row["name"]) for row in kept)
            journal.note(f"the search starts from the results of earlier studies: {names}")
    names_kept = {row["name"] for row in kept}
    late = next((path.name for path in request.learn_from if path.name not in names_kept), None)
    if late is not None:
        raise BadInput(
            f"{planned.folder} was started without {late}", allowed="start a new study in another folder with --out"
        )
    return [_past(row) for row in kept]


def _alike(request: Request, planned: StudyPlan) -> list[dict[str, Json]]:
    """The stored part of studies of the same generator, those with the most similar work first."""
    scored = [
        (
            study.folder != planned.after,
            _distance(study.definition["operator"], request.operator.to_json()),
            study.target.name != request.target.name,
            study.folder.name,
            study,
        )
        for study in _neighbours(planned)
    ]
    kept: list[dict[str, Json]] = []
    for *_, study in sorted(scored, key=lambda row: row[:4]):
        if len(kept) < STUDIES:
            with suppress(DeepgenError):  # a study that cannot be read is skipped
                kept.append(_kept(study))
    return kept


def _neighbours(planned: StudyPlan) -> Iterator[Study]:
    for folder in sorted(planned.folder.parent.iterdir()):
        if folder == planned.folder or not (folder / FILE).is_file():
            continue
        with suppress(DeepgenError):
            with Journal(folder) as theirs:  # a tally suffices: there may be many studies, and few are read in full
                ended = theirs.tally().ended
            study = Study.open(folder)
            least = 1 if folder == planned.after else LEAST
            if ended >= least and _same_family(study.definition, planned.definition):
                yield study


def _same_family(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether both have a family in common; each kernel of a user is a family of its own."""
    kernels = [definition["operator"].get("kernel") for definition in (one, other)]
    names = [set(generators.family_names(definition["generator"])) for definition in (one, other)]
    # A kernel that another reference rejected may be correct.
    judges = [definition.get("judged_by") for definition in (one, other)]
    rejudged = one["operator"].get("name") == other["operator"].get("name") and judges[0] != judges[1]
    return bool(names[0] & names[1]) and kernels[0] == kernels[1] and not rejudged


def _distance(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """How different the work is: sizes on a logarithmic scale; another layout or dtype counts as a factor of two."""
    total = 0.0
    for key in mine.keys() | theirs.keys():
        a, b = mine.get(key), theirs.get(key)
        if isinstance(a, (int, float)) and isinstance(b, (int, float)) and a > 0 and b > 0:
            total += abs(math.log2(a / b))
        elif a != b:
            total += 1.0
    return total


def _kept(study: Study) -> dict[str, Json]:
    """The part of another study that a journal stores: trials added to it later must not change this search."""
    trials: list[Json] = [[t.rank, t.seconds, t.measurement.verdict.value] for t in study.trials()[:TRIALS]]
    return {
        "name": study.folder.name,
        "operator": study.definition["operator"],
        "describe": study.about.describe(),
        "space": study.space.to_json(),
        "trials": trials,
        "family": study.definition["generator"],
    }


def _recording(path: Path) -> dict[str, Json]:
    """The part of a recording that a journal stores: from a large one, every n-th config in order of time."""
    recording = recorded.read(path)
    trials = sorted(recording.past.trials, key=lambda trial: (trial.seconds is None, trial.seconds))
    step = max(1, math.ceil(len(trials) / TRIALS))
    rows: list[Json] = [
        [recording.space.rank(dict(t.config)), t.seconds, t.measurement.verdict.value] for t in trials[::step]
    ]
    return {"name": path.name, "describe": recording.name, "space": recording.space.to_json(), "trials": rows}


def _past(row: Mapping[str, Any]) -> Past:
    trials = _Kept(Space.from_json(row["space"]), row["trials"])
    right = sum(verdict == Verdict.CORRECT.value for *_, verdict in row["trials"])
    return Past(f"{row['name']} ({row['describe']})", trials.space, trials, row.get("family"), right)


class _Kept(Sequence[Trial]):
    """Trials of another study that a journal stored, converted at first use because that compiles their space."""

    def __init__(self, space: Space, rows: Sequence[tuple[int, float | None, str]]) -> None:
        self.space, self._kept_rows = space, rows

    @cached_property
    def _trials(self) -> list[Trial]:
        return [
            Trial(i, rank, self.space.at(rank), "", Measurement(Verdict(verdict), samples=() if s is None else (s,)))
            for i, (rank, s, verdict) in enumerate(self._kept_rows)
        ]

    def __len__(self) -> int:
        return len(self._kept_rows)

    def __getitem__(self, place: Any) -> Any:
        return self._trials[place]
