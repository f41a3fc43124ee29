"""A library on disk: a folder that can be committed or copied, with one folder for each entry.

format            "deepgen library 1"
entries/NAME/     the kernel's sources, definition and binary as in a study's winner, and the entry as about.json
times/NAME.json   kernels and baselines timed side by side at one shape
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deepgen.libraries.entry import Entry
from deepgen.libraries.times import Times
from deepgen.tuning import lock, trust
from deepgen.tuning.winner import ABOUT, Stored, stored_winner, write_winner
from deepgen.vocabulary import Artifact, BadInput, DeepgenError, Kernel, foreign

FORMAT, ENTRIES, TIMES, LOCK = "format", "entries", "times", "lock"
_KIND, _VERSION = "deepgen library", 1
_MOST_ENTRY = 1 << 20  # bytes of an entry's own file


@dataclass(frozen=True)
class Content:
    """What a library holds; what is damaged is named, with what is wrong with it."""

    entries: Mapping[str, Entry]
    damaged: Mapping[str, str]
    times: tuple[Times, ...]


class Store:
    """The folder of a library."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check_format(self) -> None:
        """Raises BadInput for a folder that is something else; one that is empty or missing becomes a library."""
        path = self.folder / FORMAT
        if not path.exists():
            if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
                raise BadInput(
                    "is not a library of deepgen's", where=str(self.folder), allowed="a library, or no folder yet"
                )
            return
        kind, _, version = (
            foreign.read_bytes(path, most=100, plain=True).decode(errors="replace").strip().rpartition(" ")
        )
        if kind != _KIND or not version.isdigit():
            raise BadInput("does not name a library's format", where=str(path), allowed=f"{_KIND} {_VERSION}")
        if int(version) > _VERSION:
            what = f"is of format {version}, which a newer deepgen wrote"
            raise BadInput(what, where=str(self.folder), allowed=f"up to {_VERSION}: update deepgen")

    @contextmanager
    def changing(self) -> Iterator[None]:
        """One process at a time changes a library."""
        self.check_format()
        (self.folder / ENTRIES).mkdir(parents=True, exist_ok=True)
        if not (self.folder / FORMAT).exists():
            (self.folder / FORMAT).write_text(f"{_KIND} {_VERSION}\n")
        held = lock.take(self.folder / LOCK)
        if held is None:
            by = lock.holder(self.folder / LOCK)
            raise DeepgenError(f"{self.folder} is being changed by process {by or 'of another name'}: try again later")
        with held:
            yield

    def read(self) -> Content:
        self.check_format()
        entries, damaged = {}, {}
        for folder in self._inside(ENTRIES):
            if not folder.is_dir() or folder.name.endswith(".new"):  # what a killed writer left
                continue
            try:
                entries[folder.name] = self._entry(folder)
            except DeepgenError as error:
                damaged[folder.name] = str(error)
        times = []
        for path in self._inside(TIMES):
            try:
                with foreign.shaped(str(path), "holds no times"):
                    times.append(Times.from_json(foreign.read_json(path, most=_MOST_ENTRY, plain=True)))
            except DeepgenError as error:
                damaged[f"{TIMES}/{path.name}"] = str(error)
        return Content(entries, damaged, tuple(times))

    def stored(self, entry: Entry, *, trusted: bool) -> Stored:
        """The kernel of an entry with its binary, which is checked first. Raises DeepgenError, in words."""
        folder = self.folder / ENTRIES / entry.name
        found = stored_winner(folder)
        if found.binary is None or found.kernel.id != entry.kernel_id or found.sha256 != entry.binary:
            what = f"{folder} was changed after it was added: its binary is not the one that was measured"
            raise DeepgenError(f"{what}. Add its study again")
        trust.require(None, None, trust=trusted or found.own, origin=folder, holds="a binary")
        return found

    def write(self, entry: Entry, kernel: Kernel, artifact: Artifact) -> None:
        write_winner(self.folder / ENTRIES / entry.name, kernel, artifact, json.dumps(entry.to_json(), indent=1))

    def copy(self, name: str, other: Store) -> None:
        """An entry of another library as it is; its signature holds for whoever wrote it."""
        folder = self.folder / ENTRIES / name
        fresh = folder.with_name(f"{name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(other.folder / ENTRIES / name, fresh, ignore=_links)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.replace(folder)

    def write_times(self, times: Times) -> None:
        folder = self.folder / TIMES
        folder.mkdir(exist_ok=True)
        fresh = folder / f".{times.name}.new"
        fresh.write_text(json.dumps(times.to_json(), indent=1))
        fresh.replace(folder / f"{times.name}.json")

    def remove(self, name: str) -> None:
        path = self.folder / (name if name.startswith(f"{TIMES}/") else f"{ENTRIES}/{name}")
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def _inside(self, name: str) -> list[Path]:
        folder = self.folder / name
        found = sorted(folder.iterdir()) if folder.is_dir() else []
        return [path for path in found if not path.name.startswith(".")]

    def _entry(self, folder: Path) -> Entry:
        path = folder / ABOUT
        with foreign.shaped(str(path), "holds no entry of a library"):
            entry = Entry.from_json(foreign.read_json(path, most=_MOST_ENTRY, plain=True))
        if entry.name != folder.name:
            raise BadInput(f"is the entry {entry.name}", where=str(folder), allowed="a folder of that name")
        return entry


def _links(folder: str, names: list[str]) -> list[str]:
    """What is not copied out of somebody's folder: a link may lead anywhere."""
    return [name for name in names if (Path(folder) / name).is_symlink()]
