"""C kernels become shared libraries that run; a failure on the way is reported in one sentence."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import replace
from pathlib import Path

import pytest
from build_helpers import Fake, c_kernel

import needs
from deepgen import targets
from deepgen.targets import Cpu, Target
from deepgen.toolchains import BuildError, BuildLimits, Cache, Group, ToolStatus, build_once, survey
from deepgen.toolchains.compilers.c import CCompiler, gcc_or_clang
from deepgen.vocabulary import BadInput, Kernel, Source, Verdict


@functools.cache
def surveyed() -> dict[str, ToolStatus]:
    return {status.name: status for status in survey()}


@pytest.fixture(params=["gcc", "clang", "zig"])
def compiler(request: pytest.FixtureRequest, target: Cpu) -> CCompiler:
    return _for(request.param, target)


def _for(tool: str, target: Target) -> CCompiler:
    status = surveyed()[tool]
    if status.path is None:
        pytest.skip(f"{status.name} is {status.problem}. {status.remedy}")
    found = needs.toolchain(target, "c", {tool: status.path})
    if found.name != tool:
        pytest.skip(f"{status.path} does not build for {target.name}")
    assert isinstance(found, CCompiler)
    return found


def failure(compiler: CCompiler, kernel: Kernel, target: Cpu, folder: Path, **limits: float) -> BuildError:
    with Group() as group, pytest.raises(BuildError) as caught:
        compiler.build(kernel, target, folder, BuildLimits(**limits), group)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.slow
def test_every_compiler_builds_a_library_that_runs(
    compiler: CCompiler, target: Cpu, tmp_path: Path, group: Group
) -> None:
    text = '#include "other.h"\n#include <math.h>\n' + "float root(float x) { return sqrtf(x) + ZERO + expf(-1e9f); }\n"
    kernel = replace(c_kernel(text), sources=(Source("k.c", text), Source("other.h", "#define ZERO 0.0f\n")))
    built = compiler.build(kernel, target, tmp_path, BuildLimits(), group)
    root = ctypes.CDLL(str(tmp_path / built.binary)).root
    root.restype, root.argtypes = ctypes.c_float, [ctypes.c_float]
    assert root(16.0) == 4.0
    assert built.format == "so"
    assert 0 < int(built.facts["code_bytes"]) < 4000  # type: ignore[arg-type]


LOOP = "void f(float *a, const float *b) { for (int i = 0; i < 64; i++) a[i] += 2.0f * b[i]; }\n"
TILES = "#include <immintrin.h>\nvoid f(void) { _tile_dpbf16ps(0, 1, 2); _tile_release(); }\n"
DOTS = "#include <arm_neon.h>\nint32x4_t f(int32x4_t a, int8x16_t b) { return vdotq_s32(a, b, b); }\n"


@pytest.mark.parametrize("tool", ["gcc", "clang", "zig"])
@pytest.mark.parametrize(
    ("name", "source", "used", "unused"),
    [
        ("x86:avx2", LOOP, "vfmadd", "%zmm"),
        ("x86:avx512", LOOP, "%zmm", "%tmm"),
        ("x86:amx", TILES, "tdpbf16ps", "%zmm"),
        ("arm:neon", LOOP, "fmla", "%zmm"),
        ("arm:neon_dot", DOTS, "sdot", "fmla"),
    ],
)
def test_every_compiler_uses_the_targets_instructions_and_no_others(
    tool: str, name: str, source: str, used: str, unused: str, tmp_path: Path
) -> None:
    target = targets.resolve(name)
    found = _for(tool, target)
    text = found.assembly(c_kernel(source), target, tmp_path)
    assert used in text and unused not in text


def test_a_target_without_an_instruction_set_does_not_get_it(tmp_path: Path) -> None:
    elsewhere = targets.resolve("arm:neon")
    with pytest.raises(BuildError, match="rejected the source"):
        _for("zig", elsewhere).assembly(c_kernel(DOTS), elsewhere, tmp_path)


def test_the_same_kernel_gives_the_same_bytes_in_any_folder(
    compiler: CCompiler, target: Cpu, tmp_path: Path, group: Group
) -> None:
    images = []
    for name in ("here", "there"):
        folder = tmp_path / name
        folder.mkdir()
        images.append((folder / compiler.build(c_kernel(), target, folder, BuildLimits(), group).binary).read_bytes())
    assert images[0] == images[1]


def test_every_compiler_tells_the_first_error_of_a_bad_source(compiler: CCompiler, target: Cpu, tmp_path: Path) -> None:
    error = failure(
        compiler, c_kernel("int f(void) {\n  return nowhere;\n}\nint g(void) { return x; }\n"), target, tmp_path
    )
    assert error.verdict is Verdict.BUILD_FAILED
    assert error.lasting
    assert error.detail.startswith(f"{compiler.name} rejected the source: add.c:2:10: error:")
    assert "nowhere" in error.detail
    assert "\n" not in error.detail
    assert "add.c:4" in error.log


def test_spills_show_as_stack(gcc: CCompiler, target: Cpu, tmp_path: Path, group: Group) -> None:
    text = "void g(float *);\nvoid f(void) { float x[1000]; g(x); }\n"
    assert int(gcc.build(c_kernel(text), target, tmp_path, BuildLimits(), group).facts["stack_bytes"]) >= 4000  # type: ignore[arg-type]


def test_the_kernels_own_flags_win(gcc: CCompiler, target: Cpu, tmp_path: Path) -> None:
    doubled = "float f(float a) { return a * __OPTIMIZE__ * 2; }"
    gcc.assembly(c_kernel(doubled), target, tmp_path)
    with pytest.raises(BuildError, match="__OPTIMIZE__"):
        gcc.assembly(c_kernel(doubled, "-O0"), target, tmp_path)


def test_a_symbol_that_is_nowhere_is_told(gcc: CCompiler, target: Cpu, tmp_path: Path) -> None:
    error = failure(gcc, c_kernel("int g(void); int f(void) { return g(); }", "-Wl,-z,defs"), target, tmp_path)
    assert "undefined reference to `g'" in error.detail


def test_too_little_memory_is_told(gcc: CCompiler, target: Cpu, tmp_path: Path) -> None:
    table = "int x[] = {" + "1+__COUNTER__," * 400_000 + "};\n"
    error = failure(gcc, c_kernel(table), target, tmp_path, memory_bytes=64 << 20)
    assert error.verdict is Verdict.OUT_OF_MEMORY
    assert error.detail == "gcc needed more than 64 MiB of memory"
    assert not error.lasting


def test_too_much_cpu_time_is_told(gcc: CCompiler, target: Cpu, tmp_path: Path) -> None:
    # Each macro doubles: far more text than any compiler can read in a second.
    text = "#define A0 +1\n" + "".join(f"#define A{i + 1} A{i} A{i}\n" for i in range(40)) + "int x = A40;\n"
    error = failure(gcc, c_kernel(text), target, tmp_path, cpu_seconds=1)
    assert error.verdict is Verdict.BUILD_TIMEOUT
    assert error.detail == "gcc used more than 1 s of CPU time"


@pytest.mark.parametrize(
    ("body", "verdict", "detail"),
    [
        ("kill -SEGV $$", Verdict.BUILD_FAILED, "gcc crashed with SIGSEGV"),
        (
            "echo 'k.c:1: internal compiler error: in foo'; exit 4",
            Verdict.BUILD_FAILED,
            "gcc crashed: internal compiler",
        ),
        ("sleep 1000", Verdict.BUILD_TIMEOUT, "gcc did not finish within 0.5 s"),
        ("yes warning: all is bad", Verdict.BUILD_FAILED, "gcc printed more than 16 MiB and was stopped"),
        ("exit 0", Verdict.BUILD_FAILED, "gcc reported success but wrote no shared library"),
        ("echo garbage > $out", Verdict.BUILD_FAILED, "gcc reported success but wrote not a 64-bit ELF file"),
        ("exit 7", Verdict.BUILD_FAILED, "gcc ended with exit code 7: and printed nothing"),
        ("kill -KILL $$", Verdict.OUT_OF_MEMORY, "gcc was killed from outside"),
        ("head -c 2000000000 /dev/zero > $out", Verdict.BUILD_FAILED, "gcc wrote a file of more than 1 MiB"),
    ],
)
def test_each_way_to_fail_has_its_verdict_and_sentence(
    fake: Fake, target: Cpu, tmp_path: Path, body: str, verdict: Verdict, detail: str
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    limits = {"wall_seconds": 0.5 if "sleep" in body else 60.0, "file_bytes": 1 << 20}
    error = failure(fake(body), c_kernel(), target, folder, **limits)
    assert error.verdict is verdict
    assert error.detail.startswith(detail)
    assert len(error.log) < 70_000


def test_an_old_compiler_is_not_asked_for_what_it_does_not_know() -> None:
    says = "gcc (Ubuntu 9.4.0-1ubuntu1) 9.4.0\nCopyright GCC\n"
    old = gcc_or_clang("gcc", "/usr/bin/gcc-9", says, "x86_64-linux-gnu\n")
    flags = old._flags(("sse2", "avx2", "avx512f", "amx_tile", "avx512_fp16"))
    assert "-mavx512f" in flags
    assert "-mamx-tile" not in flags
    assert "-mtune=skylake-avx512" in flags
    newer = gcc_or_clang("gcc", "/usr/bin/gcc-13", says.replace("9.4", "13.3"), "x86_64-linux-gnu\n")
    flags = newer._flags(("sse2", "avx2", "avx512f", "avx512_vnni", "amx_tile"))
    assert "-mamx-tile" in flags and "-mtune=skylake-avx512" in flags, "with another gcc schedules for seconds"
    arm = gcc_or_clang("gcc", "/usr/bin/gcc-9", says, "aarch64-linux-gnu\n")
    assert "-march=armv8.2-a+lse+dotprod" in arm._flags(("asimd", "atomics", "asimddp", "bf16", "sve2"))


def test_versions_are_read_from_what_compilers_say_of_themselves() -> None:
    clang = gcc_or_clang("clang", "/usr/bin/clang-19", "Debian clang version 19.1.7 (3~deb12u1)\n", "x86_64-pc-linux\n")
    assert (clang.version, clang.major, clang.family, clang.machine) == ("19.1.7", 19, "clang", "x86_64")
    says = "gcc (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright\n"
    gcc = gcc_or_clang("gcc", "/usr/bin/gcc", says, "aarch64-linux-gnu\n")
    assert (gcc.version, gcc.major, gcc.family, gcc.machine) == ("12.2.0", 12, "gcc", "aarch64")
    with pytest.raises(ValueError, match="busybox"):
        gcc_or_clang("gcc", "/bin/busybox", "busybox 1.36\n", "")


@pytest.mark.parametrize("name", ["/etc/evil.c", "../evil.c", "-evil.c", ""])
def test_sources_stay_in_their_folder(gcc: CCompiler, target: Cpu, tmp_path: Path, group: Group, name: str) -> None:
    kernel = replace(c_kernel(), sources=(Source(name, "int x;"),))
    with pytest.raises(BadInput, match="relative path"):
        gcc.build(kernel, target, tmp_path, BuildLimits(), group)
    assert not (tmp_path.parent / "evil.c").exists()


def test_one_call_builds_one_kernel(target: Cpu, gcc: CCompiler, cache: Cache) -> None:
    artifact = build_once(c_kernel(), target, paths={"gcc": gcc.path}, cache=cache)
    assert ctypes.CDLL(artifact.binary).add(40, 2) == 42
    assert artifact.toolchain == f"gcc {gcc.version}"
    assert build_once(c_kernel(), target, paths={"gcc": gcc.path}, cache=cache) == artifact
