"""Sampled kernels of the SIMT family compile for every supported architecture, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

import needs
from deepgen import targets
from deepgen.kernels.gemm.simt_gemm import SimtGemm
from deepgen.operators import gemm
from deepgen.toolchains.base import BuildLimits
from deepgen.toolchains.group import Group

FAMILY = SimtGemm()
OPERATORS = [
    gemm(512, 512, 512, layout="nt"),
    gemm(130, 70, 90, dtype="i8", layout="nt"),
    gemm(96, 40, 64, dtype="f16"),
]


CHIPS = ["cuda:sm_70", "cuda:sm_80", "cuda:sm_90a", "hip:gfx906", "hip:gfx90a", "hip:gfx942"]


@pytest.mark.parametrize("name", CHIPS)
def test_a_sample_compiles_and_says_what_it_uses(name: str, tmp_path: Path) -> None:
    target = targets.resolve(name)
    language = "cuda" if name.startswith("cuda") else "hip"
    toolchain = needs.toolchain(target, language)
    for number, operator in enumerate(OPERATORS):
        if number == CHIPS.index(name) % 3:
            continue  # built for the same vendor's other chips
        # The largest tiles take seconds and test nothing more.
        some = FAMILY.space(operator, target).restrict({"TM": [2, 4, 8], "TN": [2, 4, 8], "UNROLL": [1, 2, 4]})
        (config,) = some.sample(1, seed=number)
        folder = tmp_path / str(number)
        folder.mkdir()
        with Group() as group:
            built = toolchain.build(FAMILY.emit(operator, target, config), target, folder, BuildLimits(), group)
        assert (folder / built.binary).stat().st_size > 1000
        assert int(str(built.facts["registers"])) > 0


@pytest.mark.parametrize("name", ["cuda:sm_90a", "hip:gfx906", "hip:gfx942"])
def test_the_default_keeps_its_sums_in_registers(name: str, tmp_path: Path) -> None:
    target, operator = targets.resolve(name), gemm(4096, 4096, 4096, layout="nt")
    toolchain = needs.toolchain(target, "cuda" if name.startswith("cuda") else "hip")
    kernel = FAMILY.emit(operator, target, FAMILY.default(operator, target))
    with Group() as group:
        built = toolchain.build(kernel, target, tmp_path, BuildLimits(), group)
    assert built.facts["spill_bytes"] == 0
