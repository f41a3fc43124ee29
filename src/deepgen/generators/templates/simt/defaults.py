"""A good config without any search: the tile by a simple model of the busiest multiprocessor's time."""

from __future__ import annotations

from math import ceil, gcd
from typing import Any

from deepgen.operators import Gemm
from deepgen.targets.gpu import Gpu
from deepgen.vocabulary.dtypes import dtype

# (BM, BN, TM, TN), for warps of 32 lanes 4 x 8, and of 64 lanes 8 x 8.
_TILES_32 = (
    (128, 128, 8, 8),
    (64, 128, 8, 8),
    (128, 64, 8, 8),
    (64, 64, 8, 4),
    (32, 64, 4, 8),
    (32, 32, 4, 2),
    (16, 32, 2, 2),
)
_TILES_64 = ((128, 128, 8, 8), (64, 128, 4, 8), (64, 64, 4, 4), (32, 64, 4, 4), (32, 32, 2, 2), (16, 32, 2, 2))


def choose(gemm: Gemm, gpu: Gpu) -> dict[str, Any]:
    raise NotImplementedError
