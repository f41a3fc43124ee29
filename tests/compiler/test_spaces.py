"""The spaces that rules generate: every config is a kernel that computes the expression correctly."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cases import CASES
from compiled import in_child, library, run
from expressions import expressions
from hypothesis import HealthCheck, Phase, given, settings
from test_lowered import agrees, random_inputs

import deepgen as dg
from deepgen import targets
from deepgen.compiler.intrinsics.dots import EMULATED
from deepgen.compiler.passes.guards import MOST_ROOM
from deepgen.compiler.passes.ir import Alloc, Function, Store, walk
from deepgen.compiler.passes.lower import lower
from deepgen.compiler.rules.sketch import SKETCH, Sketch, sketches, space_of
from deepgen.operators.expr.nodes import Expression, HasExpression
from deepgen.operators.expr.nodes import walk as walk_value
from deepgen.targets import Cpu
from deepgen.vocabulary.dtypes import dtype

# `DEEPGEN_SAMPLES=50 pytest tests/compiler/test_spaces.py` takes minutes.
SAMPLES = int(os.environ.get("DEEPGEN_SAMPLES", "1"))
RANDOM = 8 * SAMPLES
AT_ONCE = 40  # functions per library
X86, ARM = targets.resolve("x86:avx512"), targets.resolve("arm:neon")


def here() -> Cpu:
    found = targets.resolve("cpu")
    assert isinstance(found, Cpu)
    return found


def lowered(sketch: Sketch, config: dict[str, Any], cpu: Any) -> Function:
    return lower(sketch.expression, sketch.schedule(config), vector_bytes=cpu.vector_bytes)


def random_expressions(count: int) -> list[Expression]:
    found: list[Expression] = []

    @settings(max_examples=count, phases=[Phase.generate], suppress_health_check=list(HealthCheck), derandomize=True)
    @given(expressions(most=9))
    def collect(expression: Expression) -> None:
        found.append(expression)

    collect()
    return found


def configs(expression: Expression, cpu: Any, count: int) -> list[tuple[Sketch, dict[str, Any]]]:
    """The default config of each sketch, and a sample of the space."""
    found = {sketch.name: sketch for sketch in sketches(expression, cpu)}
    space = space_of("rules", list(found.values()))
    usual = [({SKETCH: name} if len(found) > 1 else {}) | sketch.usual() for name, sketch in found.items()]
    for config in usual:
        assert not space.explain(config), f"{expression.name}: what is taken without a search is not in the space"
    drawn = [*usual, *space.sample(count, seed=0)]
    return [(found[str(config.get(SKETCH, next(iter(found))))], config) for config in drawn]


@pytest.mark.slow
def test_every_config_computes_the_expression(tmp_path: Path) -> None:
    told = [*CASES.values(), *random_expressions(RANDOM)]
    cases = [
        (expression, config, lowered(sketch, config, here()))
        for expression in told
        for sketch, config in configs(expression, here(), SAMPLES)
    ]
    for start in range(0, len(cases), AT_ONCE):
        part = cases[start : start + AT_ONCE]
        folder = tmp_path / str(start)
        folder.mkdir()
        built = library([function for *_, function in part], folder, "-O0", f"-D{EMULATED}")

        def work(say: Callable[[str], None], built: Path = built, part: Any = part) -> None:
            loaded = ctypes.CDLL(str(built))
            for n, (expression, config, function) in enumerate(part):
                say(f"{expression}\n{config}")
                inputs = random_inputs(expression, n)
                results = run(loaded, n, function, [inputs[t.name] for t in expression.tensors], config["THREADS"])
                assert not (wrong := agrees(expression, results, inputs)), f"{wrong}\n{expression}\n{config}"

        assert not (wrong := in_child(work)), wrong


@pytest.mark.slow
def test_buffers_are_as_large_as_the_space_says() -> None:
    for place, expression in enumerate(CASES.values()):
        cpu = (X86, ARM)[place % 2]
        for sketch, config in configs(expression, cpu, 2):
            made = [
                s.buffer
                for s in walk(lowered(sketch, config, cpu).body)
                if isinstance(s, Alloc) and s.buffer.scope == "global"
            ]
            sizes = {f"bytes_{b.name}": b.elements * dtype(b.dtype).bytes for b in made}
            told = {name: value.evaluate(config) for name, value in sketch.derived if name.startswith("bytes_")}
            assert {name for name in sizes if name in told} == {name for name, size in told.items() if size}
            room = {f"bytes_{b.name}": MOST_ROOM * dtype(b.dtype).bytes for b in made}
            assert all(0 <= sizes[name] - size <= room[name] for name, size in told.items() if size)


def test_what_is_costly_is_computed_once_for_a_sum_and_what_reads_it_again() -> None:
    softmax = dg.operator("softmax", rows=8, cols=64)
    assert isinstance(softmax, HasExpression)
    for sketch, config in configs(softmax.expression(), ARM, 1):
        stores = [s for s in walk(lowered(sketch, config, ARM).body) if isinstance(s, Store)]
        costly = {s.buffer for s in stores for value in walk_value(s.value) if getattr(value, "op", None) == "exp"}
        assert costly == {"kept"}
