"""8-bit floats on the command line: their results, their two kinds of sums, and refusal messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import needs
from deepgen import generators, targets
from deepgen.frontends.cli import bundle
from deepgen.operators import gemm

EIGHT = ("gemm", "MNK=256", "--dtype", "f8e4m3", "--layout", "nt")


def test_a_kernel_is_built_where_a_gpu_adds_up_as_asked(deepgen: Callable, project: Path) -> None:
    needs.toolchain(targets.resolve("cuda:sm_89"), "cuda")
    asked = ("build", *EIGHT, "--target", "cuda:sm_89", "-o", "out", "--json")
    refused = deepgen(*asked)
    assert refused.code == 2 and "--why" in refused.err
    why = deepgen("space", *EIGHT, "--target", "cuda:sm_89", "--why")
    assert "below f32 precision, which fast_sums=True allows" in " ".join(why.out.split())
    about = deepgen(*asked, "--fast-sums").json()
    assert about["verdict"] == "built" and about["generator"] == "mma_gemm"
    assert (about["operator"]["c"], about["operator"]["fast_sums"]) == ("bf16", True)
    assert (project / "out" / about["files"]["binary"]).stat().st_size > 0


@pytest.mark.parametrize("sums", [{}, {"fast_sums": True}])
@pytest.mark.parametrize("name", ["f8e4m3", "f8e5m2"])
def test_hopper_has_a_family_for_both_sums(name: str, sums: dict[str, bool]) -> None:
    operator = gemm(1024, 1024, 1024, dtype=name, layout="nt", **sums)
    assert generators.find(operator, targets.resolve("cuda:sm_90a")).name == "sm90_gemm"


def test_a_study_of_fast_sums_is_another_study(deepgen: Callable) -> None:
    asked = ("tune", *EIGHT, "--target", "sim", "--trials", "2", "--json")
    exact, fast = deepgen(*asked).json(), deepgen(*asked, "--fast-sums").json()
    assert (exact["operator"]["fast_sums"], fast["operator"]["fast_sums"]) == (False, True)
    assert exact["study"] != fast["study"] and exact["winner"] and fast["winner"]


def test_a_bundle_takes_the_sums_along(deepgen: Callable) -> None:
    said = deepgen("bundle", "pack", *EIGHT, "--fast-sums", "--target", "sim", "--trials", "2", "--json")
    assert said.code == 0 and "-fast-sim" in said.json()["bundle"]
    given = {"dtype": "f8e4m3", "layout": None, "fast_sums": True, "trials": 2}
    packing = "deepgen bundle pack gemm MNK=64 --dtype f8e4m3 --fast-sums --trials 2"
    assert bundle.command(["gemm", "MNK=64"], given) == packing  # the command that `tune` suggests, ready to be copied


@pytest.mark.parametrize("command", [["tune"], ["build", "-o", "out"], ["space"], ["bundle", "pack"]])
def test_other_formats_are_refused_in_the_words_of_the_operator(deepgen: Callable, command: list[str]) -> None:
    said = deepgen(*command, "gemm", "MNK=64", "--dtype", "bf16", "--fast-sums", "--target", "sim")
    assert said.code == 2
    assert "only 8-bit floats have fast sums" in said.err


def test_a_config_file_says_which_sums(deepgen: Callable, project: Path) -> None:
    config = {"operator": "gemm", "shapes": {"MNK": 64}, "dtype": "f8e5m2", "layout": "nt", "target": "sim"}
    asked = ("tune", "my.json", "--trials", "2", "--json")

    def tuned(**more: object) -> object:
        (project / "my.json").write_text(json.dumps({**config, **more}))
        return deepgen(*asked)

    study = tuned(fast_sums=True).json()
    assert study["operator"]["fast_sums"] is True
    assert "fast_sums is 'yes' (true or false)" in tuned(fast_sums="yes").err
    assert "shapes[0]" in tuned(fast_sums=True, dtype="bf16").err
    (project / "my.json").write_text(json.dumps(config))
    assert "write fast_sums in my.json" in deepgen(*asked, "--fast-sums").err
    deepgen("export", study["study"], "--as-config", "--top", "1", "-o", "again.json")
    assert deepgen("tune", "again.json", "--trials", "2", "--json").json()["operator"] == study["operator"]
