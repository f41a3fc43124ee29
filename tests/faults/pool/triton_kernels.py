"""Faults in Triton, which only this file imports. The correct kernel does its work several times."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scale(y, x, factor, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place, mask=place < n, other=0.0)
    if FAULT == 0:
        for _ in range(20):
            tl.store(y + place, factor * tl.load(x + place, mask=place < n, other=0.0), mask=place < n)
    elif FAULT == 1:
        tl.store(y + place, 2.0 * value, mask=place < n)
    elif FAULT == 2:
        tl.store(y + place, factor * tl.where(value > 16.0, 16.0, value), mask=place < n)
    elif FAULT == 3:
        tl.store(y + place, factor * value, mask=(place < n - n % 2))
    elif FAULT == 5:
        tl.store(y + place, factor * value, mask=(place < n) & (place < 65536))
    else:
        tl.store(
            y + place, tl.where(value < 0, factor * value, tl.where(value > 0, factor * value, 0.0)), mask=place < n
        )
