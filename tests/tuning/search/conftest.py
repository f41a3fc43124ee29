from __future__ import annotations

from pathlib import Path

import pytest
from recordings import write

from deepgen.tuning.search.recorded import RecordedSpace, read


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RecordedSpace:
    return read(write(tmp_path_factory.mktemp("recorded")))


@pytest.fixture(scope="session")
def partner(tmp_path_factory: pytest.TempPathFactory) -> RecordedSpace:
    """The same kernel on another device."""
    return read(write(tmp_path_factory.mktemp("recorded"), "partner.json", best_block=6.4))


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return write(tmp_path)
