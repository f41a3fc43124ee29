"""deepgen's own targets pass the suite."""

from __future__ import annotations

from deepgen.testing import TargetSuite


class TestTargets(TargetSuite):
    names = (
        "cpu",
        "x86:avx2",
        "x86:avx512",
        "arm:neon",
        "riscv:rv64gcv_zvl256b",
        "riscv:k1",
        "cuda:sm_90a",
        "cuda:h200",
        "hip:gfx906",
        "hip:z100",
        "sim",
        "sim:faults=0.5",
        "vta",
    )
