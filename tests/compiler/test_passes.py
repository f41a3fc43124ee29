"""Each pass of lowering: the text before and after."""

from __future__ import annotations

from textwrap import dedent

import pytest

import deepgen as dg
from deepgen.compiler.passes.ir import Machine
from deepgen.compiler.passes.lower import passes
from deepgen.compiler.passes.text import to_text
from deepgen.compiler.schedule.steps import (
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    Fuse,
    Layout,
    LayoutPlace,
    Pipeline,
    Reorder,
    RFactor,
    Schedule,
    SetScope,
    Split,
    Tensorize,
)
from deepgen.operators.expr.nodes import Expression


def after(name: str, expression: Expression, *schedule: object, warp: int = 0) -> str:
    """The body of the function after a pass; on a GPU the launches."""
    steps: Schedule = schedule  # type: ignore[assignment]
    text = {n: to_text(f) for n, f in passes(expression, steps, Machine(warp=warp))}[name]
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
    """Padding: the elements next to x are not read."""
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
    """The choice differs between rows, and the elements before x are not read."""
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
    """The lower half of a matrix: whatever is chosen, all of x is readable."""
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
    """Rows left over by whole tiles: the remainder of the last tile has the same size wherever it is."""
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
    """The tile's intermediate results also have a guard, which ends earlier than that of its results."""
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
    """Three rows in tiles of two: the last tile multiplies an unwritten row, and does not store the result."""
    copies = (CacheRead("A", "strip", "global", ("sums",)), ComputeAt("strip", "C", "i0.0"))
    text = after("pads", product(3, 4, 5), *TILE, *copies)
    update = next(line for line in text.splitlines() if "sums[sums.i0, sums.i1] +=" in line)
    before = text.splitlines()[text.splitlines().index(update) - 1]
    assert "if" not in before and "if" in text.partition("C[")[0].splitlines()[-2]
    assert "if -C.i0.0 * 2 - C.i0.1 + 2 >= 0" in text


def test_a_layout_packs_panels() -> None:
    steps = (
        CacheRead("B", "panels", "global", ("C",)),
        Layout("panels", (LayoutPlace(1, 4), LayoutPlace(0, 1), LayoutPlace(1, 1, 4))),
    )
    assert same(
        after("simplify", product(1, 8, 3), *steps).partition("C")[0],
        """
        global panels: f32[2, 3, 4]
        for panels.a0 < 3:
          for panels.a1 < 8:
            panels[((panels.a1) % 4) + ((panels.a1) // 4) * 12 + panels.a0 * 4] = B[panels.a0 * 8 + panels.a1]
        for """,
    )


SQUARES = (
    CacheRead("x", "copy", "shared", ("y",)),
    Annotate("y", "i0", "thread.x"),
    ComputeAt("copy", "y", "r0"),
    Annotate("copy", "a1", "thread.x"),
    Pipeline("copy", 3),
)


def squares() -> Expression:
    x, k = dg.tensor("x", (6, 8)), dg.reduce_axis("k", 6)
    return dg.expression(dg.compute("y", (8,), lambda i: dg.sum(x[k, i] * x[k, i], k)))


def test_build_for_gpus_has_the_loops_of_threads_and_what_is_to_be_filled_ahead() -> None:
    assert same(
        after("build", squares(), *SQUARES, warp=32),
        """
        launch y, 1 x 1 x 1 blocks of 8 x 1 x 1 threads:
          thread.x y.i0 < 8:
            y[y.i0] = 0
            for y.r0 < 6:
              shared copy: f32[1, 8], 3 to be filled ahead
              for copy.a0 < 1:
                thread.x copy.a1 < 8:
                  if copy.a0 + y.r0 >= 0 and -copy.a0 - y.r0 + 5 >= 0:
                    copy[copy.a0, copy.a1] = x[copy.a0 + y.r0, copy.a1]
              y[y.i0] += (copy[0, y.i0] * copy[0, y.i0])
        """,
    )


def test_pipeline_fills_a_ring_of_buffers_ahead() -> None:
    assert same(
        after("pipeline", squares(), *SQUARES, warp=32),
        """
        launch y, 1 x 1 x 1 blocks of 8 x 1 x 1 threads:
          thread.x y.i0 < 8:
            y[y.i0] = 0
            shared copy: f32[3, 1, 8]
            barrier
            unroll y.r0.ahead < 2:
              if -y.r0.ahead + 5 >= 0:
                for copy.a0 < 1:
                  thread.x copy.a1 < 8:
                    if copy.a0 + y.r0.ahead >= 0 and -copy.a0 - y.r0.ahead + 5 >= 0:
                      copy[((y.r0.ahead) % 3), copy.a0, copy.a1] = x[copy.a0 + y.r0.ahead, copy.a1] ahead
              copy_commit()
            for y.r0 < 6:
              copy_wait<1>()
              barrier
              if -y.r0 + 3 >= 0:
                for copy.a0 < 1:
                  thread.x copy.a1 < 8:
                    if copy.a0 + y.r0 + 2 >= 0 and -copy.a0 - y.r0 + 3 >= 0:
                      copy[((y.r0 + 2) % 3), copy.a0, copy.a1] = x[copy.a0 + y.r0 + 2, copy.a1] ahead
              copy_commit()
              y[y.i0] += (copy[((y.r0) % 3), 0, y.i0] * copy[((y.r0) % 3), 0, y.i0])
            copy_wait<0>()
        """,
    )


def test_bind_makes_indices_of_the_grid_of_loops() -> None:
    text = after("bind", squares(), *SQUARES, warp=32)
    assert "thread.x y" not in text and "y.i0" not in text and "copy.a1" not in text
    assert "y[thread.x] += (copy[((y.r0) % 3), 0, thread.x] * copy[((y.r0) % 3), 0, thread.x])" in text


def test_a_stage_is_filled_ahead_in_a_loop_that_follows_an_order() -> None:
    """Threads that reduce a row together have no iteration before their first."""
    steps = (
        CacheRead("x", "copy", "shared", ("y",)),
        Annotate("y", "r0", "thread.x"),
        ComputeAt("copy", "y", "r0"),
        Pipeline("copy", 2),
    )
    with pytest.raises(dg.BadInput, match="a serial loop"):
        after("pipeline", squares(), *steps, warp=32)


def test_matrices_makes_calls_of_loops_and_fragments_of_sums() -> None:
    a, b, k = dg.tensor("A", (4, 8), "f16"), dg.tensor("B", (1, 8), "f16"), dg.reduce_axis("k", 8)
    products = dg.compute("C", (4, 1), lambda i, j: dg.sum(a[i, k].cast("f32") * b[j, k].cast("f32"), k))
    steps = (
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
    before, text = (after(name, dg.expression(products), *steps, warp=32) for name in ("build", "matrices"))
    assert "dot_f16 sums.r0.1 < 2:" in before
    assert same(
        dedent(text[text.index("      warp sums") :]),
        """
            warp sums: f32[1, 1]
            unroll sums.start < 1:
              sums[sums.start, thread.x] = 0
            for sums.r0.0 < 4:
              fragment sums.rows: i32[1]
              fragment sums.columns: i32[1]
              load_own<1>(sums.rows[0], rows[C.i0, sums.r0.0 * 2 + thread.x * 2])
              load_own<1>(sums.columns[0], columns[0, sums.r0.0 * 2 + thread.x * 2])
              dot_f16(sums[0, 0], sums.rows[0], sums.columns[0])
            C[C.i0, C.i1] = sums[C.i1, 0]
        """,
    )


def test_storage_says_where_buffers_lie_in_shared_memory() -> None:
    assert "shared copy: f32[3, 1, 8], at byte 0" in after("storage", squares(), *SQUARES, warp=32)
