"""Unsupported operations are refused by name, with their place in the source."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("triton")
import kernels
from deepgen.vocabulary import BadInput
from deepgen_triton_cpu.lowering import lower, ttir_of
from deepgen_triton_cpu.lowering.ttir import require_release


def test_an_operation_is_named_with_its_line() -> None:
    text = ttir_of(kernels.assembled, {"x": "*fp32", "y": "*fp32", "B": "constexpr"}, {"B": 16}, {})
    with pytest.raises(BadInput, match=r"tt\.elementwise_inline_asm is not supported on CPUs") as told:
        lower(text)
    lines = Path(kernels.__file__).read_text().splitlines()
    line = next(n for n, line in enumerate(lines, 1) if "inline_asm_elementwise" in line)
    assert f"kernels.py:{line}" in str(told.value)


@pytest.mark.parametrize("version", ["3.6.0", "4.0.0", "3.90.1"])
def test_other_releases_are_refused(version: str) -> None:
    with pytest.raises(BadInput, match=version.replace(".", r"\.")):
        require_release(version)
    require_release("3.9.1")
