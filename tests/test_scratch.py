"""Temporary folders are removed with their owner: those of a killed process are cleaned up, and nothing else is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deepgen.vocabulary import folders
from deepgen.vocabulary.folders import Scratch

OWNER = """
import shutil
import sys
from deepgen.vocabulary.folders import Scratch
mine = Scratch("test", sys.argv[1])
(mine.path / "logs").mkdir()
(mine.path / "logs" / "new").write_text("some")
print(mine.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(folders, "_places", lambda: [tmp_path])
    return tmp_path


def owner(place: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process with its own folder."""
    command = [sys.executable, "-c", OWNER, str(place)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_goes_when_it_is_closed_and_when_its_process_ends(place: Path) -> None:
    with Scratch("test", str(place)) as mine:
        assert (mine.path.parent, mine.path.stat().st_mode & 0o777) == (place, 0o700)
    assert not mine.path.exists()
    process, folder = owner(place)
    assert folder.is_dir()
    process.communicate("", timeout=300)
    assert not folder.exists() and process.returncode == 0


def test_what_a_killed_process_leaves_is_removed_and_what_a_living_one_has_is_not(place: Path) -> None:
    killed, left = owner(place)
    living, kept = owner(place)
    with Scratch("test", str(place)) as mine:
        assert folders.left_behind() == []
        killed.kill()
        killed.communicate()
        assert folders.left_behind() == [left]
        assert not folders.remove(kept) and not folders.remove(mine.path)
        folders.sweep()
        assert not left.exists() and mine.path.is_dir() and (kept / "logs" / "new").read_text() == "some"
    living.communicate("", timeout=300)


def strangers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)


def unowned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "owner").unlink()


def linked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = folder.parent / "mine"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)


@pytest.mark.parametrize("change", [strangers, unowned, linked])
def test_a_folder_that_may_not_be_ours_is_left_alone(
    place: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path, pytest.MonkeyPatch], None]
) -> None:
    folder = place / "deepgen-test-1"
    folder.mkdir()
    for name in ("owner", "file"):
        (folder / name).write_text("")
    assert folders.left_behind() == [folder]
    change(folder, monkeypatch)
    assert folders.left_behind() == [] and not folders.remove(folder)
    folders.sweep()
    assert (folder / "file").exists()


def test_what_cannot_be_removed_now_can_be_found_later(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = place / "deepgen-test-1"
    (folder / "logs").mkdir(parents=True)
    (folder / "owner").write_text("")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        folders.sweep()
    assert folders.left_behind() == [folder]
    folders.sweep()
    assert not folder.exists()
