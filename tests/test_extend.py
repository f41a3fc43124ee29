"""What extensions import is there under one name, and loads no more than it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import deepgen
from deepgen import extend


@pytest.mark.parametrize("module", [deepgen, extend])
def test_every_public_name_resolves(module: object) -> None:
    names = module.__all__  # type: ignore[attr-defined]
    assert list(names) == sorted(set(names))
    assert set(names) <= set(dir(module))
    for name in dir(module):
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing  # type: ignore[attr-defined]


def test_an_operator_needs_no_search_and_no_command_line() -> None:
    program = "import sys; from deepgen.extend import Operator; print(*filter(lambda m: 'deepgen' in m, sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "deepgen.operators" in done.stdout
    assert not any(
        layer in done.stdout for layer in ("deepgen.tuning.search", "deepgen.tuning", "deepgen.frontends.cli")
    )
