"""RISC-V targets by architecture and by board."""

from __future__ import annotations

import pytest

from deepgen import targets
from deepgen.targets import Riscv
from deepgen.targets.riscv import BOARDS, CLASSES, TABLES
from deepgen.vocabulary import BadInput


def riscv(name: str) -> Riscv:
    found = targets.resolve(f"riscv:{name}")
    assert isinstance(found, Riscv)
    return found


@pytest.mark.parametrize("bits", [128, 256, 512])
def test_an_architecture_says_how_long_vectors_are(bits: int) -> None:
    target = riscv(f"rv64gcv_zvl{bits}b")
    assert (target.vlen, target.vector_bytes, target.march) == (bits, bits // 8, f"rv64gcv_zvl{bits}b")


def test_optional_extensions_follow_in_one_order() -> None:
    assert riscv("rv64gcv_zvfh_zvl128b") == riscv("rv64gcv_zvl128b_zvfh")
    assert riscv("rv64gcv_zvl128b_zvfh").march == "rv64gcv_zvl128b_zvfh"


@pytest.mark.parametrize(
    "name", ["rv64gc", "rv64gcv", "rv32gcv_zvl128b", "rv64gcv_zvl128b_zvl256b", "rv64gcv_zvl128b_x", ""]
)
def test_what_is_no_target_is_refused_with_what_would_be_one(name: str) -> None:
    with pytest.raises(BadInput, match=r"riscv:rv64gcv_zvl256b.*riscv:k1"):
        riscv(name)


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_has_facts_with_sources_and_a_table_of_costs(name: str) -> None:
    board = BOARDS[name]
    assert riscv(name).vlen == board.vlen and riscv(name).mhz == board.mhz
    assert board.sources and TABLES[board.costs].source


def test_code_runs_on_vectors_that_are_at_least_as_long() -> None:
    short, long = riscv("rv64gcv_zvl128b"), riscv("rv64gcv_zvl256b")
    assert short.runs_on(long) and not long.runs_on(short)
    assert not riscv("rv64gcv_zvl128b_zvfh").runs_on(long)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_names_only_classes_that_are_counted(name: str) -> None:
    table = TABLES[name]
    assert {*table.each, *table.register} <= set(CLASSES)
    assert all(table.cycles(kind, 4.0) > 0.0 for kind in CLASSES)
