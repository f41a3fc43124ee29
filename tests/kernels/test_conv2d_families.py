"""What the convolution families offer; that their kernels build for every chip, and match the reviewed ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import needs
from deepgen import generators, targets
from deepgen.generators import Generator
from deepgen.kernels import Rank, rank_of
from deepgen.kernels.conv2d.c_conv2d import CConv2d
from deepgen.kernels.conv2d.mma_conv_few import MmaConvFew
from deepgen.kernels.conv2d.pointwise import MmaPointwise, SimtPointwise, Sm90Pointwise
from deepgen.kernels.conv2d.simt_conv import SimtConv
from deepgen.kernels.conv2d.simt_conv2d import SimtConv2d
from deepgen.kernels.conv2d.sm90_conv import Sm90Conv
from deepgen.kernels.conv2d.sm90_conv_copied import Sm90ConvCopied
from deepgen.operators import Conv2d, conv2d, gemm
from deepgen.operators.words import FORMATS
from deepgen.space import parse
from deepgen.toolchains.base import BuildLimits
from deepgen.toolchains.group import Group

C, SIMT = CConv2d(), SimtConv2d()
BETTER = (MmaConvFew(), Sm90Conv(), Sm90ConvCopied(), SimtConv(), Sm90Pointwise(), MmaPointwise(), SimtPointwise())
PROCESSORS = ["x86:avx2", "x86:avx512", "arm:neon"]
GPUS = ["cuda:sm_70", "cuda:sm_90a", "hip:gfx906", "hip:gfx90a", "hip:gfx1100"]


@pytest.mark.parametrize("name", [*PROCESSORS, *GPUS])
def test_a_family_is_found_everywhere_and_its_default_is_in_its_space(name: str) -> None:
    chip, family = targets.resolve(name), C if name in PROCESSORS else SIMT
    for dtype in FORMATS:
        for layout in ("nhwc", "nchw"):
            for operator in (
                conv2d(16, 56, 56, 64, 64, 3, pad=1, dtype=dtype, layout=layout),
                conv2d(1, 1, 1, 1, 1, 1, dtype=dtype, layout=layout),
                conv2d(2, 9, 200, 3, 33, 7, stride=2, pad=3, dtype=dtype, layout=layout),
            ):
                surpassed = rank_of(family, operator, chip) >= Rank.GENERAL
                serving = (one for one in BETTER if one.refuses(operator, chip) is None)
                better = [one.name for one in serving if rank_of(one, operator, chip) < Rank.SURPASSED]
                expected = better or ["rules" if surpassed else family.name]
                assert generators.find(operator, chip).name in expected
                assert family.space(operator, chip).explain(dict(family.default(operator, chip))) == []


def test_matrix_units_come_before_plain_arithmetic_where_they_serve() -> None:
    chip, old = targets.resolve("cuda:sm_90a"), targets.resolve("cuda:sm_70")
    half, bytes_ = (conv2d(1, 8, 8, 32, 8, 3, dtype=dtype) for dtype in ("f16", "i8"))
    assert generators.find(half, chip).name == generators.find(bytes_, chip).name == "rules"
    assert generators.find(conv2d(1, 8, 8, 3, 8, 3, dtype="f16"), chip).name == "mma_conv_few"
    assert generators.find(conv2d(1, 8, 8, 3, 8, 3, dtype="f16"), old).name == "simt_conv2d"
    planes = conv2d(16, 35, 35, 288, 384, 3, stride=2, dtype="f16", layout="nchw")
    assert generators.find(planes, chip).name == "sm90_conv_copied"
    assert generators.find(replace(planes, k=1), chip).name == "rules"
    # Tensor cores of kernels by rules take whole products of channels: others are copied.
    for few in (
        conv2d(1, 8, 8, 142, 14, (1, 3), dtype="bf16", layout="nchw"),
        conv2d(30, 5, 5, 726, 33, 7, dtype="f16", pad=3),
    ):
        assert generators.find(few, chip).name == "sm90_conv_copied"
    assert generators.find(half, old).name == "simt_conv2d"


def test_what_they_cannot_do_they_refuse_in_words() -> None:
    assert "CPUs" in (C.refuses(conv2d(1, 8, 8, 8, 8, 3), targets.resolve("cuda:sm_80")) or "")
    assert "conv2d" in (C.refuses(gemm(8, 8, 8), targets.resolve("x86:avx2")) or "")
    assert "GPU" in (SIMT.refuses(conv2d(1, 8, 8, 8, 8, 3), targets.resolve("x86:avx2")) or "")
    assert "conv2d" in (SIMT.refuses(gemm(8, 8, 8), targets.resolve("cuda:sm_80")) or "")
    large = conv2d(1 << 11, 1 << 10, 1 << 10, 1, 1, 1)
    assert "32-bit" in (SIMT.refuses(large, targets.resolve("cuda:sm_80")) or "")


def test_a_binary_for_gpus_says_itself_which_shapes_are_too_large() -> None:
    chip, small = targets.resolve("cuda:sm_80"), conv2d(1, 8, 8, 8, 8, 3)
    kernel = SIMT.emit(small, chip, SIMT.default(small, chip))
    for operator, served in ((small, True), (conv2d(1 << 11, 1 << 10, 1 << 10, 1, 1, 1), False)):
        assert all(parse(text).evaluate(operator.scalars()) for text, _ in kernel.plan.requires) == served


@pytest.mark.parametrize("source", ["conv2d_simt.cu", "conv2d_tiles.h"])
def test_memory_and_special_instructions_go_through_the_dialect(source: str) -> None:
    chip, operator = targets.resolve("cuda:sm_80"), conv2d(1, 8, 8, 8, 8, 3)
    [found] = [s for s in SIMT.emit(operator, chip, SIMT.default(operator, chip)).sources if s.name == source]
    text = re.sub(r"//.*", "", found.text)
    for forbidden in (r"\basm\b", r"\b__\w+", r"\b(threadIdx|blockIdx|gridDim)\b", r"->", r"\b(x|weight|y)\["):
        assert not re.search(forbidden, text), f"{source} has {forbidden}"


@pytest.mark.parametrize("name", GPUS)
def test_a_sample_compiles_for_gpus_that_are_not_here(name: str, tmp_path: Path) -> None:
    target = targets.resolve(name)
    toolchain = needs.toolchain(target, target.kind)
    for number, (dtype, layout) in enumerate([("f32", "nhwc"), ("f64", "nchw"), ("bf16", "nhwc"), ("i8", "nchw")]):
        operator = conv2d(2, 30, 30, 24, 70, 3, pad=1, dtype=dtype, layout=layout)
        (config,) = SIMT.space(operator, target).sample(1, seed=number)
        sampled = (config,) if number == GPUS.index(name) % 4 else ()
        for place, chosen in enumerate((*sampled, SIMT.default(operator, target))):
            folder = tmp_path / f"{number}-{place}"
            folder.mkdir()
            with Group() as group:
                built = toolchain.build(SIMT.emit(operator, target, chosen), target, folder, BuildLimits(), group)
            assert int(str(built.facts["registers"])) > 0
        assert built.facts["spill_bytes"] == 0, "the default keeps its sums in registers"


@pytest.mark.parametrize(
    ("name", "family", "operator", "target"),
    [
        ("processor", C, conv2d(16, 56, 56, 64, 64, 3, pad=1), "x86:avx512"),
        ("processor_bytes", C, conv2d(1, 13, 17, 5, 19, 3, stride=2, dtype="i8", layout="nchw"), "arm:neon"),
        ("gpu", SIMT, conv2d(16, 56, 56, 64, 64, 3, pad=1), "cuda:sm_90a"),
        ("gpu_planes", SIMT, conv2d(1, 13, 17, 5, 19, 3, stride=2, dtype="bf16", layout="nchw"), "hip:gfx906"),
    ],
)
def test_the_emitted_kernel_is_the_one_we_looked_at(
    name: str, family: Generator, operator: Conv2d, target: str, golden: Callable[[str, str], str]
) -> None:
    chip = targets.resolve(target)
    # The number of cores depends on this machine.
    config = {**family.default(operator, chip), **({"THREADS": 1} if family is C else {})}
    kernel = family.emit(operator, chip, config).to_json()
    kept = {key: kernel[key] for key in ("name", "language", "flags", "plan")}
    assert golden(f"conv2d/{name}.json", json.dumps(kept, indent=1) + "\n") == ""
