"""The example's schedule rule serves GPUs, computes correct results, and is tuned and shown like deepgen's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import preloaded
import pytest
import simt_emulation as simt
from pool.emulated import EmulatedCuda, emulated

import deepgen as dg
import needs
from deepgen import targets
from deepgen.extend import Rules
from deepgen.operators.expr.operator import as_operator
from deepgen.targets import Target
from deepgen.toolchains import BuildLimits, Built, Group
from deepgen.vocabulary import Kernel

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_rule.py"
sys.path.append(str(EXAMPLE.parent))
from own_rule import Planes, planes  # noqa: E402

pytestmark = pytest.mark.skipif(simt.COMPILER is None, reason=simt.NO_COMPILER)


def with_bias() -> Any:
    x, b = dg.tensor("x", (3, 70, 4), "f16"), dg.tensor("b", (4, 3, 70), "f16")
    return dg.compute("y", (4, 3, 70), lambda i, j, k: x[j, k, i] * 2 + b[i, j, k])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cuda:sm_80", "hip:gfx90a"])
def test_runs_are_stored_plane_by_plane(name: str, tmp_path: Path) -> None:
    family, gpu = Rules([Planes()]), targets.resolve(name)
    sizes: list[dict[str, Any]] = [{"side": 64, "threads": 64, "width": 1}, {"side": 128, "threads": 128, "width": 2}]
    for place, (expression, size) in enumerate(zip((planes(2, 3, 70, 3), with_bias()), sizes, strict=True)):
        operator: Any = as_operator(expression)
        assert [sketch.name for sketch in family.sketches(operator, gpu)] == ["planes", "transposed", "threads"]
        assert [sketch.name for sketch in Rules().sketches(operator, gpu)] == ["transposed", "threads"]
        kernel = family.emit(operator, gpu, {"sketch": "planes", **size})
        (tmp_path / str(place)).mkdir()
        assert not simt.wrong(kernel, simt.build(kernel, tmp_path / str(place)), operator)


class SimtCuda(EmulatedCuda):
    """Builds kernels in the dialect for the driver over host memory, which runs blocks as fibers."""

    def build(self, kernel: Kernel, target: Target, folder: Path, limits: BuildLimits, group: Group) -> Built:
        if not any(source.name == "dialect.h" for source in kernel.sources):
            return self.real.build(kernel, target, folder, limits, group)
        text = f'#include "{kernel.sources[0].name}"\n'
        for step in kernel.plan.steps:
            text += f"""
extern "C" int {step.entry}_emulated(void** args, const unsigned* grid, const unsigned* block) {{
    emulate::machine.ranges = {{{{nullptr, 1ll << 62, true, false, {{}}}}}};
    return *emulate::launch({step.entry}, args, grid[0], block[0], {step.shared_bytes}) ? 700 : 0;
}}
"""
        simt.compiled(kernel, folder, text)
        kept = self.images / f"{kernel.id}.so"
        shutil.copyfile(folder / "harness.so", kept)
        (folder / "kernel.cubin").write_bytes(f"FAKE:{kept}".encode() + bytes(1))
        steps = tuple(replace(step, entry=f"{step.entry}_emulated") for step in kernel.plan.steps)
        return Built("kernel.cubin", "cubin", {}, "", replace(kernel.plan, steps=steps))


def deepgen(*words: str) -> str:
    done = preloaded.deepgen(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("target", "why"), [("hip:gfx90a", "it reduces what it reads"), ("arm:neon", None)])
def test_an_installed_package_offers_it_to_every_study(target: str, why: str | None, tmp_path: Path) -> None:
    shutil.copy(EXAMPLE, tmp_path)
    about = tmp_path / "own_rule-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own-rule\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[deepgen.schedule_rules]\nplanes = own_rule:Planes\n")
    words = ("space", "gemm", "MNK=64", "--target", target, "--family", "rules", "--why", "--json")
    command, env = [sys.executable, "-m", "deepgen", *words], {**os.environ, "PYTHONPATH": str(tmp_path)}
    answers = json.loads(subprocess.run(command, env=env, capture_output=True, check=True).stdout)["rules"]
    assert next((row["why"] for row in answers if row["rule"] == "Planes"), None) == why


@pytest.mark.slow
def test_it_is_tuned_on_a_gpu_and_another_process_finds_it_again(tmp_path: Path) -> None:
    needs.toolchain(targets.resolve("cuda:sm_90a"), "cuda")
    with emulated(tmp_path / "gpu", SimtCuda):
        study = dg.tune(
            planes(2, 3, 70, 3), target="cuda:sm_90a", rules=[Planes()], trials=3,
            knobs={"sketch": ["planes"], "threads": [128]}, baselines=False, out=tmp_path / "studies",
        )  # fmt: skip
    folder = str(study.folder)
    assert study.best().trial.config["sketch"] == "planes"
    assert study.definition["rules"] == [{"name": "Planes"}]
    shown = deepgen("show", folder, "--rules")
    assert "chosen: planes" in shown and max(map(len, shown.splitlines())) <= 80
    by_rule = {row["rule"]: row for row in json.loads(deepgen("show", folder, "--rules", "--json"))["rules"]}
    assert next(iter(by_rule)) == "Planes" and by_rule["Planes"]["chosen"]
    assert by_rule["Threads"]["sketches"] == ["threads"]
    assert by_rule["Matrix-Units"]["why"] == "it has no reduction of its own"
    assert "x.run" in deepgen("show", folder, "--schedule")
