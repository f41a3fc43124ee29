"""The right toolchain is found, user settings are honoured, and missing tools are named with a remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deepgen import targets
from deepgen.targets import Cpu, host
from deepgen.toolchains import TOOLS, programs, survey, toolchain_for
from deepgen.toolchains.compilers.c import CCompiler
from deepgen.toolchains.compilers.sim import SimToolchain
from deepgen.vocabulary import BadInput, Missing


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A machine with only the tools put here, each with a name and version output."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)  # no packaged zig either

    def put(name: str, says: str, machine: str = host.machine()) -> Path:
        tool = folder / name
        tool.write_text(f"#!/bin/sh\n[ $1 = -dumpmachine ] && echo {machine}-linux-gnu || echo '{says}'\n")
        tool.chmod(0o755)
        return tool

    return put


def test_gcc_comes_before_clang_and_the_newest_clang_first(target: Cpu, tools: Callable[..., Path]) -> None:
    for version in (9, 19, 14):
        tools(f"clang-{version}", f"clang version {version}.0.1")
    found = toolchain_for(target, "c")
    assert (found.name, found.version) == ("clang", "19.0.1")
    tools("gcc", "gcc (Any) 13.2.0")
    assert toolchain_for(target, "c").name == "gcc"
    assert toolchain_for(target, "c", {"clang": "clang-14"}).version == "14.0.1"


def test_a_compiler_for_another_kind_of_machine_is_passed_over(target: Cpu, tools: Callable[..., Path]) -> None:
    tools("gcc", "gcc (Any) 13.2.0", "riscv64")
    with pytest.raises(Missing, match=f"a C compiler for {target.machine} is missing.*gcc builds for riscv64.*ziglang"):
        toolchain_for(target, "c")
    tools("clang", "clang version 19.0.1")
    assert toolchain_for(target, "c").name == "clang"


def test_zig_builds_for_processors_that_are_elsewhere(tools: Callable[..., Path]) -> None:
    tools("gcc", "gcc (Any) 13.2.0")
    tools("zig", "0.14.0")
    for name in ("x86:avx512", "arm:neon_dot"):
        elsewhere = targets.resolve(name)
        assert isinstance(elsewhere, Cpu)
        found = toolchain_for(elsewhere, "c")
        assert found.name == ("gcc" if elsewhere.machine == host.machine() else "zig")


def test_without_any_compiler_the_remedies_are_told(target: Cpu, tools: Callable[..., Path]) -> None:
    with pytest.raises(Missing, match="pip install ziglang"):
        toolchain_for(target, "c")
    statuses = survey()
    assert [status.name for status in statuses] == list(TOOLS)
    for status in statuses:
        assert not status.ok
        assert status.problem == "not found"
        assert "nstall" in status.remedy


@pytest.mark.parametrize(("says", "complaint"), [("busybox 1.36", "describes itself"), (None, "not an executable")])
def test_a_set_path_that_does_not_work_is_an_error(
    target: Cpu, tools: Callable[..., Path], says: str | None, complaint: str
) -> None:
    tools("gcc", "gcc (Any) 13.2.0")
    path = str(tools("wrong", says)) if says else "/nowhere/gcc"
    with pytest.raises(BadInput, match=complaint):
        toolchain_for(target, "c", {"clang": path})
    status = next(status for status in survey({"clang": path}) if status.name == "clang")
    assert not status.ok
    assert complaint in (status.problem or "")


def test_a_tool_that_fails_or_cannot_be_run_is_told(target: Cpu, tools: Callable[..., Path]) -> None:
    broken = tools("gcc", "")
    broken.write_text("#!/bin/sh\necho cannot load library >&2\nexit 127\n")
    with pytest.raises(BadInput, match="does not work: cannot load library"):
        toolchain_for(target, "c")
    broken.write_bytes(b"\x7fELF not really")
    with pytest.raises(BadInput, match="does not work"):
        toolchain_for(target, "c")


def test_a_compiler_that_tells_its_version_but_cannot_build_is_told(tools: Callable[..., Path]) -> None:
    tools("gcc", "gcc (Any) 13.2.0")
    status = survey()[0]
    assert not status.ok
    assert status.problem == "gcc reported success but wrote no shared library"


def test_a_working_compiler_is_surveyed_with_version_and_path(gcc: CCompiler) -> None:
    status = survey({"gcc": gcc.path, "clang": "/nowhere", "zig": "/nowhere"})[0]
    assert status.ok
    assert (status.version, status.path) == (gcc.version, gcc.path)


def test_each_language_has_its_target(target: Cpu) -> None:
    assert isinstance(toolchain_for(targets.resolve("sim"), "sim"), SimToolchain)
    with pytest.raises(Missing, match=f"cuda on {target.kind}"):
        toolchain_for(target, "cuda")
    with pytest.raises(Missing, match="c on sim"):
        toolchain_for(targets.resolve("sim"), "c")


@pytest.mark.parametrize("times", [1, 3])
def test_a_tool_that_somebody_kills_is_asked_again(tmp_path: Path, times: int) -> None:
    script = tmp_path / "tool"
    runs = f"echo run >> {tmp_path}/runs; [ $(wc -l < {tmp_path}/runs) -le {times} ] && kill -KILL $$"
    script.write_text(f"#!/bin/sh\n{runs}\necho tool 12.1\n")
    script.chmod(0o755)
    if times == 1:
        assert programs.version(str(script)) == "12.1"
    else:
        with pytest.raises(BadInput, match="does not work: it ends with code -9"):
            programs.version(str(script))
