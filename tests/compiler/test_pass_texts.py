"""Every pass, on the first of a few small schedules that it changes: the text before and after.

The texts are in `tests/golden/passes`, a file for each pass and kind of target.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cases import scan
from test_passes import SQUARES, TILE, doubled, product, squares
from test_squares import squares_of, turned

import deepgen as dg
from deepgen.compiler.check_passes import check_passes
from deepgen.compiler.passes.ir import Machine
from deepgen.compiler.passes.lower import PASSES, passes
from deepgen.compiler.passes.text import to_text
from deepgen.compiler.schedule.steps import (
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    Layout,
    LayoutPlace,
    Reorder,
    Schedule,
    SetScope,
    Split,
    Tensorize,
    whole,
)
from deepgen.operators.expr.nodes import Expression

PROCESSOR, GPU = Machine(), Machine(warp=32)
CHECK_ONLY = ("lanes",)  # their refusals are tested elsewhere


def products(m: int, n: int, k: int, dtype: str, sums: str) -> Expression:
    a, b, over = dg.tensor("A", (m, k), dtype), dg.tensor("B", (n, k), dtype), dg.reduce_axis("k", k)
    return dg.expression(
        dg.compute("C", (m, n), lambda i, j: dg.sum(a[i, over].cast(sums) * b[j, over].cast(sums), over))
    )


def two_results() -> Expression:
    x = dg.tensor("x", (8,))
    return dg.expression(*(dg.compute(name, (8,), lambda i, n=n: x[i] + n) for n, name in enumerate(("y", "z"))))


def through_shared_memory() -> Expression:
    x = dg.tensor("x", (8,))
    s = dg.compute("s", (8,), lambda i: x[i] * 2)
    return dg.expression(dg.compute("y", (8,), lambda i: s[7 - i]))


def sums_of_three() -> Expression:
    x, tap = dg.tensor("x", (10,)), dg.reduce_axis("tap", 3)
    padded = dg.compute("padded", (12,), lambda i: dg.where((i >= 1) & (i <= 10), x[i - 1], 0.0))
    return dg.expression(dg.compute("y", (10,), lambda i: dg.sum(padded[i + tap], tap)))


WINDOWS = (
    CacheWrite("y", "sums", "register"),
    Split("y", "i0", (4,)),
    Annotate("y", "i0.0", "thread.x"),
    ComputeAt("sums", "y", "i0.0"),
    SetScope("padded", "register"),
    ComputeAt("padded", "y", "i0.0"),
)
FIRST_OF_TWO = (Annotate("y", "i0", "thread.x"), Annotate("z", "i0", "thread.x"))
BOTH_IN_REGISTERS = (
    *FIRST_OF_TWO,
    CacheRead("x", "of_y", "register", ("y",)),
    ComputeAt("of_y", "y", "i0"),
    CacheRead("x", "of_z", "register", ("z",)),
    ComputeAt("of_z", "z", "i0"),
)
SHARED = (
    Annotate("y", "i0", "thread.x"),
    SetScope("s", "shared"),
    ComputeAt("s", "y", "i0"),
    Annotate("s", "i0", "thread.x"),
)
REGISTERS = (
    Split("y", "i0", (4,)),
    Annotate("y", "i0.0", "thread.x"),
    Annotate("y", "i0.1", "vector"),
    CacheRead("x", "own", "register", ("y",)),
    ComputeAt("own", "y", "i0.0"),
)
DOTS = (
    CacheRead("B", "packed", "global", ("C",)),
    Layout("packed", (LayoutPlace(0, 4), LayoutPlace(1, 4), LayoutPlace(0, 1, 4), LayoutPlace(1, 1, 4))),
    Split("C", "r0", (4,)),
    Split("C", "i1", (4,)),
    Reorder("C", ("i0", "i1.0", "r0.0", "r0.1", "i1.1")),
    Tensorize("C", "r0.1", "arm_sdot"),
)
TILES = (
    CacheWrite("C", "sums", "register"),
    Split("C", "i0", (1, 2)),
    Split("C", "i1", (1, 16)),
    Reorder("C", ("i0.0", "i1.0", "i0.1", "i0.2", "i1.1", "i1.2")),
    ComputeAt("sums", "C", "i1.0"),
    Split("sums", "i0", (2,)),
    Split("sums", "i1", (16,)),
    Split("sums", "r0", (16, 4)),
    Reorder("sums", ("r0.0", "i0.0", "i0.1", "i1.0", "i1.1", "r0.1", "r0.2")),
    Tensorize("sums", "i0.0", "amx_i8"),
    CacheRead("B", "packed", "global", ("sums",)),
    Layout("packed", (LayoutPlace(0, 16), LayoutPlace(1, 4), LayoutPlace(0, 1, 16), LayoutPlace(1, 1, 4))),
)
MATRICES = (
    CacheWrite("C", "sums", "warp"),
    CacheRead("A", "rows", "shared", ("sums",)),
    CacheRead("B", "columns", "shared", ("sums",)),
    Annotate("C", "i0", "thread.y"),
    ComputeAt("sums", "C", "i1"),
    Split("sums", "r0", (2,)),
    Reorder("sums", ("r0.0", "i0", "i1", "r0.1")),
    Tensorize("sums", "i0", "dot_f16"),
    ComputeAt("rows", "C", "i1"),
    ComputeAt("columns", "C", "i1"),
)
SCANNED = (
    CacheWrite("y", "sums", "warp"),
    CacheRead("x", "run", "register", ("sums",)),
    Split("y", "i1", (32, 4)),
    Annotate("y", "i1.1", "thread.x"),
    Annotate("y", "i1.2", "vector"),
    SetScope("sums", "warp"),
    Layout("sums", (*whole(0), LayoutPlace(1, 128), LayoutPlace(1, 1, 4), LayoutPlace(1, 4, 32))),
    ComputeAt("sums", "y", "i0"),
    Split("sums", "i1", (32, 4)),
    Annotate("sums", "i1.1", "thread.x"),
    Annotate("sums", "i1.2", "unroll"),
    ComputeAt("run", "sums", "i1.1"),
    Annotate("run", "a1", "vector"),
)
EXAMPLES: list[tuple[Expression, Schedule, Machine]] = [
    (doubled(10), (Split("y", "i0", (4,)), Annotate("y", "i0.1", "vector")), PROCESSOR),
    (product(5, 4, 5), TILE, PROCESSOR),
    (
        product(3, 4, 5),
        (*TILE, CacheRead("A", "copy", "register", ("sums",)), ComputeAt("copy", "sums", "r0")),
        PROCESSOR,
    ),
    (turned(8, 4), squares_of(4), PROCESSOR),
    (products(2, 8, 8, "i8", "i32"), DOTS, PROCESSOR),
    (products(2, 16, 64, "i8", "i32"), TILES, PROCESSOR),
    (through_shared_memory(), SHARED, GPU),
    (doubled(30), REGISTERS, GPU),
    (squares(), SQUARES, GPU),
    (products(4, 1, 8, "f16", "f32"), MATRICES, GPU),
    (through_shared_memory(), (*SHARED, Layout("s", (LayoutPlace(0, 4), LayoutPlace(0, 1, 4)))), GPU),
    (two_results(), FIRST_OF_TWO, GPU),
    (two_results(), BOTH_IN_REGISTERS, GPU),
    (sums_of_three(), WINDOWS, GPU),
    (doubled(30), (Split("y", "i0", (8,)), Annotate("y", "i0.1", "thread.x")), GPU),
    (scan((2, 5120), 1), SCANNED, GPU),
]


def of(machine: Machine) -> str:
    return "gpu" if machine.warp else "processor"


PLACES = [(place, machine) for machine in (PROCESSOR, GPU) for place in range(sum(on(machine) for *_, on in PASSES))]


def test_no_pass_changes_what_the_examples_compute() -> None:
    for expression, schedule, machine in EXAMPLES:
        checked = check_passes(expression, passes(expression, schedule, machine), machine)
        assert not checked.wrong, checked.text


@pytest.mark.parametrize(
    ("place", "machine"), PLACES, ids=lambda one: of(one) if isinstance(one, Machine) else str(one)
)
def test_a_text_before_and_a_text_after(place: int, machine: Machine, golden: Callable[[str, str], str]) -> None:
    for expression, schedule, kind in EXAMPLES:
        if kind == machine:
            lowered = list(passes(expression, schedule, machine))
            (_, before), (name, after) = lowered[place : place + 2]
            if before != after:
                text = f"before\n{to_text(before)}\nafter\n{to_text(after)}"
                again = "_again" * sum(name == other for other, _ in lowered[:place])
                assert not (differs := golden(f"passes/{of(machine)}_{name}{again}.txt", text)), differs
                return
    assert name in CHECK_ONLY, f"no example in which {name} does anything"
