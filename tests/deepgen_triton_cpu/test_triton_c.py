"""The C generated for kernels, compared to golden files: loads of neighbours are plain loops, and little is stored."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("triton")
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import triton_calls
from deepgen_triton_cpu.lowering import lower, ttir_of

CONSTANTS = {
    "softmax": {"COLUMNS": 1024, "ROWS": 4},
    "layer_norm": {"BLOCK": 256},
    "matmul": {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 16, "GROUP": 8, "stride_ak": 1, "stride_bn": 1},
}
FLOATS, POINTERS = ("epsilon",), ("x", "y", "weight", "bias", "a", "b", "c")


@pytest.mark.parametrize("name", CONSTANTS)
def test_it_stays_as_it_was_looked_at(name: str, golden: Callable[[str, str], str]) -> None:
    _, function = triton_calls.example(name)
    constants = CONSTANTS[name]
    signature = {
        word: "constexpr" if word in constants else "*fp32" if word in POINTERS else "fp32" if word in FLOATS else "i32"
        for word in function.arg_names
    }
    assert golden(f"triton_cpu/{name}.c", lower(ttir_of(function, signature, constants, {})).text) == ""
