"""One kernel for several shapes: how its times are combined, stored, shown and continued."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import deepgen as dg
from deepgen.extend import BadInput
from deepgen.run.measure.runners import combined
from deepgen.vocabulary import Measurement, Verdict

SHAPES = [dg.gemm(m, 256, 256) for m in (16, 64, 256)]


def test_samples_are_geometric_means_and_each_shape_keeps_its_time() -> None:
    one = Measurement(Verdict.CORRECT, samples=(1.0, 4.0, 4.0), error=0.1)
    other = Measurement(Verdict.CORRECT, samples=(4.0, 1.0, 9.0, 9.0), error=0.2)
    both = combined([one, other])
    assert both.samples == pytest.approx((2.0, 2.0, 6.0)) and both.error == 0.2
    assert both.conditions["shapes"] == [4.0, 6.5]
    failed = combined([one, Measurement(Verdict.WRONG, "C[0, 0] is 1")])
    assert (failed.verdict, failed.detail, failed.samples) == (Verdict.WRONG, "at shape 2: C[0, 0] is 1", ())


def test_a_study_of_several_shapes_is_resumed_and_tested_again(tmp_path: Path, deepgen: Callable[..., Any]) -> None:
    study = dg.tune(SHAPES, target="sim", trials=8, out=tmp_path, keep_top=2)
    again = dg.tune(SHAPES, target="sim", trials=8, out=tmp_path, keep_top=2)
    assert again.folder == study.folder and again.finals() == study.finals()
    alone = dg.tune(SHAPES[0], target="sim", trials=8, out=tmp_path, keep_top=2, transfer=False)
    assert alone.folder != study.folder
    result = deepgen("resume", str(study.folder), "--trials", "12", "--json")
    assert result.code == 0, result
    summary = json.loads(result.out)
    assert sum(summary["trials"].values()) == 12 and [s["m"] for s in summary["also"]] == [64, 256]
    rows = summary["shapes"]
    assert [row["operator"] for row in rows] == [s.describe() for s in SHAPES]
    mean = (rows[0]["seconds"] * rows[1]["seconds"] * rows[2]["seconds"]) ** (1 / 3)
    assert summary["winner"]["seconds"] == pytest.approx(mean, rel=0.05)
    assert deepgen("retest", str(study.folder), "--json").code == 0
    shown = deepgen("show", str(study.folder)).out
    assert "gemm f32 nn 16x256x256 and 2 more shapes on sim" in shown and "shapes   gemm f32 nn 16x256x256:" in shown


def test_the_command_line_and_config_files_take_several_shapes(tmp_path: Path, deepgen: Callable[..., Any]) -> None:
    words = ("gemm", "M=16", "NK=256", "--target", "sim", "--trials", "4", "--json", "--out", str(tmp_path))
    first = deepgen("tune", *words, "--also", "M=64", "--also", "M=256")
    assert first.code == 0, first
    file = tmp_path / "shapes.toml"
    file.write_text(
        'operator = "gemm"\none_kernel = true\ntarget = "sim"\nbudget = { trials = 4 }\n'
        "shapes = [{ M = 16, NK = 256 }, { M = 64, NK = 256 }, { M = 256, NK = 256 }]\n"
    )
    second = deepgen("tune", str(file), "--json", "--out", str(tmp_path))
    assert second.code == 0, second
    assert json.loads(first.out)["study"] == json.loads(second.out)["study"], "the same words, the same study"
    wrong = deepgen("tune", *words, "--also", "M=16")
    assert wrong.code == 2 and "is not another shape of" in wrong.err


@pytest.mark.parametrize("other", [dg.gemm(16, 256, 256), dg.gemm(32, 256, 256, dtype="f16"), "gemm"])
def test_what_is_no_other_shape_is_refused(other: Any, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="other sizes"):
        dg.tune([SHAPES[0], other], target="sim", trials=2, out=tmp_path)


@pytest.mark.slow
def test_a_bundle_measures_all_shapes(tmp_path: Path, deepgen: Callable[..., Any]) -> None:
    archive = str(tmp_path / "b.tar.gz")
    words = ("gemm", "MNK=16", "--also", "M=24", "--target", "cpu", "--trials", "2", "--out", str(tmp_path / "studies"))
    results = str(tmp_path / "results.jsonl")
    packed = deepgen("bundle", "pack", *words, "--keep-top", "1", "-o", archive)
    assert packed.code == 0, packed
    ran = deepgen("bundle", "run", archive, "-o", results)
    assert ran.code == 0, ran
    [folder] = (tmp_path / "studies").iterdir()
    merged = deepgen("bundle", "merge", str(folder), results, "--json")
    assert merged.code == 0, merged
    assert len(json.loads(merged.out)["shapes"]) == 2
