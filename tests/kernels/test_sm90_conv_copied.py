"""Convolutions from copies on Hopper: the copies are correct (run on the CPU), and the product uses them."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import simt_emulation as simt

import needs
from deepgen import targets
from deepgen.kernels.conv2d.sm90_conv_copied import Sm90ConvCopied
from deepgen.operators import Conv2d, conv2d
from deepgen.operators.base import Array
from deepgen.space import parse
from deepgen.toolchains.base import BuildLimits
from deepgen.toolchains.group import Group
from deepgen.vocabulary import DescriptorArg, WorkspaceArg

FAMILY, HOPPER = Sm90ConvCopied(), targets.resolve("cuda:sm_90a")
CASES = [
    conv2d(3, 7, 9, 21, 19, 3, stride=2, pad=1, dtype="f16", layout="nchw"),
    conv2d(2, 6, 5, 32, 40, (1, 3), dtype="bf16", layout="nchw"),
    conv2d(2, 12, 11, 101, 93, 3, dtype="f16", layout="nchw"),
    conv2d(2, 6, 5, 21, 19, (3, 1), dtype="f16"),
    conv2d(2, 6, 5, 24, 19, 1, dtype="f16"),
    conv2d(2, 6, 5, 5, 16, 3, pad=1, dtype="f16"),
]
# Threads run one after the other; at a barrier, all run up to it first.
_SHIM = """
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define COPIES_ON_CPU
typedef long long i64;
struct Place { int x; };
static Place blockIdx, threadIdx;
template <typename T> T __ldg(const T* from) { return *from; }
static void next_may_begin() {}
static void wait_for_launch_before() {}
#include "copies.h"
#define THREADS(call) for (threadIdx.x = 0; threadIdx.x < COPY_THREADS; ++threadIdx.x) call
#define BLOCKS for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
#if PLANES
static Transposed tile;
extern "C" void run_gather(int blocks, Bits* x, Bits* weight, Bits* images, Bits* filters, int n) {
    BLOCKS {
        const Part part = part_of(blockIdx.x, (i64)n * IMAGE_AREA);
        THREADS(gather_in(tile, x, weight, part, (i64)n * IMAGE_AREA));
        THREADS(gather_out(tile, images, filters, part, (i64)n * IMAGE_AREA));
    }
}
extern "C" void run_scatter(int blocks, Bits* result, Bits* y, int n) {
    BLOCKS {
        const i64 first = blockIdx.x / BLOCKS_CO * SIDE;
        const int channels = blockIdx.x % BLOCKS_CO * SIDE;
        THREADS(scatter_in(tile, result, first, channels, (i64)n * RESULT_AREA));
        THREADS(scatter_out(tile, y, first, channels, (i64)n * RESULT_AREA));
    }
}
#else
extern "C" void run_gather(int blocks, Bits* x, Bits* weight, Bits* images, Bits* filters, int n) {
    BLOCKS THREADS(gather(x, weight, images, filters, n));
}
extern "C" void run_scatter(int blocks, Bits* result, Bits* y, int n) { BLOCKS THREADS(scatter(result, y, n)); }
#endif
"""


def _library(operator: Conv2d, folder: Path) -> ctypes.CDLL:
    kernel = FAMILY.emit(operator, HOPPER, FAMILY.default(operator, HOPPER))
    (folder / "copies.h").write_text(next(s.text for s in kernel.sources if s.name == "copies.h"))
    (folder / "shim.cpp").write_text(_SHIM)
    return simt.loaded(folder / "shim.cpp", *(flag for flag in kernel.flags))


def _pointer(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _padded(array: Array, axis: int, size: int) -> Array:
    return np.pad(array, [(0, size - n if at == axis else 0) for at, n in enumerate(array.shape)])


@pytest.mark.skipif(simt.COMPILER is None, reason=simt.NO_COMPILER)
@pytest.mark.parametrize("operator", CASES, ids=Conv2d.slug)
def test_copies_are_right(operator: Conv2d, tmp_path: Path) -> None:
    kernel, library = FAMILY.emit(operator, HOPPER, FAMILY.default(operator, HOPPER)), _library(operator, tmp_path)
    steps = {step.entry: step for step in kernel.plan.steps}
    blocks = {name: int(parse(str(step.grid[0])).evaluate(operator.scalars())) for name, step in steps.items()}
    inputs = {name: np.ascontiguousarray(array).view(np.uint16) for name, array in operator.inputs(3).items()}
    x, weight = inputs["x"], inputs["weight"]
    ci, co = (-(-n // 8) * 8 for n in (operator.ci, operator.co))
    images, filters = (
        np.full((operator.n, operator.h, operator.w, ci), 9, np.uint16),
        np.full((*operator.kernel, ci, co), 9, np.uint16),
    )
    n = ctypes.c_int(operator.n)
    library.run_gather(blocks["gather"], _pointer(x), _pointer(weight), _pointer(images), _pointer(filters), n)
    last = operator.layout == "nhwc"
    if not last or operator.ci % 8:
        assert (images == _padded(x if last else np.moveaxis(x, 1, -1), 3, ci)).all()
    plain = weight if last else weight.transpose(2, 3, 1, 0)
    assert (filters == _padded(_padded(plain, 2, ci), 3, co)).all()
    assert ("scatter" in steps) == (not last or operator.co % 8 != 0)
    if "scatter" in steps:
        shape = (operator.n, operator.out_h, operator.out_w, co)
        result = np.arange(np.prod(shape), dtype=np.uint16).reshape(shape)
        y = np.zeros(next(t.shape for t in operator.tensors() if t.name == "y"), np.uint16)
        library.run_scatter(blocks["scatter"], _pointer(result), _pointer(y), n)
        assert (y == (result if last else np.moveaxis(result, -1, 1))[tuple(slice(s) for s in y.shape)]).all()


@pytest.mark.parametrize("operator", CASES, ids=Conv2d.slug)
def test_the_product_is_of_the_copies_and_no_size_is_left_open_but_the_images(operator: Conv2d) -> None:
    kernel = FAMILY.emit(operator, HOPPER, FAMILY.default(operator, HOPPER))
    product = next(step for step in kernel.plan.steps if step.entry == "gemm")
    first = {arg.name for arg in kernel.plan.steps[0].args if isinstance(arg, WorkspaceArg)}
    maps = {arg.tensor: arg.copy for arg in product.args if isinstance(arg, DescriptorArg)}
    assert maps["weight"] == "filters" and (maps["x"] == "images") == ("images" in first)
    assert "CO" not in repr(product)
    # A launch waits itself for the one before it, and is prepared meanwhile.
    assert [step.overlaps for step in kernel.plan.steps] == [False, *[True] * (len(kernel.plan.steps) - 1)]
    texts = {source.name: source.text for source in kernel.sources}
    assert texts["producers.h"].index("wait_for_launch_before()") < texts["producers.h"].index("while (schedule.next")
    assert "next_may_begin()" in texts["copies.h"] and "wait_for_launch_before()" in texts["copies.h"]
    assert {f"CO == {operator.co}", f"CI == {operator.ci}"} <= {text for text, _ in kernel.plan.requires}
    assert FAMILY.modelled_seconds(operator, HOPPER, FAMILY.default(operator, HOPPER))


def test_what_needs_no_copies_it_leaves_to_others() -> None:
    plain = conv2d(2, 9, 9, 32, 32, 3, dtype="f16")
    assert "without copies" in (FAMILY.refuses(plain, HOPPER) or "")
    assert FAMILY.refuses(replace(plain, layout="nchw"), HOPPER) is None
    assert FAMILY.refuses(replace(plain, dtype="f32", layout="nchw"), HOPPER)


def test_copies_and_product_build_together(tmp_path: Path) -> None:
    toolchain = needs.toolchain(HOPPER, "cuda")
    for number, operator in enumerate((CASES[0], CASES[3])):
        folder = tmp_path / str(number)
        folder.mkdir()
        with Group() as group:
            kernel = FAMILY.emit(operator, HOPPER, FAMILY.default(operator, HOPPER))
            result = toolchain.build(kernel, HOPPER, folder, BuildLimits(), group)
        assert result.facts["spill_bytes"] == 0, operator.describe()
