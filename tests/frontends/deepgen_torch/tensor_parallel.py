"""One of two processes of torchrun: each has half of a layer's heads and of its MLP, and sums go through the network.

torchrun --nproc-per-node 2 tests/frontends/deepgen_torch/tensor_parallel.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from stand_in import Everything
from torch import Tensor, distributed

import deepgen.torch as dt

HIDDEN, WIDTH, HEADS, MLP = 32, 8, 4, 64


def shared(part: int, parts: int) -> Tensor:
    """The layer's result on one of several processes: `parts` of 1 is the whole layer."""
    numbers = torch.Generator().manual_seed(0)
    heads = HEADS * WIDTH
    shapes = (2, 6, HIDDEN), *((heads, HIDDEN),) * 3, (HIDDEN, heads), (MLP, HIDDEN), (HIDDEN, MLP)
    x, q, k, v, o, up, down = (torch.randn(shape, generator=numbers) * shape[-1] ** -0.5 for shape in shapes)
    rows = [weight.chunk(parts, 0)[part] for weight in (q, k, v, up)]
    columns = [weight.chunk(parts, 1)[part].contiguous() for weight in (o, down)]
    by_head = [F.linear(x, weight).view(2, 6, -1, WIDTH).transpose(1, 2) for weight in rows[:3]]
    seen = F.scaled_dot_product_attention(*by_head, is_causal=True).transpose(1, 2).reshape(2, 6, -1)
    for y, weight in ((seen, columns[0]), (None, columns[1])):
        sums = F.linear(F.relu(F.linear(x, rows[3])) if y is None else y, weight)
        if parts > 1:
            distributed.all_reduce(sums)
        x = x + sums
    return x


def main() -> None:
    distributed.init_process_group("gloo")
    with torch.no_grad():
        want = shared(0, 1)
        with dt.use(Everything(), race=False) as used:
            for _ in range(2):
                torch.testing.assert_close(shared(distributed.get_rank(), 2), want)
    assert {met.operator.name for met in used.met if met.calls.served} == {"gemm", "attention"}
    print(f"process {distributed.get_rank()}: as one process", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
