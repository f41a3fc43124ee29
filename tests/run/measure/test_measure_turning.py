"""A runner is switched to another operator: its worker continues, with other inputs and another correct answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from faulty_kernels import TARGET, build, kernel

from deepgen.operators import gemm
from deepgen.run.measure import Contender, Policy, Task
from deepgen.run.measure.supervisor import Supervisor
from deepgen.vocabulary import DeepgenError, Verdict

OPERATOR = gemm(33, 40, 24)
POLICY = Policy(cold=False, threads=1, min_samples=3, max_seconds=0.05)


def test_one_worker_races_one_operator_after_the_other() -> None:
    task = Task(OPERATOR, TARGET, policy=POLICY)
    runner = Supervisor(task)
    try:
        made = kernel()
        good = Contender("good", made, build(made))
        assert runner.compare([good], rounds=2, seed=0)[0].ok
        other = replace(OPERATOR, m=OPERATOR.m + 3, layout="nt")
        runner.switch_to(replace(task, operator=other, policy=replace(POLICY, cold=True)))
        kept, numpy = runner.compare([good, Contender("numpy")], rounds=2, seed=0)
        assert kept.verdict is Verdict.WRONG, "the kernel is judged by the other operator's answer"
        assert numpy.ok and numpy.conditions["cold"] is True, numpy.detail
        runner.switch_to(task)
        assert runner.compare([good], rounds=2, seed=0)[0].ok
        assert runner.starts == 1
        with pytest.raises(DeepgenError, match="thread count"):
            runner.switch_to(replace(task, policy=replace(POLICY, threads=2)))
    finally:
        runner.close()
