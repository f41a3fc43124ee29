"""The last elements of a row, in the default kernels for wide vectors: nothing past the end of a tensor is read.

Compiled like kernels, for this CPU, and run with every tensor right before a guard page.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compiled import COMPILERS, NO_COMPILER, in_child, library, run
from test_lowered import agrees, random_inputs
from test_spaces import X86, configs, lowered

import deepgen as dg
from deepgen.compiler.intrinsics.dots import EMULATED
from deepgen.compiler.passes.ir import Alloc, walk
from deepgen.compiler.text import c
from deepgen.operators.expr.nodes import Expression, HasExpression

COLUMNS = (37, 61)
REDUCING = ("mean", "var", "rms_norm", "layer_norm", "softmax")


def expressions() -> list[Expression]:
    operators = [dg.operator(name, rows=3, cols=cols) for name in REDUCING for cols in COLUMNS]
    operators += [dg.operator("gemv", M=5, K=61), dg.operator("conv1d", N=1, CI=2, L=29, CO=3, k=3)]
    operators += [dg.operator("conv2d", N=1, H=5, W=19, CI=2, CO=35, k=3, pad=pad, layout="nchw") for pad in (0, 1)]
    return [one.expression() for one in operators if isinstance(one, HasExpression)]


def test_no_loop_chooses_between_an_element_and_what_changes_nothing() -> None:
    for expression in expressions():
        sketch, config = configs(expression, X86, 0)[0]
        text = c.definitions(lowered(sketch, config, X86), "f")
        written = text if isinstance(text, str) else str(text)
        assert not re.search(r"\? \(*x\[.*: \(*(f32\))?-?(0\.0f|INFINITY)", written), expression.name


@pytest.mark.slow
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


CHANNELS_FIRST = (
    {"N": 2, "H": 21, "W": 21, "CI": 3, "CO": 19, "k": 5, "pad": 2},  # a vector and three channels
    {"N": 57, "H": 12, "W": 12, "CI": 4, "CO": 35, "k": (7, 1), "pad": (3, 0), "stride": 2},
    {"N": 29, "H": 17, "W": 17, "CI": 8, "CO": 16, "k": (7, 1), "pad": (3, 0)},
    {"N": 1, "H": 149, "W": 149, "CI": 4, "CO": 32, "k": 3},  # whole vectors and three pixels, of x in its own layout
    {"N": 20, "H": 7, "W": 7, "CI": 16, "CO": 2048, "k": 1},  # tiles wider than an image
)


@pytest.mark.parametrize("words", CHANNELS_FIRST, ids=str)
def test_sums_of_a_default_stay_in_registers_at_every_edge(words: dict[str, Any]) -> None:
    operator = dg.operator("conv2d", layout="nchw", **words)
    assert isinstance(operator, HasExpression)
    sketch, config = configs(operator.expression(), X86, 0)[0]
    body = lowered(sketch, config, X86).body
    sums = [s.buffer for s in walk(body) if isinstance(s, Alloc) and s.buffer.name == "y_sum"]
    assert sums and all(buffer.lanes for buffer in sums)


def test_vectors_lie_along_nothing_that_would_be_gathered() -> None:
    """Images are padded by a stage with the layout of x: no vector extends along the images of a batch."""
    for layout in ("nhwc", "nchw"):
        operator = dg.operator("conv2d", N=64, H=9, W=9, CI=8, CO=20, k=3, pad=1, layout=layout)
        assert isinstance(operator, HasExpression)
        names = {sketch.name for sketch, _ in configs(operator.expression(), X86, 0)}
        assert names and "vectors_i0" not in names


def test_what_a_block_pads_for_itself_stays_in_the_second_cache() -> None:
    operator = dg.operator("depthwise_conv2d", N=4, H=59, W=59, C=539, k=(1, 7), stride=2, pad=(0, 3))
    assert isinstance(operator, HasExpression)
    sketch, config = configs(operator.expression(), X86, 0)[0]
    sizes = {name: value.evaluate(config) for name, value in sketch.derived}
    assert config["at_x_padded"] == "block" and sizes["bytes_x_padded"] <= X86.l2_bytes


def test_vectors_of_every_second_element_are_not_shuffled_for_every_tap_apart() -> None:
    """gcc took more than two minutes for the resulting code."""
    operator = dg.operator("depthwise_conv2d", N=22, H=54, W=54, C=118, k=(1, 7), stride=2, pad=(0, 3), layout="nchw")
    assert isinstance(operator, HasExpression)
    [(_, config)] = configs(operator.expression(), X86, 0)
    assert config["r1_1"] == 1


@pytest.mark.parametrize(("channels", "lanes"), [(9, 16), (12, 16), (8, 8), (7, 4)])
def test_few_channels_fill_a_vector_up_where_they_are_more_than_half_of_it(channels: int, lanes: int) -> None:
    operator = dg.operator("conv2d", N=2, H=9, W=9, CI=8, CO=channels, k=3, pad=1)
    assert isinstance(operator, HasExpression)
    sketch, config = configs(operator.expression(), X86, 0)[0]
    sums = [s.buffer for s in walk(lowered(sketch, config, X86).body) if isinstance(s, Alloc) and s.buffer.lanes]
    assert sums and {buffer.lanes for buffer in sums} == {lanes}
