"""The cross entropy of each row of logits and the row's true class.

deepgen tune examples/triton/cross_entropy.py --target cuda:native
"""

import numpy as np
import triton
import triton.language as tl

import deepgen as dg


@triton.jit
def cross_entropy(loss, logits, classes, vocabulary, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    start_of_row = logits + row * vocabulary
    place = tl.arange(0, BLOCK)
    # The largest logit so far and the sum of exponentials relative to it, in one pass.
    largest = tl.full((BLOCK,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, vocabulary, BLOCK):
        inside = start + place < vocabulary
        value = tl.load(start_of_row + start + place, mask=inside, other=-float("inf")).to(tl.float32)
        larger = tl.maximum(largest, value)
        shift = tl.where(larger == -float("inf"), 0.0, larger)
        total = total * tl.exp(largest - shift) + tl.exp(value - shift)
        largest = larger
    top = tl.max(largest, axis=0)
    whole = tl.sum(total * tl.exp(largest - top), axis=0)
    right = tl.load(start_of_row + tl.load(classes + row)).to(tl.float32)
    tl.store(loss + row, tl.log(whole) + top - right)


def reference(logits, classes):
    top = logits.max(axis=1)
    right = logits[np.arange(len(classes)), classes.astype(np.int64)]
    return np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top - right


kernel = dg.kernel(
    cross_entropy,
    arguments=[
        dg.output("loss", "rows", "f32"),
        dg.input("logits", ("rows", "vocabulary"), "f16", fill="normal"),
        dg.input("classes", "rows", "i32", fill=("integers", 0, "vocabulary - 1")),
        dg.scalar("vocabulary", "i32"),
    ],
    sizes={"rows": 2048, "vocabulary": 32000},
    knobs={"BLOCK": [256, 512, 1024, 2048, 4096, 8192], "num_warps": [1, 2, 4, 8, 16], "num_stages": [1, 2, 3]},
    requires=["BLOCK >= 32 * num_warps"],
    grid="rows",
    reference=reference,
    tolerance=(1e-4, 1e-5),
    flops="4 * rows * vocabulary",
)
