"""zig's C library for RISC-V is compiled once, however many kernels are built first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from build_helpers import c_kernel

from deepgen import targets
from deepgen.toolchains import BuildError, BuildLimits, Group
from deepgen.toolchains.compilers import compiled_once, riscv

TARGET = targets.resolve("riscv:rv64gcv_zvl128b")
# Records what it compiles, takes long for a machine's first program, and writes what it is asked for.
ZIG = """#!/bin/sh
out=
for word; do [ "$last" = -o ] && out=$word; last=$word; done
case "$*" in *main.c*) echo "$@" >> "$ZIG_GLOBAL_CACHE_DIR/../said"; sleep 0.3; {end};; esac
echo made > "$out"
"""


def _zig(folder: Path, end: str = ":") -> riscv.RiscvCompiler:
    script = folder / "zig"
    script.write_text(ZIG.replace("{end}", end))
    script.chmod(0o755)
    (folder / "cache").mkdir()
    return riscv.zig(str(script), "0.17.0", str(folder / "cache"))


def _tried(compiler: riscv.RiscvCompiler, folder: Path, count: int, group: Group) -> None:
    """This many builds at once; the script's output is not a program, so they all fail there."""

    def one(number: int) -> None:
        work = folder / f"work{number}"
        work.mkdir()
        with pytest.raises(BuildError, match="wrote no program"):
            compiler.build(c_kernel(salt=number), TARGET, work, BuildLimits(wall_seconds=60.0), group)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(one, range(count)))


def test_builds_at_the_same_time_wait_for_one(tmp_path: Path, group: Group) -> None:
    _tried(_zig(tmp_path), tmp_path, 3, group)
    [said] = (tmp_path / "said").read_text().splitlines()
    assert "-static" in said and "-mcpu=baseline_rv64+v" in said
    for number in range(3):
        (tmp_path / f"work{number}").rename(tmp_path / f"before{number}")
    _tried(riscv.zig(str(tmp_path / "zig"), "0.17.0", str(tmp_path / "cache")), tmp_path, 1, group)
    assert len((tmp_path / "said").read_text().splitlines()) == 1, "nor does a later process"


def test_where_it_fails_the_next_build_tries_again(tmp_path: Path, group: Group) -> None:
    compiler = _zig(tmp_path, "exit 1")
    _tried(compiler, tmp_path, 2, group)
    assert len((tmp_path / "said").read_text().splitlines()) == 2


def test_it_may_take_longer_than_a_kernel(tmp_path: Path, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[BuildLimits] = []
    monkeypatch.setattr(compiled_once, "run_judged", lambda name, argv, folder, limits, *_: allowed.append(limits))
    compiled_once.ready(("zig", "cc"), "0.17.0", str(tmp_path), BuildLimits(memory_bytes=1 << 30), group)
    compiled_once.ready(("zig", "cc"), "0.17.0", str(tmp_path / "nowhere"), BuildLimits(), group)
    [limits] = allowed
    assert limits.wall_seconds > BuildLimits().wall_seconds and limits.memory_bytes == 1 << 30
