"""Kernels, and compilers that misbehave: small scripts with the manners of a broken one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from build_helpers import Fake, c_kernel

from deepgen.build import BuildLimits, Cache, Group, toolchain_for
from deepgen.build.toolchains.c import CCompiler
from deepgen.targets import X86

# In every script: the file to write is $out.
_PROLOGUE = """#!/bin/sh
out=
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
"""


@pytest.fixture
def target() -> X86:
    """A machine that every compiler can build for."""
    return X86("x86:avx2", "test", ("sse2", "avx", "fma", "avx2"), 2, 32 << 10, 1 << 20, 8 << 20)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def group() -> Iterator[Group]:
    with Group() as group:
        yield group


@pytest.fixture
def gcc(target: X86) -> CCompiler:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    found = toolchain_for(target, "c", {"gcc": "gcc"})
    assert isinstance(found, CCompiler)
    return found


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """Makes a compiler of the lines of a shell script."""

    def make(body: str) -> CCompiler:
        script = tmp_path / f"fake{len(list(tmp_path.glob('fake*')))}"
        script.write_text(_PROLOGUE + body)
        script.chmod(0o755)
        return CCompiler("gcc", "12.0.0", str(script), (str(script),), "gcc", 12, f"fake {body}")

    return make


@pytest.fixture
def library(gcc: CCompiler, target: X86, group: Group, tmp_path: Path) -> Path:
    """A shared library for fake compilers to give."""
    folder = tmp_path / "library"
    folder.mkdir()
    return folder / gcc.build(c_kernel(), target, folder, BuildLimits(), group).binary
