"""Legal configs of the older tool map to kernels that are right, whichever way A is stored."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import simt_emulation as emulation

from deepgen import targets
from deepgen.generators.templates.simt.older import OlderSimtGemm, older_operator
from deepgen.vocabulary import BadInput

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
    family = OlderSimtGemm(candidates)
    assert family.refuses(operator, chip) is None
    (config,) = family.space(operator, chip).sample(1, seed)
    kernel = family.emit(operator, chip, config)
    error, got, wanted = emulation.run(kernel, emulation.build(kernel, tmp_path), operator)
    assert error == ""
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=operator.tolerance().absolute)


def test_their_space_is_the_one_tuned_over() -> None:
    candidates = read("GEMM_cfg_32.json")
    operator = older_operator(candidates)
    family = OlderSimtGemm(candidates)
    assert family.space(operator, targets.resolve("cuda:sm_80")).count() == 1744
    assert operator.batch == 1, "BATCH_SIZE is missing in the file"


def test_a_warp_size_that_the_chip_has_not_is_an_error_in_words() -> None:
    candidates = read("GEMM_cfg_32.json")
    family, operator = OlderSimtGemm(candidates), older_operator(candidates)
    other = "hip:gfx906" if candidates["WARP_SIZE"] == [32] else "cuda:sm_80"
    config = family.space(operator, targets.resolve(other)).at(0)
    with pytest.raises(BadInput, match="WARP_SIZE"):
        family.emit(operator, targets.resolve(other), config)
