"""The family's kernels compute correct results for any config, layout and size."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from kernel_runs import Runs

import needs
from deepgen import targets
from deepgen.kernels.gemm.x86_gemm import X86Gemm, X86GemmConstant
from deepgen.operators import Gemm, gemm
from deepgen.operators.gemm import LAYOUTS
from deepgen.targets import X86
from deepgen.toolchains import build_once
from deepgen.vocabulary import WorkspaceArg

FAMILY = X86Gemm()
NATIVE = needs.x86()
MACHINES = [
    pytest.param(targets.resolve(name), id=name)
    for name, needs in (("x86:avx2", "avx2"), ("x86:avx512", "avx512f"))
    if isinstance(NATIVE, X86) and NATIVE.has(needs, "fma")
]
# Smaller than any tile, larger than some blocks, none a multiple of anything.
SIZES = [(1, 1, 1), (2, 3, 5), (1, 97, 101), (61, 1, 7), (37, 70, 53), (131, 67, 259)]
SCALES = [(1.0, 0.0), (0.5, 0.0), (1.0, 1.0), (-2.0, 0.25)]


def complaints(runs: Runs, like: Gemm) -> list[str]:
    cases = [replace(like, m=m, n=n, k=k) for m, n, k in SIZES]
    cases += [replace(cases[-2], alpha=alpha, beta=beta) for alpha, beta in SCALES]
    return [words for case in cases if (words := runs.wrong(case))]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("target", MACHINES)
def test_sampled_configs_are_right_on_all_sizes(target: X86, layout: str) -> None:
    operator = gemm(137, 263, 1031, layout=layout)
    space = FAMILY.space(operator, target)
    [config] = space.sample(1, seed=LAYOUTS.index(layout))
    runs = Runs(FAMILY.emit(operator, target, config), target)
    assert complaints(runs, operator) == [], config
    assert runs.wrong(operator) == "", config


@pytest.mark.parametrize("target", MACHINES)
def test_b_that_the_first_strip_packs_is_right_in_every_block(target: X86) -> None:
    operator = gemm(137, 263, 600, layout="nn")
    inner = "b" if target.has("avx512f") else "a"
    blocks = {"MC": 32, "NC": 128, "KC": 256, "PACK_B": "first", "INNER": inner, "NEXT_STRIP": inner == "b"}
    fetches = {"PACK_FETCH": True, "PREFETCH_A": 0, "NEXT_BLOCK": True}
    runs = Runs(FAMILY.emit(operator, target, {**FAMILY.default(operator, target), **blocks, **fetches}), target)
    assert complaints(runs, operator) == []
    assert runs.wrong(operator) == ""


@pytest.mark.parametrize("partition", ["m", "n", "mn", "k"])
def test_every_way_to_share_the_work_is_right(partition: str) -> None:
    operator, target = gemm(70, 131, 1500), NATIVE
    config = {**FAMILY.default(operator, target), "THREADS": 3, "PARTITION": partition, "TASKS": 2}
    runs = Runs(FAMILY.emit(operator, target, config), target)
    assert complaints(runs, operator) == []
    assert runs.wrong(replace(operator, beta=1.0)) == ""


@pytest.mark.parametrize(("partition", "packing"), [("n", "block"), ("m", "none"), ("k", "first")])
def test_threads_that_help_each_other_leave_nothing_out(partition: str, packing: str) -> None:
    operator = gemm(700, 320, 1000)
    config = {**FAMILY.default(operator, NATIVE), "KC": 256, "NC": 128, "MC": 256, "PACK_B": packing, "INNER": "b"}
    config |= {"PACK_FETCH": False, "THREADS": 4, "PARTITION": partition, "TASKS": 1}
    kernel = FAMILY.emit(operator, NATIVE, config)
    assert "-DHELP=1" in kernel.flags
    runs = Runs(kernel, NATIVE)
    # Fewer tasks than threads: idle threads help from the start, and there are too few strips for all to help.
    assert [runs.wrong(replace(operator, n=n, beta=0.5)) for n in (320, 16, 320, 70)] == [""] * 4
    assert complaints(runs, operator) == []


@pytest.mark.parametrize("target", MACHINES)
def test_a_batch_is_right_whether_threads_share_matrices_or_not(target: X86) -> None:
    operator = gemm(19, 33, 300, batch=5, layout="nt")
    default = FAMILY.default(operator, target)
    for partition in ("batch", "k"):
        config = {**default, "THREADS": 2, "PARTITION": partition, "TASKS": 2}
        runs = Runs(FAMILY.emit(operator, target, config), target)
        assert runs.wrong(operator) == "", partition
        assert runs.wrong(replace(operator, batch=1, m=3)) == "", partition
        assert runs.wrong(replace(operator, batch=1, beta=0.5)) == "", partition


@pytest.mark.parametrize("probe", gemm(8, 8, 8).probes())
@pytest.mark.parametrize("target", MACHINES)
def test_special_numbers_come_out_as_in_the_reference(target: X86, probe: str) -> None:
    operator = gemm(29, 45, 77)
    for packed in (False, True):
        packing = {"PACK_A": "panels", "PACK_B": "block"} if packed else {"PACK_A": "none", "PACK_B": "none"}
        config = {**FAMILY.default(operator, target), **packing, "INNER": "b"}
        assert Runs(FAMILY.emit(operator, target, config), target).wrong(operator, probe) == ""


@pytest.mark.parametrize(
    ("activation", "how"), [("gelu", {}), ("silu", {"SWAP": True, "THREADS": 2, "PARTITION": "k", "TASKS": 1})]
)
@pytest.mark.parametrize("target", MACHINES)
def test_bias_and_activation_follow_the_last_block_of_k(target: X86, activation: str, how: dict[str, object]) -> None:
    operator = gemm(37, 70, 300, layout="nt", bias=True, activation=activation, alpha=0.5)
    config = {**FAMILY.default(operator, target), "KC": 128, **how}
    runs = Runs(FAMILY.emit(operator, target, config), target)
    wrong = [runs.wrong(replace(operator, beta=beta)) for beta in (0.0, 1.0)]
    wrong += [runs.wrong(replace(operator, alpha=1.0), probe) for probe in operator.probes()]
    assert wrong == [""] * len(wrong)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_turned_product_is_the_same(layout: str) -> None:
    operator = gemm(45, 131, 300, layout=layout)
    turned = {"SWAP": True, "PACK_A": "panels", "PACK_B": "block", "THREADS": 2, "PARTITION": "mn", "TASKS": 2}
    runs = Runs(FAMILY.emit(operator, NATIVE, {**FAMILY.default(operator, NATIVE), **turned}), NATIVE)
    assert complaints(runs, operator) == []


@pytest.mark.parametrize("target", MACHINES)
def test_sums_along_k_are_right_on_all_sizes(target: X86) -> None:
    operator = gemm(8, 500, 1000, layout="nt", bias=True, activation="relu")
    config = next(config for config in FAMILY.ranked(operator, target) if config["KIND"] == "dot")
    runs = Runs(FAMILY.emit(operator, target, config), target)
    assert complaints(runs, operator) == []
    assert [runs.wrong(operator, probe) for probe in operator.probes()] == [""] * len(operator.probes())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("m", "n"), [(13, 400), (400, 13)])
@pytest.mark.parametrize("target", MACHINES)
def test_few_rows_or_columns_are_right_in_every_layout(target: X86, m: int, n: int, layout: str) -> None:
    """Alone where the other instruction set shares K between threads."""
    operator = gemm(m, n, 700, layout=layout, bias=True, activation="relu")
    swap = m > n
    thin = layout[0] == "t" if swap else layout[1] == "n"
    if thin:
        config = {"KIND": "thin", "MR": 8, "NR": 1, "NC": 128, "UNROLL": 8, "NEXT_BLOCK": True}
    else:
        config = {"KIND": "dot", "MR": 4, "NR": 2}
        config |= {} if (layout[1] == "t" if swap else layout[0] == "n") else {"KC": 256}
    config |= {"SWAP": swap, "PREFETCH": 8, "THREADS": 1}
    if (swap + LAYOUTS.index(layout) + target.has("avx512f")) % 2:
        config |= {"THREADS": 2, "PARTITION": "k", "TASKS": 1}
    assert FAMILY.space(operator, replace(target, cores=2)).explain(config) == []
    runs = Runs(FAMILY.emit(operator, target, config), target)
    assert complaints(runs, operator) == [] and runs.wrong(operator) == ""
    assert [runs.wrong(operator, probe) for probe in operator.probes()] == [""] * len(operator.probes())


def test_tasks_on_a_curve_cover_all_of_c() -> None:
    operator = gemm(200, 300, 64)
    config = {**FAMILY.default(operator, NATIVE), "THREADS": 2, "PARTITION": "mn", "TASKS": 8, "CURVE": True}
    runs = Runs(FAMILY.emit(operator, NATIVE, config), NATIVE)
    assert complaints(runs, operator) == [] and runs.wrong(operator) == ""


def test_packed_operands_in_huge_pages_are_right() -> None:
    operator = gemm(200, 300, 900, layout="nt")
    config = {**FAMILY.default(operator, NATIVE), "THREADS": 2, "PARTITION": "k", "TASKS": 1, "HUGE_PAGES": True}
    runs = Runs(FAMILY.emit(operator, NATIVE, config), NATIVE)
    assert runs.wrong(operator) == "" and complaints(runs, operator) == []


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_a_constant_b_packed_ahead_gives_the_same(layout: str) -> None:
    family = X86GemmConstant()
    operator = gemm(37, 131, 300, batch=3, layout=layout)
    config = {**family.default(operator, NATIVE), "KC": 128, "THREADS": 2, "PARTITION": "n", "TASKS": 1}
    runs = Runs(family.emit(operator, NATIVE, config), NATIVE)
    assert [runs.wrong(case) for case in (operator, replace(operator, batch=1, beta=1.0))] == ["", ""]


def test_a_constant_b_packed_ahead_is_right_in_every_block() -> None:
    family, operator, alone = X86GemmConstant(), gemm(137, 263, 600), replace(NATIVE, cores=1)
    blocks = {"MC": 32, "NC": 128, "KC": 256, "INNER": "b", "NEXT_STRIP": True, "NEXT_BLOCK": True, "PREFETCH_A": 0}
    config = {**family.default(operator, alone), **blocks}
    assert family.space(operator, alone).explain(config) == []
    runs = Runs(family.emit(operator, alone, config), alone)
    assert runs.wrong(operator) == "" and complaints(runs, operator) == []


@pytest.mark.parametrize("target", MACHINES)
def test_streamed_results_arrive(target: X86) -> None:
    operator = gemm(50, 128, 64)
    config = {**FAMILY.default(operator, target), "STREAM_C": True}
    assert FAMILY.space(operator, target).explain(config) == []
    runs = Runs(FAMILY.emit(operator, target, config), target)
    assert runs.wrong(operator) == ""
    assert runs.wrong(replace(operator, n=127)) == "", "rows that are not aligned cannot be streamed"
    assert runs.wrong(replace(operator, beta=1.0)) == ""


def test_a_kernel_can_be_called_again_and_from_several_threads() -> None:
    operator = gemm(64, 96, 600)
    config = {**FAMILY.default(operator, NATIVE), "THREADS": 2, "PARTITION": "k", "TASKS": 1}
    runs = Runs(FAMILY.emit(operator, NATIVE, config), NATIVE)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: runs.wrong(operator), range(40))) == [""] * 40


def test_unloading_a_kernel_ends_its_threads() -> None:
    script = """
import ctypes, _ctypes, os, sys, time
library = ctypes.CDLL(sys.argv[1])
a = (ctypes.c_float * 40000)(*([1.0] * 40000))
c = (ctypes.c_float * 40000)()
work = (ctypes.c_float * int(sys.argv[2]))()
sizes = [ctypes.c_int64(n) for n in (200, 200, 200, 1, 200, 200, 200, 0, 0, 0)]
before = len(os.listdir("/proc/self/task"))
library.deepgen_gemm(a, a, None, c, work, *sizes, ctypes.c_float(1), ctypes.c_float(0), ctypes.c_int32(3))
during = len(os.listdir("/proc/self/task"))
_ctypes.dlclose(library._handle)
deadline = time.monotonic() + 30  # a thread that was joined is listed until the system has cleared it away
while len(os.listdir("/proc/self/task")) > before and time.monotonic() < deadline:
    time.sleep(0.01)
print(c[0], during - before, len(os.listdir("/proc/self/task")) - before)
"""
    operator = gemm(200, 200, 200)
    config = {**FAMILY.default(operator, NATIVE), "THREADS": 3, "PARTITION": "n", "TASKS": 1}
    kernel = FAMILY.emit(operator, NATIVE, config)
    [workspace] = [arg.bytes for arg in kernel.plan.steps[0].args if isinstance(arg, WorkspaceArg)]
    binary = build_once(kernel, NATIVE).binary
    told = subprocess.run(
        [sys.executable, "-c", script, binary, str(workspace)], capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout.split() == ["200.0", "2", "0"]
