"""gcc reads x86's header of intrinsics compiled, where a kernel includes it; what comes out is the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from build_helpers import c_kernel

from deepgen.targets import Cpu
from deepgen.toolchains import BuildLimits, Group
from deepgen.toolchains.compilers import c
from deepgen.toolchains.compilers.c import CCompiler
from deepgen.vocabulary import Kernel

INCLUDED = "#include <immintrin.h>\n"
ADDS = "void f(float *a) { _mm_storeu_ps(a, _mm_add_ps(_mm_loadu_ps(a), _mm_set1_ps(2.0f))); }\n"
FLAGS = ("-std=gnu11", "-pthread")


@pytest.fixture
def headers(gcc: CCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if gcc.machine != "x86_64":
        pytest.skip("the header is x86's")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "deepgen" / "headers"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, ...]]]:
    """What is added to each command, and gcc says where it does not take a compiled header."""
    added: list[tuple[str, ...]] = []
    find = c.compiled_header

    def noted(*args: object) -> tuple[str, ...]:
        added.append(find(*args))  # type: ignore[arg-type]
        return (*added[-1], "-Winvalid-pch", "-Werror") if added[-1] else ()

    monkeypatch.setattr(c, "compiled_header", noted)
    yield added


def _built(gcc: CCompiler, kernel: Kernel, target: Cpu, folder: Path) -> bytes:
    folder.mkdir()
    with Group() as group:
        return (folder / gcc.build(kernel, target, folder, BuildLimits(), group).binary).read_bytes()


def test_it_is_compiled_once_and_changes_nothing(
    gcc: CCompiler, target: Cpu, headers: Path, said: list[tuple[str, ...]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    kernel = c_kernel(INCLUDED + ADDS, *FLAGS)
    first, second = (_built(gcc, kernel, target, tmp_path / name) for name in ("first", "second"))
    _built(gcc, c_kernel(INCLUDED + ADDS, *FLAGS, "-DBLOCK=3", salt=1), target, tmp_path / "other macros")
    [kept] = headers.iterdir()
    assert said == [("-include", str(kept / "intrinsics.h"))] * 3
    monkeypatch.setattr(c, "compiled_header", lambda *_: ())
    assert first == second == _built(gcc, kernel, target, tmp_path / "without")
    assert headers.stat().st_mode & 0o077 == 0, "nobody else writes what kernels are compiled with"


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("void f(float *a) { a[0] += 2.0f; }\n", ()),
        ("#define _GNU_SOURCE\n#include <string.h>\n" + INCLUDED + ADDS, ()),
        ("#ifndef EMULATED\n" + INCLUDED + "#endif\n" + "void f(float *a) { a[0] = 1.0f; }\n", ("-DEMULATED",)),
        (INCLUDED + ADDS, ("-funroll-loops",)),
    ],
    ids=["not included", "something must come first", "left out", "a flag of its own"],
)
def test_only_kernels_that_include_it_get_it(
    text: str, flags: tuple[str, ...], gcc: CCompiler, target: Cpu, headers: Path, said: list[tuple[str, ...]],
    tmp_path: Path,
) -> None:  # fmt: skip
    _built(gcc, c_kernel(text, *flags), target, tmp_path / "work")
    assert said == [()] and not headers.exists()


def test_where_it_cannot_be_kept_kernels_are_built_without_it(
    gcc: CCompiler, target: Cpu, headers: Path, said: list[tuple[str, ...]], tmp_path: Path
) -> None:
    headers.parent.mkdir(parents=True)
    headers.write_text("a file in its place")
    _built(gcc, c_kernel(INCLUDED + ADDS, *FLAGS), target, tmp_path / "work")
    assert said == [()]


def test_what_was_left_half_done_or_is_of_another_gcc_is_not_read(
    gcc: CCompiler, target: Cpu, headers: Path, tmp_path: Path
) -> None:
    kernel = c_kernel(INCLUDED + ADDS, *FLAGS)
    first = _built(gcc, kernel, target, tmp_path / "first")
    [kept] = headers.iterdir()
    (kept / "intrinsics.h.gch").write_bytes(b"no header of gcc's")
    assert first == _built(gcc, kernel, target, tmp_path / "second")
