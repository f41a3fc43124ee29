"""A library on disk: a folder that can be committed or copied, with one folder for each entry.

format            "deepgen library 1"
entries/NAME/     the kernel's sources, definition and binary as in a study's winner, and the entry as about.json
times/NAME.json   kernels and baselines timed side by side at one shape
models/NAME.json  kernels that serve a recorded model in one form, by the time of all its calls
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from deepgen.libraries.entry import Entry, ModelTimes, Times
from deepgen.tuning.study import lock, trust
from deepgen.tuning.study.winner import ABOUT, Stored, stored_winner, write_winner
from deepgen.vocabulary import Artifact, BadInput, DeepgenError, Kernel, foreign
from deepgen.vocabulary.folders import remove_tree

FORMAT, ENTRIES, TIMES, MODELS, LOCK = "format", "entries", "times", "models", "lock"
_KIND, _VERSION = "deepgen library", 1
T = TypeVar("T", Times, ModelTimes)
_MOST_ENTRY = 1 << 20  # maximum size of an entry's own file in bytes
_NEW, _OLD = ".new", ".old"  # an entry being written, and the one it replaces
_WAIT_SECONDS, _GLANCE_SECONDS = 10.0, 0.1  # for another process that is changing the library


@dataclass(frozen=True)
class LibraryContent:
    """The content of a library; damaged entries are listed with what is wrong."""

    entries: Mapping[str, Entry]
    damaged: Mapping[str, str]
    times: tuple[Times, ...]
    models: tuple[ModelTimes, ...] = ()
    # What choices compute again and again from it: the errors of predictions, and kernels' times by their models.
    computed: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)


class LibraryStore:
    """The folder of a library."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check_format(self) -> None:
        """Raises BadInput for a folder that is something else; an empty or missing folder may become a library."""
        path = self.folder / FORMAT
        if not path.exists():
            if not self.folder.exists() or (self.folder.is_dir() and not any(map(_is_foreign, self.folder.iterdir()))):
                return
            if not path.exists():  # another process may have created the library meanwhile
                where = str(self.folder)
                raise BadInput("is not a deepgen library", where=where, allowed="a library, or no folder yet")
        text = foreign.read_bytes(path, most=100, plain=True).decode(errors="replace")
        kind, _, version = text.strip().rpartition(" ")
        if kind != _KIND or not version.isdigit():
            raise BadInput("does not name a library format", where=str(path), allowed=f"{_KIND} {_VERSION}")
        if int(version) != _VERSION:
            what = f"has format {version}: it was made by another version of deepgen"
            allowed = f"this deepgen reads format {_VERSION}: add the studies to a new library"
            raise BadInput(what, where=str(self.folder), allowed=allowed)

    @contextmanager
    def changing(self, wait: float = _WAIT_SECONDS) -> Iterator[None]:
        """Lock the library for changes by one process; others wait this long, then raise an error that names it."""
        self.check_format()
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / FORMAT).exists():
            fresh = self.folder / f".{FORMAT}.{os.getpid()}.{threading.get_ident()}"
            fresh.write_text(f"{_KIND} {_VERSION}\n")
            fresh.replace(self.folder / FORMAT)
        ends = time.monotonic() + wait
        while (held := lock.take(self.folder / LOCK)) is None:
            if time.monotonic() > ends:
                what = f"{self.folder} is being modified by {lock.who(self.folder / LOCK) or 'another process'}"
                raise DeepgenError(f"{what}: try again later")
            time.sleep(_GLANCE_SECONDS)
        with held:
            for name in (ENTRIES, TIMES, MODELS):
                if (self.folder / name).is_symlink():  # removals there would hit files outside the library
                    raise BadInput("is a link", where=str(self.folder / name), allowed="a folder inside the library")
            (self.folder / ENTRIES).mkdir(exist_ok=True)
            self._mend()
            yield

    def read(self) -> LibraryContent:
        self.check_format()
        entries, damaged = {}, {}
        for folder in self._inside(ENTRIES):
            if not folder.is_dir() or folder.name.endswith((_NEW, _OLD)):  # left by a killed writer
                continue
            try:
                entries[folder.name] = self._entry(folder)
            except DeepgenError as error:
                damaged[folder.name] = str(error)
        times, models = self._times(TIMES, Times, damaged), self._times(MODELS, ModelTimes, damaged)
        return LibraryContent(entries, damaged, times, models)

    def stored(self, entry: Entry, *, trusted: bool) -> Stored:
        """The kernel of an entry with its binary, which is verified first. Raises DeepgenError with a clear message."""
        folder = self.folder / ENTRIES / entry.name
        stored = stored_winner(folder)
        if stored.binary is None or stored.kernel.id != entry.kernel_id or stored.sha256 != entry.binary:
            what = f"{folder} was changed after it was added: its binary is not the one that was measured"
            raise DeepgenError(f"{what}. Add its study again")
        trust.require(None, None, trust=trusted or stored.own, origin=folder, holds="a binary")
        return stored

    def write(self, entry: Entry, kernel: Kernel, artifact: Artifact) -> None:
        folder = self.folder / ENTRIES / f"{entry.name}{_NEW}"
        write_winner(folder, kernel, artifact, json.dumps(entry.to_json(), indent=1))
        self._put(entry.name)

    def copy(self, name: str, other: LibraryStore) -> None:
        """Copy an entry of another library unchanged; its signature stays valid for the user who wrote it."""
        fresh = self.folder / ENTRIES / f"{name}{_NEW}"
        remove_tree(fresh)
        shutil.copytree(other.folder / ENTRIES / name, fresh, ignore=_links)
        self._put(name)

    def add_times(self, content: LibraryContent) -> None:
        """The times of another library that this one lacks."""
        every: list[Times | ModelTimes] = [*content.times, *content.models]
        for times in every:
            if not self._file_of(times).exists():
                self.write_times(times)

    def write_times(self, times: Times | ModelTimes) -> None:
        path = self._file_of(times)
        path.parent.mkdir(exist_ok=True)
        fresh = path.with_name(f".{times.name}.new")
        fresh.write_text(json.dumps(times.to_json(), indent=1))
        fresh.replace(path)

    def _file_of(self, times: Times | ModelTimes) -> Path:
        return self.folder / (TIMES if isinstance(times, Times) else MODELS) / f"{times.name}.json"

    def remove(self, name: str) -> None:
        remove_tree(self.folder / (name if name.startswith((f"{TIMES}/", f"{MODELS}/")) else f"{ENTRIES}/{name}"))

    def _put(self, name: str) -> None:
        """Move the new entry into place. At every moment the old one or the new one is complete, under some name."""
        folder = self.folder / ENTRIES / name
        old = folder.with_name(f"{name}{_OLD}")
        if folder.exists():
            folder.replace(old)
        folder.with_name(f"{name}{_NEW}").replace(folder)
        remove_tree(old)

    def _mend(self) -> None:
        """Clean up after a killed writer: an entry that was being replaced is restored, everything else is removed."""
        for path in [path for path in (self.folder / ENTRIES).iterdir() if path.name.endswith((_NEW, _OLD))]:
            place = path.with_name(path.name.removesuffix(_OLD))
            if path.name.endswith(_OLD) and not place.exists():
                path.replace(place)
            else:
                remove_tree(path)

    def _inside(self, name: str) -> list[Path]:
        folder = self.folder / name
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
        return [path for path in paths if not path.name.startswith(".")]

    def _times(self, name: str, cls: type[T], damaged: dict[str, str]) -> tuple[T, ...]:
        times = []
        for path in self._inside(name):
            try:
                with foreign.shaped(str(path), "holds no times"):
                    times.append(cls.from_json(foreign.read_json(path, most=_MOST_ENTRY, plain=True)))
            except DeepgenError as error:
                damaged[f"{name}/{path.name}"] = str(error)
        return tuple(times)

    def _entry(self, folder: Path) -> Entry:
        path = folder / ABOUT
        with foreign.shaped(str(path), "does not contain a library entry"):
            entry = Entry.from_json(foreign.read_json(path, most=_MOST_ENTRY, plain=True))
        if entry.name != folder.name:
            raise BadInput(f"is the entry {entry.name}", where=str(folder), allowed="a folder of that name")
        return entry


def _is_foreign(path: Path) -> bool:
    """Whether the file is not the format file of a library that another process is just creating."""
    return not path.name.startswith(f".{FORMAT}.")


def _links(folder: str, names: list[str]) -> list[str]:
    """Names to leave out of a copy of another user's folder: links, which may point anywhere."""
    return [name for name in names if (Path(folder) / name).is_symlink()]
