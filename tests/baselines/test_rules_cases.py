"""The cases of the rules benchmark are existing operators, and torch has a call for most of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from deepgen.baselines import torch_named
from rules_cases import cases


@pytest.mark.parametrize("runner", ["cpu", "gpu"])
def test_every_case_is_an_operator_with_a_name_of_its_own(runner: str) -> None:
    every = cases(runner)
    assert len({case.name for case in every}) == len(every)
    operators = [case.build() for case in every]
    beside = [operator for operator in operators if torch_named.unfit(operator) is None]
    assert len(beside) > len(every) / 2
