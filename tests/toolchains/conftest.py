"""Kernels, and compilers that misbehave: small scripts that act like a broken one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from build_helpers import Fake, c_kernel

from deepgen.targets import Cpu, host
from deepgen.targets.cpu import narrowed
from deepgen.toolchains import BuildLimits, Cache, Group, toolchain_for
from deepgen.toolchains.compilers.c import CCompiler

# In every script: the file to write is $out.
_PROLOGUE = """#!/bin/sh
out=
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
"""


@pytest.fixture
def target() -> Cpu:
    """The smallest target of this machine's kind: every compiler can build for it."""
    cpu = host.processor()
    return narrowed(cpu, next(iter(cpu.arches)))


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def group() -> Iterator[Group]:
    with Group() as group:
        yield group


@pytest.fixture
def gcc(target: Cpu) -> CCompiler:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    found = toolchain_for(target, "c", {"gcc": "gcc"})
    assert isinstance(found, CCompiler)
    return found


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """Makes a compiler from the lines of a shell script."""

    def make(body: str) -> CCompiler:
        script = tmp_path / f"fake{len(list(tmp_path.glob('fake*')))}"
        script.write_text(_PROLOGUE + body)
        script.chmod(0o755)
        return CCompiler("gcc", "12.0.0", str(script), (str(script),), "gcc", 12, host.machine(), f"fake {body}")

    return make


@pytest.fixture
def library(gcc: CCompiler, target: Cpu, group: Group, tmp_path: Path) -> Path:
    """A shared library for fake compilers to return."""
    folder = tmp_path / "library"
    folder.mkdir()
    return folder / gcc.build(c_kernel(), target, folder, BuildLimits(), group).binary
