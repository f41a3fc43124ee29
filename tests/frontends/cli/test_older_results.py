"""Tuning a file of the older tool writes a result file in its format beside the journal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from deepgen.kernels.sim import SimTiles


@pytest.mark.parametrize("older", [True, False])
def test_a_study_of_older_configs_leaves_their_result_file(
    deepgen: Callable, monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    """A simulated device replaces the GPU, and its family that of the older configs."""
    if older:
        monkeypatch.setattr(SimTiles, "results_file", True, raising=False)
    said = deepgen("tune", "gemm", "MNK=64", "--layout", "nt", "--target", "sim", "t=12", "--json").json()
    file = Path(said["study"]) / "results_card0.json"
    assert file.exists() is older
    if older:
        entries = json.loads(file.read_text())["results"]
        assert entries and all(set(e) == {"correct", "acc", "torchMs", "kcgMs", "config"} for e in entries)
        assert entries[0]["kcgMs"] == min(e["kcgMs"] for e in entries)


def test_a_value_of_too_many_parts_is_refused(project: Path, deepgen: Callable) -> None:
    result = {"correct": True, "acc": 1.2, "torchMs": 1.2, "kcgMs": 1.0, "config": {"K_SIZE": [[]] * 20_000}}
    (project / "r.json").write_text(json.dumps({"results": [result]}))
    said = deepgen("import", "r.json")
    assert said.code == 2 and "config key 'K_SIZE'" in said.err
