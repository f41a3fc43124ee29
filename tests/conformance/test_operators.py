"""Every operator passes the suite, deepgen's own and those of installed plug-ins."""

from __future__ import annotations

from deepgen.operators import OPERATORS
from deepgen.testing import OperatorSuite
from deepgen.testing.problems import EXPRESSED, PROBLEMS

# The reference of a large problem takes seconds, and tests no more than that of a small one.
SMALL = [p for p in (*PROBLEMS, *EXPRESSED) if p.flops() < 10**8]


class TestOperators(OperatorSuite):
    operators = SMALL


def test_every_operator_has_a_problem_to_be_tried_on() -> None:
    tried = {kind.name for kind in OPERATORS.working() if kind.name in OPERATORS.own or kind.examples()}
    assert {operator.name for operator in SMALL} == tried
