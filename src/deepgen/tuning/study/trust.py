"""Trust: files that this user's deepgen wrote are signed with a key that only this user can read.

Code and binaries from a folder or an archive run without asking only if their signature is valid. Anything else runs
only if the user allows it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import pwd
import secrets
import stat
from functools import lru_cache
from pathlib import Path

from deepgen import settings
from deepgen.vocabulary import DeepgenError
from deepgen.vocabulary.json import canonical

KEY_FILE = "key"
_BYTES = 32


class Untrusted(DeepgenError):
    """Code that this user's deepgen did not write."""


def sign(what: object) -> str | None:
    """The signature of a JSON value; None if there is no place for the user's key."""
    key = _key()
    return None if key is None else hmac.new(key, canonical(what).encode(), hashlib.sha256).hexdigest()


def is_own(what: object, signature: object) -> bool:
    """Whether this user's deepgen signed exactly this value."""
    expected = sign(what) if isinstance(signature, str) else None
    return expected is not None and hmac.compare_digest(expected, str(signature))


def require(what: object, signature: object, *, trust: bool, origin: Path, holds: str) -> None:
    """Raises Untrusted unless it is the user's own or allowed. `holds`: what would run, in words."""
    if not trust and not is_own(what, signature):
        raise Untrusted(
            f"{origin}{_owner(origin)} contains {holds} that this user's deepgen did not write: if you trust "
            "its source, allow it with --trust (in Python: trust=True)"
        )


def _owner(path: Path) -> str:
    """The other user who owns it, in words."""
    try:
        owner = path.stat().st_uid
        return "" if owner == os.getuid() else f" (of user {pwd.getpwuid(owner).pw_name})"
    except (OSError, KeyError):
        return ""


def _key() -> bytes | None:
    settings_file = settings.user_file()
    return None if settings_file is None else _read_or_make(settings_file.parent / KEY_FILE)


@lru_cache(maxsize=8)
def _read_or_make(path: Path) -> bytes | None:
    try:
        if not path.exists():
            _make(path)
        about = path.stat()
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None  # no place for a key: nothing is signed, and code that needs a signature must be allowed
    if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
        raise DeepgenError(f"{path} is readable by others, so it is not used: chmod 600 it, or delete it")
    if len(text) != 2 * _BYTES:
        raise DeepgenError(f"{path} is not a deepgen key: delete it to have a new one made")
    return bytes.fromhex(text)


def _make(path: Path) -> None:
    """Written under another name, then linked: two processes that create a key at the same time read the same one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{KEY_FILE}.{os.getpid()}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(secrets.token_hex(_BYTES))
    try:
        os.link(fresh, path)
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
