"""How long a product takes on a GPU in a vendor's library, which has a good kernel for every shape.

Models of kernel families tell how long a kernel of ours takes. Without a model of its own, the vendor's time would be
taken to grow at every shape that none of our kernels suits. This one is a roofline with tiles: the best of a few
tiles, with K in one part or several, in as many rounds as the multiprocessors need. Constants were fitted to cuBLASLt's
times on an H200. What counts is only how the time changes from shape to shape, as predictions begin at tuned shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from deepgen.operators import Gemm, Operator
from deepgen.targets import Target
from deepgen.vocabulary.dtypes import dtype

SIZES = ("M", "N", "K", "batch")  # that it depends on, beside the bytes of all tensors
PARTS = 32  # of K, at most: 1, 2, 4, ...
LEAST_K = 128  # of a part
STEP = 64  # of K: what is no multiple takes as long as the next one
LINE = 128  # bytes: rows that begin at multiples of it are read in whole lines
FIXED_SECONDS = 5.3e-6
PARTS_SECONDS = 1.0e-6  # to add them up
_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
_PEAK, _BANDWIDTH = 0.84, 0.86  # shares that are reached
_CACHE_RATE = 142e9  # bytes a second that a multiprocessor reads from the L2 cache


@dataclass(frozen=True)
class VendorModel:
    """Of one operator in all its shapes on one device."""

    multiprocessors: int
    byte_seconds: float  # of memory
    tiles: tuple[tuple[int, int, float], ...]  # rows, columns, and seconds for each element of K

    def seconds(self, gemm: Gemm) -> float:
        """The same is in runtime.h."""
        memory = gemm.least_bytes() * self.byte_seconds
        best = float("inf")
        for rows, columns, each in self.tiles:
            tiles = ceil(gemm.m / rows) * ceil(gemm.n / columns) * gemm.batch
            parts = 1
            while parts <= PARTS and (parts == 1 or gemm.k >= parts * LEAST_K):
                rounds = ceil(tiles * parts / self.multiprocessors)
                busy = rounds * (STEP * ceil(gemm.k / (parts * STEP))) * each
                best = min(best, max(busy, memory) + (PARTS_SECONDS if parts > 1 else 0.0))
                parts *= 2
        return FIXED_SECONDS + best


def vendor_model(operator: Operator, target: Target) -> VendorModel | None:
    """None for what is no product on a GPU."""
    count = _multiprocessors(target)
    if not count or not isinstance(operator, Gemm):
        return None
    peak, bandwidth = target.peak(operator.a), target.bandwidth
    if not peak or not bandwidth:
        return None
    rate, size = 1e9 * _PEAK * peak / count, dtype(operator.a).bytes
    tiles = ((r, c, max(2 * r * c / rate, (r + c) * size / _CACHE_RATE)) for r, c in _TILES)
    return VendorModel(count, 1e-9 / (_BANDWIDTH * bandwidth), tuple(tiles))


def row_bytes(operator: Operator, target: Target) -> Mapping[str, int]:
    """The sizes that are lengths of rows, and the bytes of an element, where it matters at which bytes rows begin."""
    if not _multiprocessors(target) or not isinstance(operator, Gemm):
        return {}
    a, b, c = (dtype(name).bytes for name in (operator.a, operator.b, operator.c))
    return {"M" if operator.layout[0] == "t" else "K": a, "K" if operator.layout[1] == "t" else "N": b, "N": c}


def reached(operator: Operator, target: Target) -> float | None:
    """Seconds by the vendor's model, where there is one."""
    model = vendor_model(operator, target)
    return None if model is None else _seconds(model, operator)


def _multiprocessors(target: Target) -> int | None:
    """None for what is no GPU."""
    count: int | None = getattr(target, "multiprocessors", None)
    return count


@lru_cache(maxsize=4096)  # predictions ask for the same shapes again and again
def _seconds(model: VendorModel, operator: Operator) -> float:
    assert isinstance(operator, Gemm), "vendor_model has looked"
    return model.seconds(operator)
