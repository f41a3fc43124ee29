"""The last elements of a row, in the default kernels for wide vectors: nothing past the end of a tensor is read.

Compiled as kernels are, for this processor, and run with every tensor right before a page that may not be touched.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from compiled import COMPILERS, NO_COMPILER, in_child, library, run
from test_lowered import agrees, random_inputs
from test_spaces import X86, configs, lowered

import deepgen as dg
from deepgen.compiler.intrinsics.dots import EMULATED
from deepgen.compiler.text import c
from deepgen.operators.expr.nodes import Expression, HasExpression

COLUMNS = (37, 61)
REDUCING = ("mean", "var", "rms_norm", "layer_norm", "softmax")


def expressions() -> list[Expression]:
    operators = [dg.operator(name, rows=3, cols=cols) for name in REDUCING for cols in COLUMNS]
    operators += [dg.operator("gemv", M=5, K=61), dg.operator("conv1d", N=1, CI=2, L=29, CO=3, k=3)]
    return [one.expression() for one in operators if isinstance(one, HasExpression)]


def test_no_loop_chooses_between_an_element_and_what_changes_nothing() -> None:
    for expression in expressions():
        sketch, config = configs(expression, X86, 0)[0]
        text = c.definitions(lowered(sketch, config, X86), "f")
        written = text if isinstance(text, str) else str(text)
        assert not re.search(r"\? \(*x\[.*: \(*(f32\))?-?(0\.0f|INFINITY)", written), expression.name


@pytest.mark.skipif(not COMPILERS, reason=NO_COMPILER)
def test_nothing_past_the_end_is_read(tmp_path: Path) -> None:
    cases = [(e, config, lowered(s, config, X86)) for e in expressions() for s, config in configs(e, X86, 0)[:1]]
    built = library([function for *_, function in cases], tmp_path, "-O3", "-march=native", f"-D{EMULATED}")

    def work(say: Callable[[str], None]) -> None:
        loaded = ctypes.CDLL(str(built))
        for n, (expression, config, function) in enumerate(cases):
            say(f"{expression}\n{config}")
            inputs = random_inputs(expression, n)
            tensors = [inputs[tensor.name] for tensor in expression.tensors]
            results = run(loaded, n, function, tensors, config["THREADS"], at_end=True)
            assert not (wrong := agrees(expression, results, inputs)), f"{wrong}\n{expression}\n{config}"

    assert not (wrong := in_child(work)), wrong
