"""Times, rates, knobs, and what finals left out, as a person reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def counted(number: int, what: str) -> str:
    """A number of things: 1 trial, 2 trials."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def seconds_text(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns"


def rate_text(fast: Mapping[str, Any]) -> str:
    """The most informative rate of a run: of its arithmetic, or of its bytes if memory bounds it."""
    from deepgen.tuning.speed import MEMORY  # imported late: most callers do not need it

    if fast.get("bound") == MEMORY:
        return f"{fast['gbytes_per_second']:.1f} GB/s"
    return f"{fast['gflops']:.1f} GFLOP/s"


def bound_text(fast: Mapping[str, Any]) -> str:
    """How near a run is to its bound, to follow its rate; empty where the bound is not known."""
    from deepgen.tuning.speed import MEMORY

    share, what = fast["share_of_peak"], "peak"
    if fast.get("bound") == MEMORY:
        share, what = fast["share_of_bound"], "bandwidth"
    return "" if share is None else f", {share_text(share)} of {what}"


def share_text(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def knob_text(value: Any) -> str:
    """A knob's value as `deepgen build --config` takes it: a permutation is written m-n-k."""
    return "-".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def dropped_reasons(finals: Mapping[str, Any]) -> list[str]:
    """Why kernels that were right in the search did not reach the end of the finals, one line each."""
    return [f"trial {row['trial']} is {row['verdict']} {row['detail']}" for row in finals.get("dropped", [])]


def lost_baselines(finals: Mapping[str, Any]) -> list[str]:
    """Which baselines the winner is not compared with, and why, one line each."""
    return [
        f"{row['name']} {'was called wrong' if row['verdict'] == 'wrong' else row['verdict'].replace('_', ' ')}: "
        f"{row['detail']}; not compared"
        for row in finals.get("baselines_lost", [])
    ]
