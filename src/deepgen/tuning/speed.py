"""The rate of a run, and its share of the roofline bound that applies: arithmetic or memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from deepgen.operators import Operator
from deepgen.targets import Target
from deepgen.vocabulary import JsonObject
from deepgen.vocabulary.measurement import geometric_mean

if TYPE_CHECKING:
    from deepgen.tuning.engines.base import Session
    from deepgen.tuning.study.finals import Finals

Rates: TypeAlias = "tuple[float | None, float | None]"
ARITHMETIC, MEMORY = "arithmetic", "memory"
_FEW = 4.0  # operations per byte: if rates are unknown, fewer count as bound by memory
_LEAST_SECONDS = 1e-9  # of any run: light travels 30 cm in this time
_CORE_GFLOPS = 2e4  # more than any core reaches: twice the rate of 8-bit matrix units
_CACHES = 4.0  # times the memory bandwidth, for data partly in caches


@dataclass(frozen=True)
class Bound:
    """The lower bound of a run's time; `seconds` is None if the device's rate is unknown."""

    by: str
    seconds: float | None


def bound(operator: Operator, peak_gflops: float | None, bandwidth: float | None) -> Bound:
    """The larger of two times: the operations at the peak, and the least bytes at the bandwidth (in GB/s)."""
    work = operator.work()
    arithmetic = work.flops / (peak_gflops * 1e9) if peak_gflops else None
    memory = work.bytes / (bandwidth * 1e9) if bandwidth else None
    if arithmetic is None or memory is None:
        waits = work.flops < _FEW * work.bytes
        return Bound(MEMORY, memory) if waits else Bound(ARITHMETIC, arithmetic)
    return Bound(MEMORY, memory) if memory > arithmetic else Bound(ARITHMETIC, arithmetic)


def speed(shapes: Sequence[Operator], seconds: float, peak_gflops: float | None, bandwidth: float | None) -> JsonObject:
    """The rates of a run that took this long, and its shares of the peak and of the bound.

    For several shapes, all of these are geometric means, like the seconds.
    """
    bounds = [bound(operator, peak_gflops, bandwidth) for operator in shapes]
    least_seconds = [least.seconds for least in bounds if least.seconds]
    gflops = geometric_mean([operator.flops() for operator in shapes]) / seconds / 1e9
    return {
        "gflops": gflops,
        "gbytes_per_second": geometric_mean([operator.least_bytes() for operator in shapes]) / seconds / 1e9,
        "share_of_peak": gflops / peak_gflops if peak_gflops else None,
        "bound": bounds[0].by,
        "share_of_bound": geometric_mean(least_seconds) / seconds if len(least_seconds) == len(bounds) else None,
    }


def floor(shapes: Sequence[Operator], target: Target, measured_gflops: float | None, *, cold: bool) -> float:
    """A lower bound of a run's seconds from the known rates of the device, with a margin. For several shapes it is the
    geometric mean."""
    from deepgen.run.measure.base import PEAK_MARGIN, arithmetic  # imported late: only this function needs it

    peaks = [peak for peak in (measured_gflops, target.peak(arithmetic(shapes[0]))) if peak]
    if not peaks and (cores := getattr(target, "cores", None)):
        peaks = [_CORE_GFLOPS * cores]
    rate = PEAK_MARGIN * max(peaks) if peaks else None
    memory = _CACHES * target.bandwidth if target.bandwidth and cold else None
    return geometric_mean([max(_LEAST_SECONDS, bound(shape, rate, memory).seconds or 0.0) for shape in shapes])


def with_rates(finals: Finals, session: Session, shapes: Sequence[Operator], rates: Rates | None = None) -> Finals:
    """Finals with the device's rates, to compare the winner with.

    If the winner exceeds the peak, the peak was measured on a busy machine and is measured again; it is never set from
    a winner. If there is no time to measure, `rates` gives the known GFLOP/s and GB/s.
    """
    if rates is not None:
        return replace(finals, peak_gflops=rates[0], bandwidth=rates[1])
    peak = session.peak()
    best = finals.best
    if peak and best and geometric_mean([one.flops() for one in shapes]) > best.seconds * peak * 1e9:
        peak = session.peak(again=True)
    return replace(finals, peak_gflops=peak, bandwidth=session.bandwidth())
