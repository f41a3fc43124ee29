"""Locks that a forked process finds free: the thread that held one does not exist in the child."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def renewed_lock() -> Any:
    """A lock that is free in the child of a fork, whoever held it."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def _renew() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # as Python does with its own


if hasattr(os, "register_at_fork") and hasattr(threading.Lock(), "_at_fork_reinit"):  # from Python 3.9 on
    os.register_at_fork(after_in_child=_renew)
