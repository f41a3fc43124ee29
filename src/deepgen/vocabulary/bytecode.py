"""Caches bytecode in the user's cache folder if Python itself cannot: compiling the sources slows every start.

Containers often disable bytecode, or install packages without it in read-only folders.
"""

from __future__ import annotations

import marshal
import os
import sys
from contextlib import suppress
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from importlib.util import source_hash
from pathlib import Path
from typing import Any

_MARK = 8  # bytes of the source's hash, which also depends on Python's version


def keep() -> None:
    """Start caching in this process. If Python caches bytecode itself, nothing changes."""
    if not sys.dont_write_bytecode and not _unwritable(__file__):
        return
    folder = _folder()
    if folder is None:
        return
    ours = FileFinder.path_hook((ExtensionFileLoader, EXTENSION_SUFFIXES), (_loader(folder), SOURCE_SUFFIXES))
    sys.path_hooks[-1:-1] = [ours]  # before the last hook, Python's own, which still finds bytecode without source
    sys.path_importer_cache.clear()


def place() -> Path | None:
    """The folder for cached bytecode of all Python versions, if this user has one."""
    from deepgen.vocabulary.folders import user_folder

    cache = user_folder("XDG_CACHE_HOME", ".cache")
    return None if cache is None else cache / "bytecode"


def _folder() -> Path | None:
    """A folder that no one else can write to, because its content is executed."""
    parent = place()
    if parent is None:
        return None
    folder = parent / f"{sys.implementation.cache_tag}-{sys.flags.optimize}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError:
        return None
    return folder if status.st_uid == os.geteuid() and not status.st_mode & 0o022 else None


def _loader(folder: Path) -> type[SourceFileLoader]:
    class Keeping(SourceFileLoader):
        """Called for code only if there is no bytecode beside the source."""

        def source_to_code(self, data: Any, path: Any, **options: Any) -> Any:  # type: ignore[override]
            if not isinstance(data, bytes) or not (sys.dont_write_bytecode or _unwritable(path)):
                return super().source_to_code(data, path, **options)
            kept, mark = folder / source_hash(os.fsencode(path)).hex(), source_hash(data)
            with suppress(OSError, ValueError, EOFError, TypeError):
                content = kept.read_bytes()
                if content[:_MARK] == mark:
                    return marshal.loads(content[_MARK:])
            code = super().source_to_code(data, path, **options)
            with suppress(OSError):  # on a full disk it only has to be compiled again
                fresh = kept.with_suffix(f".{os.getpid()}")
                fresh.write_bytes(mark + marshal.dumps(code))
                fresh.replace(kept)
            return code

    return Keeping


def _unwritable(path: Any) -> bool:
    return not os.access(Path(path).parent, os.W_OK)
