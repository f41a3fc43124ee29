"""Windows on GPUs: how many results a thread has, that their loads wait for nothing, and that edges are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import simt_emulation as simt

import deepgen as dg
from deepgen import targets
from deepgen.compiler.family import Rules
from deepgen.operators import Operator

H200, RULES = targets.resolve("cuda:h200"), Rules()


def depthwise(n: int, side: int, channels: int, k: Any = 5, pad: Any = 2, **more: Any) -> Operator:
    more = {"dtype": "f16", "layout": "nchw", **more}
    return dg.operator("depthwise_conv2d", N=n, H=side, W=side, C=channels, k=k, pad=pad, **more)


@pytest.mark.parametrize(
    ("own", "rows", "columns"),
    [
        (depthwise(3, 73, 513), 8, 2),  # an odd side: some of the last threads' results lie beyond the end
        (depthwise(16, 55, 256, 7, 3), 4, 2),  # eight rows' windows do not fit in registers
        (depthwise(16, 56, 64), 4, 8),
        (depthwise(10, 5, 12), 1, 1),  # there are more multiprocessors than results for them
        (depthwise(16, 73, 513, (1, 7), (0, 3)), 1, 2),  # rows share nothing
    ],
    ids=["odd", "large", "even", "few", "row"],
)
def test_a_thread_has_as_many_results_as_share_their_windows(own: Operator, rows: int, columns: int) -> None:
    config = RULES.default(own, H200)
    assert (config["i2_each"], config["i3_each"]) == (rows, columns)


def test_no_load_of_a_window_is_in_a_branch() -> None:
    """A branch would end with the conversion of what it loads, and each row's loads would wait for the row before."""
    own = depthwise(3, 73, 513)
    text = RULES.emit(own, H200, RULES.default(own, H200)).sources[0].text
    loads = text[text.index("x_padded_") : text.index("weight_window_")]
    assert "if (" not in loads and "widen_f16((" in loads


@pytest.mark.skipif(simt.COMPILER is None, reason=simt.NO_COMPILER)
@pytest.mark.parametrize("words", [{}, {"dtype": "bf16", "stride": 2}, {"dtype": "f32", "pad": 0}], ids=str)
def test_results_at_edges_are_right(words: dict[str, Any], tmp_path: Path) -> None:
    own = depthwise(2, 19, 3, **words)
    config = {**RULES.default(own, H200), "i2_each": 8, "i3_each": 2}
    config |= {"i3_threads": 8, "i2_threads": 2, "i1_threads": 2}
    assert RULES.space(own, H200).explain(config) == []
    kernel = RULES.emit(own, H200, config)
    library = simt.build(kernel, tmp_path)
    assert not any(simt.wrong(kernel, library, own, probe) for probe in own.probes())
