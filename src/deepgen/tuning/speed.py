"""How fast a run is, and how near to the bound that applies: arithmetic, or the bytes that memory must move."""

from __future__ import annotations

from dataclasses import dataclass

from deepgen.operators import Operator
from deepgen.vocabulary import JsonObject

ARITHMETIC, MEMORY = "arithmetic", "memory"
_FEW = 4.0  # operations a byte: where rates are unknown, what has fewer is taken to wait for memory on any machine


@dataclass(frozen=True)
class Bound:
    """What a run cannot be faster than; `seconds` is None where the device's rate is not known."""

    by: str
    seconds: float | None


def bound(operator: Operator, peak_gflops: float | None, bandwidth: float | None) -> Bound:
    """The longer of the operations at the peak and the least bytes at the bandwidth, which is in GB/s."""
    work = operator.work()
    arithmetic = work.flops / (peak_gflops * 1e9) if peak_gflops else None
    memory = work.bytes / (bandwidth * 1e9) if bandwidth else None
    if arithmetic is None or memory is None:
        waits = work.flops < _FEW * work.bytes
        return Bound(MEMORY, memory) if waits else Bound(ARITHMETIC, arithmetic)
    return Bound(MEMORY, memory) if memory > arithmetic else Bound(ARITHMETIC, arithmetic)


def speed(operator: Operator, seconds: float, peak_gflops: float | None, bandwidth: float | None) -> JsonObject:
    """The rates of a run that took so long, and its shares of the peak and of the bound."""
    least = bound(operator, peak_gflops, bandwidth)
    gflops = operator.flops() / seconds / 1e9
    return {
        "gflops": gflops,
        "gbytes_per_second": operator.least_bytes() / seconds / 1e9,
        "share_of_peak": gflops / peak_gflops if peak_gflops else None,
        "bound": least.by,
        "share_of_bound": least.seconds / seconds if least.seconds else None,
    }
