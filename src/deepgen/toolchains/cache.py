"""A cache of built kernels, keyed by their build inputs.

An entry is a folder, `ab/abcdef.../`: the one in which the kernel was built, cleaned up and renamed into place, so that
it exists completely or not at all, even with several writers. It contains `entry.json` and the binary. The entry has
the binary's hash, so a truncated or modified binary counts as missing. Writes are therefore not synced to disk: entries
damaged by a power failure are rebuilt. The modification time of `entry.json` is when the entry was last used.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from deepgen.targets import Target
from deepgen.toolchains.base import BuildError, Built, Toolchain
from deepgen.vocabulary import Artifact, Kernel, Verdict, digest, folders
from deepgen.vocabulary.folders import Scratch, link_or_copy
from deepgen.vocabulary.json import JsonObject

_FORMAT = 1  # of entries; another format gives other keys
_ENTRY = "entry.json"
_WORK = "work"
_ABANDONED_SECONDS = 86400.0  # work folders of this age that never had an owner are leftovers of killed processes
_TORN = (OSError, ValueError, RecursionError, KeyError, TypeError)  # errors that reading a damaged entry may raise
_log = logging.getLogger(__name__)
_temporary: list[Scratch] = []  # replacements for folders that cannot be written, until this process ends


def cache_key(kernel: Kernel, toolchain: Toolchain, target: Target) -> str:
    """The key of a binary: the kernel, the toolchain and the target's facts that the compiler uses."""
    return digest({"format": _FORMAT, "kernel": kernel.id, "toolchain": toolchain.id, "target": target.build_facts()})


@dataclass(frozen=True)
class _Use:
    """The use of one entry, for `trim`."""

    last: float
    bytes: int
    folder: Path


class Cache:
    """A folder of built kernels, shared by any number of processes.

    When the folder cannot be written (a full disk, a read-only one), builds go to a temporary folder that exists until
    this process ends; `trouble` then says so.
    """

    def __init__(self, folder: Path | str, max_bytes: int = 8 << 30) -> None:
        self.folder = Path(folder).expanduser().absolute()
        self.max_bytes = max_bytes
        self.trouble: str | None = None
        self._lock = threading.Lock()
        self._roots = [self.folder]  # the last one is written to, all are read
        self._grown = 0  # bytes added since the last trim
        with contextlib.suppress(OSError):
            self._sweep()

    def get(self, key: str) -> Artifact | None:
        """The artifact with this key, or None. Raises the cached BuildError if the build is known to fail."""
        for root in self._roots:
            folder = _place(root, key)
            with contextlib.suppress(*_TORN):
                entry = _read(folder)
                with contextlib.suppress(OSError):
                    os.utime(folder / _ENTRY)
                if isinstance(entry, BuildError):
                    raise entry
                return entry
        return None

    def put(self, key: str, kernel: Kernel, toolchain: Toolchain, built: Built, seconds: float, work: Path) -> Artifact:
        """Store the result of a build in a folder from `workspace`; the folder becomes the entry."""
        binary = work / built.binary
        entry: JsonObject = {
            "sha256": hashlib.sha256(binary.read_bytes()).hexdigest(),
            "kernel_id": kernel.id,
            "binary": built.binary,
            "format": built.format,
            "toolchain": f"{toolchain.name} {toolchain.version}",
            "facts": dict(built.facts),
            "seconds": seconds,
            "log": built.log,
        }
        if built.plan is not None:
            entry["plan"] = built.plan.to_json()
        self._keep(key, entry, work, {binary, *(work / name for name in built.beside)})
        artifact = self.get(key)
        if artifact is None:
            raise OSError("the new entry cannot be read back")
        return artifact

    def put_file(self, key: str, file: Path, seconds: float) -> None:
        """Store another file that took long to create, as an artifact with this key; failures are ignored."""
        with contextlib.suppress(OSError), self.workspace() as work:
            kept = work / file.name
            link_or_copy(file, kept)
            named: JsonObject = {"kernel_id": key, "binary": kept.name, "format": "file", "toolchain": "", "facts": {}}
            sha256 = hashlib.sha256(kept.read_bytes()).hexdigest()
            self._keep(key, {**named, "sha256": sha256, "seconds": seconds, "log": ""}, work, {kept})

    def put_failure(self, key: str, error: BuildError, work: Path) -> None:
        """Store the failure of a build that would certainly fail again."""
        if error.lasting:
            self._keep(key, {"verdict": error.verdict.value, "detail": error.detail, "log": error.log}, work, set())

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        """An empty folder to build in, on the cache's file system. Deleted afterwards, unless it became an entry."""
        above = self._roots[-1] / _WORK
        above.mkdir(mode=0o700, parents=True, exist_ok=True)
        with Scratch("build", str(above)) as own:
            folder = own.path / "kernel"
            folder.mkdir()
            yield folder

    def fall_back(self, error: OSError) -> None:
        """Write to a temporary folder from now on. Raises OSError if that is impossible too."""
        with self._lock:
            if len(self._roots) > 1:
                return
            _temporary.append(Scratch("cache"))
            temporary = _temporary[-1].path
            self.trouble = (
                f"The cache folder {self.folder} cannot be written ({error.strerror or error}): "
                f"kernels are built in {temporary} and deleted at exit."
            )
            self._roots.append(temporary)
        _log.warning(self.trouble)

    def size(self) -> int:
        """The size of all entries in bytes."""
        return sum(use.bytes for use in self._uses())

    def clear(self, older_than: float = 0.0) -> int:
        """Remove entries not used for that many seconds, and leftovers of killed processes. Returns the bytes freed."""
        latest = time.time() - older_than
        with contextlib.suppress(OSError):
            self._sweep()
        return _remove_all(use for use in self._uses() if use.last <= latest)

    def trim(self, max_bytes: int | None = None) -> int:
        """Remove the least recently used entries until the rest fits. Returns the bytes freed."""
        uses = sorted(self._uses(), key=lambda use: use.last)
        excess = sum(use.bytes for use in uses) - (self.max_bytes if max_bytes is None else max_bytes)
        before = itertools.accumulate((use.bytes for use in uses), initial=0)  # bytes freed before each entry
        return _remove_all(use for use, freed in zip(uses, before, strict=False) if freed < excess)

    def _keep(self, key: str, entry: JsonObject, work: Path, kept: set[Path]) -> None:
        """Turn the work folder into an entry that keeps these files."""
        for file in work.iterdir():
            if file.is_dir() and not file.is_symlink():
                shutil.rmtree(file)
            elif file not in kept:
                file.unlink()
        (work / _ENTRY).write_text(json.dumps(entry))
        grown = _bytes(work)
        place = _place(self._roots[-1], key)
        place.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            work.rename(place)
        except OSError:
            if _valid(place):  # another process was faster, and its entry is equivalent
                return
            # The existing entry is damaged, so remove it. Another process may replace it at the same time.
            _remove(place)
            try:
                work.rename(place)
            except OSError:
                if not _valid(place):
                    raise
        self._count(grown)

    def _count(self, grown: int) -> None:
        # Scanning all entries takes a while: trim only when a good part of the limit may have been added.
        with self._lock:
            self._grown += grown
            due = self._grown > self.max_bytes // 16
            if due:
                self._grown = 0
        if due:
            self.trim()

    def _uses(self) -> Iterator[_Use]:
        # The user chose the folder, which may contain other things; do not follow links out of it.
        for place in self.folder.glob("[0-9a-f][0-9a-f]/*"):
            if not place.name.startswith(place.parent.name) or place.parent.is_symlink():
                continue
            with contextlib.suppress(OSError):
                entry = place / _ENTRY
                last = (entry if entry.exists() else place).stat().st_mtime
                yield _Use(last, _bytes(place), place)

    def _sweep(self) -> None:
        latest = time.time() - _ABANDONED_SECONDS
        if (self.folder / _WORK).is_symlink():
            return
        for left in (self.folder / _WORK).iterdir():
            if not folders.remove(left) and not folders.owned(left) and left.stat().st_mtime <= latest:
                shutil.rmtree(left, ignore_errors=True)


def _place(root: Path, key: str) -> Path:
    return root / key[:2] / key


def _remove_all(uses: Iterable[_Use]) -> int:
    freed = 0
    for use in uses:
        _remove(use.folder)
        freed += 0 if use.folder.exists() else use.bytes
    return freed


def _remove(place: Path) -> None:
    # The entry file first: then readers find no entry, rather than half of one.
    with contextlib.suppress(OSError):
        if not place.is_symlink():
            (place / _ENTRY).unlink(missing_ok=True)
        folders.remove_tree(place)


def _read(folder: Path) -> Artifact | BuildError:
    """The content of an entry. Raises one of _TORN if it is damaged."""
    entry = json.loads((folder / _ENTRY).read_text())
    if not isinstance(entry, dict):
        raise TypeError("not an entry")
    if "verdict" in entry:
        return BuildError(Verdict(entry["verdict"]), entry["detail"], entry["log"])
    expected = entry.pop("sha256")
    binary = folder / entry["binary"]
    if hashlib.sha256(binary.read_bytes()).hexdigest() != expected:
        raise ValueError(f"{binary} was modified")
    return Artifact.from_json({**entry, "binary": str(binary)})


def _valid(folder: Path) -> bool:
    try:
        _read(folder)
    except _TORN:
        return False
    return True


def _bytes(folder: Path) -> int:
    if folder.is_symlink():
        return folder.lstat().st_size
    return sum(file.lstat().st_size for file in folder.iterdir())
