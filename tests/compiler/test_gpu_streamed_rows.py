"""Rows that a warp scans from their beginning to their end, a few runs at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cases
import pytest
from test_gpu_spaces import H200, emulated, lowered, right

import deepgen as dg
from deepgen.compiler.passes.ir import Alloc, walk
from deepgen.compiler.passes.lower import lower
from deepgen.compiler.rules import facts
from deepgen.compiler.rules.gpu.likely import near_usual
from deepgen.compiler.rules.gpu.sketches import gpu_sketches
from deepgen.operators.expr.nodes import Expression

LENGTH = 5120  # more than lanes have room for


def masked() -> Expression:
    x, mask = dg.tensor("x", (3, LENGTH), "f32"), dg.tensor("mask", (3, LENGTH), "u8")
    return dg.expression(dg.scan("y", (3, LENGTH), lambda i, j: dg.where(mask[i, j] != 0, x[i, j], 0.0), axis=1))


def moved(*, backwards: bool, by: int = 0) -> Expression:
    """Scanned from the last element on, or stored one place later."""
    x = dg.tensor("x", (3, LENGTH), "f32")
    run = dg.scan("run", (3, LENGTH - by), lambda i, j: x[i, LENGTH - 1 - j if backwards else j], axis=1)

    def stored(i: Any, j: Any) -> Any:
        return dg.where(j < by, 0.0, run[i, j - by]) if by else run[i, LENGTH - 1 - j]

    return dg.expression(dg.compute("y", (3, LENGTH), stored))


@emulated
def test_long_rows_are_scanned_in_one_launch_if_they_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = cases.scan((5, LENGTH), 1)
    assert len(gpu_sketches(plain, H200)[0].expression.stages) > 1  # in pieces
    monkeypatch.setattr(facts, "_MANY_ROWS", 2)
    kinds = {
        "plain": plain,
        "in 16 bits": cases.scan((3, 2 * LENGTH), 1, "bf16"),
        "maxima": cases.scan((2, 3, 4096 + 1024), 2, op="max"),
        "masked": masked(),
        "from the last on": moved(backwards=True),
        "exclusive": moved(backwards=False, by=1),
    }
    for name, expression in kinds.items():
        (sketch, *_) = gpu_sketches(expression, H200)
        assert sketch.name == "scan_lanes", name
        program = lower(sketch.expression, sketch.schedule(near_usual(sketch)), warp=32)
        (launch,) = program.launches
        held = [s.buffer.sizes[0] for s in walk(launch.body) if isinstance(s, Alloc) and s.buffer.scope == "warp"]
        assert max(held) <= 64, name
    (tmp_path / "all").mkdir()
    right(lowered(kinds, H200, lambda sketch: sketch.name == "scan_lanes"), tmp_path / "all")
