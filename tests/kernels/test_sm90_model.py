"""The model of the Hopper family chooses well at shapes that were timed, and is plausible elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any

import pytest

from deepgen import generators, targets
from deepgen.generators import FAMILY, Families
from deepgen.kernels import Ranked
from deepgen.kernels.gemm.sm90_gemm import Sm90Gemm
from deepgen.kernels.gemm.sm90_gemm.model import seconds
from deepgen.operators import Gemm, gemm
from deepgen.targets import Cuda

FAMILY_90, HOPPER = Sm90Gemm(), targets.resolve("cuda:h200")  # the device of all times
TIMINGS = json.loads((Path(__file__).parent / "sm90_timings.json").read_text())
ORDER = {"GROUP": 8, "ALONG": "M", "HILBERT": False, "CACHE": "none", "FIXED": False}  # not distinguished by the model


def modelled(operator: Gemm, config: dict[str, Any]) -> float:
    assert isinstance(HOPPER, Cuda)
    return seconds(operator, HOPPER, config)


def timed() -> list[tuple[Gemm, list[dict[str, Any]], list[float], int]]:
    """Shapes, configs, microseconds, and which config was the default at the time."""
    rows = []
    for row in TIMINGS["shapes"]:
        a, c, layout, batch, m, n, k = row["gemm"]
        named = (zip(TIMINGS["knobs"], values, strict=True) for values in row["configs"])
        configs = [{**ORDER, **{knob: value for knob, value in pairs if value is not None}} for pairs in named]
        rows.append((gemm(m, n, k, batch=batch, dtype=a, c=c, layout=layout), configs, row["us"], row["default"]))
    return rows


def geometric_mean(values: list[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


def test_what_it_takes_for_the_fastest_is_nearly_the_fastest_of_those_that_were_timed() -> None:
    reached, before = [], []
    for operator, configs, us, default in timed():
        first = min(range(len(configs)), key=lambda place: modelled(operator, configs[place]))
        reached.append(min(us) / us[first])
        before.append(min(us) / us[default])
    assert len(reached) == 30
    assert geometric_mean(reached) > 0.95 and geometric_mean(before) < 0.9
    assert min(reached) > 0.8


def test_its_times_are_those_that_were_measured_within_a_fifth() -> None:
    """For the fastest: other families are compared with them."""
    ratios = [modelled(op, configs[us.index(min(us))]) * 1e6 / min(us) for op, configs, us, _ in timed()]
    assert 0.9 < geometric_mean(ratios) < 1.1
    assert all(0.7 < ratio < 1.4 for ratio in ratios)


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("sizes", [(64, 64, 64), (512, 1024, 2048), (32, 4096, 4096), (8192, 8192, 8192)], ids=str)
def test_more_work_never_takes_less_time_where_rows_stay_aligned(sizes: tuple[int, int, int], layout: str) -> None:
    operator = gemm(*sizes, dtype="bf16", layout=layout)
    for config in (dict(FAMILY_90.default(operator, HOPPER)), *FAMILY_90.space(operator, HOPPER).sample(20, seed=1)):
        time = modelled(operator, config)
        doubled: dict[str, Any] = {"m": 2 * operator.m, "n": 2 * operator.n, "k": 2 * operator.k, "batch": 2}
        for more in ({name: size} for name, size in doubled.items()):
            assert modelled(replace(operator, **more), config) >= time > 3e-6, (config, more)


def test_rows_that_are_copied_first_cost_a_launch() -> None:
    aligned, not_aligned = (gemm(256, 256, k, dtype="bf16", layout="nt") for k in (512, 510))
    config = dict(FAMILY_90.default(aligned, HOPPER))
    assert modelled(not_aligned, config) > modelled(aligned, config) + 2e-6


@pytest.mark.parametrize(
    ("operator", "fixup"),
    [
        (gemm(424, 8, 9496, batch=4, dtype="bf16", layout="tt"), "exchange"),  # 15.5 us; 29.3 for whole tiles
        (gemm(24, 8, 2952, dtype="bf16", layout="tn"), "exchange"),  # 6.6; 9.0 with the parts of a last block
        (gemm(4096, 4096, 4096, dtype="bf16", layout="nt"), "none"),
    ],
    ids=lambda value: value.slug() if isinstance(value, Gemm) else "",
)
def test_long_sums_of_few_tiles_are_divided(operator: Gemm, fixup: str) -> None:
    assert FAMILY_90.default(operator, HOPPER)["FIXUP"] == fixup


def test_small_results_with_odd_rows_are_stored_straight_and_large_ones_by_lines() -> None:
    small, large = gemm(27, 98, 32, dtype="bf16", layout="nt"), gemm(3186, 5526, 64, dtype="bf16", layout="nt")
    assert FAMILY_90.default(small, HOPPER)["STORE"] == "straight"
    assert FAMILY_90.default(replace(small, n=99), HOPPER)["STORE"] == "straight"
    assert FAMILY_90.default(replace(large, n=5525), HOPPER)["STORE"] == "lines"


def test_a_search_begins_with_every_default_and_then_with_what_the_model_ranks() -> None:
    operator = gemm(512, 512, 512, dtype="bf16", layout="nt")
    united = generators.competing(operator, HOPPER)
    assert isinstance(united, Families) and isinstance(united, Ranked)
    guesses = list(generators.best_guesses(united, operator, HOPPER))
    names = [guess[FAMILY] for guess in guesses]
    members = list(united.spaces(operator, HOPPER))
    assert names[: len(members)] == members and members[0] == "sm90_gemm"
    assert set(names[len(members) :]) == {"sm90_gemm"} and len(names) == len(members) + 11
    alone = list(generators.best_guesses(FAMILY_90, operator, HOPPER))
    assert len(alone) == 12 and alone[0] == FAMILY_90.default(operator, HOPPER)
    assert len({json.dumps(dict(config), sort_keys=True) for config in guesses}) == len(guesses)
