"""The family in plain C computes correct results on this machine's CPU, for any config and size."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from kernel_runs import Runs

from deepgen import generators, targets
from deepgen.kernels.gemm.c_gemm import CGemm
from deepgen.operators import Gemm, gemm
from deepgen.operators.gemm import ACTIVATIONS, LAYOUTS
from deepgen.targets import X86, Arm
from deepgen.targets.cpu import common, narrowed

FAMILY = CGemm()
HERE = targets.resolve("cpu")
# Smaller than any tile, larger than some blocks, none a multiple of anything.
SIZES = [(1, 1, 1), (2, 3, 5), (1, 97, 101), (61, 1, 7), (37, 70, 53), (131, 67, 259)]


def complaints(runs: Runs, like: Gemm) -> list[str]:
    cases = [replace(like, m=m, n=n, k=k) for m, n, k in SIZES]
    cases += [replace(cases[-2], alpha=alpha, beta=beta) for alpha, beta in ((0.5, 0.0), (1.0, 1.0), (-2.0, 0.25))]
    return [words for case in cases if (words := runs.wrong(case))]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_sampled_configs_are_right_on_all_sizes(dtype: str, layout: str) -> None:
    operator, place = gemm(137, 263, 1031, dtype=dtype, layout=layout), LAYOUTS.index(layout)
    [config] = FAMILY.space(operator, HERE).sample(1, seed=place)
    flag = ("-O3", "-O1")[(place + (dtype == "f64")) % 2]
    runs = Runs(FAMILY.emit(operator, HERE, config), HERE, flag)
    assert complaints(runs, operator) == [] and runs.wrong(operator) == "", config


@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize(("dtype", "rows"), [("f32", 12), ("f32", 6), ("f64", 8), ("f64", 3)])
def test_numbers_of_a_are_lanes_where_they_fill_vectors(dtype: str, rows: int, layout: str) -> None:
    operator = gemm(137, 263, 301, dtype=dtype, layout=layout)
    config = {**FAMILY.default(operator, HERE), "MR": rows, "NR": 2}
    runs = Runs(FAMILY.emit(operator, HERE, config), HERE, "-O1")
    assert complaints(runs, operator) == [] and runs.wrong(operator) == ""


@pytest.mark.parametrize("layout", ["nn", "tn", "nt"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_thin_products_are_right_on_all_sizes(dtype: str, layout: str) -> None:
    operator = gemm(7, 263, 301, dtype=dtype, layout=layout, bias=True, activation="relu")
    sampled = next(c for c in FAMILY.space(operator, HERE).sample(40, seed=2) if c["KIND"] == "thin")
    shared = {**FAMILY.default(operator, HERE), "KIND": "thin", "THREADS": 2, "TASKS": 2}
    for config, flag in ((shared, "-O3"), (sampled, "-O1")):
        runs = Runs(FAMILY.emit(operator, HERE, config), HERE, flag)
        assert complaints(runs, operator) == [] and runs.wrong(operator) == "", config
        assert runs.wrong(replace(operator, m=37, batch=3)) == "", config


def test_few_rows_are_thin_by_default_on_arm_and_may_be_anywhere() -> None:
    arm, x86 = narrowed(common(Arm, 2), "neon"), narrowed(common(X86, 2), "avx2")
    for m, k in ((1, 1024), (5, 1250), (16, 128)):
        for layout in ("nn", "nt", "tn"):
            operator = gemm(m, 576, k, layout=layout)
            assert FAMILY.default(operator, arm)["KIND"] == "thin" and FAMILY.default(operator, x86)["KIND"] == "tiles"
            assert not FAMILY.space(operator, arm).explain(FAMILY.default(operator, arm))
            assert not FAMILY.space(operator, x86).explain(FAMILY.default(operator, x86))
    assert "KIND" not in FAMILY.default(gemm(17, 576, 128), arm) | FAMILY.default(gemm(5, 576, 128, layout="tt"), arm)


@pytest.mark.parametrize("partition", ["m", "n"])
def test_threads_share_rows_or_columns_of_a_batch(partition: str) -> None:
    operator = gemm(70, 131, 300, batch=3)
    config = {**FAMILY.default(operator, HERE), "THREADS": 3, "PARTITION": partition, "TASKS": 2}
    runs = Runs(FAMILY.emit(operator, HERE, config), HERE)
    assert runs.wrong(operator) == "" and complaints(runs, replace(operator, batch=1)) == []


@pytest.mark.parametrize(("activation", "packing"), [*zip(ACTIVATIONS, itertools.cycle(["none", "block"]))])
def test_bias_and_activation_follow_the_last_block_of_k(activation: str, packing: str) -> None:
    operator = gemm(37, 70, 300, bias=True, activation=activation, alpha=0.5)
    runs = Runs(
        FAMILY.emit(operator, HERE, {**FAMILY.default(operator, HERE), "KC": 128, "PACK_B": packing}), HERE, "-O1"
    )
    wrong = [runs.wrong(replace(operator, beta=beta)) for beta in (0.0, 1.0)]
    wrong += [runs.wrong(replace(operator, alpha=1.0), probe) for probe in operator.probes()]
    assert wrong == [""] * len(wrong)


def test_a_kernel_can_be_called_from_several_threads() -> None:
    operator = gemm(64, 96, 600)
    config = {**FAMILY.default(operator, HERE), "THREADS": 2, "PARTITION": "n", "TASKS": 1}
    runs = Runs(FAMILY.emit(operator, HERE, config), HERE)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: runs.wrong(operator), range(20))) == [""] * 20


@pytest.mark.parametrize("name", ["x86:avx2", "x86:avx512", "x86:amx", "arm:neon"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_families_made_for_a_processor_come_first(name: str, dtype: str) -> None:
    serving = [family.name for family in generators.serving(gemm(256, 256, 256, dtype=dtype), targets.resolve(name))]
    asked_for = ("x86_gemm_constant_b", "rules_constant_weights")  # only on request
    assert [family for family in serving if family not in asked_for][-2:] == ["c_gemm", "rules"]
    assert all(family in serving[-2:] for family in asked_for if family in serving)
    assert (serving[0] == "x86_gemm") is (name.startswith("x86") and dtype == "f32")


@pytest.mark.parametrize(
    ("what", "cpu"), [("arm", narrowed(common(Arm, 2), "neon")), ("x86", narrowed(common(X86, 2), "avx2"))]
)
def test_the_emitted_kernel_is_the_one_we_looked_at(
    what: str, cpu: Arm | X86, golden: Callable[[str, str], str]
) -> None:
    operator = gemm(512, 512, 512, layout="nt", bias=True)
    kernel = FAMILY.emit(operator, cpu, FAMILY.default(operator, cpu))
    told = {"sources": [s.name for s in kernel.sources], "flags": kernel.flags, "plan": kernel.to_json()["plan"]}
    assert golden(f"c_gemm/{what}.json", json.dumps(told, indent=1) + "\n") == ""
