"""What every engine must satisfy: it runs trials on the simulated device and returns the expected verdicts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from deepgen import targets
from deepgen.kernels.sim import SimTiles
from deepgen.operators import gemm
from deepgen.run.measure.base import Contender, Task
from deepgen.targets import Sim
from deepgen.targets.sim import fault, true_seconds
from deepgen.tuning.engines import Engine, Outcome, Session
from deepgen.vocabulary import Artifact, Kernel, Verdict

OPERATOR = gemm(128, 128, 128)
FAMILY = SimTiles()


def kernels(count: int) -> list[tuple[dict[str, Any], Kernel]]:
    target = targets.resolve("sim")
    space = FAMILY.space(OPERATOR, target)
    configs = [space.at(r) for r in range(0, 100 * count, 100)]
    return [(c, FAMILY.emit(OPERATOR, target, c)) for c in configs]


def collect(session: Session, count: int, seconds: float = 60.0) -> dict[int, Outcome]:
    outcomes: dict[int, Outcome] = {}
    until = time.monotonic() + seconds
    while len(outcomes) < count and time.monotonic() < until:
        for outcome in session.results(timeout=1.0):
            assert outcome.trial_id not in outcomes, "reported twice"
            outcomes[outcome.trial_id] = outcome
    return outcomes


class EngineSuite:
    """Tests of an engine. A subclass, or its module, has a fixture `engine`."""

    @pytest.fixture
    def session(self, engine: Engine) -> Iterator[Session]:
        with engine.open(Task(OPERATOR, targets.resolve("sim:faults=0.4"))) as opened:
            yield opened

    def test_every_trial_ends_once_with_the_verdict_it_deserves(self, session: Session) -> None:
        sim = targets.resolve("sim:faults=0.4")
        assert isinstance(sim, Sim)
        emitted = kernels(40)
        for number, (_, kernel) in enumerate(emitted):
            session.submit(number, kernel)
        outcomes = collect(session, len(emitted))
        assert sorted(outcomes) == list(range(len(emitted)))
        for number, (config, _) in enumerate(emitted):
            measured = outcomes[number].measurement
            assert measured.verdict == (fault(sim, config) or Verdict.CORRECT)
            if measured.ok:
                truth = true_seconds(sim, OPERATOR.flops(), config)
                assert measured.seconds == pytest.approx(truth, rel=0.1)
            else:
                assert measured.detail and not measured.samples
        assert session.results(timeout=0.0) == []

    def test_results_with_nothing_under_way_returns(self, session: Session) -> None:
        assert session.results(timeout=0.01) == []

    def test_comparison_is_paired_and_in_the_order_given(self, session: Session) -> None:
        sim = targets.resolve("sim:faults=0.4")
        assert isinstance(sim, Sim)
        good = [(c, k) for c, k in kernels(40) if fault(sim, c) is None][:3]
        with session.quiet():
            compared = session.compare([Contender(str(i), k) for i, (_, k) in enumerate(good)], rounds=7, seed=1)
        assert [len(m.samples) for m in compared] == [7, 7, 7]
        for (config, _), measured in zip(good, compared, strict=True):
            assert measured.seconds == pytest.approx(true_seconds(sim, OPERATOR.flops(), config), rel=0.1)

    def test_verification_alone_gives_a_verdict_without_samples(self, session: Session) -> None:
        sim = targets.resolve("sim:faults=0.4")
        assert isinstance(sim, Sim)
        kernel = next(k for c, k in kernels(40) if fault(sim, c) is None)
        verified = session.verify(kernel, seed=9, probe="normal")
        assert verified.ok and not verified.samples

    def test_trials_wait_out_a_quiet_window_and_then_end(self, session: Session) -> None:
        emitted = kernels(6)
        with session.quiet():
            assert session.builds_running == 0
        for number, (_, kernel) in enumerate(emitted):
            session.submit(number, kernel)
        assert len(collect(session, len(emitted))) == len(emitted)

    def test_it_says_how_much_work_it_can_take(self, session: Session) -> None:
        assert session.slots >= 1
        peak = session.peak()
        assert peak is None or peak > 0
        assert session.rates() == (peak, session.bandwidth()), "what was measured is known from then on"
        assert session.measuring is False and session.loaded(0.0) is None

    def test_a_trial_that_comes_first_ends_like_the_others(self, session: Session) -> None:
        emitted = kernels(6)
        for number, (_, kernel) in enumerate(emitted):
            session.submit(number, kernel, first=number == 0)
        assert sorted(collect(session, len(emitted))) == [*range(len(emitted))]

    def test_closing_with_work_under_way_ends_quickly_and_may_be_repeated(self, engine: Engine) -> None:
        opened = engine.open(Task(OPERATOR, targets.resolve("sim:build_seconds=0.2,measure_seconds=0.2")))
        for number, (_, kernel) in enumerate(kernels(20)):
            opened.submit(number, kernel)
        started = time.monotonic()
        opened.close()
        opened.close()
        assert time.monotonic() - started < 30

    def test_a_built_trial_that_is_not_worth_running_ends_without_a_time(self, engine: Engine) -> None:
        sim = targets.resolve("sim:faults=0.4")
        assert isinstance(sim, Sim)
        emitted = kernels(30)
        seen: dict[int, str] = {}

        def look(trial_id: int, artifact: Artifact) -> bool:
            assert trial_id not in seen, "looked at twice"
            seen[trial_id] = artifact.kernel_id
            return trial_id % 2 == 0

        with engine.open(Task(OPERATOR, sim), look) as opened:
            for number, (_, kernel) in enumerate(emitted):
                opened.submit(number, kernel)
            outcomes = collect(opened, len(emitted))
        unbuilt = {Verdict.BUILD_FAILED, Verdict.BUILD_TIMEOUT}
        for number, (config, kernel) in enumerate(emitted):
            outcome, deserved = outcomes[number], fault(sim, config) or Verdict.CORRECT
            if deserved in unbuilt:
                assert number not in seen, "there is nothing to look at"
            else:
                assert seen[number] == kernel.id
                assert outcome.artifact is not None
            if number % 2 == 0 or deserved in unbuilt:
                assert outcome.measurement.verdict == deserved
            else:
                assert outcome.measurement.verdict is Verdict.NOT_RUN
                assert outcome.measurement.detail and outcome.measurement.seconds is None
