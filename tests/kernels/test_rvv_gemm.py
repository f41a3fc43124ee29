"""The RVV GEMM is correct on exact edges between guard zones, and one binary serves any vector length."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import needs
from deepgen import generators, targets
from deepgen.kernels.gemm.rvv_gemm import RvvGemm
from deepgen.operators import Gemm, gemm
from deepgen.operators.gemm import LAYOUTS
from deepgen.run.measure import Task, open_runner
from deepgen.targets import Riscv, Target
from deepgen.toolchains import build_once

FAMILY = RvvGemm()
SHORT = targets.resolve("riscv:rv64gcv_zvl128b")
LONG = targets.resolve("riscv:rv64gcv_zvl256b")
HALVES = targets.resolve("riscv:rv64gcv_zvl128b_zvfh")
PROBES = ("normal", "exact", "minimum")  # of all the probes, those that reveal the most
CONFIGS = int(os.environ.get("DEEPGEN_RVV_CONFIGS", "1"))  # for each case below
# Sizes with remainders of rows, columns and steps in every tile, and sizes smaller than a tile in each dimension.
CASES = [
    gemm(37, 70, 53, alpha=0.5, beta=0.75, bias=True, activation="relu"),
    gemm(3, 131, 67, layout="tt", activation="gelu"),
    gemm(23, 45, 130, dtype="i8", bias=True, activation="relu"),
    gemm(11, 9, 70, dtype="i8", layout="nt", batch=2),
]


def complaints(operator: Gemm, config: dict[str, Any], where: tuple[Target, ...] = (SHORT, LONG)) -> list[str]:
    """The errors of a kernel that was built for the shortest vectors, on each of these targets."""
    kernel = FAMILY.emit(operator, SHORT, config)
    artifact = build_once(kernel, SHORT)
    found = []
    for target in where:
        runner = open_runner(Task(operator, target))
        tried = {probe: runner.verify(kernel, artifact, 7, probe) for probe in PROBES if probe in operator.probes()}
        found += [f"{target.name} {probe}: {m.verdict} {m.detail}" for probe, m in tried.items() if not m.ok]
        runner.close()
    return found


@pytest.mark.parametrize("operator", CASES, ids=lambda operator: operator.slug())
def test_sampled_configs_are_right_whatever_the_length_of_vectors(operator: Gemm) -> None:
    needs.qemu()
    for config in FAMILY.space(operator, SHORT).sample(CONFIGS, seed=operator.m):
        assert complaints(operator, config) == [], config


def test_the_default_needs_fewer_instructions_than_plain_loops(tmp_path: Path) -> None:
    target = needs.qemu("riscv:rv64gcv_zvl256b")
    operator = gemm(64, 64, 64)
    seconds = []
    for family in (FAMILY, generators.by_name("c_gemm")):
        kernel = family.emit(operator, target, family.default(operator, target))
        runner = open_runner(Task(operator, target))
        seconds.append(runner.measure(kernel, build_once(kernel, target)).seconds or 0.0)
        runner.close()
    assert 1.2 * seconds[0] < seconds[1]


def test_half_precision_needs_an_extension() -> None:
    operator = gemm(32, 64, 48, dtype="f16", bias=True)
    assert "zvfh" in str(FAMILY.refuses(operator, SHORT))
    kernel = FAMILY.emit(operator, HALVES, FAMILY.default(operator, HALVES))
    artifact = needs.built_here(kernel, HALVES)
    needs.qemu()
    runner = open_runner(Task(operator, HALVES))
    measured = runner.measure(kernel, artifact)
    runner.close()
    assert measured.ok or "has no zvfh" in measured.detail


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tile_fits_in_registers_and_in_a_block(layout: str) -> None:
    space = FAMILY.space(gemm(256, 256, 256, layout=layout), LONG)
    for config in space.sample(50, seed=3):
        assert config["LMUL"] * (config["MR"] * config["NR"] + 1) <= 32
        assert config["NC"] >= config["NR"] * config["LMUL"] * 8
        assert config["PACK_B"] == "block" or layout[1] == "n"


def test_it_comes_before_plain_c_on_riscv_and_nowhere_else() -> None:
    operator = gemm(64, 64, 64)
    assert generators.find(operator, SHORT).name == "rvv_gemm"
    assert isinstance(SHORT, Riscv) and FAMILY.refuses(operator, targets.resolve("arm:neon")) is not None


def test_the_kernels_stay_as_they_are(golden: Callable[[str, str], str]) -> None:
    operator = gemm(256, 256, 256)
    kernel = FAMILY.emit(operator, LONG, FAMILY.default(operator, LONG))
    assert golden("rvv_gemm/tile.h", next(s.text for s in kernel.sources if s.name == "tile.h")) == ""
    assert golden("rvv_gemm/flags.txt", "\n".join((*kernel.flags, ""))) == ""
