"""How fast a run is, and how near to the bound that applies: arithmetic, or the bytes that memory must move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deepgen.measure.shapes import geometric_mean
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


def speed(shapes: Sequence[Operator], seconds: float, peak_gflops: float | None, bandwidth: float | None) -> JsonObject:
    """The rates of a run that took so long, and its shares of the peak and of the bound.

    Of several shapes, all of these are geometric means, as the seconds are.
    """
    bounds = [bound(operator, peak_gflops, bandwidth) for operator in shapes]
    known = [least.seconds for least in bounds if least.seconds]
    gflops = geometric_mean([operator.flops() for operator in shapes]) / seconds / 1e9
    return {
        "gflops": gflops,
        "gbytes_per_second": geometric_mean([operator.least_bytes() for operator in shapes]) / seconds / 1e9,
        "share_of_peak": gflops / peak_gflops if peak_gflops else None,
        "bound": bounds[0].by,
        "share_of_bound": geometric_mean(known) / seconds if len(known) == len(bounds) else None,
    }
