"""The space of softmax on GPUs: its knobs, what they require of the chip, and a good config without any search."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deepgen.operators import Softmax
from deepgen.space import Space, all_of, any_of, ceil_div, divides, implies
from deepgen.targets.gpu import Gpu
from deepgen.vocabulary.dtypes import dtype

WIDEST = 16  # bytes of one load or store
_TEAMS = (8, 16, 32, 64, 128, 256, 512, 1024)
_ROWS = (1, 2, 4, 8, 16)
_KEEPS = ("registers", "shared", "memory")
_MOST_KEPT = 64  # registers of a thread for its columns
_RESERVED = 24  # registers for everything else
_USUAL_THREADS = 128  # of a block, where rows are short
_USUAL_LOADS = 4  # of a thread


def softmax_space(name: str, softmax: Softmax, gpu: Gpu) -> Space:
    s = Space(name)
    team, rows = s.knob("TEAM", [n for n in _TEAMS if n <= gpu.threads_per_block]), s.knob("ROWS", list(_ROWS))
    width = s.knob("WIDTH", _widths(softmax))
    keep = s.knob("KEEP", list(_KEEPS))
    s.knob("METHOD", ["two", "online"])

    threads = s.derive("threads", team * rows)
    s.require(threads <= gpu.threads_per_block, "a block has no more threads than the chip allows")
    s.require(divides(gpu.warp, threads), "a block is made of whole warps")
    used = all_of(team * width < 2 * softmax.cols, rows < 2 * softmax.rows)
    s.require(any_of(threads == gpu.warp, used), "no more than half of a block is idle, but for a single warp")
    sums = softmax.arithmetic.bytes
    items = s.derive("items", ceil_div(softmax.cols, team * width))
    held = items * width * (sums // 4)
    # Compilers hold the address of each load.
    needed = held + 2 * items + _RESERVED
    fits = all_of(held <= _MOST_KEPT, needed * threads <= gpu.registers_per_sm)
    s.require(implies(keep == "registers", fits), "a thread's columns fit in its registers")
    # A reduction takes up to four numbers a thread.
    shared = (items * width + 4) * threads * sums
    s.require(implies(keep == "shared", shared <= gpu.shared_per_block), "a block's rows fit in shared memory")
    return s


def choose(softmax: Softmax, gpu: Gpu) -> dict[str, Any]:
    """A few loads of the widest kind a thread; columns are kept where they fit."""
    space = softmax_space("default", softmax, gpu)
    return next(config for config in _candidates(softmax, gpu) if not space.explain(config))


def _candidates(softmax: Softmax, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """The last one is always admitted."""
    width = _widths(softmax)[-1]
    wanted = softmax.cols / (width * _USUAL_LOADS)
    fitting = [n for n in _TEAMS if n <= gpu.threads_per_block and (n >= wanted or n == gpu.threads_per_block)]
    for keep in _KEEPS:
        for team in fitting:
            for rows in (n for n in reversed(_ROWS) if n == 1 or n * team <= _USUAL_THREADS):
                yield {"TEAM": team, "ROWS": rows, "WIDTH": width, "KEEP": keep, "METHOD": "two"}
    yield {"TEAM": gpu.warp, "ROWS": 1, "WIDTH": width, "KEEP": "memory", "METHOD": "two"}


def _widths(softmax: Softmax) -> list[int]:
    """Whole loads must not cross the end of a row, and rows must begin aligned."""
    most = WIDEST // dtype(softmax.dtype).bytes
    return [n for n in (1, 2, 4, 8) if n <= most and softmax.cols % n == 0]
