"""gcc reads only the x86 intrinsics that a kernel needs; the result is the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from build_helpers import c_kernel

from deepgen.targets import Cpu
from deepgen.toolchains import BuildError, BuildLimits, Group
from deepgen.toolchains.compilers import c
from deepgen.toolchains.compilers.c import CCompiler
from deepgen.toolchains.compilers.compiled_once import needed_of
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
    """The flags that are added to each command."""
    added: list[tuple[str, ...]] = []
    find = c.short_header

    def noted(*args: object) -> tuple[str, ...]:
        added.append(find(*args))  # type: ignore[arg-type]
        return added[-1]

    monkeypatch.setattr(c, "short_header", noted)
    yield added


def _built(gcc: CCompiler, kernel: Kernel, target: Cpu, folder: Path) -> bytes:
    folder.mkdir()
    with Group() as group:
        return (folder / gcc.build(kernel, target, folder, BuildLimits(), group).binary).read_bytes()


def test_it_is_made_once_and_changes_nothing(
    gcc: CCompiler, target: Cpu, headers: Path, said: list[tuple[str, ...]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    kernel = c_kernel(INCLUDED + ADDS, *FLAGS)
    first, second = (_built(gcc, kernel, target, tmp_path / name) for name in ("first", "second"))
    _built(gcc, c_kernel(INCLUDED + ADDS, *FLAGS, "-DBLOCK=3", salt=1), target, tmp_path / "other macros")
    [kept] = headers.iterdir()
    assert [added[:2] for added in said] == [("-include", str(kept / "intrinsics.h"))] * 3
    assert (kept / "intrinsics.h").stat().st_size < 100_000
    monkeypatch.setattr(c, "short_header", lambda *_: ())
    assert first == second == _built(gcc, kernel, target, tmp_path / "without")
    assert headers.stat().st_mode & 0o077 == 0, "nobody else writes what kernels are compiled with"


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("void f(float *a) { a[0] += 2.0f; }\n", ()),
        ("#define _GNU_SOURCE\n#include <string.h>\n" + INCLUDED + ADDS, ()),
        ("#ifndef EMULATED\n" + INCLUDED + "#endif\n" + "void f(float *a) { a[0] = 1.0f; }\n", ("-DEMULATED",)),
    ],
    ids=["not included", "something must come first", "left out"],
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


def test_a_kernel_that_does_not_build_with_it_is_built_without(
    gcc: CCompiler, target: Cpu, headers: Path, tmp_path: Path
) -> None:
    kernel = c_kernel(INCLUDED + ADDS, *FLAGS)
    first = _built(gcc, kernel, target, tmp_path / "first")
    [kept] = headers.iterdir()
    (kept / "intrinsics.h").write_text("#define _IMMINTRIN_H_INCLUDED\nno header at all\n")
    assert first == _built(gcc, kernel, target, tmp_path / "second")
    with pytest.raises(BuildError, match="unheard_of"):
        _built(gcc, c_kernel(INCLUDED + "void f(float *a) { unheard_of a; }\n", *FLAGS), target, tmp_path / "third")


HEADER = """#define _ALL_INCLUDED
typedef float __m128 __attribute__ ((__vector_size__ (16)));
extern __inline __m128 __attribute__((__gnu_inline__, __always_inline__, __artificial__))
_mm_twice (__m128 __a)
{
  return _mm_add (__a, __a);
}
#define _MM_HINT 3
#define _MM_OTHER 4
  extern __inline __m128
  __attribute__((__gnu_inline__))
  _mm_add (__m128 __a, __m128 __b)
  {
    if (_MM_HINT) { return __a; }
    return __a + __b;
  }
extern __inline int
_mm_unused (int __a)
{
  return __a;
}
"""


def test_what_is_needed_brings_what_it_needs_itself() -> None:
    short = needed_of(HEADER, ["_mm_twice", "_mm_elsewhere"])
    assert all(word in short for word in ("_ALL_INCLUDED", "typedef", "_mm_twice (", "_mm_add (", "_MM_HINT 3"))
    assert "_mm_unused" not in short and "_MM_OTHER" not in short
    assert short.count("{") == short.count("}") == 3
    assert needed_of(HEADER, []) == "".join(HEADER.splitlines(keepends=True)[:2])


GUARDED = """#pragma GCC push_options
#pragma GCC target("outer")
#define _OUTER_INCLUDED
#pragma GCC push_options
#pragma GCC target ("inner")
extern __inline int
_mm_inner (int __a)
{
  return __a;
}
#undef __DISABLE_INNER__
#pragma GCC pop_options
#pragma GCC pop_options
"""


def test_instruction_sets_that_no_function_is_left_of_are_not_switched_to() -> None:
    assert needed_of(GUARDED, ["_mm_inner"]) == GUARDED
    assert needed_of(GUARDED, []) == "#define _OUTER_INCLUDED\n#undef __DISABLE_INNER__\n"


def test_what_comes_of_the_c_library_with_the_header_is_still_there(
    gcc: CCompiler, target: Cpu, headers: Path, said: list[tuple[str, ...]], tmp_path: Path
) -> None:
    _built(gcc, c_kernel(INCLUDED + "void f(float *a) { free(a); }\n", *FLAGS), target, tmp_path / "work")
    assert "mm_malloc" in next(headers.rglob("intrinsics.h")).read_text()
