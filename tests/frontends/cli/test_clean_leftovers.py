"""`deepgen clean` shows what killed runs left behind, and removes it on request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from deepgen import settings
from deepgen.vocabulary.folders import Scratch


def test_clean_frees_what_killed_runs_left_behind(deepgen: Callable, project: Path) -> None:
    (project / "deepgen.toml").write_text('cache = "cache"\n')
    settings.allow(project / "deepgen.toml")
    left = project.parent / "deepgen-ray-1"
    left.mkdir()
    (left / "owner").write_text("")
    (left / "log").write_text("1234")
    with Scratch("ray", str(project.parent)) as living:
        item = {"kind": "leftover", "path": str(left), "bytes": 4}
        assert deepgen("clean", "--json").json()["items"] == [item]
        assert left.exists(), "only told"
        assert deepgen("clean", "--cache", "--json").json()["items"] == []
        assert deepgen("clean", "--yes").out.splitlines()[-1] == "4 B freed"
        assert not left.exists() and living.path.exists()
        assert deepgen("clean").out == "there is nothing to delete\n"
