"""Files on a node, whose disk may be full."""

from __future__ import annotations

import platform
from pathlib import Path


def kept(path: Path, content: bytes) -> Path:
    """Write the file atomically, so that one which a full disk has truncated is never used."""
    if not path.exists():
        part = path.with_name(f"{path.name}.part")
        part.write_bytes(content)
        part.replace(path)
    return path


def refusal(error: OSError) -> str:
    """An error of this host's system as a sentence: an exception would reach the user with Ray's traceback."""
    words = (platform.node(), str(error.filename or ""), error.strerror or str(error))
    return ": ".join(filter(None, words)) + "; finished trials are kept: fix this and run the same command again"
