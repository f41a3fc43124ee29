"""The estimate that orders configs: the data that loops move between memories, and one kind of cost on every target."""

from __future__ import annotations

from typing import Any

import cases
import pytest

import deepgen as dg
from deepgen import targets
from deepgen.compiler.costs import cost
from deepgen.compiler.family import Rules, RulesConstantWeights
from deepgen.compiler.passes.ir import Machine
from deepgen.compiler.passes.lower import passes
from deepgen.compiler.schedule.steps import Annotate, CacheWrite, ComputeAt, Reorder, Schedule, Split
from deepgen.generators import by_name, member_of
from deepgen.kernels import Cost, CostPart, CostPhase, cost_of
from deepgen.targets import Cpu, Gpu

ROWS: Schedule = (Reorder("C", ("i0", "r0", "i1")), Annotate("C", "i1", "vector"))
TILES: Schedule = (
    CacheWrite("C", "sums", "register"),
    Split("C", "i0", (8,)),
    Split("C", "i1", (32,)),
    Reorder("C", ("i0.0", "i1.0", "i0.1", "i1.1")),
    Annotate("C", "i0.1", "unroll"),
    Annotate("C", "i1.1", "vector"),
    ComputeAt("sums", "C", "i1.0"),
    Reorder("sums", ("r0", "i0", "i1")),
    Annotate("sums", "i0", "unroll"),
    Annotate("sums", "i1", "vector"),
)


def parts(of: Cost, phase: int = 0) -> dict[str, CostPart]:
    return {part.name: part for part in (*of.phases[phase].beside, *of.phases[phase].fixed)}


def on_cpu(schedule: Schedule, size: int = 256, threads: int = 1) -> Cost:
    target = targets.resolve("x86:avx512")
    assert isinstance(target, Cpu)
    expression, machine = cases.gemm(size, size, size), Machine(target.vector_bytes)
    return cost(next(passes(expression, schedule, machine))[1], target, threads)


def test_what_hides_what() -> None:
    longest, hidden, fixed = CostPart("a", 10.0), CostPart("b", 5.0), CostPart("c", 1.0)
    assert CostPhase("p", (longest, hidden), (fixed,)).seconds == pytest.approx(12.5)
    assert Cost((CostPhase("p", (longest,)), CostPhase("q", (), (fixed,)))).seconds == pytest.approx(12.0)


def test_tiles_load_less_and_move_less() -> None:
    rows, tiles = parts(on_cpu(ROWS)), parts(on_cpu(TILES))
    assert tiles["loads and stores"].amount < rows["loads and stores"].amount / 3
    assert tiles["from L2"].amount < rows["from L2"].amount / 4
    assert tiles["arithmetic"].amount == pytest.approx(256**3 / 16, rel=0.02)
    assert tiles["from memory"].amount == 3 * 4 * 256**2  # all of it fits in the last-level cache: each tensor once
    assert on_cpu(TILES).seconds < on_cpu(ROWS).seconds


def test_threads_divide_work_and_wait_for_the_last() -> None:
    tiled: Schedule = (*TILES, Annotate("C", "i0.0", "parallel"))
    alone, three, four = (on_cpu(tiled, 64, threads) for threads in (1, 3, 4))
    assert parts(four)["arithmetic"].seconds == pytest.approx(parts(alone)["arithmetic"].seconds / 4)
    assert parts(three)["arithmetic"].seconds == pytest.approx(parts(alone)["arithmetic"].seconds * 3 / 8)
    assert "threads" in parts(four) and "threads" not in parts(alone)


def test_threads_of_a_block_read_together() -> None:
    target = targets.resolve("cuda:sm_90a")
    assert isinstance(target, Gpu)
    coalesced: Schedule = (
        Split("C", "i1", (32,)),
        Reorder("C", ("i0", "i1.0", "i1.1", "r0")),
        Annotate("C", "i0", "block.x"),
        Annotate("C", "i1.1", "thread.x"),
    )
    strided: Schedule = (
        Split("C", "i0", (32,)),
        Reorder("C", ("i1", "i0.0", "i0.1", "r0")),
        Annotate("C", "i1", "block.x"),
        Annotate("C", "i0.1", "thread.x"),
    )
    one, other = (
        cost(next(passes(cases.gemm(128, 128, 128), schedule, Machine(warp=32)))[1], target)
        for schedule in (coalesced, strided)
    )
    assert parts(one)["memory"].amount == parts(other)["memory"].amount == 3 * 4 * 128**2
    assert parts(one)["L2"].amount < parts(other)["L2"].amount
    assert parts(one)["launch"].seconds > 0


@pytest.mark.parametrize(
    "name", ["arm:neon_dot", "x86:avx512", "x86:amx", "riscv:rv64gcv_zvl256b", "cuda:sm_90a", "hip:gfx90a"]
)
def test_every_target_has_one(name: str) -> None:
    target, family = targets.resolve(name), Rules()
    for operator in (
        dg.operator("softmax", rows=64, cols=1000),
        dg.operator(
            "conv2d", N=1, H=14, W=14, CI=32, CO=32, k=3, pad=1, dtype="f16" if isinstance(target, Gpu) else "f32"
        ),
    ):
        expected = family.cost(operator, target, family.default(operator, target))
        assert expected.phases and 1e-7 < expected.seconds < 1e-1, (operator, expected)
        assert all(
            part.seconds >= 0 and part.unit for phase in expected.phases for part in (*phase.beside, *phase.fixed)
        )


def test_what_is_made_ahead_of_time_costs_nothing() -> None:
    operator, target = dg.operator("conv2d", N=1, H=14, W=14, CI=32, CO=32, k=3, pad=1), targets.resolve("x86:avx512")
    constant = RulesConstantWeights()
    config: Any = constant.default(operator, target)
    assert config["at_weight"] == "once"
    assert constant.cost(operator, target, config).seconds < Rules().cost(operator, target, config).seconds


def test_a_model_of_the_whole_run_is_one_part() -> None:
    operator, target = dg.operator("gemm", M=512, N=512, K=512), targets.resolve("x86:avx512")
    family, config = member_of(by_name("x86_gemm"), by_name("x86_gemm").default(operator, target))
    expected = cost_of(family, operator, target, config)
    assert expected is not None and expected.seconds == family.modelled_seconds(operator, target, config)  # type: ignore[attr-defined]


def test_configs_are_ordered_by_the_cost_that_is_shown() -> None:
    target = targets.resolve("cuda:sm_90a")
    operator = dg.operator("conv2d", N=1, H=14, W=14, CI=64, CO=64, k=3, dtype="f16")
    assert isinstance(target, Gpu)
    counted = [sketch for sketch in Rules().sketches(operator, target) if sketch.counts is not None]
    for sketch in counted:
        for config in sketch.space.sample(3, seed=0):
            assert sketch.counts is not None
            assert sketch.counts.cost(config, target).seconds == pytest.approx(sketch.counts.seconds(config, target))
    assert counted
