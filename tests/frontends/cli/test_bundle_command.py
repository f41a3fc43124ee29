"""`deepgen bundle`, and how `deepgen tune` points to it when the device is on another machine."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import needs
from deepgen import targets
from deepgen.operators import Gemm, Operator
from deepgen.targets import Target, host
from deepgen.tuning import Study
from deepgen.tuning.bundles import archive as bundle_archive
from deepgen.vocabulary import Kernel, LaunchPlan, Source, Step, TensorArg
from deepgen_formats.older import files as older

DATA = Path(__file__).parents[3] / "data" / "deepgen"
OLDER = DATA / "TuningConfigs" / "GEMM_configs_1024.json"
SMALL = ("gemm", "MNK=64", "--target", "sim", "--trials", "12")


class EmptyKernels:
    """Replaces the family's own mapping: each config yields a CUDA kernel that does nothing."""

    name = "empty"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        return None

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        text = f'/* {json.dumps(dict(config))} */ extern "C" __global__ void nothing(float *c) {{}}\n'
        plan = LaunchPlan((Step("nothing", (TensorArg("C"),)),))
        return Kernel("nothing", "cuda", (Source("nothing.cu", text),), (), plan)


@pytest.fixture
def empty_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepgen_formats.older.generator.generator_by_name", lambda name: EmptyKernels())


@pytest.fixture
def no_gpu() -> None:
    if host.has_cuda():
        pytest.skip("there is a GPU here")
    needs.toolchain(targets.resolve("cuda:sm_80"), "cuda")


@pytest.mark.slow
def test_a_study_is_packed_run_and_merged(deepgen: Callable, project: Path) -> None:
    packed = deepgen("bundle", "pack", *SMALL, "-o", "b.tar.gz")
    assert packed.code == 0 and "12 kernels" in packed.out
    for word in ("tar xf b.tar.gz && python3 b/run.py -o b.results.jsonl", "deepgen bundle run b.tar.gz"):
        assert word in packed.out
    ran = deepgen("bundle", "run", "b.tar.gz")
    assert ran.code == 0 and (project / "b.results.jsonl").exists()
    [line] = [line for line in packed.out.splitlines() if "deepgen bundle merge" in line]
    merged = deepgen(*shlex.split(line)[1:])
    assert merged.code == 0 and "12 new trials" in merged.out and "winner" in merged.out
    again = deepgen(*shlex.split(line)[1:], "--json")
    assert again.json()["merged"] == 0 and again.json()["winner"]
    # Tuning the same again only shows the existing result.
    assert deepgen("tune", *SMALL).code == 0


def test_a_study_that_was_begun_here_goes_on_elsewhere(deepgen: Callable, project: Path) -> None:
    assert deepgen("tune", *SMALL, "--json").code == 0
    packed = deepgen("bundle", "pack", "deepgen-studies", "--trials", "20", "--json")
    assert packed.json()["trials"] == 8
    assert deepgen("bundle", "run", packed.json()["bundle"], "-o", "r").code == 0
    assert "8 new trials" in deepgen("bundle", "merge", "deepgen-studies", "r").out
    [folder] = (project / "deepgen-studies").iterdir()
    assert len(Study.open(folder).trials()) == 20


def test_errors_are_sentences(deepgen: Callable, project: Path) -> None:
    (project / "text.tar.gz").write_text("hello")
    for argv, says in (
        (("bundle", "pack", *SMALL, "-o", "b.zip"), "does not have a bundle's name"),
        (("bundle", "pack", *SMALL, "-o", "no/such/b.tar.gz"), "a folder that exists"),
        (("bundle", "pack", "nothing-here"), "no study 'nothing-here'"),
        (("bundle", "run", "text.tar.gz"), "is not a bundle"),
        (("bundle", "run", "none.tar.gz"), "cannot be read"),
        (("tune", *SMALL, "--space-strategy", "1"), "applies to legacy tuning configs"),
    ):
        said = deepgen(*argv)
        assert said.code == 2 and says in said.err and "Traceback" not in said.err
        assert "building" not in said.err, "told before any work is done"


def test_where_the_gpu_is_elsewhere_tune_offers_the_very_command(
    deepgen: Callable, project: Path, empty_family: None, no_gpu: None
) -> None:
    given = (str(OLDER), "--target", "cuda:sm_80", "--space-strategy", "1", "--trials", "3")
    said = deepgen("tune", *given)
    assert said.code == 1
    assert "this host can build kernels for cuda:sm_80 but not measure them" in said.err
    offered = said.err.strip().partition("Pack the kernels for a host that has one: ")[2]
    packed = deepgen(*shlex.split(offered)[1:])
    assert packed.code == 0 and "3 kernels" in packed.out
    [folder] = (project / "deepgen-studies").iterdir()
    study = Study.open(folder)
    assert study.operator.describe() == "gemm f32 tn 1024x1024x128"
    assert study.space.count() == 9_583_920, "exactly the older tool's space"
    # The study alone is enough to continue: it remembers the file.
    said = deepgen("resume", str(folder))
    assert f"deepgen bundle pack {folder}" in said.err
    unpacked = bundle_archive.unpack(next(project.glob("*.tar.gz")), project)
    kinds = {path.suffix for path in (unpacked / "kernels").iterdir()}
    assert kinds == {".cubin"} and all((unpacked / f"{name}.cubin").exists() for name in ("harness", "reference"))


def test_the_older_tools_files_are_checked_key_by_key(deepgen: Callable, project: Path, empty_family: None) -> None:
    config = json.loads(OLDER.read_text())
    (project / "odd.json").write_text(json.dumps({**config, "BLOCK_SIZE_X": [1], "COLOUR": [2]}))
    said = deepgen("tune", "odd.json", "--target", "cuda:sm_80")
    assert said.code == 2 and "'BLOCK_SIZE_X', 'COLOUR'" in said.err
    (project / "f8.json").write_text(json.dumps({**config, "DATATYPE_A": [7]}))
    assert "unknown dtype code 7" in deepgen("tune", "f8.json", "--target", "cuda:sm_80").err
    said = deepgen("tune", str(OLDER), "--target", "hip:gfx906")
    assert said.code == 2 and "WARP_SIZE is 32" in said.err


def test_a_missing_batch_size_is_one(deepgen: Callable, project: Path, empty_family: None, no_gpu: None) -> None:
    config = json.loads(OLDER.read_text())
    del config["BATCH_SIZE"]
    (project / "no_batch.json").write_text(json.dumps({**config, "IS_ATRANS": [0], "DATATYPE_C": [8]}))
    assert deepgen("bundle", "pack", "no_batch.json", "--target", "cuda:sm_80", "--trials", "1").code == 0
    [folder] = (project / "deepgen-studies").iterdir()
    operator = Study.open(folder).operator
    assert isinstance(operator, Gemm)
    assert (operator.batch, operator.layout, operator.c) == (1, "nn", "f64")


def test_a_space_file_of_the_older_tool_is_tuned_point_by_point(
    deepgen: Callable, project: Path, empty_family: None, no_gpu: None
) -> None:
    template = json.loads(OLDER.read_text())
    space = older.tuning_space(template)
    points = [space.at(rank) for rank in (0, 5, 70_000)]
    (project / "points.json").write_text(json.dumps(older.to_space_file(template, points)))
    said = deepgen("bundle", "pack", "points.json", "--target", "cuda:sm_80", "--json")
    assert said.code == 0, said.err
    assert said.json()["trials"] == Study.open(said.json()["study"]).space.count() == 3
