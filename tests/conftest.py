"""What all tests share: golden files, and folders that no test shares with another or with the user."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

TESTS = Path(__file__).parent
GOLDEN = TESTS / "golden"
# What is timed, raced or killed here wants the machine for itself; everything else runs several files at a time.
ALONE = (
    "cluster", "conformance/test_engines.py", "conformance/test_runners.py", "engines", "faults", "library", "measure",
)  # fmt: skip


# The same examples on every machine, however slow it is just now.
settings.register_profile("deepgen", deadline=None, derandomize=True, database=None)
settings.load_profile("deepgen")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files anew instead of comparing")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = item.path.relative_to(TESTS).as_posix()
        if path in ALONE or path.split("/")[0] in ALONE:
            item.add_marker(pytest.mark.alone)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with tests/golden/NAME; `pytest --update-golden` writes it."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no golden file {name}: run pytest --update-golden and look at what it writes"
        assert text == path.read_text(), f"differs from golden file {name}: if that is meant, pytest --update-golden"

    return check


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings, studies and references of the user stay out of tests, and theirs out of the user's folders."""
    home = tmp_path_factory.mktemp("home")
    for variable, folder in (("XDG_CONFIG_HOME", "config"), ("XDG_DATA_HOME", "data")):
        monkeypatch.setenv(variable, str(home / folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(_shared_cache(tmp_path_factory)))
    return home


def _shared_cache(factory: pytest.TempPathFactory) -> Path:
    # One build cache for the whole run: the same kernel is compiled once, whichever tests use it.
    shared = os.environ.get("PYTEST_XDIST_WORKER") is not None
    cache = (factory.getbasetemp().parent if shared else factory.getbasetemp()) / "cache"
    cache.mkdir(exist_ok=True)
    return cache
