"""Legal configs of the older tool map to correct kernels for either layout of A."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import simt_emulation as emulation

from deepgen import targets
from deepgen.kernels.gemm.simt_gemm import dots
from deepgen.kernels.gemm.simt_gemm.lower import implied, lower
from deepgen.run.call.plans import check_shape
from deepgen.targets import Gpu
from deepgen.vocabulary import BadInput, Kernel, LaunchPlan
from deepgen_formats.older.generator import OlderGenerator, older_operator, simt_config

FILES = Path(__file__).parents[2] / "data/deepgen/TuningConfigs"


def read(name: str) -> dict[str, list[int]]:
    data: dict[str, list[int]] = json.loads((FILES / name).read_text())
    return data


@pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)
@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize(
    ("name", "seed"), [("GEMM_cfg_32.json", 1), ("GEMM_cfg_32.json", 2), ("GEMM_configs_64.json", 3)]
)
def test_a_legal_config_is_a_kernel_that_is_right(name: str, seed: int, transposed: int, tmp_path: Path) -> None:
    candidates = {**read(name), "IS_ATRANS": [transposed]}
    operator = older_operator(candidates)
    assert operator.layout == ("tn" if transposed else "nn")
    chip = targets.resolve({32: "cuda:sm_80", 64: "hip:gfx906"}[candidates["WARP_SIZE"][0]])
    family = OlderGenerator(candidates)
    assert family.refuses(operator, chip) is None
    (config,) = family.space(operator, chip).sample(1, seed)
    kernel = family.emit(operator, chip, config)
    error, found = emulation.run(kernel, emulation.build(kernel, tmp_path), operator)
    assert error == "" and found.ok, found


@pytest.mark.parametrize("strategy", [0, 1])
@pytest.mark.parametrize("name", sorted(path.name for path in FILES.glob("*.json")))
def test_every_config_of_their_files_maps(name: str, strategy: int) -> None:
    """A config that cannot be mapped would abort a tuning run. Large spaces are sampled at equal steps of rank."""
    candidates = read(name)
    operator = older_operator(candidates)
    chip = targets.resolve({32: "cuda:sm_80", 64: "hip:gfx906"}[candidates["WARP_SIZE"][0]])
    assert isinstance(chip, Gpu)
    space = OlderGenerator(candidates, strategy).space(operator, chip)
    count = space.count()
    for rank in range(0, count, max(1, count // 400)):
        config = space.at(rank)
        mapped = simt_config(config, operator, chip)
        made = lower(operator, mapped, chip.warp, dots(chip))
        told = implied(operator, mapped, made.macros)
        check_shape(Kernel("tuned here", "cuda", (), (), LaunchPlan(()), told), operator.scalars())
        assert made.threads == chip.warp * (
            config["BLOCK_LAYOUT_M"] * config["BLOCK_LAYOUT_N"] * config["LOCAL_SPLIT_U"]
        )


@pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)
def test_more_groups_than_steps_of_k_in_a_tile(tmp_path: Path) -> None:
    """The older tool's rules allow it: the tile gets one step for each group."""
    one = {
        "BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 2, "THREAD_SIZE_M": 4, "THREAD_SIZE_N": 4,
        "BLOCK_LAYOUT_M": 1, "BLOCK_LAYOUT_N": 2, "WARP_LAYOUT_M": 8, "WARP_LAYOUT_N": 4, "LOCAL_SPLIT_U": 4,
        "GLOB_LOAD_WIDTH_A": 1, "GLOB_LOAD_WIDTH_B": 1, "GLOB_STORE_WIDTH": 4, "BLOCK_MAPPING": 1,
    }  # fmt: skip
    candidates = {**read("GEMM_cfg_32.json"), **{key: [value] for key, value in one.items()}}
    operator, chip = older_operator(candidates), targets.resolve("cuda:sm_80")
    config = {**{key: values[0] for key, values in candidates.items()}, "REDUCE_C_CONTINUOUS": 1}
    kernel = OlderGenerator(candidates).emit(operator, chip, config)
    error, found = emulation.run(kernel, emulation.build(kernel, tmp_path), operator)
    assert error == "" and found.ok, found


def test_their_space_is_the_one_tuned_over() -> None:
    candidates = read("GEMM_cfg_32.json")
    operator = older_operator(candidates)
    family = OlderGenerator(candidates)
    assert family.space(operator, targets.resolve("cuda:sm_80")).count() == 1744
    assert operator.batch == 1, "BATCH_SIZE is missing in the file"


def test_a_warp_size_that_the_chip_has_not_is_an_error_in_words() -> None:
    candidates = read("GEMM_cfg_32.json")
    family, operator = OlderGenerator(candidates), older_operator(candidates)
    other = "hip:gfx906" if candidates["WARP_SIZE"] == [32] else "cuda:sm_80"
    config = family.space(operator, targets.resolve(other)).at(0)
    with pytest.raises(BadInput, match="WARP_SIZE"):
        family.emit(operator, targets.resolve(other), config)
