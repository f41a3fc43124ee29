"""Small kernels that cover the language, each compared to numpy."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("triton")
from compiled_kernels import Compiled, check
from kernel_calls import CASES as SMALL
from kernel_calls import NARROW_PRODUCTS
from user_calls import CASES as USERS

CASES = [*SMALL, *USERS]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled(CASES, tmp_path_factory.mktemp("kernels"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{n}-{CASES[n].name}")
def test_it_computes_what_numpy_does(compiled: Compiled, number: int) -> None:
    check(compiled, CASES[number])


@pytest.mark.parametrize("by", ["TILES_OF", "EMULATE_VECTORS"])
@pytest.mark.parametrize("of", NARROW_PRODUCTS)
def test_narrow_numbers_are_multiplied_in_groups(of: str, by: str, tmp_path: Path) -> None:
    """Like AMX and VNNI, written in plain C; the products above use what this CPU has."""
    given = f"#define EMULATE\n#define TILES_OF_{of.upper()}\n" if by == "TILES_OF" else f"#define {by}\n"
    compiled = Compiled(NARROW_PRODUCTS[of], tmp_path, given=given)
    for case in NARROW_PRODUCTS[of]:
        check(compiled, case)
