"""A kernel with configs that never end and configs that write out of bounds, which a search must survive."""

# Triton reads the annotations of its kernels: no `from __future__ import annotations` here.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"
import triton
import triton.language as tl

import deepgen as dg

NOWHERE = tl.constexpr(1 << 44)


@triton.jit
def faulty(y, x, n, BLOCK: tl.constexpr, FAULT: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place, mask=place < n, other=0.0)
    if FAULT == 1:
        # The input holds no 12345.0, and nobody writes one.
        waiting = 1
        while waiting == 1:
            waiting = tl.where(tl.load(x, volatile=True) == 12345.0, 0, 1)
    if FAULT == 2:
        tl.store(y + place.to(tl.int64) + NOWHERE, value)
    tl.store(y + place, 2.0 * value, mask=place < n)


def _kernel(fault: int):
    return dg.kernel(
        faulty,
        name="hangs" if fault == 1 else "crashes",
        arguments=[dg.output("y", "n", "f32"), dg.input("x", "n", "f32"), dg.scalar("n", "i32")],
        sizes={"n": 1 << 22},
        knobs={"BLOCK": [512, 1024], "FAULT": [0, fault]},
        grid="ceil_div(n, BLOCK)",
        default={"BLOCK": 512, "FAULT": 0},
        reference=lambda x: 2.0 * x,
        flops="n",
    )


hangs, crashes = _kernel(1), _kernel(2)
