"""2-D convolution of few input channels on tensor cores by warp-wide products, sm_80 and later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from deepgen.kernels import FirstRanked
from deepgen.kernels.conv2d import PlainConv, epilogue_header, plain_conv, unknown_step
from deepgen.kernels.shared import NOTHING, gpu_kernel, sources
from deepgen.operators import Operator
from deepgen.operators.words import of_sides
from deepgen.space import Space, divides
from deepgen.targets import Cuda, Gpu, Target
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


FORMATS = {"f16": "mma_f16", "bf16": "mma_bf16"}  # with the features that a chip must have
_MOST_CHANNELS = 16
_MOST_STEPS = 64  # along K; they are unrolled
MOST_FILTERS = 2**20  # their elements are counted in 32 bits
_CHUNK = 8  # elements in 16 bytes
_EACH = ("k", "stride", "pad", "dilation")
_RESERVED = 36  # registers for addresses and counters
_MOST_PRODUCTS, _MOST_NUMBERS = 1536, 96  # products per warp and elements per thread for one tile: they are unrolled
SIZE = 2  # bytes of an element


@dataclass(frozen=True)
class FewChannels(PlainConv):
    """Of few input channels."""

    names: tuple[tuple[str, ...], ...]  # of k, stride, pad and dilation, by dimension; empty if there is none

    @property
    def last(self) -> bool:
        return self.layout == "nhwc"

    @property
    def run(self) -> int:
        """Contiguous elements of the result."""
        return self.co if self.last else self.out[1]

    def row_chunks(self, stored: int) -> int:
        """Chunks in a row of the filter if each pixel has `stored` elements."""
        return -(-self.kernel[1] * stored // _CHUNK)

    def steps(self, stored: int) -> int:
        """Products along K."""
        return -(-self.kernel[0] * self.row_chunks(stored) // 2)

    def stored(self) -> list[int]:
        """The possible elements per pixel in shared memory: windows start at whole words, or at multiples of 16
        bytes."""
        stride = self.strides[1]
        words = next(n for n in range(self.ci, 2 * self.ci + 2) if n * stride % 2 == 0)
        plain = next(n for n in (2, 4, 8, 16) if n >= self.ci)
        whole = next(n for n in range(self.ci, 2 * self.ci + 16) if n * stride % _CHUNK == 0)
        return [n for n in dict.fromkeys((words, plain, whole)) if n == words or self.steps(n) <= _MOST_STEPS]

    def out_text(self, side: int) -> str:
        """The result's height or width as an expression over the operator's sizes."""
        reach = self.reaches[side] + 1
        return f"({'HW'[side]} + 2 * {self.names[2][side]} - {reach}) // {self.strides[side]} + 1"

    def fixed(self) -> tuple[tuple[str, str], ...]:
        """The sizes that a kernel is compiled for."""
        sizes = {"CI": self.ci}
        for names, values in zip(self.names, (self.kernel, self.strides, self.pads, self.dilations), strict=True):
            if names and names is not self.names[2]:
                sizes |= dict(zip(names, values, strict=True))
        return tuple((f"{name} == {size}", f"{name}={size}") for name, size in sizes.items())


def few_channels(operator: Operator) -> FewChannels | str:
    plain = plain_conv(operator)
    if isinstance(plain, str):
        return plain
    words, own = {word.name: word for word in operator.words}, operator.parameters()
    names = (of_sides(words[name], own[name]) if name in own else {} for name in _EACH)
    return FewChannels(**vars(plain), names=tuple((*of, *of)[:2] for of in names))


def refused(operator: Operator, target: Target) -> str | None:
    """The reason why the family does not support this, if there is one."""
    if not isinstance(target, Cuda) or not target.has("ldmatrix", "cp_async"):
        return "it supports NVIDIA GPUs from sm_80 on"
    conv = few_channels(operator)
    if isinstance(conv, str):
        return conv
    if conv.dtype not in FORMATS or not target.has(FORMATS[conv.dtype]):
        return "it multiplies f16 and bf16"
    if (unknown := unknown_step(conv.epilogue)) is not None:
        return unknown
    if conv.ci > _MOST_CHANNELS:
        return f"it supports at most {_MOST_CHANNELS} input channels"
    if conv.dilations[1] > 1 and conv.kernel[1] > 1:
        return "the columns of its filters must be contiguous"
    if conv.co >= MOST_FILTERS:
        return f"it supports fewer than {MOST_FILTERS} filters"
    if max(conv.n * conv.out[0] * conv.out[1], conv.h * conv.w * conv.ci) >= 2**30:
        return "it has 32-bit indices: at most 2**30 output pixels, and numbers of an image"
    if min(map(conv.steps, conv.stored())) > _MOST_STEPS:
        return f"its filters have at most {16 * _MOST_STEPS} numbers of an output channel"
    return None


def few_space(name: str, conv: FewChannels, gpu: Gpu) -> Space:
    s = Space(name)
    tile_h, tile_w = s.knob("TILE_H", [1, 2, 4, 8, 16]), s.knob("TILE_W", [8, 16, 32, 64, 128])
    bn = s.knob("BN", [n for n in (16, 32, 48, 64, 96, 128) if n < 2 * conv.co or n == 16])
    wm, wn = s.knob("WM", [16, 32, 48, 64]), s.knob("WN", [16, 32, 48, 64, 96])
    stored, fragments = s.knob("STORED", conv.stored()), s.knob("FRAGMENTS", [1, 2])
    stages = s.knob("STAGES", [2, 3, 4])
    min_blocks, per_sm = s.knob("MIN_BLOCKS", [1, 2, 3, 4, 5, 6, 8]), s.knob("PER_SM", [1, 2, 3, 4, 5, 6, 8])

    tile = s.derive("pixels", tile_h * tile_w)
    s.require(divides(wm, tile), "warps cover the tile")
    s.require(divides(wm, tile_w) | divides(tile_w, wm), "warps' shares of the tile are alike")
    s.require(divides(wn, bn), "warps cover the block's channels")
    threads = s.derive("threads", tile // wm * (bn // wn) * gpu.warp)
    s.require((threads >= 64) & (threads <= 512), "a block has 2 to 16 warps")
    s.require(threads * min_blocks <= gpu.threads_per_sm, "so many blocks' threads fit in a multiprocessor")
    s.require(per_sm >= min_blocks, "there are as many blocks as fit")

    rows, columns = patch_size(conv, tile_h, tile_w)
    s.require(rows * columns * conv.ci <= threads * _MOST_NUMBERS, "a thread's share of the patch is unrolled")
    registers = s.derive("registers", wm * wn // 32 + fragments * (wm + wn) // 4 + _RESERVED)
    s.require(registers <= gpu.registers_per_thread, "sums and fragments fit in a thread's registers")
    s.require(registers * threads * min_blocks <= gpu.registers_per_sm, "so many blocks' registers fit")
    steps = s.derive("steps", _steps(conv, stored))
    s.require(steps * (wm // 16) * (wn // 8) <= _MOST_PRODUCTS, "the products of a tile are unrolled")
    shared = s.derive("shared_bytes", _shared(conv, tile_h, tile_w, bn, stored, stages))
    s.require(shared <= gpu.shared_per_block, "filters, patch and lines fit in shared memory")
    s.require((shared + gpu.shared_reserved) * min_blocks <= gpu.shared_per_sm, "so many blocks' fit")
    return s


def patch_size(conv: FewChannels, tile_h: Any, tile_w: Any) -> tuple[Any, Any]:
    """Rows and columns of the image that a tile needs."""
    (kh, kw), (down, across) = conv.kernel, conv.strides
    return (tile_h - 1) * down + (kh - 1) * conv.dilations[0] + 1, (tile_w - 1) * across + kw


def _steps(conv: FewChannels, stored: Any) -> Any:
    return (conv.kernel[0] * ((conv.kernel[1] * stored + 7) // 8) + 1) // 2


def _shared(conv: FewChannels, tile_h: Any, tile_w: Any, bn: Any, stored: Any, stages: Any) -> Any:
    """The layout of `patch.h`: filters, bias, the patch, lines in flight, results."""
    rows, columns = patch_size(conv, tile_h, tile_w)
    filters = _steps(conv, stored) * 16 * (bn + 8) * SIZE + (bn * 4 if "bias" in conv.epilogue else 0)
    across, chunks = (tile_w - 1) * conv.strides[1], (conv.kernel[1] * stored + 7) // 8
    patch = rows * ((across * stored * SIZE + chunks * 16 + 15) // 16 * 16)
    between, planes = (conv.ci, 1) if conv.last else (1, conv.ci)
    lines = rows * planes * ((columns * between * SIZE + 29) // 16 * 16)
    results = ((tile_h * tile_w) * (bn * SIZE + 16) if conv.last else bn * (tile_h * tile_w * SIZE + 16)) * staged(conv)
    return filters + patch + lines * stages + results


def shared_bytes(conv: FewChannels, c: Mapping[str, Any]) -> int:
    return int(_shared(conv, c["TILE_H"], c["TILE_W"], c["BN"], c["STORED"], c["STAGES"]))


def threads_of(c: Mapping[str, Any]) -> int:
    return int(c["TILE_H"] * c["TILE_W"] // c["WM"] * (c["BN"] // c["WN"]) * 32)


def staged(conv: FewChannels) -> bool:
    """Whether results go through shared memory: if a thread has few contiguous ones, and the epilogue adds no
    residual."""
    return "residual" not in conv.epilogue and (not conv.last or conv.co % 8 != 0)


def wide(conv: FewChannels, c: Mapping[str, Any]) -> int:
    """Interleaved blocks of eight columns."""
    return next(n for n in (4, 2, 1) if c["WN"] % (8 * n) == 0) if conv.last and not staged(conv) else 1


def store_width(conv: FewChannels, c: Mapping[str, Any]) -> int:
    """Contiguous results per store, as alignment allows."""
    run = 8 if staged(conv) else 2 * wide(conv, c)
    return next(n for n in (8, 4, 2, 1) if run % n == 0 and conv.run % n == 0)


def load_width(conv: FewChannels) -> int:
    """Contiguous filter elements per load."""
    return next(n for n in (8, 4, 2, 1) if conv.co % n == 0) if conv.last else 1


# Rows, columns, and pixels per warp.
_TILES = ((16, 16, 64), (16, 16, 32), (8, 16, 32), (8, 32, 64), (8, 32, 32), (4, 32, 32), (16, 8, 32), (8, 8, 16),
          (4, 8, 16), (2, 16, 16), (1, 32, 16))  # fmt: skip
_BLOCKS = (6, 5, 4, 3, 2, 1)


def candidates(conv: FewChannels) -> Iterator[dict[str, Any]]:
    most = -(-conv.co // 16) * 16
    channels = [n for n in (16, 32, 48, 64, 96, 128) if n <= most or n == 16]
    least = min(-(-conv.co // n) * n for n in channels)
    for tile_h, tile_w, wm in _TILES:
        for bn in (n for n in channels if n == 16 or -(-conv.co // n) * n <= 1.2 * least):
            for wn in (n for n in (16, 32, 48, 64) if n in (bn, bn // 2, 16)):
                for stored in conv.stored():
                    yield {
                        "TILE_H": tile_h, "TILE_W": tile_w, "BN": bn, "WM": wm, "WN": wn, "STORED": stored,
                        "FRAGMENTS": 1, "STAGES": 2,
                    }  # fmt: skip


def ranked(conv: FewChannels, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """The configs that the space admits, the fastest by the model first; for each tile only the best number of
    blocks."""
    space = few_space("defaults", conv, gpu)
    every = [{**one, "MIN_BLOCKS": n, "PER_SM": n} for one in candidates(conv) for n in _BLOCKS]
    seen: list[dict[str, Any]] = []
    for config in sorted(every, key=lambda config: seconds(conv, gpu, config)):
        tile = {name: value for name, value in config.items() if name not in ("MIN_BLOCKS", "PER_SM")}
        if tile not in seen and not space.explain(config):
            seen.append(tile)
            yield config


LAUNCH = 3.6e-6  # seconds: launch overhead
_START = 1.2e-6  # until the filters are loaded
_RATE = 0.45  # share of the tensor cores' peak that warp-wide products reach on a Hopper
_CLOCK = 1.7e9
_WORD_LOADS = 1.3  # relative time of loads by words, compared with matrix loads
_FILL = 0.75  # clocks of a multiprocessor per 32 elements of the patch
_MOST_SUMS, _SPILLED = 2048, 1.3  # of a warp that the compiler keeps in registers; slowdown when there are more
_WAIT = 1800  # clocks of a block per tile that it waits, during which others can run


def seconds(conv: FewChannels, gpu: Gpu, c: Mapping[str, Any]) -> float:
    """Seconds of a run: products, loads from shared memory, filling patches, and memory; the longest hides most of the
    others."""
    height, width = conv.out
    tile, resident = c["TILE_H"] * c["TILE_W"], c["PER_SM"]
    tiles = conv.n * ceil(height / c["TILE_H"]) * ceil(width / c["TILE_W"]) * ceil(conv.co / c["BN"])
    rounds = ceil(tiles / (gpu.multiprocessors * resident))
    steps = conv.steps(c["STORED"])
    peak = (gpu.peak(conv.dtype) or 1e5) * 1e9 / gpu.multiprocessors * _RATE
    products = 2 * tile * c["BN"] * steps * 16 / peak
    words = _WORD_LOADS if conv.strides[1] * c["STORED"] % 8 else 1.0
    loads = steps * 16 * SIZE * threads_of(c) / 32 * (c["WM"] * words + c["WN"]) / 128 / _CLOCK
    rows, columns = patch_size(conv, c["TILE_H"], c["TILE_W"])
    inside = products + 0.3 * loads + rows * columns * conv.ci * _FILL / 32 / _CLOCK
    if c["WM"] * c["WN"] > _MOST_SUMS:
        inside *= _SPILLED
    own = rounds * max(inside * resident, inside + _WAIT / _CLOCK)
    size = (conv.n * conv.h * conv.w * conv.ci + conv.co * (height * width * conv.n + conv.ci)) * SIZE
    memory = size / (gpu.bandwidth_gbs * 1e9 * 0.85)
    whole: float = LAUNCH + _START + max(own, memory) + 0.2 * min(own, memory)
    return whole
