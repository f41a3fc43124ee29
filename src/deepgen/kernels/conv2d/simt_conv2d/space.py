"""The space of the SIMT convolution: its knobs, and what they require of each other and of the chip."""

from __future__ import annotations

from deepgen.operators import Conv2d
from deepgen.space import Space, ceil_div, divides
from deepgen.targets import Gpu

_RESERVED = 40  # registers for addresses and counters
_MOST_LOADS = 16  # of a thread, for one tile: they are unrolled
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
    # Of each pixel that it loads a thread keeps its image, row and column beside its value.
    held = (words + 3) * loads_x + words * loads_w
    registers = s.derive("registers", (tm * tn + tm + tn) * words + held + _RESERVED)
    s.require(registers <= gpu.registers_per_thread, "sums and loads fit in a thread's registers")
    s.require(registers * threads * min_blocks <= gpu.registers_per_sm, "so many blocks' registers fit")
    shared = s.derive("shared_bytes", (bm + bn + 2 * pad) * bk * of.bytes + 32)
    s.require(shared <= gpu.shared_per_block, "tiles fit in shared memory")
    return s


def _tile_sizes(size: int) -> list[int]:
    """Not more than twice what there is: the rest of the tile would be idle."""
    return [t for t in (16, 32, 64, 128) if t < 2 * size or t == 16]
