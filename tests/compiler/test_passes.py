"""Each pass of lowering: a text before, and a text after."""

from __future__ import annotations

from textwrap import dedent

import deepgen as dg
from deepgen.compiler.passes.lower import passes
from deepgen.compiler.passes.text import to_text
from deepgen.compiler.schedule.steps import (
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    Fuse,
    Layout,
    Reorder,
    RFactor,
    Schedule,
    SetScope,
    Split,
)
from deepgen.operators.expr.nodes import Expression


def after(name: str, expression: Expression, *schedule: object) -> str:
    """The body of the function after a pass."""
    steps: Schedule = schedule  # type: ignore[assignment]
    text = {n: to_text(f) for n, f in passes(expression, steps)}[name]
    return dedent(text.partition("\n")[2])


def same(text: str, wanted: str) -> bool:
    assert text == dedent(wanted).lstrip("\n"), f"it is now\n{text}"
    return True


def doubled(size: int) -> Expression:
    x = dg.tensor("x", (size,))
    return dg.expression(dg.compute("y", (size,), lambda i: x[i] * 2))


def row_sums(rows: int, columns: int) -> Expression:
    x, k = dg.tensor("x", (rows, columns)), dg.reduce_axis("k", columns)
    return dg.expression(dg.compute("y", (rows,), lambda i: dg.sum(x[i, k], k)))


def product(m: int, n: int, k: int) -> Expression:
    a, b, over = dg.tensor("A", (m, k)), dg.tensor("B", (k, n)), dg.reduce_axis("k", k)
    return dg.expression(dg.compute("C", (m, n), lambda i, j: dg.sum(a[i, over] * b[over, j], over)))


def test_build_guards_what_a_split_leaves_over() -> None:
    assert same(
        after("build", doubled(10), Split("y", "i0", (4,))),
        """
        for y.i0.0 < 3:
          for y.i0.1 < 4:
            if -y.i0.0 * 4 - y.i0.1 + 9 >= 0:
              y[y.i0.0 * 4 + y.i0.1] = (x[y.i0.0 * 4 + y.i0.1] * 2.0)
        """,
    )


def test_build_starts_a_reduction_before_its_loops() -> None:
    assert same(
        after("build", row_sums(6, 10), Split("y", "i0", (2,)), Reorder("y", ("i0.0", "r0", "i0.1"))),
        """
        for y.i0.0 < 3:
          for y.i0.1.start < 2:
            y[y.i0.0 * 2 + y.i0.1.start] = 0
          for y.r0 < 10:
            for y.i0.1 < 2:
              y[y.i0.0 * 2 + y.i0.1] += x[y.i0.0 * 2 + y.i0.1, y.r0]
        """,
    )


def test_partial_sums_that_a_split_leaves_over_are_nothing() -> None:
    steps = (Split("y", "r0", (4,)), RFactor("y", "r0.1", "part"))
    assert same(
        after("simplify", row_sums(1, 10), *steps),
        """
        global part: f32[4, 1]
        for part.r0.1 < 4:
          part[part.r0.1] = 0
          for part.r0.0 < 3:
            part[part.r0.1] += (x[part.r0.0 * 4 + part.r0.1] if (0 <= (-part.r0.0 * 4 - part.r0.1 + 9)) else 0)
        y[0] = 0
        for y.r0.1 < 4:
          y[0] += part[y.r0.1]
        """,
    )


def test_simplify_removes_what_ranges_decide() -> None:
    steps = (Fuse("C", ("i0", "i1")), Split("C", "i0+i1", (6,)))
    assert same(
        after("simplify", product(4, 6, 1), *steps),
        """
        for (C.i0+i1.0) < 4:
          for (C.i0+i1.1) < 6:
            C[(C.i0+i1.0) * 6 + (C.i0+i1.1)] = 0
            C[(C.i0+i1.0) * 6 + (C.i0+i1.1)] += (A[(C.i0+i1.0)] * B[(C.i0+i1.1)])
        """,
    )


def test_guards_become_limits_of_loops() -> None:
    assert same(
        after("guards", doubled(10), Split("y", "i0", (4,))),
        """
        for y.i0.0 < 3:
          for y.i0.1 < min(4, -y.i0.0 * 4 + 10):
            y[y.i0.0 * 4 + y.i0.1] = (x[y.i0.0 * 4 + y.i0.1] * 2.0)
        """,
    )


def test_partition_asks_once_whether_a_vector_is_whole() -> None:
    assert same(
        after("partition", doubled(10), Split("y", "i0", (4,)), Annotate("y", "i0.1", "vector")),
        """
        for y.i0.0 < 3:
          if -y.i0.0 * 4 + 6 >= 0:
            vector y.i0.1 < 4:
              y[y.i0.0 * 4 + y.i0.1] = (x[y.i0.0 * 4 + y.i0.1] * 2.0)
          else:
            for y.i0.1 < min(4, -y.i0.0 * 4 + 10):
              y[y.i0.0 * 4 + y.i0.1] = (x[y.i0.0 * 4 + y.i0.1] * 2.0)
        """,
    )


def test_vectorize_brings_vectors_to_stores_in_pieces_of_the_hardware() -> None:
    steps = (Annotate("C", "i1", "vector"),)
    assert same(
        after("vectorize", product(2, 6, 3), *steps),
        """
        for C.i0 < 2:
          vector C.i1 < 4:
            C[C.i0 * 6 + C.i1] = 0
          vector C.i1 < 2:
            C[C.i0 * 6 + C.i1 + 4] = 0
          for C.r0 < 3:
            vector C.i1 < 4:
              C[C.i0 * 6 + C.i1] += (A[C.i0 * 3 + C.r0] * B[C.i1 + C.r0 * 6])
            vector C.i1 < 2:
              C[C.i0 * 6 + C.i1 + 4] += (A[C.i0 * 3 + C.r0] * B[C.i1 + C.r0 * 6 + 4])
        """,
    )


def test_vectors_lie_between_borders_that_every_row_has_at_the_same_place() -> None:
    """Padding: the elements beside x are not read."""
    x = dg.tensor("x", (3, 8))
    padded = dg.compute("y", (3, 10), lambda r, i: dg.where((i >= 1) & (i < 9), x[r, i - 1], 0))
    assert same(
        after("vectorize", dg.expression(padded), Annotate("y", "i1", "vector")),
        """
        for y.i0 < 3:
          y[y.i0 * 10] = 0.0
          vector y.i1 < 4:
            y[y.i0 * 10 + y.i1 + 1] = x[y.i0 * 8 + y.i1]
          vector y.i1 < 4:
            y[y.i0 * 10 + y.i1 + 5] = x[y.i0 * 8 + y.i1 + 4]
          y[y.i0 * 10 + 9] = 0.0
        """,
    )


def test_a_choice_by_lanes_that_reads_stays_a_loop() -> None:
    """What is chosen changes from row to row, and the elements before x are not read."""
    x = dg.tensor("x", (8,))
    shifted = dg.compute("y", (3, 4), lambda r, i: dg.where(i >= r, x[i - r], 0))
    assert same(
        after("vectorize", dg.expression(shifted), Annotate("y", "i1", "vector")),
        """
        for y.i0 < 3:
          if -y.i0 >= 0:
            vector y.i1 < 4:
              y[y.i0 * 4 + y.i1] = x[-y.i0 + y.i1]
          else:
            for y.i1 < 4:
              y[y.i0 * 4 + y.i1] = (x[-y.i0 + y.i1] if (0 <= (-y.i0 + y.i1)) else 0.0)
        """,
    )


def test_a_choice_by_lanes_that_may_read_both_is_a_vector() -> None:
    """The lower half of a matrix: whatever is chosen, all of x is there."""
    x = dg.tensor("x", (4, 4))
    lower_half = dg.compute("y", (4, 4), lambda i, j: dg.where(j <= i, x[i, j], 0))
    text = after("vectorize", dg.expression(lower_half), Annotate("y", "i1", "vector"))
    assert same(
        text,
        """
        for y.i0 < 4:
          if y.i0 - 3 >= 0:
            vector y.i1 < 4:
              y[y.i0 * 4 + y.i1] = x[y.i0 * 4 + y.i1]
          else:
            vector y.i1 < 4:
              y[y.i0 * 4 + y.i1] = (x[y.i0 * 4 + y.i1] if (0 <= (y.i0 - y.i1)) else 0.0)
        """,
    )


TILE = (
    CacheWrite("C", "sums", "register"),
    Split("C", "i0", (2,)),
    Reorder("C", ("i0.0", "i1", "i0.1")),
    Annotate("C", "i1", "vector"),
    Annotate("C", "i0.1", "unroll"),
    ComputeAt("sums", "C", "i0.0"),
    Reorder("sums", ("r0", "i0", "i1")),
    Annotate("sums", "i0", "unroll"),
    Annotate("sums", "i1", "vector"),
)


def test_a_tile_at_an_edge_is_a_smaller_one_in_registers() -> None:
    """Rows that whole tiles leave over: what is left of the last tile is the same wherever it is."""
    assert same(
        after("registers", product(5, 4, 5), *TILE),
        """
        for C.i0.0 < 3:
          if -C.i0.0 * 2 + 3 >= 0:
            register sums: f32[2, 4], vectors of 4
            vector sums.i1.start < 4:
              sums[sums.i1.start] = 0
            vector sums.i1.start < 4:
              sums[sums.i1.start + 4] = 0
            for sums.r0 < 5:
              vector sums.i1 < 4:
                sums[sums.i1] += (A[C.i0.0 * 10 + sums.r0] * B[sums.i1 + sums.r0 * 4])
              vector sums.i1 < 4:
                sums[sums.i1 + 4] += (A[C.i0.0 * 10 + sums.r0 + 5] * B[sums.i1 + sums.r0 * 4])
            vector C.i1 < 4:
              C[C.i0.0 * 8 + C.i1] = sums[C.i1]
            vector C.i1 < 4:
              C[C.i0.0 * 8 + C.i1 + 4] = sums[C.i1 + 4]
          else:
            register sums: f32[2, 4], vectors of 4
            vector sums.i1.start < 4:
              sums[sums.i1.start] = 0
            for sums.r0 < 5:
              vector sums.i1 < 4:
                sums[sums.i1] += (A[C.i0.0 * 10 + sums.r0] * B[sums.i1 + sums.r0 * 4])
            vector C.i1 < 4:
              C[C.i0.0 * 8 + C.i1] = sums[C.i1]
        """,
    )


def test_a_tile_at_an_edge_is_cut_by_its_own_guard_alone() -> None:
    """A tile of 3 in vectors of 4 has a second guard, which is the same in all tiles."""
    x, k = dg.tensor("x", (7, 2)), dg.reduce_axis("k", 2)
    s = dg.compute("s", (7,), lambda i: dg.sum(x[i, k], k))
    steps = (
        Split("y", "i0", (3,)),
        Split("y", "i0.1", (4,)),
        Annotate("y", "i0.1.1", "vector"),
        ComputeAt("s", "y", "i0.1.1"),
        SetScope("s", "register"),
    )
    assert same(
        after("partition", dg.expression(dg.compute("y", (7,), lambda i: s[i] * 2)), *steps),
        """
        for y.i0.0 < 3:
          if -y.i0.0 * 3 + 3 >= 0:
            vector y.i0.1.1 < 4:
              register s: f32[1]
              s[0] = 0
              for s.r0 < 2:
                s[0] += x[s.r0 + y.i0.0 * 6 + y.i0.1.1 * 2]
              if -y.i0.1.1 + 2 >= 0:
                y[y.i0.0 * 3 + y.i0.1.1] = (s[0] * 2.0)
          else:
            if -y.i0.0 * 3 + 6 >= 0:
              register s: f32[1]
              s[0] = 0
              for s.r0 < 2:
                s[0] += x[s.r0 + y.i0.0 * 6]
              y[y.i0.0 * 3] = (s[0] * 2.0)
        """,
    )


def test_a_tile_at_an_edge_keeps_every_turn_in_which_something_is_done() -> None:
    """What the tile computes for itself has a guard too, which ends earlier than that of its results."""
    x, k = dg.tensor("x", (9, 2)), dg.reduce_axis("k", 2)
    s = dg.compute("s", (9,), lambda i: dg.sum(x[i, k], k))
    steps = (
        CacheWrite("s", "s.w", "register"),
        Split("y", "i0", (5,)),
        Annotate("y", "i0.1", "vector"),
        ComputeAt("s", "y", "i0.1"),
        Split("s", "i0", (5,)),
        Annotate("s", "i0.1", "vector"),
        ComputeAt("s.w", "y", "i0.1"),
    )
    text = after("partition", dg.expression(dg.compute("y", (9,), lambda i: s[i] * 2)), *steps)
    assert same(
        dedent(text.partition("else:\n")[2]),
        """
            if -y.i0.0 * 5 + 5 >= 0:
              vector y.i0.1 < 4:
                register s.w: f32[5]
                for s.w.i0 < 5:
                  s.w[s.w.i0] = 0
                  if -s.w.i0 - y.i0.0 * 5 - y.i0.1 + 8 >= 0:
                    for s.w.r0 < 2:
                      s.w[s.w.i0] += x[s.w.i0 * 2 + s.w.r0 + y.i0.0 * 10 + y.i0.1 * 2]
                global s: f32[1]
                s[0] = s.w[0]
                y[y.i0.0 * 5 + y.i0.1] = (s[0] * 2.0)
        """,
    )


def test_a_tile_is_unrolled_and_held_in_registers() -> None:
    assert same(
        after("registers", product(4, 4, 5), *TILE),
        """
        for C.i0.0 < 2:
          register sums: f32[2, 4], vectors of 4
          vector sums.i1.start < 4:
            sums[sums.i1.start] = 0
          vector sums.i1.start < 4:
            sums[sums.i1.start + 4] = 0
          for sums.r0 < 5:
            vector sums.i1 < 4:
              sums[sums.i1] += (A[C.i0.0 * 10 + sums.r0] * B[sums.i1 + sums.r0 * 4])
            vector sums.i1 < 4:
              sums[sums.i1 + 4] += (A[C.i0.0 * 10 + sums.r0 + 5] * B[sums.i1 + sums.r0 * 4])
          vector C.i1 < 4:
            C[C.i0.0 * 8 + C.i1] = sums[C.i1]
          vector C.i1 < 4:
            C[C.i0.0 * 8 + C.i1 + 4] = sums[C.i1 + 4]
        """,
    )


def test_a_tile_of_copies_is_computed_whole_at_edges() -> None:
    """Three rows in tiles of two: the last tile multiplies a row that nobody wrote, and does not store the result."""
    copies = (CacheRead("A", "strip", "global", ("sums",)), ComputeAt("strip", "C", "i0.0"))
    text = after("pads", product(3, 4, 5), *TILE, *copies)
    update = next(line for line in text.splitlines() if "sums[sums.i0, sums.i1] +=" in line)
    before = text.splitlines()[text.splitlines().index(update) - 1]
    assert "if" not in before and "if" in text.partition("C[")[0].splitlines()[-2]
    assert "if -C.i0.0 * 2 - C.i0.1 + 2 >= 0" in text


def test_a_layout_packs_panels() -> None:
    steps = (CacheRead("B", "panels", "global", ("C",)), Layout("panels", ("1/4", "0", "1%4")))
    assert same(
        after("simplify", product(1, 8, 3), *steps).partition("C")[0],
        """
        global panels: f32[2, 3, 4]
        for panels.a0 < 3:
          for panels.a1 < 8:
            panels[((panels.a1) % 4) + ((panels.a1) // 4) * 12 + panels.a0 * 4] = B[panels.a0 * 8 + panels.a1]
        for """,
    )
