"""The tuner: asks a strategy, has an engine try its configs, records every result, and runs the finals at the end."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from deepgen.run.measure.base import Contender
from deepgen.tuning import costs
from deepgen.tuning.counting import Uncounted
from deepgen.tuning.emitting import Emitter
from deepgen.tuning.engines import Engine, LocalEngine, Look, Outcome, Session
from deepgen.tuning.finals import asked_for, run_finals, wanted_plan
from deepgen.tuning.finals.plan import Bounded, OutOfTime, for_finals, no_time, plan_finals, within
from deepgen.tuning.finals.qualifying import rehearse
from deepgen.tuning.progress import SEARCH, Clock, Progress, Stopping
from deepgen.tuning.request import Request, StudyPlan, check_memory, plan, task_of
from deepgen.tuning.search.second_look import SecondLook
from deepgen.tuning.search_state import open_search
from deepgen.tuning.speed import ARITHMETIC, speed, with_rates
from deepgen.tuning.study.identity import open_journal
from deepgen.tuning.study.journal import Journal
from deepgen.tuning.study.rows import Proposal
from deepgen.tuning.study.study import Study
from deepgen.tuning.study.text import lost_baselines
from deepgen.tuning.study.winner import keep_winner
from deepgen.vocabulary import Artifact, DeepgenError, Trial, Verdict

Watch = Callable[[Progress], None]
BASELINE_ROUNDS = 10
_AMPLE = 1e9  # seconds: enough for every step
_EMITTING = 0.02  # seconds between two checks for emitted kernels
_AFTER = 0.25  # seconds from the end of a session to process exit: reading and printing the result, freeing memory


def tune(
    request: Request,
    *,
    engine: Engine | None = None,
    watch: Watch | None = None,
    stop: threading.Event | None = None,
    started: float | None = None,
    worked_out: StudyPlan | None = None,
) -> Study:
    """Tune, or resume the same study; `stop` ends the run early and loses nothing.

    A time budget counts from `started` on the clock of `time.monotonic`, or from now. `worked_out` is the request's
    plan if the caller has it already.
    """
    clock = Clock(request.time_budget, started, costs.earlier(request.operator, request.target))
    if engine is None or isinstance(engine, LocalEngine):
        check_memory(request)
    with open_journal(request, worked_out or plan(request)) as (planned, journal):
        first = None if planned.first is None else str(planned.first)  # may exceed the integers of other JSON readers
        journal.begin_run({**request.budget(), "default": first, "started_at": clock.started_at})
        run = _Run(request, planned, journal, watch or (lambda progress: None), stop or threading.Event(), clock)
        if planned.anew:
            run.say(note=f"{planned.anew}: a new study, {planned.folder.name}")
        if not run.complete():
            try:
                with run.opened(engine or LocalEngine()) as session:
                    run.search(session)
                    run.finals(session)
                    ended = time.monotonic()
                clock.costs.hear(costs.END, time.monotonic() - ended + _AFTER)
                costs.keep(request.operator, request.target, clock.costs)
            finally:
                run.emitter.close()
                journal.add_time(clock.record())
        run.say(phase="done")
    return Study.open(planned.folder, operator=request.operator, generator=request.generator)


@dataclass
class _Best:
    seconds: float | None = None
    improved: tuple[tuple[int, float], ...] = ()

    def hear(self, trial: Trial, ended: int) -> None:
        if trial.seconds is not None and (self.seconds is None or trial.seconds < self.seconds):
            self.seconds = trial.seconds
            self.improved = (*self.improved, (ended, trial.seconds))


class _Run:
    """One run of the tuner over one study."""

    def __init__(
        self, request: Request, planned: StudyPlan, journal: Journal, watch: Watch, stop: threading.Event, clock: Clock
    ) -> None:
        self.request, self.plan, self.journal, self.clock = request, planned, journal, clock
        self.task = task_of(request)
        self._beside = request.operator, bool(getattr(planned.generator, "constant", False))  # kernels pack weights
        self.watch, self.stop = watch, stop
        self.look: Look | None = self._worth_running if request.uses_second_look else None
        self.state = open_search(request, planned, journal, SecondLook(planned.space) if self.look else None)
        self.best = _Best()
        self.verdicts: Counter[str] = Counter()
        self.progress = Progress("preparing", budget=min(request.trials, planned.space.ranks))  # configs never repeat
        self.emitter = Emitter(lambda config: planned.emit(request, config), planned.first)
        self.measured = 0  # trials measured in this run
        self.rehearsed = False
        ended = self.state.replay()
        self.uncounted = Uncounted(ended)
        for trial in ended:
            self._hear(trial)
        self.progress = replace(self.progress, resumed=len(ended))
        self.peak: float | None = None
        self.bandwidth: float | None = None

    def opened(self, engine: Engine) -> Session:
        """The session of the engine. Raises if opening it takes all the time."""
        limit = self.clock.spare if isinstance(engine, LocalEngine) else inf
        try:
            session = within(limit, lambda: engine.open(self.task, self.look), Session.close)
            session.until = time.monotonic() + self.clock.spare
            return session
        except OutOfTime:
            raise DeepgenError(no_time(self.clock)) from None

    def complete(self) -> bool:
        """Whether nothing is left to do: there are enough trials, and finals were run after the last of them."""
        finals = self.journal.finals()
        enough = (
            self.state.ended >= self.request.trials
            or self.state.exhausted
            or self._stopping(None, all_ended=True).reason()
        )
        if finals is None or finals.trials != self.state.ended or finals.left_out:
            return False
        wanted, compared = self.request.raced, finals.compared
        return bool(enough) and not self.state.proposals and (isinstance(wanted, bool) or compared >= {*wanted})

    def search(self, session: Session) -> None:
        self.clock.enter(SEARCH)
        self.peak, self.bandwidth = session.rates()
        if self.best.seconds is not None:
            session.beat(self.best.seconds)
        self.say(phase="searching", note=self._learned())
        wanted = self.request.target_speedup is not None
        stopping = self._stopping(self._baseline_seconds(session) if wanted else None)
        self.state.listen = stopping.hear

        def more() -> bool:
            return not self.state.asked or (not self.clock.search_over and stopping.reason() is None)

        for proposal in sorted(self.state.proposals.values(), key=self._order):
            self.emitter.submit(session, proposal)
        names: list[str] | None = None
        # Without any result, the time reserved for process exit may be used too.
        while not self.stop.is_set() and (self.clock.left if self.best.seconds is None else self.clock.spare) > 0.0:
            while proposals := self._proposed(session, more):
                for proposal in sorted(proposals, key=self._order):
                    self.emitter.submit(session, proposal)
                # After the first builds were submitted, before the strategy's next ask: a framework takes seconds.
                names = self._begin_loading(session) if names is None else names
            names = self._begin_loading(session) if names is None else names
            # Unfinished trials are tried on resume; without a correct kernel there is nothing to compare yet. A search
            # never ends before its first guess was tried, whatever else was measured.
            settled = self.best.seconds is not None and not self._first_pending
            if self.clock.search_over and settled and session.drop():
                self._end_last(session, len(names))
                break
            if not self.state.proposals:
                if why := stopping.reason():
                    self.journal.note(f"the search stopped early: {why}")
                break
            self.emitter.pump(session)
            longest = _EMITTING if self.emitter.waiting else 0.25
            self._collect(session, len(names), min(longest, max(0.01, self.clock.spare - self.clock.for_finals)))
            self._know_rates(session)
            self._rehearse(session, len(names))
            self.say(builds_running=session.builds_running)

    def _begin_loading(self, session: Session) -> list[str]:
        """Start loading the baselines that will race, and return their names."""
        names = asked_for(self.request.raced, session.baselines() if self.request.raced else [], *self._beside)
        self._plan_finals(len(names))
        if names:
            session.load(names, self.clock.spare)
        return names

    def _collect(self, session: Session, baselines: int, seconds: float) -> None:
        """Record the trials that have ended, waiting up to `seconds` for one."""
        with self.clock.on("building"):
            outcomes = session.results(timeout=seconds)
        self._count_costs(outcomes, baselines)
        trials = [self._trial(outcome) for outcome in outcomes]
        with self.clock.on("search"):
            self.state.finish(trials)
        for trial in trials:
            self._hear(trial)
        for reason in self.uncounted.of(trials):
            self.journal.note(reason)
            self.say(note=reason)
        if trials and self.best.seconds is not None:
            session.beat(self.best.seconds)

    def _end_last(self, session: Session, baselines: int) -> None:
        """Let the trial on the device end: finals would wait for it anyway, and count that wait as their own cost."""
        while session.measuring and self.clock.spare > 0.0:
            self._collect(session, baselines, 0.05)
        self._collect(session, baselines, 0.0)

    def _proposed(self, session: Session, more: Callable[[], bool]) -> list[Proposal]:
        with self.clock.on("search"):
            return self.state.advance(session.slots, self.request.trials, more=more)

    def _count_costs(self, outcomes: Sequence[Outcome], baselines: int) -> None:
        """Update the expected cost of finals from what trials took."""
        samples = sum(len(outcome.measurement.samples) for outcome in outcomes)
        self.clock.measured(sum(outcome.seconds for outcome in outcomes), samples)
        heard = self.clock.costs
        for outcome in outcomes:
            if not self.measured:  # includes the first reference and the worker's setup
                heard.guess(costs.REFERENCE, outcome.seconds)
            else:
                heard.hear(costs.TRIAL, outcome.seconds)
            taken = 1 + _count(outcome.measurement.conditions.get("retaken"))
            if self.measured and (count := len(outcome.measurement.samples)):
                heard.hear(costs.SAMPLE, outcome.seconds / (taken * count))
            self.measured += 1
        if outcomes:
            self._plan_finals(baselines)

    def _plan_finals(self, baselines: int) -> None:
        """Compute how much of the time finals need; the search gets the rest."""
        wanted = wanted_plan(self.task, self.request.keep_top + 1, baselines)
        self.clock.finals_seconds = plan_finals(_AMPLE, self.clock.costs, wanted).seconds
        if self.request.time_budget is not None:
            self.clock.for_finals = for_finals(self.request.time_budget, self.clock.costs, wanted)
            self.clock.finals_seconds = min(self.clock.finals_seconds, self.clock.for_finals)

    def _rehearse(self, session: Session, baselines: int) -> None:
        """Measure how long finals take, so that the search can use the time they do not need."""
        pending = self.best.seconds is None or self._first_pending or not self.clock.spends(costs.REFERENCE)
        if self.rehearsed or self.request.time_budget is None or pending or session.measuring:
            return
        self.rehearsed = True
        default = self.journal.right(self.plan.first)
        if default is not None:
            with self.clock.on("verifying"), suppress(OutOfTime, DeepgenError):  # finals will report it
                rehearse(Bounded(session, self.clock), self.task, self.emitter.kernel(default.config), self.clock)
        self._plan_finals(baselines)

    def _know_rates(self, session: Session) -> None:
        """Measure the device's rates, to compare the best kernel with: after the first trial, and if there is time."""
        if self.peak is None and self.best.seconds is not None and self.clock.spends(costs.PEAK):
            with self.clock.on("measuring"), self.clock.hearing(costs.PEAK):
                self.peak, self.bandwidth = session.peak(), session.bandwidth()

    def finals(self, session: Session) -> None:
        if self.stop.is_set():
            self.journal.note("stopped before the finals; run the same command again to resume")
            return
        trials, default = self.journal.trials(), self.journal.right(self.plan.first)
        right = any(trial.ok for trial in trials)
        if not right and not self.state.ended:
            raise DeepgenError(no_time(self.clock, *session.reference_seconds()))
        if not right and default is None:
            raise DeepgenError(f"none of {self.state.ended} kernels computed a correct result: {self._failures()}")
        self.say(phase="finals")
        self.emitter.close()
        result = run_finals(
            session,
            self.task,
            trials,
            lambda trial: self.emitter.kernel(trial.config),
            default=default,
            keep=self.request.keep_top,
            baselines=self.request.raced,
            clock=self.clock,
            loaded=session.loaded,
            say=lambda text: self.say(note=text),
        )
        for reason in result.dropped_reasons():
            self.journal.note(f"dropped from the finals: {reason}")
        for reason in lost_baselines(result.to_json()):
            self.journal.note(reason)
        if result.winner is not None:
            self._keep_winner(result.winner, session)
        self._know_rates(session)
        hurried = (self.peak, self.bandwidth) if self.clock.spare < 2 * self.clock.costs.of(costs.PEAK) else None
        rated = with_rates(result, session, self.task.timed, hurried)
        self.journal.add_finals(replace(rated, trials=self.state.ended))
        if result.winner is None:
            raise DeepgenError(
                f"every finalist failed the final checks; the fastest one: {result.dropped_reasons()[0]}"
            )

    def _keep_winner(self, number: int, session: Session) -> None:
        trial = self.journal.trial(number)
        assert trial is not None, "finalists have finished"
        kernel = self.emitter.kernel(trial.config)
        operator, target = self.request.operator.to_json(), self.request.target.name
        keep_winner(self.plan.folder, operator, target, trial.config, kernel, session.build(kernel))

    def say(self, **changes: object) -> None:
        """Report progress to the display."""
        state, best = self.state, self.best.seconds
        fast: dict[str, Any] = {}
        if best:
            fast = dict(speed(self.task.timed, best, self.peak, self.bandwidth))
        measured = self.progress.done - self.progress.resumed
        self.progress = replace(
            self.progress,
            asked=state.asked,
            done=sum(self.verdicts.values()),
            verdicts={self.request.operator.verdict_text(name): count for name, count in self.verdicts.items()},
            best_seconds=best,
            best_gflops=fast.get("gflops"),
            best_gbytes_per_second=fast.get("gbytes_per_second"),
            share_of_peak=fast.get("share_of_peak"),
            bound=fast.get("bound", ARITHMETIC),
            share_of_bound=fast.get("share_of_bound"),
            elapsed=self.clock.elapsed,
            time_left=self.clock.until_end(self.progress.budget - self.progress.done, measured),
            improved=self.best.improved,
            spent=self.clock.spent(),
            phases=self.clock.phases(),
            **changes,  # type: ignore[arg-type]
        )
        self.watch(self.progress)

    def _worth_running(self, trial_id: int, artifact: Artifact) -> bool:
        """Called by the engine in another thread, so it reads only what was fixed before the trial was submitted."""
        return not self.state.opinions[trial_id].hopeless(artifact.facts)

    def _order(self, proposal: Proposal) -> tuple[bool, int]:
        """The default first, wherever the strategy put it."""
        return proposal.rank != self.plan.first, proposal.id

    @property
    def _first_pending(self) -> bool:
        """Whether the config that the search begins with was proposed and has not ended."""
        return any(proposal.rank == self.plan.first for proposal in self.state.proposals.values())

    def _trial(self, outcome: Outcome) -> Trial:
        proposal = self.state.proposals[outcome.trial_id]
        kernel = self.emitter.taken(outcome.trial_id)
        artifact = outcome.artifact
        facts = {**artifact.facts, "build_seconds": artifact.seconds} if artifact else {}
        return Trial(proposal.id, proposal.rank, proposal.config, kernel.id, outcome.measurement, facts)

    def _hear(self, trial: Trial) -> None:
        self.verdicts[trial.measurement.verdict.value] += 1
        self.best.hear(trial, sum(self.verdicts.values()))
        built = self.progress.built + (0 if trial.measurement.verdict.value.startswith("build_") else 1)
        slow = trial.measurement.verdict is Verdict.NOT_RUN
        failure = None if trial.ok or slow else f"{trial.measurement.verdict}: {trial.measurement.detail}"
        self.progress = replace(self.progress, built=built, last_failure=failure or self.progress.last_failure)

    def _baseline_seconds(self, session: Session) -> float:
        """The fastest baseline's time, measured on a quiet machine before the search."""
        names = asked_for(True, session.baselines(), *self._beside)
        if not names:
            raise DeepgenError("a target speedup needs a baseline, and there is none: install torch, or omit it")
        contenders = [Contender(name) for name in names]
        with session.quiet():
            try:
                measured = Bounded(session, self.clock).compare(contenders, BASELINE_ROUNDS, self.request.seed)
            except OutOfTime:
                raise DeepgenError(no_time(self.clock)) from None
        seconds = [m.seconds for m in measured if m.ok and m.seconds is not None]
        if not seconds:
            raise DeepgenError(f"no baseline could be measured: {measured[0].detail}")
        return min(seconds)

    def _stopping(self, reference: float | None, *, all_ended: bool = False) -> Stopping:
        """The stopping rule, fed with the trials that the strategy was told so far, or with all ended trials."""
        goals = self.request.goals() if reference is not None else replace(self.request.goals(), target_speedup=None)
        stopping = Stopping(goals, reference)
        ended = self.journal.trials()
        for trial in ended if all_ended else ended[: self.state.reported]:
            stopping.hear(trial)
        return stopping

    def _learned(self) -> str | None:
        """Which earlier studies guide the search."""
        names = getattr(self.state.strategy, "learned_from", [])
        return f"learning from {len(names)} earlier studies, first {names[0]}" if names else None

    def _failures(self) -> str:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in self.verdicts.most_common())
        return f"{counts}. The last one: {self.progress.last_failure}"


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
