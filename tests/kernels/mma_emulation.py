"""Runs emitted kernels on warp-wide products on the CPU: the SIMT family's emulation, with synchronised lanes of a
warp.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path

import numpy as np
import simt_emulation as simt

from deepgen.operators import Gemm
from deepgen.operators.base import Array
from deepgen.vocabulary import Kernel
from deepgen.vocabulary.dtypes import widen

COMPILER, NO_COMPILER = simt.COMPILER, simt.NO_COMPILER
_CONFLICTS = """
extern "C" i64 conflicts() { return emulate::conflicts; }
"""


def build(kernel: Kernel, folder: Path) -> ctypes.CDLL:
    """The kernel as a library for this machine. The kernel's own flags select the variant."""
    folder.mkdir(exist_ok=True)
    header = resources.files("deepgen.kernels.gemm.mma_gemm").joinpath("emulate_mma.h")
    (folder / header.name).write_text(header.read_text())
    library = simt.compiled(kernel, folder, simt.harness(kernel) + _CONFLICTS)
    library.conflicts.restype = ctypes.c_int64
    return library


def check(operator: Gemm, kernel: Kernel, folder: Path, times: int = 1) -> int:
    """Assert that the result is correct, run after run; returns how often rows of matrices had bank conflicts."""
    library = build(kernel, folder)
    error, found = simt.run(kernel, library, testable(operator), times=times)
    assert error == "" and found.ok, found
    return int(library.conflicts())


def testable(operator: Gemm) -> Gemm:
    """The operator with more revealing inputs: 8-bit floats from all bit patterns of moderate size, including tiny
    ones.
    """
    kind = _EightBits if operator.a.startswith("f8") else Gemm
    return kind(**{f.name: getattr(operator, f.name) for f in fields(Gemm)})


@dataclass(frozen=True)
class _EightBits(Gemm):
    def inputs(self, seed: int, probe: str = "normal") -> dict[str, Array]:
        rng, given, bits = np.random.default_rng(seed), super().inputs(seed, probe), np.arange(256, dtype=np.uint8)
        for name, kind in zip("AB", self.dtypes, strict=False):
            moderate = bits[np.abs(widen(bits, kind)) <= 4.0]
            given[name] = rng.choice(moderate, given[name].shape)
        return given
