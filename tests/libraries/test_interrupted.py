"""Libraries changed by several processes, and interrupted changes: nothing is lost."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import deepgen as dg
from deepgen.frontends.cli.main import main
from deepgen.libraries import Library
from deepgen.libraries import c as exporting
from deepgen.libraries.store import LibraryStore


def test_several_processes_make_one_library(tmp_path: Path) -> None:
    def change(place: int) -> None:
        store = LibraryStore(tmp_path / str(place // 8))
        with store.changing():
            store.read()

    with ThreadPoolExecutor(8) as pool:  # thread locks exclude each other like process locks
        list(pool.map(change, range(400)))
    assert all((tmp_path / str(i) / "format").read_text() == "deepgen library 1\n" for i in range(50))


@pytest.mark.slow
def test_who_comes_second_waits(library: Library) -> None:
    other = dg.library(library.folder)
    [name, *_] = [entry.name for entry in library.list()]
    with ThreadPoolExecutor(1) as pool:
        with library.store.changing():
            pruned = pool.submit(other.prune, (name,))
            assert name in library.store.read().entries
        assert pruned.result(timeout=60)[0].name == name
    assert name not in library.store.read().entries


def test_an_entry_outlives_a_replacement_that_was_cut_short(library: Library) -> None:
    [first, second, *_] = [library.path_of(entry) for entry in library.list()]
    first.rename(first.with_name(f"{first.name}.old"))  # killed before the new one was moved into its place
    shutil.copytree(second, second.with_name(f"{second.name}.new"))  # killed while it was written
    (second.with_name(f"{second.name}.new") / "about.json").unlink()
    assert len(dg.library(library.folder).list()) == 2 and not dg.library(library.folder).damaged()
    with library.store.changing():
        assert len(library.store.read().entries) == 3
    assert sorted(path.name for path in first.parent.iterdir()) == sorted(entry.name for entry in library.list())


def test_an_export_is_whole_or_not_there(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["library", "export", "--library", str(library.folder), "--c", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setattr(exporting, "_build", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main(words) == 130
    assert not (tmp_path / "out").exists()
    assert main(words) == 0 and (tmp_path / "out" / "lib").is_dir()
    assert main(words) == 2 and "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == ["out"]


def test_a_file_is_no_folder(library: Library, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    for form in ("--c", "--wheel"):
        assert main(["library", "export", "--library", str(library.folder), form, str(tmp_path / "file")]) == 2
        assert "is a file" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"
