"""Kernels for RISC-V under qemu: errors are reported, and the instructions of correct ones are counted exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from riscv_products import LOOPS, OPERATOR, kernel_of

import needs
from deepgen import targets
from deepgen.run.measure import Policy, Task, open_runner
from deepgen.run.riscv.program import InstructionCounts
from deepgen.run.riscv.qemu import find
from deepgen.run.riscv.runner import RiscvRunner
from deepgen.targets.riscv import TABLES
from deepgen.toolchains import Cache, build_once, instruction_mix
from deepgen.vocabulary import Artifact, Kernel, Measurement, Verdict

TARGET = needs.qemu("riscv:rv64gcv_zvl128b")
# What a kernel does after a correct product, if requested; all in one program.
FAULTS = {
    "a wrong number": ("C[3] += 1;", Verdict.WRONG, "C"),
    "a number not written": ("memset(C, 0xFF, 4);", Verdict.WRONG, "C"),
    "a write past the end": ("C[M * N] = 1;", Verdict.WRONG, "wrote past the end of C (at byte 120 of 120)"),
    "a write before the start": ("C[-1] = 1;", Verdict.WRONG, "wrote before the start of C (at byte -1"),
    "a read far past the end": ("C[0] += B[90000];", Verdict.CRASHED, "SIGSEGV past the end of B"),
    "a write to an input": ("((float *)A)[2] = 1;", Verdict.CRASHED, "writing to A"),
    "a null pointer": ("*(volatile int *)8 = 1;", Verdict.CRASHED, "SIGSEGV"),
    "an unknown instruction": ('__asm__ volatile(".word 0");', Verdict.CRASHED, "SIGILL"),
    "an end of the process": ("exit(0);", Verdict.CRASHED, "exit code 0 before its runs were done"),
    "an abort": ("abort();", Verdict.CRASHED, "SIGABRT"),
    "no end": ('for (;;) __asm__ volatile("");', Verdict.TIMED_OUT, "did not finish"),
    "another rounding": ('__asm__ volatile("fsrmi 1");', Verdict.WRONG, "the rounding mode"),
    "an old result": (
        "static float kept[64]; static int done;"
        "if (done++) memcpy(C, kept, 4 * M * N); else memcpy(kept, C, 4 * M * N);",
        Verdict.WRONG,
        "correct at first but not on call 2",
    ),
}
VECTORS = """
    float x[64];  // whatever it holds: some compilers would clear it by vectors of their own
    long left = 10, length;
    __asm__ volatile(
        "1: vsetvli %1, %3, e32, m4, ta, ma\\n vle32.v v8, (%2)\\n vfmacc.vv v16, v8, v8\\n vle8.v v4, (%2)\\n"
        "vfwmul.vv v24, v8, v8\\n"
        "vsetvli %1, %3, e32, mf2, ta, ma\\n vlse32.v v8, (%2), x0\\n vfadd.vv v9, v8, v8\\n"
        "vs2r.v v8, (%2)\\n vfdiv.vv v9, v8, v8\\n vredsum.vs v9, v8, v8\\n vslide1up.vx v10, v8, x0\\n"
        "addi %0, %0, -1\\n bnez %0, 1b" : "+r"(left), "=&r"(length) : "r"(x), "r"(2L) : "memory");
"""
# Wrong if A starts one element after a cache line.
ALIGNED = "if (((long)A & 63) == 4) C[3] += 1;"
CASES = [body for body, _, _ in FAULTS.values()] + [VECTORS, ALIGNED]


def kernel(fault: int = -1) -> Kernel:
    """The number of the fault is an argument, so that one program has them all."""
    cases = "".join(f"case {number}: {{ {body} }} break;" for number, body in enumerate(CASES))
    return kernel_of(f"{LOOPS} switch (fault) {{ {cases} }}", fault=fault)


def built() -> Artifact:
    return build_once(kernel(), TARGET)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RiscvRunner]:
    cache = Cache(tmp_path_factory.mktemp("cache"))
    made = RiscvRunner(Task(OPERATOR, TARGET, policy=Policy(timeout_seconds=60.0)), cache=cache)
    yield made
    made.close()


def measured(runner: RiscvRunner, fault: int = -1) -> Measurement:
    return runner.measure(kernel(fault), built())


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_told(runner: RiscvRunner, fault: str) -> None:
    _, verdict, words = FAULTS[fault]
    hurried = RiscvRunner(Task(OPERATOR, TARGET, policy=Policy(timeout_seconds=1.0))) if fault == "no end" else None
    found = measured(hurried or runner, list(FAULTS).index(fault))
    assert (found.verdict, words in found.detail) == (verdict, True), found
    assert not found.samples


def test_tensors_lie_one_element_off_too(runner: RiscvRunner) -> None:
    assert runner.verify(kernel(), built(), 2, "normal").ok
    found = runner.verify(kernel(CASES.index(ALIGNED)), built(), 2, "normal")
    assert found.verdict is Verdict.WRONG and "aligned only to their element size" in found.detail, found


def test_a_right_kernel_has_the_same_cost_whenever_it_runs(runner: RiscvRunner) -> None:
    first, second = measured(runner), measured(runner)
    assert first.ok and first.samples == second.samples and first.counters == second.counters
    assert "not times" in str(first.conditions["proxy"])


def test_counts_are_exact(runner: RiscvRunner) -> None:
    """Hand-written instructions in a loop of 10, in addition to a scalar product."""
    found, without = measured(runner, len(FAULTS)).counters, measured(runner).counters
    by_hand = {
        "vset": 20, "vector_load_unit_m4": 10, "vector_arithmetic_m4": 10, "vector_load_unit_m1": 10,
        "vector_widening_m8": 10, "vector_load_strided_mf2": 10, "vector_arithmetic_mf2": 10,
        "vector_store_unit_m2": 10, "vector_divide_mf2": 10, "vector_reduction_mf2": 10, "vector_permutation_mf2": 10,
    }  # fmt: skip
    more = {name: found.get(name, 0) - without.get(name, 0) for name in {*found, *without}}
    assert {name: count for name, count in more.items() if count and name.startswith("v")} == by_hand


def test_a_qemu_without_plugins_counts_the_same(runner: RiscvRunner, tmp_path: Path) -> None:
    """From its log, as needed on Debian 13; a truncated log gives no count."""
    plain = tmp_path / "qemu-riscv64"
    plain.write_text(f'#!/bin/sh\n[ "$1" = -help ] && exit 0\nexec {find()[0]} "$@"\n')
    plain.chmod(0o755)
    logged = RiscvRunner(Task(OPERATOR, TARGET), cache=tmp_path / "cache", toolchains={"qemu-riscv64": str(plain)})
    for fault in (-1, len(FAULTS)):
        assert measured(logged, fault).counters == measured(runner, fault).counters
    assert measured(logged, list(FAULTS).index("a null pointer")).verdict is Verdict.CRASHED
    logged.close()


def test_one_binary_serves_longer_vectors() -> None:
    for bits in (256, 512):
        longer = open_runner(Task(OPERATOR, targets.resolve(f"riscv:rv64gcv_zvl{bits}b")))
        assert longer.measure(kernel(), built()).ok
        longer.close()


def test_a_kernel_finds_no_zeros_in_fresh_memory_and_edges_are_exact(runner: RiscvRunner) -> None:
    for probe in OPERATOR.probes():
        assert runner.verify(kernel(), built(), 5, probe).ok, probe


def test_the_assembly_lies_beside_the_program() -> None:
    program = Path(built().binary)
    assert "\nf:" in (program.parent / "kernel.s").read_text()
    mix = instruction_mix(program, TARGET)
    assert mix["vector"] > 0.0 and mix["branches"] > 0.0 and mix["instructions"] < 1000


def test_costs_are_weighted_by_registers() -> None:
    counts = InstructionCounts.from_text("scalar 0 10\nvector_arithmetic 32 5\nvector_load_unit 4 2\nvset 0 1\n")
    assert counts.instructions == 18
    assert counts.cycles(TABLES["lmul"]) == 10 + 5 * 4 + 2 * 1 + 1
    assert counts.cycles(TABLES["p600"]) == 10 * 0.25 + 5 * 4 * 0.5 + 2 + 1
    assert counts.cycles(replace(TABLES["lmul"], register={"vector_arithmetic": 3.0})) == 10 + 5 * 4 * 3 + 2 + 1
