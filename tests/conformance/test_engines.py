"""Every engine passes the suite: the same trials on the simulated device have the same verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import pytest

from deepgen.testing import EngineSuite
from deepgen.tuning.engines import Engine, LocalEngine
from deepgen_cluster.ray import RayEngine

# A new engine is added here and must pass the suite.
ENGINES: dict[str, Callable[[Path], Engine]] = {
    "local": lambda folder: LocalEngine(jobs=2, cache=folder),
    "ray": lambda folder: RayEngine(build_slots=2, testers=1, cache=folder),
}


@pytest.fixture(scope="module", params=sorted(ENGINES))
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[Path], Engine]]:
    """One Ray cluster for all tests: starting it takes seconds."""
    if request.param == "ray" and find_spec("ray") is None:
        pytest.skip("nothing can run on Ray without it: pip install -e '.[cluster]'")
    connected = RayEngine(build_slots=2, testers=1).connected() if request.param == "ray" else nullcontext()
    with connected:
        yield ENGINES[request.param]


@pytest.fixture
def engine(make: Callable[[Path], Engine], tmp_path: Path) -> Engine:
    return make(tmp_path / "cache")


class TestEngines(EngineSuite):
    pass
