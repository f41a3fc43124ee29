"""Kernels of the SIMT family give correct results on a CPU: wrong indexing and missing barriers show without a GPU."""

from __future__ import annotations

import zlib
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simt_emulation as emulation

import deepgen as dg
from deepgen import targets
from deepgen.kernels.gemm.simt_gemm import SimtGemm
from deepgen.operators import Gemm, gemm
from deepgen.operators.expr.operator import ExpressionOperator
from deepgen.run.call.plans import check_shape
from deepgen.vocabulary import BadInput, Kernel, Source

FAMILY = SimtGemm()
Sizes = tuple[int, int, int]
CHIP = targets.resolve("cuda:sm_90a")
pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)


def check(operator: Gemm, kernel: Kernel, folder: Path, times: int = 1) -> None:
    check_shape(kernel, operator.scalars())
    error, found = emulation.run(kernel, emulation.build(kernel, folder), operator, times=times)
    assert error == "" and found.ok, found


# 4-byte and 2-byte numbers in all layouts; the other formats, which differ only in arithmetic, with both layouts of
# each operand.
@pytest.mark.parametrize(
    ("dtype", "layout"),
    [(dtype, layout) for dtype in ("f32", "f16") for layout in ("nn", "nt", "tn", "tt")]
    + [("tf32", "nt"), ("f64", "nn"), ("f64", "tt"), ("bf16", "nt"), ("bf16", "tn"), ("i8", "nn"), ("i8", "tt")],
)
def test_any_config_is_right_for_every_dtype_and_layout_on_odd_sizes(dtype: str, layout: str, tmp_path: Path) -> None:
    operator = gemm(37, 41, 53, dtype=dtype, layout=layout)
    (config,) = FAMILY.space(operator, CHIP).sample(1, seed=zlib.crc32(f"{dtype} {layout}".encode()))
    check(operator, FAMILY.emit(operator, CHIP, config), tmp_path)


@pytest.mark.parametrize("target", ["hip:gfx906", "hip:gfx90a", "hip:gfx1100"])
def test_wavefronts_and_packed_products_are_right_too(target: str, tmp_path: Path) -> None:
    operator, chip = gemm(40, 36, 48, dtype="f16", layout="nt"), targets.resolve(target)
    (config,) = FAMILY.space(operator, chip).restrict({"INNER_A": "k", "INNER_B": "k"}).sample(1, seed=5)
    kernel = FAMILY.emit(operator, chip, config)
    assert "-DDOT=2" in kernel.flags
    check(operator, kernel, tmp_path)


WAYS: dict[str, dict[str, Any]] = {
    "copies through registers, one buffer": {"COPY": "registers", "STAGES": 1, "FIXUP": "none"},
    "copies through registers, fragments ahead": {"COPY": "registers", "STAGES": 2, "REG_PREFETCH": True},
    "asynchronous copies": {"COPY": "async", "STAGES": [3, 4], "INNER_A": "k", "INNER_B": "k"},
    "asynchronous copies, element by element": {"COPY": "async", "INNER_A": "row", "LOAD_A": 1},
    "K shared inside a block": {"SPLIT_U": [2, 4]},
    "result through shared memory": {"SPLIT_U": 1, "STAGE_ROWS": [1, 2, 4]},
    "result through shared memory, two lanes in a row": {
        "STAGE_ROWS": [1, 2, 4],
        "LANES_M": 16,
        "THREAD_SCATTER_B": 1,
        "STORE": 4,
    },
    "parts of K added by a second step": {"FIXUP": "step"},
    "parts of K added by the last block": {"FIXUP": "last"},
    "stream-K": {"FIXUP": "stream"},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_right_run_after_run(way: str, tmp_path: Path) -> None:
    operator = Gemm(40, 44, 260, batch=2, layout="nt", alpha=0.5, beta=-2.0)
    some = FAMILY.space(operator, CHIP).restrict({**WAYS[way], "BM": [16, 32], "BN": [16, 32]})
    (config,) = some.sample(1, seed=zlib.crc32(way.encode()))
    check(operator, FAMILY.emit(operator, CHIP, config), tmp_path, times=2)


@pytest.mark.parametrize(
    ("operator", "some"),
    [
        (gemm(21, 19, 1300, layout="tt"), {"SPLITS": 16, "SPLIT_U": 1, "STAGE_ROWS": 0}),
        (gemm(19, 35, 1300, layout="nn"), {"SPLITS": [16, 14], "SPLIT_U": [2, 4]}),
        (Gemm(37, 36, 260, batch=2, beta=0.5), {"SPLIT_U": [2, 4], "THREAD_SCATTER_B": 1, "LANES_M": [8, 16]}),
        (gemm(17, 22, 300, dtype="f64", layout="nt"), {"SPLIT_U": 2}),
    ],
    ids=["more parts than loads at once", "groups", "lines that are padded", "doubles"],
)
def test_the_last_block_adds_all_parts_of_k(operator: Gemm, some: dict[str, Any], tmp_path: Path) -> None:
    space = FAMILY.space(operator, CHIP).restrict({"FIXUP": "last", "BM": [16, 32], "BN": [16, 32], **some})
    (config,) = space.sample(1, seed=7)
    check(operator, FAMILY.emit(operator, CHIP, config), tmp_path, times=2)


@pytest.mark.parametrize(
    ("operator", "some"),
    [
        (Gemm(37, 45, 140, layout="tn", beta=0.5), {"COPY": "async", "FIXUP": "none"}),
        (Gemm(33, 37, 133, batch=2, layout="nt"), {"COPY": "registers", "BK": 8, "STAGE_ROWS": [1, 2]}),
        (gemm(37, 34, 300, layout="nn"), {"FIXUP": "last"}),
        (gemm(9, 50, 90, layout="tt"), {"COPY": "async", "BM": [8, 16]}),
    ],
    ids=["copies", "registers", "parts of K", "few rows"],
)
def test_tiles_at_the_end_are_moved_back_and_store_only_their_own(
    operator: Gemm, some: dict[str, Any], tmp_path: Path
) -> None:
    space = FAMILY.space(operator, CHIP).restrict({"BM": [16, 32], "BN": [16, 32], **some})
    (config,) = space.sample(1, seed=11)
    kernel = FAMILY.emit(operator, CHIP, config)
    assert "-DEDGE_N=2" in kernel.flags
    check(operator, kernel, tmp_path)


def test_the_default_is_right(tmp_path: Path) -> None:
    operator = gemm(70, 66, 130, layout="nt")
    check(operator, FAMILY.emit(operator, CHIP, FAMILY.default(operator, CHIP)), tmp_path)


def test_one_binary_serves_other_sizes_where_its_guards_are_general(tmp_path: Path) -> None:
    operator = gemm(64, 64, 64, layout="nt")
    config = {**FAMILY.default(operator, CHIP), "GUARD": "all", "LOAD_A": 1, "LOAD_B": 1, "STORE": 1}
    kernel = FAMILY.emit(operator, CHIP, config)
    library = emulation.build(kernel, tmp_path)
    for m, n, k in ((64, 64, 64), (1, 1, 1), (65, 7, 129)):
        error, found = emulation.run(kernel, library, replace(operator, m=m, n=n, k=k))
        assert error == "" and found.ok, found


@pytest.mark.parametrize(
    ("tuned", "layout", "changes", "served", "refused"),
    [
        ((64, 64, 64), "nt", {"FIXUP": "none"}, [(128, 64, 32)], [(65, 64, 64), (64, 60, 64), (64, 64, 66)]),
        ((60, 52, 68), "nn", {"FIXUP": "none"}, [(61, 56, 4)], [(60, 53, 68), (60, 52, 69)]),
        ((64, 64, 512), "tn", {"FIXUP": "last", "SPLITS": 3}, [(64, 128, 544)], [(64, 64, 64), (66, 64, 512)]),
    ],
    ids=["whole tiles", "edges", "parts of K"],
)
def test_one_binary_is_right_at_every_size_that_it_says_it_serves(
    tuned: Sizes, layout: str, changes: dict[str, Any], served: list[Sizes], refused: list[Sizes], tmp_path: Path
) -> None:
    operator = gemm(*tuned, layout=layout)
    wide: dict[str, Any] = {"BM": [16, 32], "BN": [16, 32], "BK": 32, "LOAD_A": 4, "LOAD_B": 4, "STORE": 4}
    (config,) = FAMILY.space(operator, CHIP).restrict({**wide, **changes}).sample(1, seed=3)
    kernel = FAMILY.emit(operator, CHIP, config)
    library = emulation.build(kernel, tmp_path)
    for m, n, k in (tuned, *served):
        other = replace(operator, m=m, n=n, k=k)
        check_shape(kernel, other.scalars())
        error, found = emulation.run(kernel, library, other)
        assert error == "" and found.ok, found
    for m, n, k in refused:
        with pytest.raises(BadInput, match="does not support"):
            check_shape(kernel, replace(operator, m=m, n=n, k=k).scalars())


@pytest.mark.parametrize(
    ("copy", "wrong", "instead", "says"),
    [
        ("async", "copy_wait<STAGES - 2>();", "", "before its copy has landed"),
        ("registers", "#endif\n            barrier();", "#endif", "race"),
        ("registers", "load_b.put(stage + TileA::BYTES);", "load_b.put(end);", "shared memory at byte"),
        ("registers", "loader_a(p, w.batch, first_row(p, w)", "loader_a(p, w.batch, first_row(p, w) + 4", "outside"),
    ],
)
def test_a_mistake_in_a_kernel_is_caught(copy: str, wrong: str, instead: str, says: str, tmp_path: Path) -> None:
    operator = gemm(64, 64, 64, layout="nt")
    some = FAMILY.space(operator, CHIP).restrict({"COPY": copy, "STAGES": 2, "BM": 32, "BN": 32, "FIXUP": "none"})
    (config,) = some.restrict({"REG_PREFETCH": False, "SPLIT_U": 1, "LOAD_A": 4 if copy == "async" else [2, 4]}).sample(
        1, 3
    )
    kernel = FAMILY.emit(operator, CHIP, config)
    main = kernel.sources[0]
    assert wrong in main.text
    broken = replace(kernel, sources=(Source(main.name, main.text.replace(wrong, instead)), *kernel.sources[1:]))
    error, _ = emulation.run(broken, emulation.build(broken, tmp_path), operator)
    assert says in error


def triangle(m: int, n: int, k: int, least: int, most: int, layout: str = "nn", batch: int = 2) -> ExpressionOperator:
    """A product that is zero where a row less a column is not from `least` to `most`."""
    a = dg.tensor("x", (batch, m, k) if layout[0] == "n" else (batch, k, m))
    b = dg.tensor("y", (batch, k, n) if layout[1] == "n" else (batch, n, k))
    over = dg.reduce_axis("k", k)

    def element(p: Any, i: Any, j: Any) -> Any:
        left = a[(p, i, over) if layout[0] == "n" else (p, over, i)]
        return dg.sum(left * b[(p, over, j) if layout[1] == "n" else (p, j, over)], over)

    product = dg.compute("product", (batch, m, n), element)
    kept = dg.compute(
        "z",
        (batch, m, n),
        lambda p, i, j: dg.where((i < j + (most + 1)) & (j < i + (1 - least)), product[p, i, j], 0.0),
    )
    return ExpressionOperator(dg.expression(kept))


@pytest.mark.parametrize(
    ("operator", "some"),
    [
        (triangle(64, 64, 40, -63, 0), {"COPY": "registers"}),
        (triangle(70, 33, 50, -5, 69, "nt"), {"COPY": "async"}),
        (triangle(40, 100, 33, -9, 4, "tn"), {"SPLIT_U": 2}),
        (triangle(33, 50, 20, 30, 32, "tt", batch=1), {"STAGE_ROWS": [1, 2]}),
    ],
)
def test_tiles_outside_of_a_band_of_diagonals_are_zero(
    operator: ExpressionOperator, some: dict[str, Any], tmp_path: Path
) -> None:
    (config,) = FAMILY.space(operator, CHIP).restrict({"BM": [16, 32], "BN": [16, 32], **some}).sample(1, seed=2)
    kernel = FAMILY.emit(operator, CHIP, config)
    library = emulation.build(kernel, tmp_path)
    assert not any(emulation.wrong(kernel, library, operator, probe) for probe in operator.probes()), config


def test_tiles_outside_of_a_band_of_diagonals_have_no_steps(tmp_path: Path) -> None:
    """A kernel without the condition on elements still gives zeros in all tiles outside."""
    operator = triangle(64, 64, 16, -63, 0, batch=1)
    (config,) = FAMILY.space(operator, CHIP).restrict({"BM": 16, "BN": 16, "FIXUP": "none"}).sample(1, seed=2)
    kernel = FAMILY.emit(operator, CHIP, config)
    sources = [
        Source(one.name, one.text.replace("in_band(p, m, n + e) ? sums[e] : 0", "sums[e]")) for one in kernel.sources
    ]
    broken = replace(kernel, sources=tuple(sources))
    inputs = operator.inputs(1)
    tensors = {**inputs, "z": np.full((1, 64, 64), 7, dtype=np.float32)}
    assert emulation.steps(broken, emulation.build(broken, tmp_path), operator, tensors, {}) == ""
    whole = np.abs(inputs["x"].astype(np.float64) @ inputs["y"].astype(np.float64))[0] > 1e-3
    stored = tensors["z"][0] != 0
    for row, column in product(range(0, 64, 16), range(0, 64, 16)):
        tile = slice(row, row + 16), slice(column, column + 16)
        assert not stored[tile].any() if row > column else stored[tile][whole[tile]].all()
