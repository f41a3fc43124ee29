"""A kernel that overwrites its inputs in spite of their protection is wrong, and its rivals are not affected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from faulty_kernels import TARGET, build, kernel

from deepgen.operators import gemm
from deepgen.run.measure import cpu_entrant
from deepgen.run.measure.base import Contender, Policy, Task
from deepgen.run.measure.supervisor import Supervisor
from deepgen.vocabulary import Verdict

_WRITES = """
#include <sys/mman.h>
static void overwrite(const float *A, long n) {
    unsigned long first = (unsigned long)A / 65536 * 65536;
    mprotect((void *)first, (unsigned long)(A + n) - first, PROT_READ | PROT_WRITE);
    for (long i = 0; i < n; i++) ((float *)A)[i] = 1;
    PROTECTED
}
"""
_AGAIN = "mprotect((void *)first, (unsigned long)(A + n) - first, PROT_READ);"


@pytest.fixture(scope="module")
def supervisor() -> Iterator[Supervisor]:
    supervisor = Supervisor(Task(gemm(37, 29, 23), TARGET, policy=Policy(min_samples=3, max_samples=6)))
    yield supervisor
    supervisor.close()


@pytest.mark.parametrize("protected", ["", _AGAIN])
@pytest.mark.parametrize("when", ["calls > 0", "calls > 30"])
def test_it_is_found_out_and_the_others_are_right(when: str, protected: str, supervisor: Supervisor) -> None:
    bad = kernel(
        f"multiply(A, B, C, M, N, K); if ({when}) overwrite(A, M * K);", _WRITES.replace("PROTECTED", protected)
    )
    good = kernel()
    contenders = [Contender(n, k, build(k)) for n, k in (("bad", bad), ("good", good), ("again", good))]
    results = supervisor.compare(contenders, 40, 1)
    assert [m.verdict for m in results] == [Verdict.WRONG, Verdict.CORRECT, Verdict.CORRECT], results
    assert "wrote to its input A (at byte 0)" in results[0].detail


@pytest.mark.parametrize("size", [700, 3000])
def test_large_inputs_are_fresh_for_each_contender(size: int) -> None:
    """Inputs this large are not compared after every run, or not after timed runs."""
    operator = gemm(size, 4, size)
    assert cpu_entrant._COMPARED_IF_TIMED < 4 * 700 * 700 < cpu_entrant._COMPARED_BYTES < 4 * 3000 * 3000
    supervisor = Supervisor(Task(operator, TARGET, policy=Policy(min_samples=3, max_samples=3)))
    bad = kernel("multiply(A, B, C, M, N, K); if (calls > 1) overwrite(A, M * K);", _WRITES.replace("PROTECTED", ""))
    built = [Contender(n, k, build(k)) for n, k in (("bad", bad), ("good", kernel()))]
    try:
        results = supervisor.compare(built, 3, 1)
    finally:
        supervisor.close()
    assert [m.verdict for m in results] == [Verdict.WRONG, Verdict.CORRECT], results
