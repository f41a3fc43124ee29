"""`deepgen build`: one kernel in a folder, without a device."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from deepgen import generators, settings, targets
from deepgen.frontends.cli import build
from deepgen.operators import gemm
from deepgen.vocabulary import BadInput, DeepgenError

SIM = ("build", "gemm", "MNK=64", "--target", "sim", "-o", "out")


def test_default_kernel_for_x86_with_all_its_files(deepgen: Callable, project: Path) -> None:
    said = deepgen("build", "gemm", "MNK=64", "--target", "x86:avx2", "-o", "out", "--json")
    assert said.code == 0
    about = said.json()
    assert about["verdict"] == "built"
    assert json.loads((project / "out" / "build.json").read_text()) == about
    for name in (*about["files"]["source"], about["files"]["assembly"], about["files"]["binary"]):
        assert (project / "out" / name).stat().st_size > 0
    assert "vfmadd" in (project / "out" / about["files"]["assembly"]).read_text()
    assert (project / "out" / about["files"]["binary"]).read_bytes()[:4] == b"\x7fELF"


def test_without_a_disassembler_only_the_assembly_is_lacking(
    deepgen: Callable, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> str:
        raise DeepgenError('nvdisasm cannot disassemble it: architecture "SM70" is deprecated')

    monkeypatch.setattr(build, "assembly_of", refuse)
    said = deepgen(*SIM)
    assert said.code == 0 and "lacks    assembly: nvdisasm cannot" in said.out
    about = json.loads((project / "out" / "build.json").read_text())
    assert about["verdict"] == "built" and about["files"]["assembly"] is None and "SM70" in about["no_assembly"]
    assert (project / "out" / about["files"]["binary"]).exists()


def test_without_a_choice_the_default_config_is_built(deepgen: Callable) -> None:
    operator, target = gemm(64, 64, 64), targets.resolve("sim")
    default = generators.find(operator, target).default(operator, target)
    assert deepgen(*SIM, "--json").json()["config"] == default


def test_rank_and_config_name_the_same_kernel(deepgen: Callable) -> None:
    by_rank = deepgen(*SIM, "--rank", "77", "--json").json()
    text = ",".join(f"{knob}={value}" for knob, value in by_rank["config"].items())
    by_config = deepgen(*SIM, "--config", text, "--json").json()
    assert by_config["rank"] == by_rank["rank"] == 77
    assert by_config["kernel_id"] == by_rank["kernel_id"]


def test_knobs_left_out_keep_their_default(deepgen: Callable) -> None:
    config = deepgen(*SIM, "--config", "STAGES=1, SWIZZLE=2", "--json").json()["config"]
    assert (config["STAGES"], config["SWIZZLE"], config["BLOCK_M"]) == (1, 2, 64)


def test_a_config_outside_the_space_names_the_broken_requirement(deepgen: Callable) -> None:
    said = deepgen(*SIM, "--config", "BLOCK_M=256,BLOCK_N=256,BLOCK_K=64,STAGES=4")
    assert said.code == 2
    assert "tiles fit in shared memory" in said.err


def test_text_fits_in_80_columns(deepgen: Callable) -> None:
    said = deepgen(*SIM)
    assert said.code == 0
    assert "rank" in said.out
    assert max(map(len, said.out.splitlines())) <= 80


def test_a_folder_that_cannot_be_written_is_bad_input(deepgen: Callable, project: Path) -> None:
    (project / "out").write_text("a file is in the way")
    said = deepgen(*SIM)
    assert said.code == 2
    assert "-o out" in said.err


def test_what_the_compiler_said_is_kept_when_it_fails(deepgen: Callable, project: Path) -> None:
    compiler = project / "gcc"
    compiler.write_text(
        '#!/bin/sh\ncase "$1" in --version|-v) exec gcc "$@";; esac\necho "error: no luck today" >&2\nexit 1\n'
    )
    compiler.chmod(0o755)
    (project / "deepgen.toml").write_text('[toolchains]\ngcc = "gcc"\n')
    settings.allow(project / "deepgen.toml")
    said = deepgen("build", "gemm", "MNK=8", "--target", "x86:avx2", "-o", "out")
    assert said.code in (1, 2)
    assert "no luck today" in said.err
    assert "Traceback" not in said.err


def test_permutations_are_spelled_with_dashes() -> None:
    from deepgen.space import Space

    space = Space("orders")
    space.permutation("ORDER", ["m", "n", "k"])
    space.knob("FAST", [True, False])
    assert build.parse(space, "ORDER=n-k-m,FAST=False") == {"ORDER": ("n", "k", "m"), "FAST": False}
    with pytest.raises(BadInput, match="given twice"):
        build.parse(space, "FAST=True,FAST=True")
