"""Dot product instructions: each entry of the table, run with the instruction itself where this machine has it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled import COMPILERS, NO_COMPILER, library, run

import deepgen as dg
from deepgen.compiler.intrinsics.dots import DOTS, EMULATED, Dot
from deepgen.compiler.passes.ir import Alloc, walk
from deepgen.compiler.passes.lower import lower
from deepgen.compiler.schedule.steps import (
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    Layout,
    LayoutPlace,
    Reorder,
    RFactor,
    Schedule,
    SetScope,
    Split,
    Tensorize,
)
from deepgen.operators.expr.nodes import Expression
from deepgen.targets import host
from deepgen.toolchains.compilers import c
from deepgen.vocabulary.dtypes import dtype, narrow
from deepgen.vocabulary.errors import BadInput

ROWS = 5


def product(dot: Dot, columns: int, depth: int) -> Expression:
    a, b, k = (
        dg.tensor("A", (ROWS, depth), dot.left),
        dg.tensor("B", (depth, columns), dot.right),
        dg.reduce_axis("k", depth),
    )

    def element(i: object, j: object) -> object:
        return dg.sum(a[i, k].cast(dot.result) * b[k, j].cast(dot.result), k)

    return dg.expression(dg.compute("C", (ROWS, columns), element))


def schedule(dot: Dot) -> Schedule:
    """Register tiles of two rows and two vectors; panels of B in the instruction's order."""
    lanes, depth = dot.lanes, dot.depth
    return (
        CacheWrite("C", "sums", "register"),
        Split("C", "i0", (2,)),
        Split("C", "i1", (2 * lanes,)),
        Reorder("C", ("i0.0", "i1.0", "i0.1", "i1.1")),
        Annotate("C", "i0.1", "unroll"),
        Annotate("C", "i1.1", "vector"),
        ComputeAt("sums", "C", "i1.0"),
        Split("sums", "r0", (depth,)),
        Split("sums", "i1", (lanes,)),
        Reorder("sums", ("r0.0", "i0", "i1.0", "i1.1", "r0.1")),
        Annotate("sums", "i0", "unroll"),
        Annotate("sums", "i1.0", "unroll"),
        Tensorize("sums", "i1.1", dot.name),
        CacheRead("B", "panels", "global", ("sums",)),
        Layout(
            "panels", (LayoutPlace(1, lanes), LayoutPlace(0, depth), LayoutPlace(1, 1, lanes), LayoutPlace(0, 1, depth))
        ),
        CacheRead("A", "strip", "global", ("sums",)),
        ComputeAt("strip", "C", "i0.0"),
    )


def products_of_vectors(dot: Dot, depth: int) -> Expression:
    a, x = dg.tensor("A", (ROWS, depth), dot.left), dg.tensor("x", (depth,), dot.right)
    k = dg.reduce_axis("k", depth)
    return dg.expression(
        dg.compute("y", (ROWS,), lambda i: dg.sum(a[i, k].cast(dot.result) * x[k].cast(dot.result), k))
    )


def schedule_of_vectors(dot: Dot) -> Schedule:
    """A vector of partial sums in a register, which is summed up at the end."""
    return (
        CacheWrite("y", "sums", "register"),
        Split("sums", "r0", (dot.lanes, dot.depth)),
        RFactor("sums", "r0.1", "parts"),
        ComputeAt("sums", "y", "i0"),
        Annotate("sums", "r0.1", "vector"),
        ComputeAt("parts", "y", "i0"),
        SetScope("parts", "register"),
        Layout("parts", (LayoutPlace(1, 1), LayoutPlace(0, 1))),
        Reorder("parts", ("i0", "r0.0", "r0.1", "r0.2")),
        Tensorize("parts", "r0.1", dot.name),
    )


@pytest.mark.skipif(not COMPILERS, reason=NO_COMPILER)
@pytest.mark.parametrize("way", ["by the instruction", "one by one"])
def test_products_by_instructions(way: str, tmp_path: Path) -> None:
    here = host.processor()
    native = way == "by the instruction"
    dots = [dot for dot in DOTS.values() if here.has(*dot.features) or not native]
    if not dots:
        pytest.skip("this machine has none of them")
    flags = c.isa_flags(here.machine, here.isa, "gcc", 99) if native else (f"-D{EMULATED}",)
    sizes = [(1 if dot.each else 3 * dot.lanes - 1, 3 * dot.whole) for dot in dots]
    functions = [
        lower(products_of_vectors(dot, depth), schedule_of_vectors(dot))
        if dot.each
        else lower(product(dot, columns, depth), schedule(dot))
        for dot, (columns, depth) in zip(dots, sizes, strict=True)
    ]
    loaded = ctypes.CDLL(str(library(functions, tmp_path, "-w", *flags)))
    for n, (dot, (columns, depth), function) in enumerate(zip(dots, sizes, functions, strict=True)):
        a, b = numbers(dot.left, (ROWS, depth)), numbers(dot.right, (depth, columns))
        stored = [narrow(x.astype(float), dtype(kind)) for x, kind in ((a, dot.left), (b, dot.right))]
        stored[1] = stored[1][:, 0] if dot.each else stored[1]
        (got,) = run(loaded, n, function, stored, threads=1)
        assert np.array_equal(got.astype(np.int64), (a @ b)[:, 0] if dot.each else a @ b), dot.name


def numbers(kind: str, shape: tuple[int, int]) -> Any:
    """The full range of an integer format; for floats, integers whose sums are exact."""
    low, high = (-8, 8) if kind == "bf16" else dtype(kind).whole
    return np.random.default_rng(0).integers(low, high + 1, shape)


def test_sums_stay_in_registers() -> None:
    dot = DOTS["arm_sdot"]
    function = lower(product(dot, 8, 8), schedule(dot))
    (sums,) = (s.buffer for s in walk(function.body) if isinstance(s, Alloc) and s.buffer.name == "sums")
    assert sums.lanes == dot.lanes


def test_loops_that_an_instruction_does_not_do_are_refused() -> None:
    dot = DOTS["arm_sdot"]
    expression, steps = product(dot, 8, 8), schedule(dot)
    with pytest.raises(BadInput, match=r"arm_sdot cannot do the loops sums\.i1\.1 and sums\.r0\.1"):
        lower(expression, tuple(s for s in steps if not isinstance(s, Layout)))
    with pytest.raises(BadInput, match="not 4 sums of 4 products"):
        lower(expression, tuple(Split("sums", "r0", (2,)) if s == Split("sums", "r0", (4,)) else s for s in steps))
    with pytest.raises(BadInput, match="'abacus' is not a known instruction"):
        lower(expression, (Tensorize("C", "i1", "abacus"),))
