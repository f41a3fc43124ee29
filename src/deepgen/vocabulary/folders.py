"""This user's folders for deepgen's own files, where the XDG rules put them."""

from __future__ import annotations

import os
from pathlib import Path

from deepgen.vocabulary.errors import BadInput


def user_folder(variable: str, otherwise: str) -> Path | None:
    """The folder that a variable names, or one below the user's home; None for a user without a home.

    The XDG rules say that a relative path in such a variable is to be ignored.
    """
    named = Path(os.environ.get(variable, ""))
    try:
        return (named if named.is_absolute() else Path.home() / otherwise) / "deepgen"
    except RuntimeError:
        return None


def default_cache_folder() -> Path:
    """Where caches belong on this system."""
    found = user_folder("XDG_CACHE_HOME", ".cache")
    if found is None:
        remedy = 'set XDG_CACHE_HOME, or cache = "FOLDER" in deepgen.toml'
        raise BadInput("there is no home folder to keep the cache in", allowed=remedy)
    return found
