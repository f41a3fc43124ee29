"""Scales of blocks on Hopper: sums are right wherever tiles and blocks begin, as emulated on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hopper_emulation
import pytest
import simt_emulation

import needs
from deepgen import generators, targets
from deepgen.operators import gemm
from deepgen.operators.gemm import BLOCK_SCALES
from deepgen.toolchains.base import BuildLimits
from deepgen.toolchains.group import Group

HOPPER = targets.resolve("cuda:sm_90a")
FAMILY = generators.by_name("sm90_gemm")
TILES: dict[str, dict[str, Any]] = {
    "one block wide": {"SCHEDULE": "cooperative", "CONSUMERS": 2, "TILES_M": 1, "BN": 128},
    "across blocks": {"SCHEDULE": "cooperative", "CONSUMERS": 1, "TILES_M": 2, "BN": 72, "PERSISTENT": True},
    "two blocks and more": {"SCHEDULE": "cooperative", "CONSUMERS": 1, "TILES_M": 1, "BN": 152},
    "taking turns": {"SCHEDULE": "ping-pong", "CONSUMERS": 2, "TILES_M": 1, "BN": 48, "PERSISTENT": True},
    "in parts": {"FIXUP": "split", "CLUSTER_K": 2, "PARTS": 2, "BN": 96, "CONSUMERS": 1},
    "in even shares": {"FIXUP": "stream", "BN": 96, "CONSUMERS": 1},
    "in long stages": {"ATOMS": 2, "BN": 96, "FIXUP": "none", "CONSUMERS": 1},
    "ahead": {"AHEAD": True, "BN": 72, "CONSUMERS": 2, "TILES_M": 1, "SCHEDULE": "cooperative"},
    "ahead, taking turns": {"AHEAD": True, "BN": 64, "TILES_M": 1, "SCHEDULE": "ping-pong"},
}
emulated = pytest.mark.skipif(simt_emulation.COMPILER is None, reason=simt_emulation.NO_COMPILER)


@emulated
@pytest.mark.slow
@pytest.mark.parametrize(
    ("tiles", "scales", "words"),
    [
        ("one block wide", "1x128,128x128", {"turned": ("scale_a",)}),
        ("across blocks", "1x128,128x128", {"c": "f32", "batch": 2}),
        ("two blocks and more", "128x128,128x128", {"bias": True}),
        ("across blocks", "1x128,1x128", {"turned": ("scale_a", "scale_b")}),
        ("taking turns", "1x128,128x128", {}),
        ("taking turns", "1x128,1x128", {"c": "f16"}),
        ("in parts", "1x128,128x128", {}),
        ("in even shares", "128x128,128x128", {}),
        ("in long stages", "1x128,128x128", {}),
        ("ahead", "1x128,128x128", {"turned": ("scale_b",)}),
        ("ahead", "1x128,1x128", {}),
        ("ahead", "none", {"c": "f32"}),
        ("ahead, taking turns", "128x128,128x128", {}),
    ],
)
def test_blocks_are_multiplied_by_their_factors(tiles: str, scales: str, words: dict[str, Any], tmp_path: Path) -> None:
    others = {name: value for name, value in words.items() if name != "turned"}
    operator = gemm(133, 208, 400, dtype="f8e4m3", layout="nt", scales=scales, **others)
    only = {"MIN_BLOCKS": 1, **TILES[tiles]}
    (config,) = FAMILY.space(operator, HOPPER).restrict({k: [v] for k, v in only.items()}).sample(1, seed=7)
    kernel = FAMILY.emit(operator, HOPPER, config)
    library = hopper_emulation.build(kernel, tmp_path)
    assert hopper_emulation.run(kernel, library, operator, turned=words.get("turned", ())).ok


@emulated
@pytest.mark.slow
@pytest.mark.parametrize("probe", ["exact", "denormal", "large"])
def test_other_inputs_with_rows_of_c_that_begin_anywhere(probe: str, tmp_path: Path) -> None:
    operator = gemm(69, 133, 304, dtype="f8e4m3", layout="nt", scales="1x128,128x128")
    kernel = FAMILY.emit(operator, HOPPER, FAMILY.default(operator, HOPPER))
    assert hopper_emulation.run(kernel, hopper_emulation.build(kernel, tmp_path), operator, probe).ok


@pytest.mark.parametrize("scales", BLOCK_SCALES)
def test_only_it_serves_them_and_its_default_is_a_point_of_its_space(scales: str) -> None:
    operator = gemm(4096, 4096, 4096, dtype="f8e4m3", layout="nt", scales=scales)
    assert [family.name for family in generators.serving(operator, HOPPER)] == ["sm90_gemm"]
    space = FAMILY.space(operator, HOPPER)
    assert space.explain(dict(FAMILY.default(operator, HOPPER))) == []
    plain = gemm(4096, 4096, 4096, dtype="f8e4m3", layout="nt")
    assert 0.5 < space.count() / FAMILY.space(plain, HOPPER).count() < 1.0  # factors take registers


@pytest.mark.slow
@pytest.mark.parametrize("scales", BLOCK_SCALES)
def test_the_widest_tiles_keep_their_sums_and_factors_in_registers(scales: str, tmp_path: Path) -> None:
    operator = gemm(4096, 4096, 4096, dtype="f8e4m3", layout="nt", scales=scales)
    toolchain, space = needs.toolchain(HOPPER, "cuda"), FAMILY.space(operator, HOPPER)
    default = {**FAMILY.default(operator, HOPPER), "STAGES": 3}
    for consumers, tiles_m in ((2, 1), (3, 1)):
        tile = {**default, "CONSUMERS": consumers, "TILES_M": tiles_m}
        config = next(c for n in range(256, 0, -8) if not space.explain(c := {**tile, "BN": n}))
        folder = tmp_path / str(consumers)
        folder.mkdir()
        with Group() as group:
            result = toolchain.build(FAMILY.emit(operator, HOPPER, config), HOPPER, folder, BuildLimits(), group)
        assert (result.facts["spill_bytes"], result.log) == (0, ""), config
