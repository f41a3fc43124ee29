"""The model of the family for weights of 4 bits orders what was timed, and its defaults are among the fastest."""

from __future__ import annotations

import json
from math import exp, log
from pathlib import Path
from typing import Any

import pytest

from deepgen import targets
from deepgen.kernels.gemm_w4.mma_gemm_w4 import MmaGemmW4
from deepgen.operators import GemmW4, gemm_w4

FAMILY, HOPPER = MmaGemmW4(), targets.resolve("cuda:h200")  # the device of all times
TIMINGS = json.loads((Path(__file__).parent / "gemm_w4_timings.json").read_text())


def microseconds(operator: GemmW4, config: dict[str, Any]) -> float:
    return (FAMILY.modelled_seconds(operator, HOPPER, config) or 0.0) * 1e6


def timed() -> list[tuple[GemmW4, list[dict[str, Any]], list[float]]]:
    return [
        (
            gemm_w4(*row["sizes"], weight_layout="packed"),
            [dict(zip(TIMINGS["knobs"], values, strict=True)) for values in row["configs"]],
            row["us"],
        )
        for row in TIMINGS["shapes"]
    ]


def ordered(pairs: list[tuple[float, float]]) -> float:
    """The share of pairs at least 3% apart in what was timed that are in the right order."""
    apart = [(a, b) for a in pairs for b in pairs if a[1] > 1.03 * b[1]]
    return sum(a[0] > b[0] for a, b in apart) / len(apart)


def test_its_times_are_those_that_were_measured() -> None:
    off = [
        log(microseconds(op, config) / us)
        for op, configs, times in timed()
        for config, us in zip(configs, times, strict=True)
    ]
    assert len(off) == 60
    assert exp((sum(one * one for one in off) / len(off)) ** 0.5) < 1.08
    assert max(map(abs, off)) < log(1.25)


def test_it_orders_what_was_measured() -> None:
    tables = [
        [(microseconds(op, c), us) for c, us in zip(configs, times, strict=True)] for op, configs, times in timed()
    ]
    assert ordered([pair for table in tables for pair in table]) > 0.95
    assert all(ordered(table) > 0.75 for table in tables if len(table) > 5)
    for table in tables:
        assert min(table)[1] < 1.04 * min(us for _, us in table)


@pytest.mark.parametrize(
    "sizes", [(16, 4096, 4096), (16, 8192, 28672), (16, 28672, 8192), (1, 4096, 4096), (256, 4096, 4096)], ids=str
)
def test_defaults_are_as_fast_as_the_fastest_of_those_that_were_timed(sizes: tuple[int, int, int]) -> None:
    [(operator, configs, us)] = [row for row in timed() if (row[0].m, row[0].n, row[0].k) == sizes]
    assert us[configs.index(dict(FAMILY.default(operator, HOPPER)))] < 1.03 * min(us)


def test_clusters_that_do_not_fit_at_once_cost_a_second_wave() -> None:
    """32 of four blocks each took 93 us, while 132 blocks that add up in memory took 54 for as many weights."""
    [(operator, configs, us)] = [row for row in timed() if row[0].n == 8192 and row[0].m == 16]
    fours = [(c, t) for c, t in zip(configs, us, strict=True) if c["SPLITS"] == 4 and c["MIN_BLOCKS"] == 1]
    assert fours
    for config, time in fours:
        alone = microseconds(operator, {**config, "SPLITS": 0, "JOIN": "memory"})
        assert time > 1.5 * alone and microseconds(operator, config) > 1.5 * alone
