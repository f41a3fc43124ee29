"""What is the same in many kernels is compiled once and linked to each."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
from build_helpers import c_kernel

from deepgen.targets import Cpu
from deepgen.toolchains import BuildLimits, Group
from deepgen.toolchains.compilers import compiled_once
from deepgen.toolchains.compilers.c import CCompiler
from deepgen.vocabulary import Kernel, Source

HEADER = """
#if defined(PART_APART) || defined(PART_ALONE)
#define PART __attribute__((visibility("hidden")))
#else
#define PART static
#endif
PART int part(void);
#ifndef PART_APART
PART int part(void) { return 7; }
#endif
"""


@pytest.fixture
def compiled(gcc: CCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of gcc that compile parts."""
    if gcc.machine != "x86_64":
        pytest.skip("parts are compiled once on x86")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    commands: list[list[str]] = []
    run = compiled_once.run_judged

    def noted(name: str, argv: list[str], *rest: object) -> object:
        commands.append(argv)
        return run(name, argv, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(compiled_once, "run_judged", noted)
    return commands


def _result(gcc: CCompiler, target: Cpu, folder: Path, text: str, *flags: str) -> int:
    kernel: Kernel = c_kernel(f'#include "part.h"\n{text}', *flags)
    kernel = replace(kernel, sources=(*kernel.sources, Source("part.h", HEADER)))
    folder.mkdir()
    with Group() as group:
        binary = folder / gcc.build(kernel, target, folder, BuildLimits(), group).binary
    library = ctypes.CDLL(str(binary))
    assert not hasattr(library, "part"), "kernels would share it"
    return int(library.f())


def test_a_part_is_compiled_once(gcc: CCompiler, target: Cpu, tmp_path: Path, compiled: list[list[str]]) -> None:
    assert _result(gcc, target, tmp_path / "1", "int f(void) { return part(); }\n") == 7
    assert _result(gcc, target, tmp_path / "2", "int f(void) { return part() + B; }\n", "-DB=1") == 8
    assert len(compiled) == 1
    refused = "#ifdef PART_APART\n#error\n#endif\nint f(void) { return part(); }\n"
    assert _result(gcc, target, tmp_path / "3", refused) == 7, "then it is compiled as a whole"


def test_a_part_that_does_not_compile_alone_stays(
    gcc: CCompiler, target: Cpu, tmp_path: Path, compiled: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "HEADER", HEADER.replace("return 7", "return N"))
    assert _result(gcc, target, tmp_path / "1", "int f(void) { return part(); }\n", "-DN=3") == 3
    assert not [*(tmp_path / "caches").rglob("*.o")]
