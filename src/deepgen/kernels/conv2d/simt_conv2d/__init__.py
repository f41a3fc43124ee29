"""2-D convolution on the plain arithmetic units of GPUs, written once for CUDA and HIP."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from deepgen.kernels import Rank
from deepgen.kernels.shared import gpu_kernel, language_of, served, sources
from deepgen.operators import Conv2d, Operator
from deepgen.operators.conv2d import OUT_H, OUT_W
from deepgen.space import Space, ceil_div, divides
from deepgen.targets import Cuda, Gpu, Target
from deepgen.vocabulary import Arg, Kernel, LaunchPlan, ScalarArg, Step, TensorArg, dtype

_RESERVED = 40  # registers for addresses and counters
_MOST_LOADS = 16  # of a thread for one tile: they are unrolled
_MOST_UNROLLED = 1024  # multiply-adds: longer loops take seconds to build


def simt_conv2d_space(name: str, conv: Conv2d, gpu: Gpu) -> Space:
    of, acc, _ = conv.dtypes
    s = Space(name)
    bm = s.knob("BM", _tile_sizes(conv.n * conv.out_h * conv.out_w))
    bn = s.knob("BN", _tile_sizes(conv.co))
    bk = s.knob("BK", [4, 8, 16, 32])
    tm, tn = s.knob("TM", [1, 2, 4, 8]), s.knob("TN", [1, 2, 4, 8])
    unroll = s.knob("UNROLL", [1, 2, 4, 8])
    min_blocks = s.knob("MIN_BLOCKS", [1, 2, 4])
    s.knob("X_ALONG", ["k", "pixels"])
    s.knob("W_ALONG", ["k", "channels"])
    s.knob("LANES", ["channels", "pixels"])
    s.knob("BLOCKS", ["channels", "pixels"])
    s.knob("AHEAD", [False, True])
    pad = s.knob("PAD", [0, 1, 2])

    threads = s.derive("threads", (bm // tm) * (bn // tn))
    s.require(divides(gpu.warp, threads), "a block is made of whole warps")
    s.require(threads <= gpu.threads_per_block, "a block has no more threads than the chip allows")
    s.require(threads * min_blocks <= gpu.threads_per_sm, "so many blocks' threads fit in a multiprocessor")
    s.require(unroll <= bk, "the unrolled loop is no longer than the tile")
    s.require(unroll * tm * tn <= _MOST_UNROLLED, "the unrolled loop fits in the instruction cache")
    loads_x, loads_w = s.derive("loads_x", ceil_div(bm * bk, threads)), s.derive("loads_w", ceil_div(bn * bk, threads))
    s.require(loads_x <= _MOST_LOADS, "a thread's share of the pixels is a few loads")
    s.require(loads_w <= _MOST_LOADS, "a thread's share of the filters is a few loads")
    words = max(1, acc.bytes // 4)
    # For each pixel that a thread loads, it keeps the image, row and column along with the value.
    held = (words + 3) * loads_x + words * loads_w
    registers = s.derive("registers", (tm * tn + tm + tn) * words + held + _RESERVED)
    s.require(registers <= gpu.registers_per_thread, "sums and loads fit in a thread's registers")
    s.require(registers * threads * min_blocks <= gpu.registers_per_sm, "so many blocks' registers fit")
    shared = s.derive("shared_bytes", (bm + bn + 2 * pad) * bk * of.bytes + 32)
    s.require(shared <= gpu.shared_per_block, "tiles fit in shared memory")
    return s


def _tile_sizes(size: int) -> list[int]:
    """Sizes below twice the extent: in larger tiles most of the tile would be idle."""
    return [t for t in (16, 32, 64, 128) if t < 2 * size or t == 16]


_PIXELS = f"N * ({OUT_H}) * ({OUT_W})"
_MOST = 2**31 - 2**10  # numbers of pixels and steps are passed as i32, and tiles extend beyond them
_REQUIRES = (
    (f"{_PIXELS} <= {_MOST}", f"at most {_MOST} output pixels"),
    (f"CI * k * k <= {_MOST}", f"at most {_MOST} products for one output"),
)
_MATRIX_BYTES = 32  # of channels per product of matrix units
_TILES = ((128, 128, 8, 8), (128, 64, 8, 4), (64, 64, 4, 4), (64, 32, 4, 2), (32, 32, 2, 2), (16, 32, 2, 2),
          (16, 16, 2, 2), (16, 16, 1, 2))  # fmt: skip


class SimtConv2d:
    """An implicit GEMM with tiles in shared memory and sums in registers: any sizes, both layouts, CUDA and HIP."""

    name = "simt_conv2d"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Gpu):
            return "it supports GPUs only"
        if not isinstance(operator, Conv2d):
            return "it supports conv2d only"
        if not operator.is_plain:
            return "it supports filters with one k, stride and pad for both dimensions, and weights that are not packed"
        if max(operator.n * operator.out_h * operator.out_w, operator.reduced) > _MOST:
            return f"it has 32-bit indices: at most {_MOST} output pixels, and products for one output"
        return None

    def rank(self, operator: Operator, target: Target) -> Rank:
        """Kernels by rules are faster where they use matrix units."""
        conv, _ = served(operator, target, Conv2d, Gpu)
        matrices = isinstance(target, Cuda) and target.sm >= 80 and conv.dtype in ("f16", "bf16", "i8")
        whole = conv.ci * dtype(conv.dtype).bytes % _MATRIX_BYTES == 0
        return Rank.SURPASSED if matrices and whole else Rank.SPECIALISED

    def space(self, operator: Operator, target: Target) -> Space:
        return simt_conv2d_space(self.name, *served(operator, target, Conv2d, Gpu))

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        conv, gpu = served(operator, target, Conv2d, Gpu)
        files = sources(__name__, ("conv2d_simt.cu", "conv2d_tiles.h"))
        macros = _macros(conv, config, gpu.warp)
        return gpu_kernel(self.name, language_of(gpu), files, macros, _plan(conv, config))

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        """The largest tile that gives every multiprocessor a block, or else the smallest one."""
        conv, gpu = served(operator, target, Conv2d, Gpu)
        space = self.space(operator, target)
        configs = [c for c in (_config(conv, *tile) for tile in _TILES) if not space.explain(c)]
        busy = (c for c in configs if _blocks(conv, c) >= gpu.multiprocessors)
        return next(busy, configs[-1])


def _macros(conv: Conv2d, config: Mapping[str, Any], warp: int) -> dict[str, int | str]:
    of, acc, out = conv.dtypes
    c = config
    return {
        "TYPE_X": of.name,
        "TYPE_ACC": acc.name,
        "TYPE_Y": out.name,
        "CHANNELS_LAST": int(conv.layout == "nhwc"),
        "WARP": warp,
        **{knob: c[knob] for knob in ("BM", "BN", "BK", "TM", "TN", "UNROLL", "MIN_BLOCKS", "PAD")},
        "X_ALONG_K": int(c["X_ALONG"] == "k"),
        "W_ALONG_K": int(c["W_ALONG"] == "k"),
        "LANES_ALONG_PIXELS": int(c["LANES"] == "pixels"),
        "CHANNELS_FIRST": int(c["BLOCKS"] == "channels"),
        "AHEAD": int(c["AHEAD"]),
    }


def _plan(conv: Conv2d, config: Mapping[str, Any]) -> LaunchPlan:
    """All sizes are arguments: one binary serves every shape of its format and layout."""
    c, size = config, conv.dtypes[0].bytes
    sizes = ("N", "H", "W", "CI", "CO", "k", "stride", "pad", OUT_H, OUT_W)
    args: tuple[Arg, ...] = (
        *(TensorArg(name) for name in ("x", "weight", "y")),
        *(ScalarArg("i32", value) for value in sizes),
    )
    grid = f"ceil_div({_PIXELS}, {c['BM']}) * ceil_div(CO, {c['BN']})"
    threads = c["BM"] // c["TM"] * (c["BN"] // c["TN"])
    shared = sum(-(-c["BK"] * (c[line] + c["PAD"]) * size // 16) * 16 for line in ("BM", "BN"))
    step = Step("conv2d", args, (grid, 1, 1), (threads, 1, 1), shared_bytes=shared)
    return LaunchPlan(steps=(step,), requires=_REQUIRES)


def _config(conv: Conv2d, bm: int, bn: int, tm: int, tn: int) -> dict[str, Any]:
    """Neighbouring threads load and store contiguous elements."""
    last = conv.layout == "nhwc"
    return {
        "BM": bm, "BN": bn, "BK": 16, "TM": tm, "TN": tn, "UNROLL": 4, "MIN_BLOCKS": 1,
        "X_ALONG": "k" if last else "pixels", "W_ALONG": "channels" if last else "k",
        "LANES": "channels" if last else "pixels", "BLOCKS": "channels", "AHEAD": True, "PAD": 1,
    }  # fmt: skip


def _blocks(conv: Conv2d, config: Mapping[str, Any]) -> int:
    bm, bn = int(config["BM"]), int(config["BN"])
    return ceil(conv.n * conv.out_h * conv.out_w / bm) * ceil(conv.co / bn)
