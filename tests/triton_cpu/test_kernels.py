"""Small kernels that cover the language, each against numpy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))
from harness import Compiled, check
from kernel_calls import CASES


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled(CASES, tmp_path_factory.mktemp("kernels"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{n}-{CASES[n].name}")
def test_it_computes_what_numpy_does(compiled: Compiled, number: int) -> None:
    check(compiled, CASES[number])
