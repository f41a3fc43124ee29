"""Rows at any alignment, emulated on a CPU: of C, stored in whole sectors, and of A and B, copied asynchronously."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hopper_emulation
import pytest
import simt_emulation

from deepgen import generators, targets
from deepgen.operators import gemm

HOPPER = targets.resolve("cuda:sm_90a")
FAMILY = generators.by_name("sm90_gemm")
WAYS: dict[str, dict[str, Any]] = {
    "cooperative": {"SCHEDULE": "cooperative", "CONSUMERS": 2, "TILES_M": 1},
    "one warpgroup, 128 rows": {"SCHEDULE": "cooperative", "CONSUMERS": 1, "TILES_M": 2},
    "taking turns": {"SCHEDULE": "ping-pong", "CONSUMERS": 2, "TILES_M": 1, "PERSISTENT": True},
    "pairs of blocks": {"CONSUMERS": 1, "CLUSTER_N": 2, "PERSISTENT": False},
}
pytestmark = pytest.mark.skipif(simt_emulation.COMPILER is None, reason=simt_emulation.NO_COMPILER)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "way", "columns", "words"),
    [
        ("sectors", "cooperative", 160, {"n": 298}),
        ("sectors", "taking turns", 128, {"n": 331, "dtype": "f16"}),
        ("sectors", "pairs of blocks", 128, {"n": 401, "beta": -2.0, "bias": True}),
        ("sectors", "one warpgroup, 128 rows", 128, {"n": 163, "batch": 2}),
        ("lines", "one warpgroup, 128 rows", 64, {"n": 83, "batch": 3}),
        ("lines", "cooperative", 192, {"n": 197, "beta": 1.0}),
    ],
)
def test_rows_that_begin_anywhere_are_stored(
    store: str, way: str, columns: int, words: dict[str, Any], tmp_path: Path
) -> None:
    operator = gemm(149, k=24, **{"dtype": "bf16", "layout": "nt", **words})
    only = {"STORE": store, "BN": columns, "FIXUP": "none", "MIN_BLOCKS": 1, **WAYS[way]}
    (config,) = FAMILY.space(operator, HOPPER).restrict(only).sample(1, seed=7)
    kernel = FAMILY.emit(operator, HOPPER, config)
    assert hopper_emulation.run(kernel, hopper_emulation.build(kernel, tmp_path), operator).ok


@pytest.mark.slow
@pytest.mark.parametrize(
    ("m", "n", "k", "words", "way"),
    [
        (70, 48, 90, {"layout": "nt"}, "cooperative"),  # lines are multiples of 4 bytes
        (72, 52, 76, {"layout": "nn", "batch": 2}, "taking turns"),  # of 8
        (100, 88, 104, {"layout": "tt", "dtype": "f16"}, "one warpgroup, 128 rows"),  # of 16, but not of 64
        (64, 40, 136, {"layout": "tn", "beta": -2.0}, "taking turns"),  # A by the copy engine
    ],
)
def test_lines_are_copied_asynchronously(
    m: int, n: int, k: int, words: dict[str, Any], way: str, tmp_path: Path
) -> None:
    operator = gemm(m, n, k, **{"dtype": "bf16", **words})
    only = {"REALIGN": "async", "FIXUP": "none", "MIN_BLOCKS": 1, "BN": 64, **WAYS[way]}
    (config,) = FAMILY.space(operator, HOPPER).restrict(only).sample(1, seed=3)
    kernel = FAMILY.emit(operator, HOPPER, config)
    assert any(source.name == "async_lines.h" for source in kernel.sources)
    assert hopper_emulation.run(kernel, hopper_emulation.build(kernel, tmp_path), operator).ok
