"""A GPU worker over a fake driver, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_gpu import supervised

from deepgen.operators import gemm
from deepgen.run.measure.supervisor import Supervisor


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpu")


@pytest.fixture(scope="module")
def runner(folder: Path) -> Iterator[Supervisor]:
    with supervised(gemm(24, 20, 16, layout="nt"), folder) as made:
        yield made
