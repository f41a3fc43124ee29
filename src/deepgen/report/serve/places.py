"""Finds what a folder has to show, and detects changes cheaply."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepgen.tuning.study.journal import FILE, holder
from deepgen.vocabulary import DeepgenError, JsonObject, digest
from deepgen.vocabulary.registry import Registry

# For files: inode, size and time of change; and the process that writes them.
Mark = tuple[Any, ...]
_FILES = (FILE, f"{FILE}-wal")
_INDEX, _HEADER = f"{FILE}-shm", 48  # bytes in which SQLite records how much of its log is committed
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=@,-]*")
_FRESH = 0.1  # seconds: a file that changed this recently may change again without a new time of change
_FRESH_MARK: Mark = ("fresh",)  # differs from any other mark, so the file is read again


@dataclass(frozen=True)
class Runs:
    """Folders of runs with several studies, such as those of a cluster. A plug-in defines how to read and stop them."""

    marker: str  # the file that identifies the folder of a run
    mark: Callable[[Path], Mark]  # differs from the mark of any earlier state
    row: Callable[[Path], JsonObject]  # what a browser shows: state, pid, note, groups
    summary: Callable[[Path], JsonObject]  # what a report shows: state, note, and rows of text about groups
    stop: Callable[[Path], str]  # returns a sentence that says how it ended, and how to resume it


RUNS: Registry[Callable[[], Runs]] = Registry("deepgen.study_folders", "folder of studies", {})


def runs_at(folder: Path) -> Runs | None:
    """The reader of this folder, if it is the folder of a run. Links are not followed."""
    return next((runs for make in RUNS.working() if _is_file(folder / (runs := make()).marker)), None)


def run_at(folder: Path) -> Runs:
    runs = runs_at(folder)
    if runs is None:
        raise DeepgenError(f"{folder} is no longer a run's folder")
    return runs


def run_mark(folder: Path) -> Mark:
    runs = runs_at(folder)
    return () if runs is None else runs.mark(folder)


@dataclass(frozen=True)
class Places:
    """Studies, cluster runs and results of bundles below `top`, keyed by the ids used in addresses."""

    top: Path
    studies: Mapping[str, Path]
    runs: Mapping[str, Path]
    bundles: Mapping[str, Path]


def find(root: Path) -> Places:
    """What the folder contains, or the folder itself. Links are not followed, so nothing outside it is found."""
    alone = _is_study(root) or runs_at(root) is not None
    top = root.parent if alone else root
    here = [root] if alone else [*_folders(root)]
    runs = [path for path in here if runs_at(path) is not None]
    inside = [study for run in runs for group in _folders(run) for study in _folders(group)]
    bundles = [] if alone else [path for path in sorted(root.glob("*.jsonl")) if _is_file(path)]

    def by_id(paths: list[Path]) -> dict[str, Path]:
        return {_id(path.relative_to(top)): path for path in paths}

    return Places(top, by_id([path for path in (*here, *inside) if _is_study(path)]), by_id(runs), by_id(bundles))


def run_of(study: str) -> str | None:
    """The cluster run that a study belongs to, both by id."""
    return study.partition("/")[0] if "/" in study else None


def study_mark(folder: Path, now: Callable[[], float] = time.time) -> Mark:
    """Differs from the mark of any earlier state of the study."""
    files = [file_mark(folder / name, now) for name in _FILES]
    return _FRESH_MARK if _FRESH_MARK in files else (holder(folder), _committed(folder), *files)


def _committed(folder: Path) -> bytes:
    """Changes with each commit. A row is in the log earlier, but it becomes visible only once it is on disk: with a
    busy disk that is long after the log's time of change.
    """
    try:
        with (folder / _INDEX).open("rb") as file:
            return file.read(_HEADER)
    except OSError:
        return b""


def file_mark(path: Path, now: Callable[[], float] = time.time) -> Mark:
    try:
        about = path.stat()
    except OSError:
        return ()
    if not about.st_size:
        return ()  # readers may leave an empty log file
    age = now() - about.st_mtime
    return _FRESH_MARK if 0 <= age < _FRESH else (about.st_ino, about.st_size, about.st_mtime_ns)


def changed(before: Mark | None, after: Mark | None) -> bool:
    return before != after or is_fresh(after)


def is_fresh(mark: Mark | None) -> bool:
    """Whether the file may change again without a new mark."""
    return mark == _FRESH_MARK


def _id(path: Path) -> str:
    """The path as an id. A part that would need escaping is replaced by its digest."""
    return "/".join(part if _PLAIN.fullmatch(part) else digest(part, 12) for part in path.parts)


def _folders(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    yield from (folder / name for name in names)


def _is_study(folder: Path) -> bool:
    return _is_file(folder / FILE)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file() and not path.is_symlink()
    except OSError:  # in a folder that this user cannot enter
        return False
