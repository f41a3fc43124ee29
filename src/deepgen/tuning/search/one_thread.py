"""Linear algebra in one thread. The matrices of a search are small, and compilers use the other cores meanwhile:
waiting for a BLAS library's helper threads would take many times as long as the work.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock, Thread
from typing import Any, TypeVar

T = TypeVar("T")

_NAMES = [f"{library}_%s_num_threads{ending}" for library in ("scipy_openblas", "openblas") for ending in ("64_", "")]
_lock = Lock()
_inside: list[int] = []  # the library's own number of threads, once per active context


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit OpenBLAS, which most numpy builds use, to one thread in this context. Other libraries are not affected."""
    functions = _functions()
    if functions is None:
        yield
        return
    get, put = functions
    with _lock:
        _inside.append(_inside[0] if _inside else get())
        put(1)
    try:
        yield
    finally:
        with _lock:
            before = _inside.pop()
            if not _inside:
                put(before)


def in_background(work: Callable[[], T]) -> Future[T]:
    """Run `work` in a thread, for its result or error. A thread that nobody waits for ends with the process."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            with one_thread():
                future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name="deepgen-model", daemon=True).start()
    return future


@lru_cache(maxsize=1)
def _functions() -> tuple[Callable[[], int], Callable[[int], Any]] | None:
    """The functions that read and set the number of threads of numpy's library."""
    from numpy.linalg import _umath_linalg

    try:
        library = ctypes.CDLL(_umath_linalg.__file__)  # symbols of the libraries it links to are found too
    except OSError:
        return None
    for name in _NAMES:
        if hasattr(library, name % "get") and hasattr(library, name % "set"):
            return getattr(library, name % "get"), getattr(library, name % "set")
    return None
