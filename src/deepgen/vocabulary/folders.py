"""The user's folders for deepgen's own files, according to the XDG rules, and temporary folders.

Temporary folders are removed after their owner ends, in any way. A process holds the lock of a file in each of its
folders, and the system frees the lock when the process ends. So a folder with a free lock was left behind by a killed
process, and the next process removes it. Unlike a process id, a lock also works when containers share the folder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO

from deepgen.vocabulary.errors import BadInput

_PLAIN = "remove it, or use another folder"


def user_folder(variable: str, otherwise: str) -> Path | None:
    """The folder named by a variable, or one below the user's home; None for a user without a home.

    According to the XDG rules, a relative path in such a variable is ignored.
    """
    named = Path(os.environ.get(variable, ""))
    try:
        return (named if named.is_absolute() else Path.home() / otherwise) / "deepgen"
    except RuntimeError:
        return None


def default_cache_folder() -> Path:
    """The default cache folder on this system."""
    folder = user_folder("XDG_CACHE_HOME", ".cache")
    if folder is None:
        remedy = 'set XDG_CACHE_HOME, or cache = "FOLDER" in deepgen.toml'
        raise BadInput("there is no home folder for the cache", allowed=remedy)
    return folder


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: concurrent readers find the previous content."""
    import tempfile  # imported late: with its imports it takes longer than the rest of this module

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, fresh = tempfile.mkstemp(dir=path.parent, suffix=".new")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    Path(fresh).replace(path)


def appending(path: Path) -> IO[str]:
    """A file of deepgen's own, open to read and to append. Raises BadInput for a link or a device.

    A folder may come from somebody else: a link in it would lead to any of the user's files.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise BadInput("is a link, which deepgen does not write through", where=str(path), allowed=_PLAIN) from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise BadInput("is no plain file", where=str(path), allowed=_PLAIN)
    return os.fdopen(file, "a+", encoding="utf-8", errors="replace")


def link_or_copy(file: Path, to: Path) -> None:
    """Make the same file available at another path; nothing may write to either."""
    try:
        os.link(file, to)
    except OSError:  # another file system
        import shutil

        shutil.copyfile(file, to)


def remove_tree(path: Path) -> None:
    """Remove a folder and its content. A link itself is removed, and its target stays."""
    import shutil

    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


_PREFIX = "deepgen-"
_OWNER = "owner"  # the file with the lock


class Scratch:
    """A folder of this process, removed when it is closed or garbage collected, or when the process ends."""

    def __init__(self, kind: str, place: str | None = None) -> None:
        """`kind` is part of its name; `place` is its parent folder, by default the system's temporary folder."""
        import tempfile

        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}-", dir=place))
        fresh = self.path / f"{_OWNER}.new"
        try:
            lock = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:  # a full disk
            self.path.rmdir()
            raise
        with suppress(OSError):  # a file system without locks: its lock never appears free
            fcntl.flock(lock, fcntl.LOCK_EX)
        fresh.rename(self.path / _OWNER)  # locked before the file has its final name
        self._end = weakref.finalize(self, _remove, self.path, lock)

    def close(self) -> None:
        """Remove the folder; a second call does nothing."""
        self._end()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def sweep() -> None:
    """Remove folders left behind by killed processes."""
    for folder in left_behind():
        remove(folder)


def left_behind() -> list[Path]:
    """This user's folders that no longer have an owner."""
    results = []
    for folder in [folder for place in _places() for folder in sorted(place.glob(f"{_PREFIX}*"))]:
        lock = _claim(folder)
        if lock is not None:
            os.close(lock)
            results.append(folder)
    return results


def remove(folder: Path) -> bool:
    """Remove a folder that was left behind; False if it has an owner or is another kind of folder."""
    lock = _claim(folder)
    if lock is None:
        return False
    _remove(folder, lock)
    return True


def owned(folder: Path) -> bool:
    """Whether a process has owned it, even if that process has ended."""
    return (folder / _OWNER).exists()


def _places() -> list[Path]:
    import tempfile

    # Ray's folders need short paths, so they are in /tmp if the usual place has a long path.
    return list(dict.fromkeys((Path(tempfile.gettempdir()), Path("/tmp"))))


def _claim(folder: Path) -> int | None:
    """The free lock of one of this user's folders; None for any other folder. Links are not followed."""
    try:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return None
        lock = os.open(folder / _OWNER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def _remove(folder: Path, lock: int) -> None:
    """The lock file is removed last: if interrupted, or if a file is added meanwhile, the rest can still be found."""
    import shutil

    try:
        with suppress(OSError):
            for inside in folder.iterdir():
                if inside.is_dir() and not inside.is_symlink():
                    shutil.rmtree(inside, ignore_errors=True)
                elif inside.name != _OWNER:
                    inside.unlink()
            if [inside.name for inside in folder.iterdir()] == [_OWNER]:
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
