"""A lowered program computes the same after every pass, on CPUs and on GPUs: interpreted, without a compiler."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import cases
import pytest
from expressions import expressions
from gpu_schedules import random_program
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schedules import random_schedule

import deepgen as dg
from deepgen import targets
from deepgen.compiler.check_passes import check_passes
from deepgen.compiler.family import Rules
from deepgen.compiler.passes import lower
from deepgen.compiler.passes.ir import (
    EMPTY,
    Alloc,
    Barrier,
    Call,
    For,
    Function,
    If,
    Lowered,
    Machine,
    Stmt,
    Store,
    walk,
    with_children,
)
from deepgen.compiler.passes.lower import passes
from deepgen.compiler.passes.text import to_text
from deepgen.compiler.rules.gpu.likely import near_usual
from deepgen.compiler.rules.gpu.sketches import gpu_sketches
from deepgen.compiler.rules.sketch import sketches, space_of
from deepgen.compiler.schedule.steps import (
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    Reorder,
    Schedule,
    Split,
)
from deepgen.operators.expr.index import Index
from deepgen.operators.expr.nodes import Expression
from deepgen.targets import Cpu, Gpu

# `DEEPGEN_EXPRESSIONS=1000 pytest tests/compiler/test_interpret.py` checks 2,000 random schedules, which takes minutes.
COUNT = int(os.environ.get("DEEPGEN_EXPRESSIONS", "8"))
SAMPLES = int(os.environ.get("DEEPGEN_SAMPLES", "0"))  # more configs of each sketch
PROCESSORS = (Machine(16), Machine(32), Machine(64))
GPUS = (Machine(warp=32), Machine(warp=32), Machine(warp=64))


def collected(count: int, *, gpu: bool) -> list[tuple[Expression, Schedule, Machine]]:
    drawn: list[tuple[Expression, Schedule, Machine]] = []

    @settings(max_examples=count, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)
    @given(expressions(most=5), st.integers(0, 2**32))
    def collect(expression: Expression, seed: int) -> None:
        random, machine = Random(f"{seed} {len(drawn)}"), (GPUS if gpu else PROCESSORS)[len(drawn) % 3]
        if gpu:
            drawn.append((expression, random_program(expression, random, machine.warp)[0], machine))
        else:
            drawn.append((expression, random_schedule(expression, random), machine))

    collect()
    return drawn


@pytest.mark.parametrize("gpu", [False, True], ids=["processors", "gpus"])
def test_no_pass_changes_what_random_schedules_compute(gpu: bool) -> None:
    for n, (expression, schedule, machine) in enumerate(collected(COUNT, gpu=gpu)):
        checked = check_passes(expression, passes(expression, schedule, machine), machine, n)
        assert not checked.wrong, f"{n}: {checked.text}\n{expression}\n" + "\n".join(map(str, schedule))


def configs(expression: Expression, name: str, count: int) -> Iterator[tuple[Expression, Schedule, Machine]]:
    """The usual config of each sketch, and some others."""
    target = targets.resolve(name)
    if isinstance(target, Gpu):
        for sketch in gpu_sketches(expression, target):
            chosen = [near_usual(sketch), *space_of(sketch.name, [sketch]).sample(count, seed=1)]
            yield from ((sketch.expression, sketch.schedule(c), Machine(warp=target.warp)) for c in chosen)
        return
    assert isinstance(target, Cpu)
    for sketch in sketches(expression, target):
        chosen = [sketch.usual(), *space_of(sketch.name, [sketch]).sample(count, seed=1)]
        yield from ((sketch.expression, sketch.schedule(c), Machine(target.vector_bytes)) for c in chosen)


@pytest.mark.parametrize(
    ("name", "expression"),
    [
        ("arm:neon", cases.conv(5, 3, 4, 3, 2)),
        ("x86:avx512", cases.softmax(3, 20)),
        ("arm:neon_dot", cases.gemm(5, 8, 12, "i8")),
        ("x86:amx", cases.gemm(17, 20, 68, "i8")),
        ("x86:amx", dg.gemm(23, 17, 40, dtype="bf16").expression()),  # padded to 24 rows
        ("cuda:sm_90a", cases.gemm(33, 16, 32, "f16")),
        ("cuda:sm_90a", cases.scan((2, 3, 24), 2)),
        ("cuda:sm_80", cases.layer_norm(3, 40)),
        ("cuda:sm_80", cases.place((40, 33), 0)),
        ("hip:gfx90a", cases.gemm(18, 16, 16, "bf16")),
    ],
)
def test_no_pass_changes_what_configs_of_rules_compute(name: str, expression: Expression) -> None:
    for n, (prepared, schedule, machine) in enumerate(configs(expression, name, SAMPLES)):
        checked = check_passes(prepared, passes(prepared, schedule, machine), machine, n)
        assert not checked.wrong, f"{n}: {checked.text}\n" + "\n".join(map(str, schedule))


def test_parts_of_loops_that_overlap_are_not_added_to_twice() -> None:
    """The second split covers more than the part that it splits: the pass `pads` once dropped the guard for that."""
    schedule: Schedule = (
        CacheWrite("C", "sums", "register"),
        Split("sums", "i1", (2,)),
        Split("sums", "i1.1", (4,)),
        Reorder("sums", ("r0", "i0", "i1.0", "i1.1.0", "i1.1.1")),
    )
    expression, machine = cases.gemm(5, 5, 7), Machine(16)
    checked = check_passes(expression, passes(expression, schedule, machine), machine)
    assert not checked.wrong, checked.text


def test_registers_that_a_shared_stage_reads_are_written_by_its_threads() -> None:
    """Two threads compute the result, and five the shared data, from registers that are placed at the loop of two."""
    schedule: Schedule = (
        CacheRead("A", "held", "register", ("C",)),
        CacheRead("held", "copy", "shared", ("C",)),
        Annotate("C", "i0", "thread.x"),
        ComputeAt("copy", "C", "i0"),
        Annotate("copy", "a1", "thread.x"),
        ComputeAt("held", "C", "i0"),
    )
    expression, machine = cases.gemm(2, 3, 5), Machine(warp=32)
    checked = check_passes(expression, passes(expression, schedule, machine), machine)
    assert not checked.wrong, checked.text


# Products of four warps, scaled down: only chips of one kind have them, and they read memory asynchronously.
def test_products_that_run_on_their_own_land_when_they_are_waited_for() -> None:
    configured = configs(cases.gemm(64, 64, 64, "f16", transposed=True), "cuda:sm_90a", 0)
    programs = [(e, s, m, list(passes(e, s, m))) for e, s, m in configured]
    case = next(case for case in programs if "products_wait" in to_text(case[3][-1][1]))
    expression, _, machine, lowered = case
    assert not check_passes(expression, lowered, machine).wrong
    unwaited = [(name, without(one, "products_wait")) for name, one in lowered]
    assert check_passes(expression, unwaited, machine).names == ("build", "windows", "matrices")


def changed(lowered: Lowered, change: Callable[[Stmt], Stmt]) -> Lowered:
    if isinstance(lowered, Function):
        return replace(lowered, body=change(lowered.body))
    return replace(lowered, launches=tuple(replace(one, body=change(one.body)) for one in lowered.launches))


def without(lowered: Lowered, call: str) -> Lowered:
    def keep(statement: Stmt) -> Stmt:
        dropped = isinstance(statement, Call) and statement.what.name.startswith(call)
        return EMPTY if dropped else with_children(statement, keep)

    return changed(lowered, keep)


def lost_iteration(statement: Stmt) -> Stmt:
    """The innermost loops end one iteration early."""
    if (
        isinstance(statement, For)
        and statement.extent > 1
        and not any(isinstance(s, For) for s in walk(statement.body))
    ):
        return replace(statement, extent=statement.extent - 1)
    return with_children(statement, lost_iteration)


def no_guards(statement: Stmt) -> Stmt:
    statement = with_children(statement, no_guards)
    return statement.then if isinstance(statement, If) and statement.otherwise is None else statement


def wrong_place(statement: Stmt) -> Stmt:
    """Results are stored one element further."""
    if isinstance(statement, Store) and statement.buffer == "C":
        return replace(statement, indices=(*statement.indices[:-1], statement.indices[-1] + 1))
    return with_children(statement, wrong_place)


def no_barriers(statement: Stmt) -> Stmt:
    return EMPTY if isinstance(statement, Barrier) else with_children(statement, no_barriers)


def all_first(statement: Stmt) -> Stmt:
    """All buffers start at offset 0."""
    if isinstance(statement, Alloc) and statement.buffer.offset is not None:
        statement = replace(statement, buffer=replace(statement.buffer, offset=0))
    return with_children(statement, all_first)


FAULTS = (lost_iteration, no_guards, wrong_place, no_barriers, all_first)
ON_PROCESSOR: Schedule = (
    CacheWrite("C", "sums", "register"),
    Split("C", "i0", (4,)),
    Split("C", "i1", (8,)),
    Reorder("C", ("i0.0", "i1.0", "i0.1", "i1.1")),
    Annotate("C", "i0.0", "parallel"),
    Annotate("C", "i0.1", "unroll"),
    Annotate("C", "i1.1", "vector"),
    ComputeAt("sums", "C", "i1.0"),
    Reorder("sums", ("r0", "i0", "i1")),
    Annotate("sums", "i1", "vector"),
    CacheRead("A", "A_copy", "global", ("sums",)),
    CacheRead("B", "B_copy", "global", ("sums",)),
)
ON_GPU: Schedule = (
    CacheWrite("C", "sums", "register"),
    Split("C", "i0", (4,)),
    Split("C", "i1", (8,)),
    Reorder("C", ("i0.0", "i1.0", "i0.1", "i1.1")),
    Annotate("C", "i0.0", "block.x"),
    Annotate("C", "i0.1", "thread.y"),
    Annotate("C", "i1.1", "thread.x"),
    ComputeAt("sums", "C", "i1.1"),
    Split("sums", "r0", (3,)),
    CacheRead("A", "A_copy", "shared", ("sums",)),
    ComputeAt("A_copy", "sums", "r0.0"),
    Annotate("A_copy", "a1", "thread.x"),
    CacheRead("B", "B_copy", "shared", ("sums",)),
    ComputeAt("B_copy", "sums", "r0.0"),
    Annotate("B_copy", "a1", "thread.x"),
    Annotate("B_copy", "a0", "thread.y"),
)


@pytest.mark.parametrize("gpu", [False, True], ids=["processors", "gpus"])
def test_a_fault_in_any_pass_is_named(gpu: bool) -> None:
    expression, machine = cases.gemm(6, 12, 5), Machine(warp=32 * gpu)
    right = list(passes(expression, ON_GPU if gpu else ON_PROCESSOR, machine))
    assert not check_passes(expression, right, machine).wrong
    named = [name for name, _ in right]
    for place, (name, lowered) in enumerate(right):
        # Before it: the built program, and the point where threads begin to wait for each other.
        before = [right[n] for n in range(place) if not n or named[n] == "barriers"]
        planted = set()
        for fault in FAULTS:
            faulty = changed(lowered, fault)
            if faulty == lowered or (fault is no_barriers and "barriers" not in named[: place + 1]):
                continue
            if fault is no_guards and "partition" in named[: place + 1]:
                continue  # the remaining guards hold in every tile of such a small product
            planted.add(fault.__name__)
            checked = check_passes(expression, [*before, (name, faulty)], machine)
            assert checked.wrong, f"{fault.__name__} after {name} is not noticed\n{to_text(faulty)}"
            assert checked.names == (*(n for n, _ in before), name), f"{fault.__name__} after {name}: {checked.text}"
        assert len(planted) > 1, name
        assert name != "storage" or "all_first" in planted


def test_a_pass_that_is_wrong_is_named_for_a_config(monkeypatch: pytest.MonkeyPatch) -> None:
    operator, family, target = dg.operator("gemm", M=96, N=100, K=64), Rules(), targets.resolve("arm:neon")
    config = family.default(operator, target)
    checked: Any = family.checked_passes(operator, target, config)
    assert checked["wrong"] is None and checked["passes"][-1] == "storage" and "C " in checked["sizes"]
    place = [name for name, _, _ in lower.PASSES].index("guards")
    name, work, on = lower.PASSES[place]
    wrong = (name, lambda lowered, machine: changed(work(lowered, machine), lost_iteration), on)
    monkeypatch.setattr(lower, "PASSES", (*lower.PASSES[:place], wrong, *lower.PASSES[place + 1 :]))
    checked = family.checked_passes(operator, target, config)
    assert checked["wrong"]["pass"] == "guards"


def test_a_fault_in_what_is_built_is_named() -> None:
    expression, machine = cases.gemm(10, 12, 7), Machine()
    ((name, built), *_) = passes(expression, ON_PROCESSOR, machine)
    assert check_passes(expression, [(name, changed(built, no_guards))], machine).names == ("build",)
    assert "written by thread" in check_passes(expression, [(name, changed(built, one_place))], machine).wrong


def one_place(statement: Stmt) -> Stmt:
    """All rows are stored in one place."""
    if isinstance(statement, Store) and statement.buffer == "C":
        return replace(statement, indices=(Index(), *statement.indices[1:]))
    return with_children(statement, one_place)
