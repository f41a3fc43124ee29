"""Families of grouped GEMMs are right for any offsets: on this machine's CPU, or emulated."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import hopper_emulation
import mma_emulation
import numpy as np
import pytest
import simt_emulation as simt
from kernel_runs import Runs

from deepgen import generators, targets
from deepgen.kernels.grouped_gemm.c_grouped import CGrouped
from deepgen.kernels.grouped_gemm.mma_grouped import MmaGrouped
from deepgen.kernels.grouped_gemm.sm90_grouped import Sm90Grouped
from deepgen.kernels.grouped_gemm.x86_grouped import X86Grouped
from deepgen.operators import grouped_gemm
from deepgen.operators.grouped_gemm import LAYOUTS

HERE, CHIP = targets.resolve("cpu"), targets.resolve("cuda:sm_90a")
emulated = pytest.mark.skipif(mma_emulation.COMPILER is None, reason=mma_emulation.NO_COMPILER)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_plain_c_is_right_on_every_probe_and_other_shapes(layout: str) -> None:
    family, operator = CGrouped(), grouped_gemm(5, 131, 67, 59, dtype="f32", layout=layout)
    (drawn,) = family.space(operator, HERE).sample(1, seed=zlib.crc32(layout.encode()))
    for config in (family.default(operator, HERE), {**drawn, "THREADS": 2, "PARTITION": "m", "TASKS": 2}):
        runs = Runs(family.emit(operator, HERE, config), HERE, "-O1")
        others = (replace(operator, experts=1), replace(operator, experts=9, m=7, k=300), replace(operator, m=3, k=2))
        assert [words for probe in operator.probes() if (words := runs.wrong(operator, probe))] == []
        assert [words for other in others if (words := runs.wrong(other))] == []


@pytest.mark.skipif(X86Grouped().refuses(grouped_gemm(1, 1, 1, 1, dtype="f16"), HERE) is not None, reason="not on x86")
@pytest.mark.parametrize(
    ("dtype", "layout", "scales", "knobs"),
    [
        ("f32", "nt", "row", {"SWAP": [True]}), ("f32", "nn", "none", {"KIND": ["thin"]}),
        ("bf16", "nt", "column", {"KIND": ["dot"]}),
        ("bf16", "tn", "none", {"SWAP": [False]}), ("f16", "nn", "expert", {"KIND": ["tiles"]}),
        ("f8e4m3", "nt", "none", {"KIND": ["tiles"]}),
    ],
)  # fmt: skip
def test_tiles_of_x86_are_right_on_every_probe(dtype: str, layout: str, scales: str, knobs: dict[str, Any]) -> None:
    family, operator = X86Grouped(), grouped_gemm(5, 71, 67, 59, dtype=dtype, layout=layout, scales=scales)
    assert not family.space(operator, HERE).explain(family.default(operator, HERE))
    (config,) = family.space(operator, HERE).restrict(knobs).sample(1, seed=zlib.crc32(f"{dtype} {layout}".encode()))
    runs = Runs(family.emit(operator, HERE, config), HERE, "-O1")
    others = (replace(operator, experts=1), replace(operator, experts=9, m=7, k=300), replace(operator, m=3, k=2))
    assert [words for probe in operator.probes() if (words := runs.wrong(operator, probe))] == []
    assert [words for other in others if (words := runs.wrong(other))] == []


@emulated
@pytest.mark.parametrize(
    ("dtype", "layout", "scales"),
    [
        ("bf16", "nt", "row"), ("bf16", "tn", "expert"), ("f16", "nn", "column"), ("tf32", "nt", "none"),
        ("tf32", "tn", "none"), ("f8e4m3", "nt", "expert"), ("f8e5m2", "tn", "none"),
    ],
)  # fmt: skip
def test_warp_wide_products_are_right_on_every_probe(dtype: str, layout: str, scales: str, tmp_path: Path) -> None:
    family, operator = MmaGrouped(), grouped_gemm(5, 71, 41, 53, dtype=dtype, layout=layout, scales=scales)
    small = family.space(operator, CHIP).restrict({"BM": [16, 32], "BN": [16, 32, 64]})
    (config,) = small.sample(1, seed=zlib.crc32(f"{dtype} {layout}".encode()))
    kernel = family.emit(operator, CHIP, config)
    library = mma_emulation.build(kernel, tmp_path)
    assert [words for probe in operator.probes() if (words := simt.wrong(kernel, library, operator, probe))] == []
    others = (replace(operator, experts=1, m=70), replace(operator, experts=9, m=8, k=300))
    assert [words for other in others if (words := simt.wrong(kernel, library, other))] == []


@emulated
def test_blocks_beyond_the_experts_rows_write_nothing(tmp_path: Path) -> None:
    """The grid has a block for every tile that there could be; offsets may also end before the last row."""
    family, operator = MmaGrouped(), grouped_gemm(4, 64, 32, 32)
    kernel = family.emit(operator, CHIP, family.default(operator, CHIP))
    library = mma_emulation.build(kernel, tmp_path)
    inputs = operator.inputs(1)
    for offsets in ([0, 0, 0, 0], [16, 16, 40, 40], [64, 80, 99, 2**31 - 1], [40, 20, -5, 48]):
        tensors = {**inputs, "offsets": np.array(offsets, np.int32), "C": np.full((64, 32), 7, np.uint16)}
        assert simt.steps(kernel, library, operator, tensors, {}) == ""
        last = min(64, max(offsets))
        assert (tensors["C"][last:] == 7).all() and (tensors["C"][:last] != 7).sum() >= 0.9 * 32 * last


WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "late results": ({"n": 160, "k": 152, "a": "f16", "c": "f16", "scales": "column"}, {"STORE": "late"}),
    "turns": ({"m": 400, "scales": "expert"}, {"SCHEDULE": "ping-pong", "TILES_M": 2, "STORE": "copy"}),
    "several warpgroups": ({"layout": "nn", "m": 500}, {"CONSUMERS": 3, "BN": 64, "STORE": "copy"}),
    "rows of odd length": ({"n": 90, "scales": "row"}, {"STORE": "lines", "CONSUMERS": 2}),
    "8 bits, ahead": ({"a": "f8e4m3", "c": "bf16", "k": 400, "scales": "expert"}, {"AHEAD": True, "BN": 64}),
    "gradient": ({"layout": "tn", "m": 160, "k": 300}, {"CONSUMERS": 2, "STORE": "late"}),
    "gradient, two lines a stage": ({"layout": "tn", "m": 160, "k": 700}, {"ATOMS": 2, "BN": 96}),
}


@emulated
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_warpgroup_products_are_right_on_every_probe(way: str, tmp_path: Path) -> None:
    changes, knobs = WAYS[way]
    family, operator = Sm90Grouped(), replace(grouped_gemm(5, 300, 96, 72), **changes)
    (config,) = family.space(operator, CHIP).restrict(knobs).sample(1, seed=zlib.crc32(way.encode()))
    kernel = family.emit(operator, CHIP, config)
    library = hopper_emulation.build(kernel, tmp_path)
    assert [
        (probe, str(one))
        for probe in operator.probes()
        if not (one := hopper_emulation.run(kernel, library, operator, probe)).ok
    ] == []
    for other in (replace(operator, experts=1), replace(operator, experts=9, m=24, k=520)):
        assert hopper_emulation.run(kernel, library, other).ok, other


def test_families_come_in_the_order_of_their_speed() -> None:
    operator = grouped_gemm(8, 4096, 4096, 2048)
    assert [family.name for family in generators.serving(operator, targets.resolve("cuda:sm_80"))] == ["mma_grouped"]
    assert [family.name for family in generators.serving(operator, CHIP)] == ["sm90_grouped", "mma_grouped"]
    for tiny in (grouped_gemm(1, 16, 8, 265, layout="tn"), grouped_gemm(3, 1, 8, 8), grouped_gemm(64, 5, 3, 16)):
        assert not Sm90Grouped().space(tiny, CHIP).explain(Sm90Grouped().default(tiny, CHIP))
    odd = replace(operator, k=2044)
    assert Sm90Grouped().refuses(odd, CHIP) == "it supports rows of A and B of whole 16 bytes"
    for target, first in (("arm:neon", "c_grouped"), ("x86:avx2", "x86_grouped"), ("x86:avx512", "x86_grouped")):
        assert generators.find(replace(operator, a="f32", c="f32"), targets.resolve(target)).name == first


@pytest.mark.parametrize(
    ("sizes", "slower", "faster"),
    [
        ((8, 4096, 4096, 2048), ("cooperative", 2, 1, 224), ("ping-pong", 2, 2, 128)),  # 133 and 115 us on an H200
        ((8, 2048, 1536, 2048), ("cooperative", 3, 1, 144), ("ping-pong", 2, 2, 128)),  # 44.5 and 30.1 us
        ((32, 8192, 1024, 1408), ("cooperative", 3, 1, 128), ("ping-pong", 2, 2, 128)),  # 58.2 and 52.5 us
        ((4, 264, 2048, 4096), ("cooperative", 2, 1, 64), ("cooperative", 1, 1, 128)),  # 39.9 and 29.4 us
    ],
)
def test_tiles_come_in_the_order_that_was_timed(sizes: tuple[int, int, int, int], slower: Any, faster: Any) -> None:
    operator, knobs = grouped_gemm(*sizes), ("SCHEDULE", "CONSUMERS", "TILES_M", "BN")
    ranked = Sm90Grouped().ranked(operator, targets.resolve("cuda:h200"))
    order = [tuple(config[knob] for knob in knobs) for config in ranked]
    assert faster in order[: order.index(slower) if slower in order else len(order)]
