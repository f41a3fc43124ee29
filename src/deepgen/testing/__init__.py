"""Suites that a plug-in must pass, for its own tests: subclass one, and pytest runs it.

    from deepgen.testing import OperatorSuite

    class TestMine(OperatorSuite):
        operators = [MyOperator(n=64)]

`OperatorSuite`, `GeneratorSuite`, `TargetSuite`, `StrategySuite`, `RunnerSuite` and `EngineSuite`; each says what its
subclass gives.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from deepgen.vocabulary import Missing

try:
    import pytest
except ImportError as error:
    remedy = "Install it with `pip install pytest`."
    raise Missing("pytest", blocks="the suites of deepgen.testing are pytest tests", remedy=remedy) from error

if TYPE_CHECKING:
    from deepgen.testing.engines import EngineSuite
    from deepgen.testing.generators import GeneratorSuite
    from deepgen.testing.operators import OperatorSuite
    from deepgen.testing.runners import RunnerCase, RunnerSuite
    from deepgen.testing.strategies import StrategySuite
    from deepgen.testing.targets import TargetSuite

_WHERE = {
    "EngineSuite": "engines",
    "GeneratorSuite": "generators",
    "OperatorSuite": "operators",
    "RunnerCase": "runners",
    "RunnerSuite": "runners",
    "StrategySuite": "strategies",
    "TargetSuite": "targets",
}
# Before they are imported, so that a failure shows the differing values.
pytest.register_assert_rewrite(*(f"deepgen.testing.{module}" for module in {*_WHERE.values()}))


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'deepgen.testing' has no attribute {name!r}")
    return getattr(import_module(f"deepgen.testing.{_WHERE[name]}"), name)


__all__ = [
    "EngineSuite",
    "GeneratorSuite",
    "OperatorSuite",
    "RunnerCase",
    "RunnerSuite",
    "StrategySuite",
    "TargetSuite",
]
