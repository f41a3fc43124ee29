"""The family for weights of 4 bits: what it serves, that its kernels build, and that they compute correct results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import mma_emulation as emulation
import pytest
import simt_emulation as simt

import needs
from deepgen import generators, targets
from deepgen.kernels.gemm_w4.mma_gemm_w4 import MmaGemmW4
from deepgen.operators import GemmW4, Operator, gemm_w4, softmax
from deepgen.run.call.plans import check_shape, evaluate
from deepgen.vocabulary import BadInput, WorkspaceArg

FAMILY, HOPPER, AMPERE = MmaGemmW4(), targets.resolve("cuda:sm_90a"), targets.resolve("cuda:sm_80")
USUAL = gemm_w4(16, 4096, 4096, weight_layout="packed")
SHAPES = [
    USUAL,
    gemm_w4(16, 8192, 28672, weight_layout="packed"),
    gemm_w4(1, 28672, 8192, group=32, zeros=True, dtype="f16", weight_layout="packed"),
    gemm_w4(100, 4094, 1000, group=0, weight_layout="packed"),
    gemm_w4(1, 2, 2, weight_layout="packed"),
]


@pytest.mark.parametrize(
    ("operator", "target", "why"),
    [
        (USUAL, "cuda:sm_75", "sm_80"),
        (softmax(4, 4), "cuda:sm_90a", "weights of 4 bits only"),
        (replace(USUAL, weight_layout="none"), "cuda:sm_90a", "pack_w4"),
        (replace(USUAL, n=7), "cuda:sm_90a", "multiple of 2"),
        (replace(USUAL, n=6, zeros=True), "cuda:sm_90a", "multiple of 4"),
    ],
)
def test_what_it_cannot_do_it_refuses_in_words(operator: Operator, target: str, why: str) -> None:
    assert why in (FAMILY.refuses(operator, targets.resolve(target)) or "")


def test_others_serve_what_it_refuses() -> None:
    for operator, target in ((replace(USUAL, weight_layout="none"), HOPPER), (USUAL, targets.resolve("x86:avx2"))):
        assert generators.find(operator, target).name == "rules"
    assert generators.find(USUAL, AMPERE).name == "mma_gemm_w4"


@pytest.mark.parametrize("operator", SHAPES, ids=GemmW4.slug)
def test_what_it_ranks_is_in_the_space_and_serves_other_sizes(operator: GemmW4) -> None:
    for target in (HOPPER, AMPERE):
        space, ranked = FAMILY.space(operator, target), list(FAMILY.ranked(operator, target))
        assert ranked[0] == FAMILY.default(operator, target) and all(not space.explain(one) for one in ranked)
    kernel = FAMILY.emit(operator, HOPPER, ranked[0])
    check_shape(kernel, replace(operator, m=1, n=3 * operator.n, k=5 * operator.k).scalars())
    with pytest.raises(BadInput, match=r"N that is a multiple of|M of at most"):
        check_shape(kernel, replace(operator, m=71, n=operator.n + 1).scalars())
    if operator.k % 8 == 0:
        with pytest.raises(BadInput, match="rows of x that lie multiples of 8 numbers apart"):
            check_shape(kernel, {**operator.scalars(), "stride_x_0": operator.k + 4})


def test_every_block_has_an_equal_share_or_as_many_as_asked_for() -> None:
    default = FAMILY.default(USUAL, HOPPER)
    rows = default["WARPS_R"] * default["TILES"] * 16
    for splits, join, blocks, spaces in (
        (0, "memory", HOPPER.multiprocessors * default["MIN_BLOCKS"], 2),
        (1, "memory", 4096 // rows, 0),
        (4, "memory", 4 * 4096 // rows, 2),
        (4, "cluster", 4 * 4096 // rows, 0),
    ):
        [step] = FAMILY.emit(USUAL, HOPPER, {**default, "SPLITS": splits, "JOIN": join}).plan.steps
        assert evaluate(step.grid[0], USUAL.scalars()) == blocks
        assert sum(isinstance(arg, WorkspaceArg) for arg in step.args) == spaces
        assert step.cluster == ((4 if join == "cluster" else 1), 1, 1)


@pytest.mark.parametrize("operator", SHAPES[:4], ids=GemmW4.slug)
def test_kernels_build_and_spill_nothing(operator: GemmW4) -> None:
    facts = needs.built_here(FAMILY.emit(operator, AMPERE, FAMILY.default(operator, AMPERE)), AMPERE).facts
    assert int(str(facts["spill_bytes"])) == 0


def drawn(seed: int) -> GemmW4:
    rng = Random(seed)
    zeros = rng.random() < 0.5
    return gemm_w4(
        rng.choice([1, 3, 8, 16, 17, 40]), rng.choice([4, 20, 64, 100, 130 - 2 * zeros]) + 2 * (not zeros),
        rng.choice([2, 34, 64, 200, 256, 330]), group=rng.choice([0, 32, 64, 128]),
        dtype=rng.choice(["bf16", "f16"]), zeros=zeros, weight_layout="packed",
    )  # fmt: skip


@pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)
@pytest.mark.parametrize(
    ("seed", "join"),
    [*((seed, "memory") for seed in (3, 5, 9, 11, 16, 22)), *((seed, "cluster") for seed in (5, 9, 11, 13))],
)
def test_drawn_cases_are_right(seed: int, join: str, tmp_path: Path) -> None:
    """Also with so few multiprocessors that blocks have some rows whole and others in part."""
    operator, chip = drawn(seed), replace(HOPPER, multiprocessors=Random(seed).choice([132, 1, 3]))
    if join == "cluster":  # every block of one has a stage
        operator = replace(operator, k=operator.k + 256)
    [config] = FAMILY.space(operator, chip).restrict({"JOIN": join}).sample(1, seed)
    kernel = FAMILY.emit(operator, chip, config)
    library = emulation.build(kernel, tmp_path)
    for probe in ("normal", "exact"):
        error, result = simt.run(kernel, library, operator, probe, times=2)
        assert error == "" and result.ok, (config, result)
