"""2-D convolution of few input channels on tensor cores by warp-wide products, sm_80 and later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deepgen.kernels.base import FirstRanked
from deepgen.kernels.conv2d import epilogue_header
from deepgen.kernels.conv2d.mma_conv_few.space import (
    LAUNCH,
    MOST_FILTERS,
    FewChannels,
    candidates,
    few_channels,
    few_space,
    load_width,
    ranked,
    refused,
    seconds,
    shared_bytes,
    staged,
    store_width,
    threads_of,
    wide,
)
from deepgen.kernels.shared import NOTHING, gpu_kernel, sources
from deepgen.operators import Operator
from deepgen.space import Space
from deepgen.targets import Gpu, Target
from deepgen.vocabulary import Arg, Kernel, LaunchPlan, ScalarArg, Step, TensorArg

_OWN = ("conv_few.cu", "patch.h", "dialect_mma.h")
_KNOBS = ("TILE_H", "TILE_W", "BN", "WM", "WN", "STORED", "FRAGMENTS", "STAGES", "MIN_BLOCKS")
_SIDES = {"K": "kernel", "STRIDE_": "strides", "DILATION_": "dilations"}


class MmaConvFew(FirstRanked):
    """Patches of the image in shared memory, products by warps: f16 and bf16, up to 16 input channels, both layouts."""

    name = "mma_conv_few"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if (reason := refused(operator, target)) is not None:
            return reason
        conv, gpu = _served(operator, target)
        least = min(shared_bytes(conv, config) for config in candidates(conv))
        return None if least <= gpu.shared_per_block else f"its filters take {least} bytes of shared memory"

    def space(self, operator: Operator, target: Target) -> Space:
        return few_space(self.name, *_served(operator, target))

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        conv, gpu = _served(operator, target)
        files = (*sources(__name__, _OWN), epilogue_header("epilogue.h", conv.epilogue))
        return gpu_kernel(self.name, "cuda", files, _macros(conv, config), _plan(conv, gpu, config))

    def ranked(self, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
        return ranked(*_served(operator, target))

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        return seconds(*_served(operator, target), config)

    def least_seconds(self, operator: Operator, target: Target) -> float:
        return LAUNCH


def _served(operator: Operator, target: Target) -> tuple[FewChannels, Gpu]:
    conv = few_channels(operator)
    assert isinstance(conv, FewChannels) and isinstance(target, Gpu), "ask refuses() first"
    return conv, target


def _macros(conv: FewChannels, config: Mapping[str, Any]) -> dict[str, int | str]:
    c = config
    return {
        "TYPE_A": conv.dtype,
        "TYPE_B": conv.dtype,
        "HINT": 0,
        "MMA": f"m16n8k16.row.col.f32.{conv.dtype}.{conv.dtype}.f32",
        "CHANNELS_LAST": int(conv.last),
        "CI": conv.ci,
        **{
            f"{name}{side}": size
            for name, field in _SIDES.items()
            for side, size in zip("HW", getattr(conv, field), strict=True)
        },
        **{knob: c[knob] for knob in _KNOBS},
        "WIDE": wide(conv, c),
        "LOAD_N": load_width(conv),
        "STORE": store_width(conv, c),
        "STAGED": int(staged(conv)),
        "BIAS": int("bias" in conv.epilogue),
        "RESIDUAL": int("residual" in conv.epilogue),
    }


def _plan(conv: FewChannels, gpu: Gpu, config: Mapping[str, Any]) -> LaunchPlan:
    c, (out_h, out_w) = config, (conv.out_text(0), conv.out_text(1))
    args: tuple[Arg, ...] = (
        TensorArg("x"),
        TensorArg("weight"),
        *(TensorArg(name) if name in conv.epilogue else NOTHING for name in ("bias", "residual")),
        TensorArg("y"),
        *(ScalarArg("i32", value) for value in ("N", "H", "W", "CO", *conv.names[2], out_h, out_w)),
    )
    groups = f"ceil_div(CO, {c['BN']})"
    tiles = f"N * ceil_div({out_h}, {c['TILE_H']}) * ceil_div({out_w}, {c['TILE_W']})"
    grid = f"{groups} * min({tiles}, max(1, {gpu.multiprocessors * c['PER_SM']} // {groups}))"
    step = Step("conv2d_few", args, (grid, 1, 1), (threads_of(c), 1, 1), shared_bytes=shared_bytes(conv, c))
    return LaunchPlan(steps=(step,), requires=_requires(conv, c))


def _requires(conv: FewChannels, config: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Conditions on other shapes that use the same binary."""
    out_h, out_w = conv.out_text(0), conv.out_text(1)
    store, load = store_width(conv, config), load_width(conv)
    widths = {"CO": max(store, load)} if conv.last else {out_w: store}
    return (
        *conv.fixed(),
        *((f"({text}) % {n} == 0", f"{text} that is a multiple of {n}") for text, n in widths.items() if n > 1),
        (f"N * ({out_h}) * ({out_w}) < 2**30", "fewer than 2**30 output pixels"),
        ("H * W * CI < 2**30", "images of fewer than 2**30 numbers"),
        (f"CO < {MOST_FILTERS}", f"fewer than {MOST_FILTERS} filters"),
    )
