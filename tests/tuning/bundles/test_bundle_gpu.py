"""A bundle of GPU kernels, run by the bundled runner, with a driver over host memory instead of the real one."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_gpu import build_or_skip, kernel, reference

from deepgen.operators import gemm
from deepgen.run.measure.base import Policy, Task
from deepgen.targets import host, resolve
from deepgen.tuning.bundles import archive as bundle_archive
from deepgen.tuning.bundles import pack as bundle_pack
from deepgen.tuning.bundles import results as bundle_results
from deepgen.tuning.bundles import runner as bundle_runner
from deepgen.vocabulary import Trial, Verdict

KERNELS = {
    "right": ("", Verdict.CORRECT),
    "past": ("C[M * ldc + 3] = 1.f;", Verdict.WRONG),
    "address": ("return 700;", Verdict.CRASHED),
    "endless": ('for (;;) __asm__ volatile("");', Verdict.TIMED_OUT),
    "right_too": ("", Verdict.CORRECT),
}


@pytest.fixture
def unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle for an H200, packed on a machine without one."""
    operator = gemm(24, 20, 16, layout="nt")
    task = Task(operator, resolve("cuda:sm_90a"), policy=Policy(timeout_seconds=2.0, max_samples=8))
    helpers = {**build_or_skip(task, tmp_path), "reference": reference(operator, tmp_path)}
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))  # for the worker
    trials = []
    for number, (name, (more, _)) in enumerate(KERNELS.items()):
        made, artifact = kernel(tmp_path, name, more)
        trials.append((Trial(number, number, {"NAME": name}, made.id, bundle_runner.UNMEASURED), made, artifact))
    archive = tmp_path / "gpu.tar.gz"
    finals = {"default": 4, "keep": 2, "baselines": False}
    bundle_pack.write(
        archive, task, study="s", name="n", trials=trials, earlier=[], helpers=helpers, arrays={}, **finals
    )  # type: ignore[arg-type]
    return bundle_archive.unpack(archive, tmp_path)


@pytest.mark.slow
def test_every_kernel_has_its_verdict_and_the_right_ones_race(
    unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "cuda", lambda: resolve("cuda:h200"))
    results = tmp_path / "r.jsonl"
    assert bundle_runner.main(str(unpacked), ["-o", str(results)]) == 0
    found = bundle_results.read(results)
    assert [found.trials[i].measurement.verdict for i in range(len(KERNELS))] == [v for _, v in KERNELS.values()]
    assert "H200" in found.head["device"]
    assert all("H200" in str(r.measurement.conditions["device"]) for r in found.trials.values())
    assert found.trials[0].measurement.conditions["reference"] == "device"
    assert found.finals is not None
    assert {row.trial: row.default for row in found.finals.finalists} == {0: False, 4: True}


def test_another_card_is_told_by_its_name(
    unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(host, "cuda", lambda: resolve("cuda:rtx4090"))
    assert bundle_runner.main(str(unpacked), ["-o", str(tmp_path / "r.jsonl")]) == 1
    said = capsys.readouterr().err
    assert "sm_90a" in said and "4090" in said and not (tmp_path / "r.jsonl").exists()
