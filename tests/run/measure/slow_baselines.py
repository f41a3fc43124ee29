"""Baselines for a device with host memory: they compute at once, in the caller's time."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from deepgen.extend import Operator, Target


class Slow:
    """The host is slow to enqueue work that takes the device no time."""

    name = "slow"
    seconds = 0.002

    def missing(self, operator: Operator, target: Target) -> str | None:
        return None

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> Callable[[], None]:
        a, b, c = (_array(tensors[name]) for name in "ABC")

        def run() -> None:
            time.sleep(self.seconds)
            np.matmul(a, b.T, out=c)

        return run


class TooSlow(Slow):
    """So slow that no queue can hide it."""

    name = "too slow"
    seconds = 0.03


class Chooses(Slow):
    """Has two implementations, of which the first is faster."""

    name = "chooses"

    def choose(
        self,
        operator: Operator,
        tensors: Mapping[str, Any],
        threads: int,
        seconds: Callable[[Callable[[], None]], float],
    ) -> Callable[[], None]:
        run = self.prepare(operator, tensors, threads)
        # If the host's time were counted, no sample could be shorter. One may be long on a busy machine.
        if min(seconds(run) for _ in range(5)) > 0.5 * self.seconds:
            raise AssertionError("the host's time was counted")
        return run


def _array(tensor: Any) -> Any:
    count = int(np.prod(tensor.shape))
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(tensor.address)).reshape(tensor.shape)
