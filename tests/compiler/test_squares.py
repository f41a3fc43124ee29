"""Transposing copies: each full square is one call, and the remainders at edges stay loops."""

from __future__ import annotations

import ctypes
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from compiled import COMPILERS, NO_COMPILER, library, run

import deepgen as dg
from deepgen.compiler.intrinsics.vectors import Square
from deepgen.compiler.passes.ir import Call, Function, walk
from deepgen.compiler.passes.lower import lower, passes
from deepgen.compiler.passes.text import to_text
from deepgen.compiler.schedule.steps import Annotate, Reorder, Schedule, Split
from deepgen.operators.expr.nodes import Expression
from deepgen.vocabulary.dtypes import dtype

SIZES = [(32, 48), (37, 43), (16, 16), (5, 70)]
FORMATS = {"f32": 1, "i32": 1, "f64": 1, "i8": 4, "bf16": 2}  # elements per unit
WITHOUT_SHUFFLES = "-D__riscv"


def turned(rows: int, columns: int, kind: str = "f32") -> Expression:
    """y[j, i] = x[i, j], or the same for groups of elements."""
    group = FORMATS[kind]
    x = dg.tensor("x", (rows, columns * group), kind)
    if group == 1:
        return dg.expression(dg.compute("y", (columns, rows), lambda j, i: x[i, j]))
    return dg.expression(dg.compute("y", (columns, rows, group), lambda j, i, n: x[i, j * group + n]))


def squares_of(side: int, kind: str = "f32") -> Schedule:
    grouped = FORMATS[kind] > 1
    order = ("i0.0", "i1.0", "i0.1", "i1.1", *(("i2",) if grouped else ()))
    steps: Schedule = (Split("y", "i0", (side,)), Split("y", "i1", (side,)), Reorder("y", order))
    within: Schedule = (Annotate("y", "i2", "vector"),) if grouped else ()
    return (*steps, Annotate("y", "i1.1", "unroll"), *within)


def calls(function: Function) -> list[str]:
    return [s.what.name for s in walk(function.body) if isinstance(s, Call)]


def text(expression: Expression, schedule: Schedule) -> str:
    found = {name: to_text(function) for name, function in passes(expression, schedule)}
    return dedent(found["squares"].partition("\n")[2])


def test_whole_squares_are_calls_and_parts_of_them_loops() -> None:
    assert text(turned(8, 4), squares_of(4)) == dedent(
        """\
        for y.i1.0 < 2:
          transpose4_u32(y[y.i1.0 * 4], x[y.i1.0 * 16], 32, 16)
        """
    )
    assert text(turned(6, 4), squares_of(4)) == dedent(
        """\
        for y.i1.0 < 2:
          if -y.i1.0 * 4 + 2 >= 0:
            transpose4_u32(y[y.i1.0 * 4], x[y.i1.0 * 16], 24, 16)
          else:
            for y.i0.1 < 4:
              for y.i1.1 < min(4, -y.i1.0 * 4 + 6):
                y[y.i0.1 * 6 + y.i1.0 * 4 + y.i1.1] = x[y.i0.1 + y.i1.0 * 16 + y.i1.1 * 4]
        """
    )


def test_what_is_no_copy_of_whole_squares_stays_as_it_is() -> None:
    x = dg.tensor("x", (8, 8))
    doubled = dg.expression(dg.compute("y", (8, 8), lambda j, i: x[i, j] * 2))
    straight = dg.expression(dg.compute("y", (8, 8), lambda j, i: x[j, i]))
    for expression in (doubled, straight, turned(3, 8)):
        assert not calls(lower(expression, squares_of(4)))
    assert not calls(lower(turned(8, 8), squares_of(2)))  # rows of 8 bytes
    oblong: Schedule = (*squares_of(4)[:1], Split("y", "i1", (8,)), *squares_of(4)[2:])
    assert not calls(lower(turned(8, 8), oblong))


@pytest.mark.slow
@pytest.mark.skipif(not COMPILERS, reason=NO_COMPILER)
@pytest.mark.parametrize("flag", ["-O2", WITHOUT_SHUFFLES])
def test_squares_of_every_size_are_copied(flag: str, tmp_path: Path) -> None:
    functions: list[tuple[str, Function]] = []
    for kind, group in FORMATS.items():
        unit = dtype(kind).bytes * group
        for side in (row // unit for row in (16, 32, 64)):
            for sizes in SIZES:
                found = lower(turned(*sizes, kind), squares_of(side, kind))
                assert (Square(side, unit).name in calls(found)) == (min(sizes) >= side)
                functions.append((kind, found))
    for compiler in COMPILERS:
        folder = tmp_path / Path(compiler).name
        folder.mkdir()
        loaded = ctypes.CDLL(str(library([of for _, of in functions], folder, flag, compiler=compiler)))
        for n, (kind, function) in enumerate(functions):
            given = _numbers(function.inputs[0].sizes, kind)
            rows, columns = given.shape[0], given.shape[1] // FORMATS[kind]
            wanted = given.reshape(rows, columns, FORMATS[kind]).swapaxes(0, 1)
            assert np.array_equal(run(loaded, n, function, [given], 1)[0].reshape(wanted.shape), wanted)


def _numbers(shape: tuple[int, ...], kind: str) -> Any:
    random = np.random.default_rng(0)
    return random.integers(-100, 100, shape).astype(dtype(kind).numpy())
