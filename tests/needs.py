"""Requirements of some tests on the machine; without them they are skipped with a reason."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from deepgen import targets
from deepgen.run.riscv.qemu import find as find_qemu
from deepgen.targets import X86, Riscv, Target
from deepgen.toolchains import Toolchain, build_once, toolchain_for
from deepgen.vocabulary import Artifact, Kernel, Missing


def x86() -> X86:
    """This machine's CPU, for tests that run x86 instructions; they are skipped on any other."""
    try:
        target = targets.resolve("x86:native")
    except Missing as missing:
        pytest.skip(f"x86 kernels do not run here: {missing.what} is missing", allow_module_level=True)
    assert isinstance(target, X86)
    return target


def qemu(name: str = "riscv:rv64gcv_zvl128b") -> Riscv:
    """A RISC-V target whose kernels can be built and run here; tests are skipped without a compiler or qemu."""
    target = targets.resolve(name)
    assert isinstance(target, Riscv)
    try:
        toolchain_for(target, "c")
        find_qemu()
    except Missing as missing:
        pytest.skip(f"{name} is neither built for nor run here: {missing.what} is missing", allow_module_level=True)
    return target


def toolchain(target: Target, language: str, paths: Mapping[str, str] | None = None) -> Toolchain:
    """The toolchain for that language and target; the test is skipped if it is not installed."""
    try:
        return toolchain_for(target, language, paths)
    except Missing as missing:
        pytest.skip(str(missing))


def built_here(kernel: Kernel, target: Target) -> Artifact:
    """The kernel, built; the test is skipped if no compiler for it is installed."""
    try:
        return build_once(kernel, target)
    except Missing as missing:
        pytest.skip(f"{target.name} cannot be built for here: {missing}")
