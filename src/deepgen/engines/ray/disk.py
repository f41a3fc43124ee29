"""Files on a node, whose disk may be full."""

from __future__ import annotations

import platform
from pathlib import Path


def kept(path: Path, content: bytes) -> Path:
    """The file with that content; as a whole or not at all, so that what a full disk cut off is not used."""
    if not path.exists():
        part = path.with_name(f"{path.name}.part")
        part.write_bytes(content)
        part.replace(path)
    return path


def refusal(error: OSError) -> str:
    """What the system of this host refused, in a sentence: an exception would reach the user with Ray's traceback."""
    words = (platform.node(), str(error.filename or ""), error.strerror or str(error))
    return ": ".join(filter(None, words)) + "; all that ended is kept: mend this and give the same command again"
