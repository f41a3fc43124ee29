"""Rows and columns on GPUs: scans in either direction, reductions that threads share, places of extremes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import cases
import pytest
from test_gpu_spaces import H200, chip, emulated, lowered, right, variance

import deepgen as dg
from deepgen.compiler.passes.ir import For, Store, used, walk
from deepgen.compiler.passes.lower import lower
from deepgen.compiler.rules.gpu import chained, parts, rows, scans
from deepgen.compiler.rules.gpu.likely import near_usual
from deepgen.compiler.rules.gpu.sketches import gpu_sketches
from deepgen.compiler.schedule import steps as s
from deepgen.operators.expr.nodes import Expression, reads
from deepgen.vocabulary import BadInput


@emulated
def test_reversed_and_exclusive_scans_are_scanned_by_lanes_as_well(tmp_path: Path) -> None:
    def scan(length: int, *, flipped: bool, flipped_back: bool, by: int = 0, op: str = "sum") -> Expression:
        """Of a row from the last element on, stored from the last one on, and as many places later."""
        x = dg.tensor("x", (3, length), "f32")
        run = dg.scan("run", (3, length - by), lambda i, j: x[i, length - 1 - j if flipped else j], axis=1, op=op)

        def stored(i: Any, j: Any) -> Any:
            place = length - 1 - j if flipped_back else j
            return dg.where(place < by, -1.0 if op == "max" else 0.0, run[i, place - by]) if by else run[i, place]

        return dg.expression(dg.compute("y", (3, length), stored))

    ways = {"reversed": (True, True), "flipped before": (True, False), "flipped after": (False, True)}
    kinds = {f"{name}, {length}": scan(length, flipped=to, flipped_back=back)
             for name, (to, back) in ways.items() for length in (8, 300, 5003, 8192)}  # fmt: skip
    kinds |= {f"{by} later, {length}": scan(length, flipped=by == 2, flipped_back=by == 2, by=by)
              for by in (1, 2) for length in (9, 300, 5003, 8192)}  # fmt: skip
    kinds["added up in 16 bits"] = cases.scan((3, 300), 1, "bf16")
    kinds["maxima before"] = scan(300, flipped=False, flipped_back=False, by=1, op="max")
    for name, expression in kinds.items():
        (sketch, *_) = gpu_sketches(expression, H200)
        assert sketch.name.startswith("scan_lanes") and "threads" not in sketch.name, name
    (tmp_path / "all").mkdir()
    right(lowered(kinds, H200, lambda sketch: sketch.name.startswith("scan_lanes")), tmp_path / "all")


def test_scanned_rows_are_loaded_and_stored_in_runs_in_either_direction() -> None:
    x = dg.tensor("x", (4, 8192), "f32")
    run = dg.scan("run", (4, 8192), lambda i, j: x[i, 8191 - j], axis=1)
    (sketch, *_) = gpu_sketches(dg.expression(dg.compute("y", (4, 8192), lambda i, j: run[i, 8191 - j])), H200)
    program = lower(sketch.expression, sketch.schedule(near_usual(sketch)), warp=32)
    stores = [s for launch in program.launches for s in walk(launch.body) if isinstance(s, For) and s.kind == "vector"]
    widths = {s.extent for s in stores if isinstance(s.body, Store) and s.body.buffer == "y"}
    assert widths == {4}


@emulated
def test_places_of_extremes_along_columns_are_found_in_one_pass(tmp_path: Path) -> None:
    kinds = {
        "columns": cases.place((2, 300, 70), 1, dg.max),
        "few columns": cases.place((4000, 40), 0, dg.min, "bf16"),
        "short": cases.place((3, 5, 33), 1, dg.max, "f16"),
        "long rows": cases.place((2, 70001), 1, dg.min),
    }
    programs = lowered(kinds, H200, lambda _: True)
    for expression in kinds.values():
        (sketch, *_) = gpu_sketches(expression, H200)
        read = [stage for stage in sketch.expression.stages if any(r.tensor == "x" for r in reads(stage.value))]
        assert len(read) == 1
    (tmp_path / "all").mkdir()
    right(programs, tmp_path / "all")
    # Rows that threads keep in registers are read once in any case.
    (kept, *_) = gpu_sketches(cases.place((5, 3000), 1, dg.max), H200)
    assert kept.name == "kept"


@emulated
def test_threads_of_a_block_share_the_rows_of_columns_of_any_length(tmp_path: Path) -> None:
    kinds = {
        "odd": cases.columns(3, 520, 71),
        "sectors": cases.columns(2, 301, 64, "bf16"),
        "maxima": cases.columns(1, 517, 45, op="max"),
        "variance": variance(600, 70, 0),
    }
    programs = lowered(kinds, H200, lambda sketch: "teams" in sketch.name)
    assert {name.partition(",")[0] for name, *_ in programs} == set(kinds)
    (tmp_path / "all").mkdir()
    right(programs, tmp_path / "all")
    # If rows begin within a sector, it is the first choice: neighbouring blocks read the same sectors.
    for length, first in ((4095, "teams"), (4096, "columns")):
        (sketch, *_) = gpu_sketches(cases.columns(128, 4096, length), H200)
        assert sketch.name == first


@emulated
def test_windows_that_are_summed_along_one_axis_after_the_other_need_one_launch(tmp_path: Path) -> None:
    kinds = {
        "apart": cases.pooled((40, 35, 64), (7, 5), (7, 5)),
        "overlapping": cases.pooled((30, 9, 37), (3, 3), (1, 1)),
        "maxima": cases.pooled((150, 4, 70), (3, 2), (2, 2), dg.max),
    }
    for expression in kinds.values():
        (sketch, *_) = gpu_sketches(expression, H200)
        assert sketch.name == "row_windows"
        assert len(lower(sketch.expression, sketch.schedule(near_usual(sketch)), warp=32).launches) == 1
    (tmp_path / "all").mkdir()
    right(lowered(kinds, H200, lambda sketch: sketch.name == "row_windows"), tmp_path / "all")


def test_parts_of_columns_that_are_many_are_added_in_one_way() -> None:
    """Hundreds of parts could be shared by threads of a block as well."""
    for expression in (cases.columns(1, 400_000, 33), cases.columns(1, 1 << 20, 40)):
        assert gpu_sketches(expression, H200)


@emulated
def test_rows_of_any_kind_need_one_launch(tmp_path: Path) -> None:
    line, over = dg.tensor("x", (77,)), dg.reduce_axis("r", 77)
    mean = dg.compute("mean", (1,), lambda _: dg.sum(line[over], over) / 77)
    away = dg.compute("away", (1,), lambda _: dg.sum((line[over] - mean[0]) * (line[over] - mean[0]), over))
    most = dg.compute("most", (1,), lambda _: dg.max(line[over], over))
    kinds = {
        "one number": dg.expression(dg.compute("y", (1,), lambda _: (away[0] / 77).cast("bf16"))),
        "one row": dg.expression(dg.compute("y", (77,), lambda i: dg.exp(line[i] - most[0]))),
        "channels": cases.batch_norm((3, 5, 7, 9)),
        "channels of runs": cases.batch_norm((2, 3, 4, 16), "bf16"),
        "one image": cases.batch_norm((1, 4, 6, 5)),
        "rows of one": cases.softmax(70, 1),
        "rows of three": cases.softmax(20_000, 3),
        "pairs": cases.layer_norm(20_000, 2),
        "odd rows": cases.layer_norm(40, 133),
    }
    for name, expression in kinds.items():
        (sketch, *_) = gpu_sketches(expression, H200)
        assert len(lower(sketch.expression, sketch.schedule(near_usual(sketch)), warp=32).launches) == 1, name
    (tmp_path / "all").mkdir()
    right(lowered(kinds, H200, lambda sketch: True), tmp_path / "all")


@emulated
def test_parts_of_an_odd_length_are_read_in_runs(tmp_path: Path) -> None:
    """All but the last elements of the last part are: one by one, two-byte numbers take four times as long."""
    x, over = dg.tensor("x", (1_000_003,), "f16"), dg.reduce_axis("r", 1_000_003)
    total = dg.compute("total", (1,), lambda _: dg.sum(x[over].cast("f32"), over))
    expression = dg.expression(dg.compute("y", (1,), lambda _: total[0] / 1_000_003))
    (sketch, *_) = gpu_sketches(expression, H200)
    program = lower(sketch.expression, sketch.schedule(near_usual(sketch)), warp=32)
    loops = [s for s in walk(program.launches[0].body) if isinstance(s, For) and s.kind == "vector"]
    assert "split" in sketch.name and {s.extent for s in loops} == {8}
    (tmp_path / "all").mkdir()
    right(lowered({"all": expression}, H200, lambda one: one.name == sketch.name), tmp_path / "all")


@emulated
def test_columns_are_scanned_by_lanes_with_what_is_computed_of_the_sums(tmp_path: Path) -> None:
    def scan(rows: int, *, cast: str = "f32", flipped: bool = False) -> Expression:
        x = dg.tensor("x", (rows, 9), cast)
        place = (lambda i: rows - 1 - i) if flipped else lambda i: i
        run = dg.scan("run", (rows, 9), lambda i, j: x[place(i), j].cast("f32"), axis=0)
        return dg.expression(dg.compute("y", (rows, 9), lambda i, j: (run[place(i), j] * 2).cast(cast)))

    kinds = {
        "two": scan(2, cast="bf16"),
        "short": scan(12),
        "added up in 16 bits": cases.scan((12, 9), 0, "f16"),
        "flipped": scan(301, cast="f16", flipped=True),
        "middle": cases.scan((3, 70, 5), 1, op="max"),
        "pieces": scan(4200, cast="f16"),
        "flipped pieces": scan(4099, flipped=True),
    }
    for name, expression in kinds.items():
        (sketch, *_) = gpu_sketches(expression, H200)
        launches = lower(sketch.expression, sketch.schedule(near_usual(sketch)), warp=32).launches
        assert sketch.name.startswith("scan_columns") and len(launches) == (3 if "pieces" in name else 1), name
    (tmp_path / "all").mkdir()
    right(lowered(kinds, H200, lambda sketch: sketch.name.startswith("scan_columns")), tmp_path / "all")


@pytest.mark.slow
@emulated
def test_wide_columns_are_scanned_in_short_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warp reads neighbouring columns of each row: with many lanes for a column it would read an element here and
    there."""
    wide = cases.scan((2000, 20_000), 0)
    (sketch, *_) = gpu_sketches(wide, H200)
    launches = lower(sketch.expression, sketch.schedule(near_usual(sketch)), warp=32).launches
    assert sketch.name == "scan_columns_scan_columns_columns" and sketch.usual()["team"] == 4 and len(launches) == 3
    monkeypatch.setattr(scans, "_SCATTERED", 0)
    kinds = {
        "wide": cases.scan((170, 70), 0),
        "even, of no power of two": cases.scan((240, 9), 0),
        "even": cases.scan((3, 256, 33), 1, op="max"),
        "several levels": cases.scan((6001, 2), 0),
    }
    for name, expression in kinds.items():
        (sketch, *_) = gpu_sketches(expression, H200)
        launches = lower(sketch.expression, sketch.schedule(near_usual(sketch)), warp=32).launches
        assert sketch.name.startswith("scan_columns_") and len(launches) == (5 if name == "several levels" else 3), name
    (tmp_path / "all").mkdir()
    right(lowered(kinds, H200, lambda sketch: sketch.name.startswith("scan_columns")), tmp_path / "all")


@emulated
def test_long_rows_are_reduced_twice_while_they_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As rows of millions are, which would take minutes to emulate."""
    for module, name, value in (
        (rows, "_MOST_OF_CLUSTER", 0), (chained, "_BYTES", 1024), (chained, "_BLOCKS", 1),
        (parts, "_LONGEST_AT_ONCE", 1), (parts, "_LEAST_PART", 128),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    x, over = dg.tensor("x", (8011,), "bf16"), dg.reduce_axis("r", 8011)
    mean = dg.compute("mean", (1,), lambda _: dg.sum(x[over].cast("f32"), over) / 8011)

    def away(place: Any) -> Any:
        return x[place].cast("f32") - mean[0]

    spread = dg.compute("spread", (1,), lambda _: dg.sum(away(over) * away(over), over) / 8011)
    kinds = {
        "variance": dg.expression(dg.compute("y", (1,), lambda _: spread[0].cast("bf16"))),
        "softmax": cases.softmax(2, 7001),
        "layer norm": cases.layer_norm(1, 9216),
        "channels": cases.batch_norm((3, 2, 51, 48), "f16"),
    }
    chosen = lowered(kinds, H200, lambda sketch: sketch.name in ("rows_rows", "threads_rows_rows"))
    assert len(chosen) == len(kinds)
    for name, expression, _, program in chosen:
        (sketch, *_) = gpu_sketches(expression, H200)
        reading = [launch for launch in program.launches if "x" in used(launch.body)]
        assert name.endswith(sketch.name) and len(reading) == len(program.launches) - 1 <= 2, name
    (tmp_path / "all").mkdir()
    right(chosen, tmp_path / "all")


@emulated
def test_a_single_row_is_kept_and_short_rows_of_lines_need_one_launch(tmp_path: Path) -> None:
    x, over = dg.tensor("x", (1200,), "bf16"), dg.reduce_axis("r", 1200)
    most = dg.compute("most", (1,), lambda _: dg.max(x[over].cast("f32"), over))
    total = dg.compute("total", (1,), lambda _: dg.sum(dg.exp(x[over].cast("f32") - most[0]), over))
    row = dg.compute("y", (1200,), lambda i: (dg.exp(x[i].cast("f32") - most[0]) / total[0]).cast("bf16"))
    z, first, last = dg.tensor("z", (64, 5, 16), "f16"), dg.reduce_axis("p", 64), dg.reduce_axis("q", 16)
    both = dg.compute("y", (5,), lambda i: dg.sum(z[first, i, last].cast("f32"), first, last))
    kinds = {"kept": dg.expression(row), "rows": dg.expression(both)}
    for name, expression in kinds.items():
        (sketch, *_) = gpu_sketches(expression, H200)
        assert sketch.name == name
    (tmp_path / "all").mkdir()
    right(lowered(kinds, H200, lambda sketch: sketch.name in ("kept", "rows")), tmp_path / "all")


@emulated
def test_short_columns_that_are_read_again_are_kept_by_threads(tmp_path: Path) -> None:
    x, over = dg.tensor("x", (3, 40, 33), "f16"), dg.reduce_axis("r", 40)
    most = dg.compute("most", (3, 33), lambda i, j: dg.max(x[i, over, j], over))
    between = dg.compute("y", (3, 40, 33), lambda i, k, j: x[i, k, j] - most[i, j])
    kinds = {
        "softmax": cases.softmax(9, 130, 0),
        "of several threads": cases.softmax(150, 37, 0),
        "variance": variance(70, 45, 0),
        "middle": dg.expression(between),
    }
    for name, expression in kinds.items():
        (sketch, *_) = gpu_sketches(expression, H200)
        assert sketch.name == "kept", name
        assert len(lower(sketch.expression, sketch.schedule(near_usual(sketch)), warp=32).launches) == 1, name
    (tmp_path / "all").mkdir()
    right(lowered(kinds, H200, lambda sketch: sketch.name in ("kept", "rows")), tmp_path / "all")
    # Longer columns have several launches, each of which reads neighbouring elements.
    (sketch, *_) = gpu_sketches(cases.softmax(513, 4096, 0), H200)
    assert "columns" in sketch.name
    # So have shorter ones in 16 bits, if they are many: of four columns that eight threads each share, a warp reads
    # eight bytes of a row. A team of threads for each column needs no launch for its parts.
    (sketch, *_) = gpu_sketches(variance(300, 65_536, 0), H200)
    assert sketch.name == "teams_teams"


def test_threads_share_short_rows() -> None:
    """A thread alone would read elements that lie apart from those of its neighbours, one after the other."""
    kinds = {
        "rows": (cases.long_rows(1000, 100), cases.columns(300, 40, 20)),
        "threads": (cases.columns(12, 5, 16), cases.columns(9000, 40, 20)),
    }
    for name, expressions in kinds.items():
        for expression in expressions:
            (sketch, *_) = gpu_sketches(expression, H200)
            assert sketch.name == name, expression


def test_a_warp_keeps_rows_that_are_little_longer_than_it_usually_keeps() -> None:
    for count, cols, team in ((20_000, 528, 32), (20_000, 784, 64), (40, 528, 128)):
        x, over = dg.tensor("x", (count, cols), "f16"), dg.reduce_axis("k", cols)
        most = dg.compute("most", (count,), lambda i, x=x, over=over: dg.max(x[i, over], over))
        away = dg.compute("y", (count, cols), lambda i, j, x=x, most=most: x[i, j] - most[i])
        (sketch, *_) = gpu_sketches(dg.expression(away), H200)
        assert (sketch.name, sketch.usual()["team"]) == ("kept", team), cols


@pytest.mark.slow
@emulated
def test_few_long_rows_are_reduced_by_clusters_of_blocks_in_one_launch(tmp_path: Path) -> None:
    x, over = dg.tensor("x", (3, 17_001), "f16"), dg.reduce_axis("r", 17_001)
    total = dg.compute("total", (3,), lambda i: dg.sum(x[i, over].cast("f32"), over))
    kinds = {
        "sums": dg.expression(dg.compute("y", (3,), lambda i: total[i].cast("f16"))),
        "places": cases.place((2, 20_000), 1, dg.max, "bf16"),
        "softmax": cases.softmax(2, 16_400),
        "layer norm": cases.layer_norm(1, 16_501),
        "channels": cases.batch_norm((30, 2, 17, 33), "bf16"),
    }
    programs = lowered(kinds, H200, lambda sketch: sketch.name.startswith("cluster_"))
    kept = [sketch for _, sketch, *_ in programs]
    assert len(kept) > len(kinds)  # those that read rows again may keep them, or read them twice
    for name, *_, program in programs:
        (launch,) = program.launches
        assert launch.cluster in (4, 8, 16) and launch.threads == (512 * launch.cluster, 1, 1), name
    (tmp_path / "all").mkdir()
    right(programs, tmp_path / "all")
    for name, largest in (("cuda:sm_120", 8 * 512), ("cuda:sm_100", 16 * 512)):
        (sketch, *_) = gpu_sketches(cases.softmax(1, 240_000), chip(name))
        assert sketch.usual()["team"] == largest
    for other in (chip("cuda:sm_80"), chip("hip:gfx942")):
        assert not any("cluster" in sketch.name for sketch in gpu_sketches(kinds["softmax"], other))


def test_rows_are_many_or_short_or_too_long_for_clusters() -> None:
    for shape in ((34, 16_400), (2, 16_000), (2, 300_000)):
        (sketch, *_) = gpu_sketches(cases.softmax(*shape), H200)
        assert "cluster" not in sketch.name


def test_a_cluster_has_threads_along_x_alone_and_joins_once() -> None:
    x, over = dg.tensor("x", (4, 6144), "f32"), dg.reduce_axis("r", 6144)
    twice = dg.expression(dg.compute("y", (4, 6144), lambda i, j: x[i, j] * 2))
    total = dg.expression(dg.compute("y", (4,), lambda i: dg.sum(x[i, over], over)))
    odd = (s.Annotate("y", "i0", "block.x"), s.Split("y", "i1", (1500,)), s.Annotate("y", "i1.1", "thread.x"))
    two = (s.Annotate("y", "i0", "thread.y"), s.Split("y", "i1", (2048,)), s.Annotate("y", "i1.1", "thread.x"))
    again = (s.Split("y", "r0", (2048,)), s.Annotate("y", "r0.1", "thread.x"))
    for expression, schedule, words in (
        (twice, odd, "1500 threads of a block"),
        (twice, two, "8192 threads of a block"),
        (total, again, "threads of a cluster join what they reduced in a loop"),
    ):
        with pytest.raises(BadInput, match=words):
            lower(expression, schedule, warp=32)


@emulated
def test_rows_that_are_read_again_are_held_in_shared_memory_if_registers_have_no_room(tmp_path: Path) -> None:
    small = replace(H200, multiprocessors=3)  # of which there are enough rows

    def batch_norm(shape: tuple[int, ...], dtype: str) -> Expression:
        x, weight = dg.tensor("x", shape, dtype), dg.tensor("weight", (shape[1],), dtype)
        over, count = [dg.reduce_axis(f"k{n}", shape[n]) for n in (0, 2)], shape[0] * shape[2]

        def at(c: Any) -> Any:
            return x[over[0], c, over[1]].cast("f32")

        mean = dg.compute("mean", (shape[1],), lambda c: dg.sum(at(c), *over) / count)

        def away(c: Any) -> Any:
            return at(c) - mean[c]

        squares = dg.compute("squares", (shape[1],), lambda c: dg.sum(away(c) * away(c), *over))

        def normed(n: Any, c: Any, i: Any) -> Any:
            return (x[n, c, i].cast("f32") - mean[c]) * dg.rsqrt(squares[c] / count + 1e-5) * weight[c].cast("f32")

        return dg.expression(dg.compute("y", shape, lambda *at: normed(*at).cast(dtype)))

    kinds = {
        "channels": batch_norm((5, 4, 3500), "f32"),
        "channels of 16 bits, no whole runs": batch_norm((7, 3, 2501), "bf16"),
    }
    for name, expression in kinds.items():
        (sketch, *_) = gpu_sketches(expression, small)
        assert sketch.name == "held", name
    few = gpu_sketches(kinds["channels"], H200)
    assert not any(sketch.name == "held" for sketch in few)
    (tmp_path / "all").mkdir()
    right(lowered(kinds, small, lambda sketch: sketch.name == "held"), tmp_path / "all")


@emulated
def test_a_mean_of_what_several_sums_of_a_row_give_reads_rows_once(tmp_path: Path) -> None:
    x, near, far = (dg.tensor(name, (37, 300), "f32") for name in ("x", "near", "far"))  # as a triplet loss does
    k, row = (dg.reduce_axis(name, size) for name, size in (("k", 300), ("row", 37)))
    apart = [dg.compute(f"to_{n}", (37,), lambda i, one=one: dg.sum((x[i, k] - one[i, k]) * (x[i, k] - one[i, k]), k))
             for n, one in enumerate((near, far))]  # fmt: skip
    each = dg.maximum(dg.sqrt(apart[0][row]) - dg.sqrt(apart[1][row]) + 1.0, 0.0)
    expression = dg.expression(dg.compute("loss", (1,), lambda i: dg.sum(each, row) / 37))
    (sketch, *_) = gpu_sketches(expression, H200)
    program = lower(sketch.expression, sketch.schedule(near_usual(sketch)), warp=32)
    assert sketch.name == "rows_kept" and len(program.launches) == 2
    assert "x" in used(program.launches[0].body) and "x" not in used(program.launches[1].body)
    (tmp_path / "all").mkdir()
    right(lowered({"loss": expression}, H200, lambda _: True), tmp_path / "all")
