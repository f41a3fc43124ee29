"""Kernels for the simulated device: a tiling space like a GPU's, and kernels that consist of their config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from deepgen.operators import Operator
from deepgen.space import Space, minimum
from deepgen.targets import Sim, Target
from deepgen.vocabulary import Kernel, LaunchPlan, Source, Step, TensorArg


class SimTiles:
    """The only generator of the simulated device."""

    name = "sim_tiles"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        return None if isinstance(target, Sim) else "it supports sim targets only"

    def space(self, operator: Operator, target: Target) -> Space:
        space = Space(self.name)
        block_m = space.knob("BLOCK_M", [8, 16, 32, 64, 128, 256])
        block_n = space.knob("BLOCK_N", [8, 16, 32, 64, 128, 256])
        block_k = space.knob("BLOCK_K", [4, 8, 16, 32, 64])
        thread_m = space.knob("THREAD_M", [1, 2, 4, 8, 16])
        thread_n = space.knob("THREAD_N", [1, 2, 4, 8, 16])
        stages = space.knob("STAGES", [1, 2, 3, 4])
        space.knob("SWIZZLE", [0, 1, 2, 4])
        threads = space.derive("threads", (block_m // thread_m) * (block_n // thread_n))
        shared = space.derive("shared_bytes", (block_m + block_n) * block_k * stages * 4)
        space.require(shared <= 48 * 1024, "tiles fit in shared memory")
        space.require((threads >= 32) & (threads <= 1024), "a block has 32 to 1024 threads")
        space.require(minimum(block_m, block_n) >= block_k // 2, "tiles are not much deeper than wide")
        return space

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        text = json.dumps({"config": dict(config)}, sort_keys=True)
        args = tuple(TensorArg(t.name) for t in operator.tensors())
        return Kernel(
            name="sim_tiles",
            language="sim",
            sources=(Source("config.json", text),),
            flags=(),
            plan=LaunchPlan(steps=(Step("run", args),)),
        )

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 16, "THREAD_M": 4, "THREAD_N": 4, "STAGES": 2, "SWIZZLE": 0}
