"""Schedules: how a step changes loops, which steps are refused and with what message, text and JSON."""

from __future__ import annotations

from random import Random

import pytest
from expressions import expressions
from hypothesis import given
from hypothesis import strategies as st
from schedules import random_schedule

import deepgen as dg
from deepgen.compiler.passes.lower import lower
from deepgen.compiler.passes.text import value_text
from deepgen.compiler.schedule.apply import apply
from deepgen.compiler.schedule.steps import (
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    Fuse,
    Inline,
    Layout,
    LayoutPlace,
    Pipeline,
    Reorder,
    RFactor,
    SetScope,
    Split,
    Step,
    StorageAlign,
    concrete,
    to_text,
)
from deepgen.operators.expr.nodes import Expression
from deepgen.vocabulary.errors import BadInput


def softmax_like() -> Expression:
    """T is doubled, summed along its rows, and scanned."""
    t, k = dg.tensor("T", (6, 10)), dg.reduce_axis("k", 10)
    double = dg.compute("double", (6, 10), lambda i, j: t[i, j] * 2)
    rows = dg.compute("rows", (6,), lambda i: dg.sum(double[i, k], k))
    over = dg.compute("over", (6, 10), lambda i, j: double[i, j] / rows[i])
    return dg.expression(dg.scan("run", (6, 10), lambda i, j: over[i, j], axis=1), over)


ROWS_IN_OVER = ComputeAt("rows", "over", "i0")
REFUSED: list[tuple[tuple[Step, ...], str]] = [
    ((Split("rows", "z", (2,)),), "split rows: z by 2: stage rows has no loop 'z' (i0, r0)"),
    ((Split("nothing", "i0", (2,)),), "split nothing: i0 by 2: there is no stage 'nothing'"),
    ((Split("rows", "i0", (0,)),), "cannot be split by"),
    ((Split("rows", "i0", ("BM",)),), "give a config for its knobs"),
    ((Reorder("rows", ("i0", "i0")),), "named twice"),
    ((Split("run", "i1", (2,)), Reorder("run", ("i1.1", "i1.0"))), "keep their order"),
    ((Fuse("rows", ("i0", "r0")),), "cannot be fused"),
    ((Fuse("over", ("i1", "i0")),), "follow each other"),
    ((Annotate("rows", "r0", "parallel"),), "annotate rows: r0 is parallel: loop r0 is reduced"),
    ((Annotate("run", "i1", "vector"),), "is scanned"),
    ((Annotate("rows", "i0", "quick"),), "not a kind of loop"),
    ((Inline("rows"),), "inline rows: stage rows is a reduction"),
    ((Inline("over"),), "is a result"),
    ((Inline("run"),), "is a reduction"),
    ((ComputeAt("rows", "run", "i0"),), "stage over, outside of that loop, reads it"),
    ((ComputeAt("double", "over", "i0"),), "stage rows, outside of that loop, reads it"),
    ((ComputeAt("over", "run", "i0"),), "is a result"),
    ((ComputeAt("rows", "rows", "i0"),), "no two such stages"),
    ((ROWS_IN_OVER, Split("over", "i1", (2,))), "stages are computed at loops of over"),
    ((Split("rows", "i0", (2,)), ROWS_IN_OVER), "already arranged"),
    ((ROWS_IN_OVER, ROWS_IN_OVER), "already arranged"),
    ((CacheRead("T", "T", "global", ("double",)),), "there is a 'T' already"),
    ((CacheRead("T", "copy", "global", ("rows",)),), "does not read T"),
    ((CacheRead("T", "copy", "global", ("double",), "f64"),), "cast to f64: stage double does not read T"),
    ((CacheRead("T", "copy", "cloud", ("double",)),), "'cloud' is not a scope"),
    ((CacheRead("T", "copy", "global", ("nobody",)),), "there is no 'nobody'"),
    ((Split("rows", "i0", (2,)), CacheWrite("rows", "sums", "register")), "already arranged"),
    ((RFactor("over", "i0", "part"),), "cannot be reduced apart"),
    ((RFactor("rows", "i0", "part"),), "cannot be reduced apart"),
    ((SetScope("over", "register"),), "is a result"),
    ((SetScope("rows", "attic"),), "not a scope"),
    ((Layout("double", (LayoutPlace(1, 4), LayoutPlace(0, 1))),), "dimension 1 is not covered"),
    ((Layout("double", (LayoutPlace(1, 4), LayoutPlace(1, 1, 2), LayoutPlace(0, 1))),), "dimension 1 is not covered"),
    ((Layout("double", (LayoutPlace(1, 1), LayoutPlace(0, 1), LayoutPlace(0, 1))),), "dimension 0 is not covered"),
    ((Layout("double", (LayoutPlace(1, 0), LayoutPlace(0, 1))),), "1/0 is not a dimension"),
    ((StorageAlign("double", 5, 8, 1),), "aligned"),
    ((Pipeline("rows", 2),), "cannot be prefetched"),
    ((Annotate("over", "i0", "parallel"), ROWS_IN_OVER, Annotate("rows", "i0", "parallel")), "and so is loop"),
]


@pytest.mark.parametrize(
    ("schedule", "words"), REFUSED, ids=lambda value: value[-1] if isinstance(value, tuple) else ""
)
def test_a_step_that_is_not_legal_is_refused_by_name(schedule: tuple[Step, ...], words: str) -> None:
    with pytest.raises(BadInput) as refused:
        lower(softmax_like(), schedule)
    assert words in str(refused.value)


def test_a_stage_inside_a_loop_has_the_extents_of_what_the_loop_reads() -> None:
    """A convolution of three taps with stride 2: a tile of four elements reads nine."""
    x, k = dg.tensor("x", (100,)), dg.reduce_axis("k", 3)
    double = dg.compute("double", (100,), lambda i: x[i] * 2)
    y = dg.compute("y", (49,), lambda i: dg.sum(double[i * 2 + k], k))
    state = apply(dg.expression(y), (Split("y", "i0", (4,)), ComputeAt("double", "y", "i0.0")))
    assert [loop.extent for loop in state.stages["double"].loops] == [9]


def test_a_copy_may_hold_what_its_readers_cast_to() -> None:
    """Products of i8 in i32: each element is widened once, when it is copied."""
    a, b, k = dg.tensor("A", (4, 8), "i8"), dg.tensor("B", (8, 4), "i8"), dg.reduce_axis("k", 8)
    product = dg.compute("C", (4, 4), lambda i, j: dg.sum(a[i, k].cast("i32") * b[k, j].cast("i32"), k))
    state = apply(dg.expression(product), (CacheRead("B", "wide", "global", ("C",), "i32"),))
    assert state.stages["wide"].stage.dtype == "i32"
    assert value_text(state.stages["C"].stage.value) == "(i32(A[i0, r0]) * wide[r0, i1])"


def test_a_place_that_later_steps_make_wrong_is_refused() -> None:
    steps = (ROWS_IN_OVER, CacheRead("rows", "copy", "register", ("over",)))
    with pytest.raises(BadInput, match="compute_at rows: in over, loop i0: stage copy, outside"):
        apply(softmax_like(), steps)


def test_a_config_makes_a_template_whole() -> None:
    template = (
        Split("C", "i", ("BM // 2", 4)),
        Layout("C", (LayoutPlace(1, "NR"), LayoutPlace(0, 1), LayoutPlace(1, 1, "NR"))),
        StorageAlign("C", 0, "BM", "NR"),
    )
    whole = (
        Split("C", "i", (32, 4)),
        Layout("C", (LayoutPlace(1, 8), LayoutPlace(0, 1), LayoutPlace(1, 1, 8))),
        StorageAlign("C", 0, 64, 8),
    )
    assert concrete(template, {"BM": 64, "NR": 8}) == whole
    with pytest.raises(BadInput):
        concrete(template, {"BM": 64})
    with pytest.raises(BadInput, match=r"is 1\.5"):
        concrete((Split("C", "i", ("BM / 2",)),), {"BM": 3})


def test_a_layout_is_printed_as_what_lies_where() -> None:
    order = (LayoutPlace(1, 32, 4), LayoutPlace(0, 1), LayoutPlace(1, 1, "NR"))
    assert to_text((Layout("C", order),)) == "layout C: 1/32%4, 0, 1%NR\n"


@given(expressions(), st.integers(0, 2**32))
def test_a_step_is_a_line(expression: Expression, seed: int) -> None:
    schedule = random_schedule(expression, Random(seed))
    assert len(to_text(schedule).splitlines()) == len(schedule)
