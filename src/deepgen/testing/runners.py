"""What every runner must satisfy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from deepgen.operators import Operator
from deepgen.run.measure import Contender, Policy, Runner
from deepgen.vocabulary import Artifact, Kernel, Measurement, Verdict

BAD = (Verdict.WRONG, Verdict.CRASHED, Verdict.TIMED_OUT, Verdict.OUT_OF_MEMORY, Verdict.REFUSED)


@dataclass
class RunnerCase:
    """A runner with built kernels of an operator, at least two correct ones and two incorrect ones."""

    runner: Runner
    operator: Operator
    policy: Policy
    good: Sequence[tuple[Kernel, Artifact]]
    bad: Sequence[tuple[Kernel, Artifact]]


class RunnerSuite:
    """Tests of a runner. A subclass, or its module, has a fixture `case`, a `RunnerCase`."""

    def test_a_right_kernel_is_correct_and_timed(self, case: RunnerCase) -> None:
        for built in case.good:
            measured = case.runner.measure(*built)
            assert measured.ok, measured.detail
            assert case.policy.min_samples <= len(measured.samples) <= case.policy.max_samples
            assert all(s > 0 for s in measured.samples)
            assert measured.error is not None
            assert 0.0 <= measured.error <= 1.0

    def test_a_bad_kernel_has_a_verdict_with_a_reason_and_no_time(self, case: RunnerCase) -> None:
        for built in case.bad:
            measured = case.runner.measure(*built)
            assert measured.verdict in BAD
            assert measured.detail
            assert measured.seconds is None
            assert case.runner.measure(*case.good[0]).ok, "the next one is measured as if nothing had been"

    def test_measurements_are_plain_data(self, case: RunnerCase) -> None:
        for built in (case.good[0], case.bad[0]):
            measured = case.runner.measure(*built)
            text = json.dumps(measured.to_json(), allow_nan=False)
            assert Measurement.from_json(json.loads(text)) == measured

    def test_a_hopeless_kernel_is_not_timed_longer_than_needed(self, case: RunnerCase) -> None:
        assert case.runner.measure(*case.good[0], beat=1e-12).ok

    def test_verifying_gives_a_verdict_on_any_probe_and_takes_no_samples(self, case: RunnerCase) -> None:
        for probe in case.operator.probes():
            verified = case.runner.verify(*case.good[0], seed=11, probe=probe)
            assert verified.ok, f"{probe}: {verified.detail}"
            assert verified.samples == ()
        assert case.runner.verify(*case.bad[0], seed=11, probe="normal").verdict is not Verdict.CORRECT

    def test_a_comparison_has_one_sample_of_each_for_every_round(self, case: RunnerCase) -> None:
        entries = [Contender(f"k{i}", *built) for i, built in enumerate(case.good)]
        results = case.runner.compare(entries, rounds=7, seed=3)
        assert [len(m.samples) for m in results] == [7] * len(entries)
        assert all(m.ok for m in results)

    def test_every_event_is_counted_or_missing_with_a_reason(self, case: RunnerCase) -> None:
        events = ["task-clock", "no-such-event"]
        counted = case.runner.count(*case.good[0], events)
        assert sorted([*counted.values, *counted.missing]) == sorted(events)
        assert all(counted.missing.values())
        assert not case.runner.count(*case.bad[0], events).values

    def test_one_bad_contender_does_not_spoil_a_comparison(self, case: RunnerCase) -> None:
        entries = [Contender("first", *case.good[0]), Contender("bad", *case.bad[0]), Contender("last", *case.good[1])]
        first, bad, last = case.runner.compare(entries, rounds=3, seed=3)
        assert (first.ok, bad.ok, last.ok) == (True, False, True)
        assert not bad.samples
        assert bad.detail
