"""A Triton kernel under `@deepgen.autotune`, as in a user's script."""

from __future__ import annotations

import triton
import triton.language as tl

import deepgen

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (128, 256, 512) for warps in (1, 4)]
CALLS: list[str] = []


def prune(configs: list, named: dict, **_: object) -> list:
    CALLS.append("prune")
    return [config for config in configs if config.kwargs["BLOCK"] <= named["n"]]


@deepgen.autotune(configs=CONFIGS, key=["n"], prune_configs_by={"early_config_prune": prune}, reset_to_zero=["y"])
@triton.heuristics({"EVEN": lambda named: named["n"] % named["BLOCK"] == 0})
@triton.jit
def scaled(x, y, n, by, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place) if EVEN else tl.load(x + place, mask=place < n)
    tl.store(y + place, value * by, mask=place < n)


@deepgen.autotune(space={"BLOCK": [64, 128, 256], "num_warps": [1, 4]}, requires=["BLOCK <= n"], key=["n"])
@triton.jit
def doubled(x, y, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + place, 2 * tl.load(x + place, mask=place < n), mask=place < n)


def blocks(meta: dict) -> tuple:
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


if __name__ == "__main__":  # in Triton's interpreter
    import torch

    x = torch.arange(300, dtype=torch.float32)
    y, z = torch.empty_like(x), torch.empty_like(x)
    scaled[blocks](x, y, 300, 3.0)
    doubled[blocks](x, z, n=300)
    assert torch.equal(y, 3.0 * x) and torch.equal(z, 2.0 * x)
    print("autotuned right", scaled.best_config, doubled.best_config)
