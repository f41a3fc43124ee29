"""Convolutions of few channels on warp-wide products: correct on a CPU, in every layout, stride and epilogue."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import mma_emulation as emulation
import pytest
import simt_emulation as simt

import deepgen as dg
from deepgen import targets
from deepgen.kernels.conv2d.mma_conv_few import MmaConvFew
from deepgen.operators import Operator, conv2d
from deepgen.vocabulary import Source

FAMILY = MmaConvFew()
HOPPER = targets.resolve("cuda:sm_90a")
assert isinstance(HOPPER, targets.Cuda)
CHIP = replace(HOPPER, multiprocessors=1)  # so that blocks take several tiles
needs_compiler = pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)


def _drawn(random: Random) -> Operator:
    """Any filter, stride and padding; tiles that are never full, channel counts that are multiples of nothing."""
    each: dict[str, Any] = {
        "k": (random.choice([1, 2, 3, 5, 7]), random.choice([1, 3, 4, 5, 7])),
        "stride": (random.choice([1, 2, 3]), random.choice([1, 2, 3, 4])),
        "pad": (random.randint(0, 3), random.randint(0, 3)),
    }
    each = each if random.random() < 0.5 else {name: pair[0] for name, pair in each.items()}
    sizes = {"N": random.randint(1, 2), "H": random.randint(7, 30), "W": random.randint(7, 40)}
    channels = {"CI": random.choice([1, 2, 3, 4, 5, 7, 12]), "CO": random.choice([1, 7, 16, 33, 36, 64])}
    words = {**sizes, **channels, **each, "dtype": random.choice(["f16", "bf16"])}
    words["layout"] = random.choice(["nhwc", "nchw"])
    if random.random() < 0.5:
        return dg.operator("conv2d", **words)
    epilogue = random.choice(["none", "bias,relu", "bias,residual,silu", "gelu", "residual,tanh,bias"])
    return dg.operator("dilated_conv2d", **words, dilation=(random.choice([1, 2]), 1), epilogue=epilogue)


@needs_compiler
@pytest.mark.parametrize("seed", range(8))
def test_drawn_convolutions_are_right(seed: int, tmp_path: Path) -> None:
    operator = _drawn(Random(seed))
    config = FAMILY.space(operator, CHIP).sample(1, seed=seed)[0] if seed % 4 else FAMILY.default(operator, CHIP)
    kernel = FAMILY.emit(operator, CHIP, config)
    library = emulation.build(kernel, tmp_path)
    probes = [probe for probe in ("normal", "special") if probe in operator.probes()]
    assert not any(simt.wrong(kernel, library, operator, probe) for probe in probes), config


@needs_compiler
def test_a_binary_serves_other_sizes_of_its_filter(tmp_path: Path) -> None:
    first = conv2d(1, 20, 20, 3, 16, 7, stride=2, pad=3, dtype="f16")
    kernel = FAMILY.emit(first, CHIP, FAMILY.default(first, CHIP))
    library = emulation.build(kernel, tmp_path)
    for other in (replace(first, n=2, h=31, w=18), replace(first, co=40, pad=1)):
        assert simt.wrong(kernel, library, other) == ""
    assert {"CI == 3", "k == 7", "stride == 2"} <= {condition for condition, _ in kernel.plan.requires}


@needs_compiler
@pytest.mark.parametrize(
    ("wrong", "instead", "says"),
    [
        ("        barrier();  // its lines", "        // its lines", "race"),
        ("        barrier();\n        Sums", "        Sums", "race"),
        ("copy_wait<STAGES - 2>();", "", "before its copy has landed"),
        ("unit % (LINE / STORE) * STORE", "unit % (LINE / STORE) / 2 * STORE", "written twice"),
        ("at >= 0 && at < all", "at >= 0 && at <= all + 999", "more than it has room for"),
        ("(u32)(first + j) < (u32)p.w", "(u32)(first + j) <= (u32)p.w", "(normal)"),
        ("pixels[i][w] &= at.mask", "pixels[i][w] &= ~0u", "(special)"),
    ],
)
def test_a_mistake_in_a_kernel_is_caught(wrong: str, instead: str, says: str, tmp_path: Path) -> None:
    operator = conv2d(1, 18, 69, 3, 33, 3, stride=2, pad=1, dtype="f16")
    config = {**FAMILY.default(operator, CHIP), "TILE_H": 2, "TILE_W": 16, "WM": 16}
    kernel = FAMILY.emit(operator, CHIP, {**config, "BN": 48, "WN": 48})
    plan = replace(kernel.plan, steps=(replace(kernel.plan.steps[0], grid=(1, 1, 1)),))  # one block takes all tiles
    assert any(wrong in source.text for source in kernel.sources)
    sources = tuple(Source(source.name, source.text.replace(wrong, instead)) for source in kernel.sources)
    broken = replace(kernel, sources=sources, plan=plan)
    library = emulation.build(broken, tmp_path)
    errors = [simt.wrong(broken, library, operator, probe) for probe in ("normal", "special")]
    assert says in (errors[1] if "special" in says else errors[0])


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("kernel", [1, 3, 7, 11, (1, 7)])
@pytest.mark.parametrize("channels", [1, 3, 4, 7, 16])
def test_the_default_is_of_the_space_for_every_filter(channels: int, kernel: Any, layout: str) -> None:
    for target in ("cuda:sm_80", "cuda:sm_90a", "cuda:sm_120"):
        chip = targets.resolve(target)
        operator = conv2d(4, 64, 64, channels, 40, kernel, stride=2, dtype="bf16", layout=layout)
        if FAMILY.refuses(operator, chip) is None:
            assert not FAMILY.space(operator, chip).explain(FAMILY.default(operator, chip))
        else:
            assert (channels, kernel) == (16, 11)


@pytest.mark.parametrize(
    ("operator", "target", "why"),
    [
        (conv2d(1, 9, 9, 3, 8, 3, dtype="f16"), "cuda:sm_70", "from sm_80 on"),
        (conv2d(1, 9, 9, 3, 8, 3, dtype="f32"), "cuda:sm_90a", "f16 and bf16"),
        (conv2d(1, 9, 9, 32, 8, 3, dtype="f16"), "cuda:sm_90a", "16 input channels"),
        (dg.operator("dilated_conv2d", N=1, H=9, W=9, CI=3, CO=8, k=3, dtype="f16"), "cuda:sm_90a", "contiguous"),
        (dg.gemm(64, 64, 64, dtype="f16"), "cuda:sm_90a", "conv2d"),
    ],
)
def test_what_it_cannot_do_it_says(operator: Operator, target: str, why: str) -> None:
    assert why in (FAMILY.refuses(operator, targets.resolve(target)) or "")
