"""What autotuning found, on disk: one file a key, written at once or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepgen.toolchains import default_cache_folder
from deepgen.vocabulary import DeepgenError, digest, foreign

FORMAT = "deepgen-autotune 1"
_FOLDER = "autotune"


def folder() -> Path:
    return default_cache_folder() / _FOLDER


def place(about: Mapping[str, Any]) -> Path:
    """The file of a kernel, a device, its configs and a key."""
    return folder() / f"{digest({'format': FORMAT, **about})}.json"


def read(path: Path) -> dict[str, Any] | None:
    """What was kept; None where there is nothing, or nothing that can be used."""
    with contextlib.suppress(OSError, ValueError, DeepgenError):
        found = json.loads(foreign.read_bytes(path))
        if isinstance(found, dict) and found.get("format") == FORMAT and isinstance(found.get("config"), dict):
            return found
    return None


def write(path: Path, config: Mapping[str, Any], told: Mapping[str, Any]) -> None:
    """Where it cannot be kept, the next process tunes again."""
    with contextlib.suppress(OSError, TypeError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = json.dumps({"format": FORMAT, "config": dict(config), **told}, indent=1)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".new")
        with os.fdopen(handle, "w") as file:
            file.write(text + "\n")
        Path(name).replace(path)
