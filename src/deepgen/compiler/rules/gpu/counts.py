"""What a launch of matrix products has to do, as numbers over knobs, and how long a GPU will need for it, roughly.

The estimate orders configs: it is good enough to start from, and a search measures the rest. It counts what the busiest
multiprocessor does, in rounds of the blocks that are there at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from deepgen.compiler.rules.template import Extent
from deepgen.space import Value
from deepgen.space.evaluate import together
from deepgen.space.expr import lift
from deepgen.targets import Gpu

_CLOCK = 1.7e9
_BANKS = 128 * _CLOCK  # bytes a second from the shared memory of a multiprocessor
_MATRICES = 512  # bytes of the four matrices that a warp loads at once
_L2 = 6.5e10  # bytes a second for each multiprocessor
_LATENCY = 0.9e-6  # until what was asked for has come from memory
_ITERATION = 0.08e-6  # of an iteration's barrier and waits
_ENDS = 0.9e-6  # before a block's first copies are asked for, and for its results
_ALONE = 0.5  # of the rate that one warp on each part of a multiprocessor comes to
_ALONE_LATE = 0.8  # the same where they do not wait for products
_FULL = 16  # warps that reach the whole rate
_LAUNCH = 2.5e-6  # of a launch before this one
_PACKED = 0.9e12  # bytes a second that such a launch puts in another order
_TRANSPOSED = 25  # elements a cycle that a multiprocessor transposes on their way to shared memory
_SHOWN = 0.1  # of what is done beside something longer


@dataclass(frozen=True)
class Counts:
    blocks: Extent
    threads: Extent
    registers: Extent
    shared_bytes: Extent
    operations: Extent  # of a block, those beyond the edges of the result too
    loads: Extent  # of a block, in quarters: four matrices from shared memory each
    iterations: Extent  # of the loop that copies operands
    copied: Extent  # bytes in an iteration
    depth: Extent
    late: Extent  # 1 where products of one iteration may run into the next one
    stored: Extent  # bytes, with those that are written beside them because sectors are larger
    packed: Extent  # bytes that a launch before this one puts in another order
    transposed: Extent  # elements in an iteration that are transposed on their way to shared memory
    rate: float  # operations a second that the matrix units of the whole GPU come to with these instructions
    rate_late: float  # the same where products of one iteration run into the next one

    def at(self, config: Mapping[str, Value]) -> dict[str, int]:
        return dict(zip(self._numbers, self._computed(config), strict=True))

    @cached_property
    def _computed(self) -> Callable[[Mapping[str, Value]], list[Any]]:
        return together([lift(n) for n in self._numbers.values()])

    @property
    def knobs(self) -> frozenset[str]:
        """Those that the estimate depends on."""
        return frozenset(name for n in self._numbers.values() if not isinstance(n, int) for name in n.knobs())

    @cached_property
    def _numbers(self) -> dict[str, Extent]:
        return {one.name: getattr(self, one.name) for one in fields(self) if not one.name.startswith("rate")}


def seconds(counts: Counts, config: Mapping[str, Value], gpu: Gpu) -> float:
    c = counts.at(config)
    resident = max(
        1,
        min(
            gpu.registers_per_sm // (c["threads"] * c["registers"]),
            gpu.shared_per_sm // (c["shared_bytes"] + gpu.shared_reserved),
            gpu.threads_per_sm // c["threads"],
            gpu.blocks_per_sm,
        ),
    )
    own = -(-c["blocks"] // gpu.multiprocessors)
    beside = min(resident, own)
    warps = beside * c["threads"] // gpu.warp
    late = c["late"] == 1 and c["depth"] > 2
    alone = _ALONE_LATE if late else _ALONE
    reached = min(1.0, alone + (1 - alone) * max(0, warps - 4) / (_FULL - 4)) * min(1.0, warps / 4)
    rate = counts.rate_late if late else counts.rate
    arithmetic = beside * c["operations"] / (rate / gpu.multiprocessors * reached)
    shared = beside * (c["loads"] / 4 * _MATRICES / _BANKS + c["iterations"] * c["transposed"] / _TRANSPOSED / _CLOCK)
    copies = beside * c["iterations"] * c["copied"] / _L2
    # The longest hides most of the others.
    together = max(arithmetic, shared, copies) + _SHOWN * (arithmetic + shared + copies)
    # What copies take beyond the iterations that they are ahead is waited for.
    ahead = (1 if c["transposed"] else c["depth"] - (2.5 if late else 1)) * together / c["iterations"]
    latency = _LATENCY if c["depth"] > 1 else 2 * _LATENCY  # nothing is asked for while products are computed
    waits = c["iterations"] * ((0.0 if late else _ITERATION) + max(0.0, latency - ahead))
    ends = _ENDS + beside * c["stored"] / _L2
    before = _LAUNCH + c["packed"] / _PACKED if c["packed"] else 0.0
    return before + -(-own // beside) * (ends + max(together, together / beside + waits))
