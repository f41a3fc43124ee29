"""`show --source` and `build` give files that the system's compiler builds into the same kernel."""

from __future__ import annotations

import ctypes
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

CHOSEN = ("gemm", "MNK=16", "--target", "cpu", "--family", "c_gemm", "--threads", "1")


def _rebuild(folder: Path, empty: Path, names: list[str]) -> bytes:
    """Only what was listed, in a folder of its own."""
    empty.mkdir()
    for name in names:
        (empty / name).write_bytes((folder / name).read_bytes())
    subprocess.run(["sh", str(empty / "build.sh")], cwd=empty.parent, check=True)
    return (empty / "kernel.so").read_bytes()


def test_what_build_writes_builds_the_same_binary(deepgen: Callable, project: Path) -> None:
    assert deepgen("build", *CHOSEN, "-o", "out").code == 0
    files = json.loads((project / "out" / "build.json").read_text())["files"]
    assert "build.sh" in files["source"]
    again = _rebuild(project / "out", project / "empty", files["source"])
    assert again == (project / "out" / files["binary"]).read_bytes()
    ctypes.CDLL(str(project / "empty" / "kernel.so"))


def test_the_winners_source_builds_the_winner(deepgen: Callable, project: Path) -> None:
    study = deepgen("tune", *CHOSEN, "--trials", "1", "--json").json()["study"]
    said = deepgen("show", study, "--source", "-o", "out")
    assert said.code == 0 and said.out.startswith("written to out: ") and "build.sh" in said.out
    names = [path.name for path in (project / "out").iterdir()]
    again = _rebuild(project / "out", project / "empty", names)
    assert again == (Path(study) / "winner" / "kernel.so").read_bytes()
    shown = deepgen("show", study, "--source").out
    assert all(f"==> {name} <==\n" in shown for name in names)


def test_a_folder_without_source_is_refused(deepgen: Callable) -> None:
    assert deepgen("show", "nothing", "-o", "out").code == 2
