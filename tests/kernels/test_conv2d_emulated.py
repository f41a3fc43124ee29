"""GPU convolutions give correct results on a CPU: wrong indexing and missing barriers show without a GPU."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import pytest
import simt_emulation as emulation

from deepgen import targets
from deepgen.kernels.conv2d.simt_conv2d import SimtConv2d
from deepgen.operators import conv2d
from deepgen.operators.words import FORMATS
from deepgen.vocabulary import Source

FAMILY = SimtConv2d()
CHIP = targets.resolve("cuda:sm_90a")
# Odd sizes: strides that skip pixels, filters as large as the padded image, tiles that are never full.
SHAPES = [
    conv2d(2, 7, 9, 5, 19, 3, stride=2, pad=1),
    conv2d(1, 6, 5, 3, 33, 1),
    conv2d(3, 5, 8, 4, 7, 5, stride=3, pad=2),
    conv2d(1, 2, 3, 2, 1, 6, pad=2),
]
pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("dtype", [*FORMATS])
def test_any_config_is_right_for_every_dtype_and_layout_and_its_binary_serves_all_shapes(
    dtype: str, layout: str, tmp_path: Path
) -> None:
    operators = [replace(shape, dtype=dtype, layout=layout) for shape in SHAPES]
    (config,) = FAMILY.space(operators[0], CHIP).sample(1, seed=zlib.crc32(f"{dtype} {layout}".encode()))
    kernel = FAMILY.emit(operators[0], CHIP, config)
    library = emulation.build(kernel, tmp_path)
    wrong = [emulation.wrong(kernel, library, o, probe) for o in operators for probe in o.probes()]
    assert not any(wrong), (config, wrong)


@pytest.mark.parametrize("target", ["cuda:sm_90a", "hip:gfx906"])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_the_default_is_right(layout: str, target: str, tmp_path: Path) -> None:
    chip, operator = targets.resolve(target), conv2d(2, 11, 10, 6, 40, 3, pad=1, layout=layout)
    kernel = FAMILY.emit(operator, chip, FAMILY.default(operator, chip))
    assert emulation.wrong(kernel, emulation.build(kernel, tmp_path), operator) == ""


@pytest.mark.parametrize(
    ("wrong", "instead", "says"),
    [
        ("        barrier();\n        // Past", "        // Past", "race"),
        ("channel >= p.co", "channel > p.co", "written twice"),
        ("c >= p.w", "c > p.w + p.w * p.h * p.n", "outside of every buffer"),
    ],
)
def test_a_mistake_in_a_kernel_is_caught(wrong: str, instead: str, says: str, tmp_path: Path) -> None:
    operator = conv2d(1, 6, 5, 3, 33, 3, pad=1)
    kernel = FAMILY.emit(operator, CHIP, FAMILY.default(operator, CHIP))
    assert any(wrong in source.text for source in kernel.sources)
    sources = tuple(Source(source.name, source.text.replace(wrong, instead)) for source in kernel.sources)
    broken = replace(kernel, sources=sources)
    assert says in emulation.wrong(broken, emulation.build(broken, tmp_path), operator)
