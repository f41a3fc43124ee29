"""What some tests need of the machine they run on; without it they are skipped, in words."""

from __future__ import annotations

import pytest

from deepgen import targets
from deepgen.targets import X86
from deepgen.vocabulary import Missing


def x86() -> X86:
    """This machine's processor, for tests that run x86 instructions; they are skipped on any other."""
    try:
        target = targets.resolve("x86:native")
    except Missing as missing:
        pytest.skip(f"x86 kernels do not run here: {missing.what} is missing", allow_module_level=True)
    assert isinstance(target, X86)
    return target
