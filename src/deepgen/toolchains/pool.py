"""Builds kernels, singly or in a pool, from the cache or with their toolchain.

The first kernel's build may begin before a pool exists, while the tuner imports the rest.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from deepgen.targets import Target
from deepgen.toolchains.base import BuildError, BuildLimits, Toolchain
from deepgen.toolchains.cache import Cache, cache_key
from deepgen.toolchains.find import toolchain_for
from deepgen.toolchains.group import Group
from deepgen.vocabulary import Artifact, DeepgenError, Kernel


class BuildPool:
    """Builds kernels for one target, `jobs` at a time. Its threads only wait for compiler processes."""

    def __init__(
        self,
        toolchains: Callable[[str], Toolchain],
        target: Target,
        cache: Cache,
        jobs: int,
        limits: BuildLimits | None = None,
    ) -> None:
        """`toolchains` returns the toolchain of a language; it is called for each kernel."""
        self.target, self.cache = target, cache
        self._toolchains = toolchains
        self.jobs = max(1, jobs)
        self.limits = limits or BuildLimits()
        self._group = Group()
        self._threads = ThreadPoolExecutor(self.jobs, thread_name_prefix="deepgen-build")
        self._lock = threading.Lock()
        self._pending: dict[str, Future[Artifact]] = {}
        self._at_work = 0

    def submit(self, kernel: Kernel) -> Future[Artifact]:
        """Start building a kernel. The future gives the artifact, a BuildError, or a CancelledError if the pool is
        closed.

        A kernel that is already being built is not built twice: both callers get the same future.
        """
        key = kernel.id
        with self._lock:
            future = self._pending.get(key)
            if future is not None and not future.cancelled():
                return future
            future = self._threads.submit(self._build, kernel)
            self._pending[key] = future
        future.add_done_callback(lambda done: self._forget(key, done))
        return future

    @property
    def running(self) -> int:
        """Builds that are using the machine now."""
        return 0 if self._group.paused else self._at_work

    @property
    def paused(self) -> bool:
        return self._group.paused

    def pause(self) -> None:
        """Stop all builds; none starts, and no time limit advances, until `resume`. Pauses nest."""
        self._group.pause()

    def resume(self) -> None:
        """Undo one pause."""
        self._group.resume()

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """A window in which no build disturbs a measurement."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def close(self, cancel: bool = True) -> None:
        """Kill running builds and drop waiting ones; or, without `cancel`, let all of them finish first."""
        if cancel:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._group.kill()
        self._threads.shutdown(wait=True)
        self._group.close()

    def __enter__(self) -> BuildPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _build(self, kernel: Kernel) -> Artifact:
        with self._lock:
            self._at_work += 1
        try:
            return make(kernel, self._toolchains(kernel.language), self.target, self.cache, self.limits, self._group)
        finally:
            with self._lock:
                self._at_work -= 1

    def _forget(self, key: str, done: Future[Artifact]) -> None:
        with self._lock:
            if self._pending.get(key) is done:
                del self._pending[key]


def make(
    kernel: Kernel, toolchain: Toolchain, target: Target, cache: Cache, limits: BuildLimits, group: Group
) -> Artifact:
    """The artifact of a kernel.

    Raises BuildError, DeepgenError if there is no space to build in, CancelledError if the group was killed.
    """
    key = cache_key(kernel, toolchain, target)
    cached = cache.get(key)
    if cached is not None:
        return cached
    for last in (False, False, True):
        group.admit()
        try:
            return _build(key, kernel, toolchain, target, cache, limits, group)
        except BuildError as error:
            # Killed from outside, or not started: repeat, as this may be bad luck.
            if last or not error.transient:
                raise
        except OSError as error:
            _fall_back(cache, error, last)
    raise AssertionError("the last try returns or raises")


def _fall_back(cache: Cache, error: OSError, last: bool) -> None:
    try:
        if last:
            raise error
        cache.fall_back(error)
    except OSError as final:
        # Not a verdict on the kernel, which was not even built.
        raise DeepgenError(
            f"the build folder cannot be written: {final.strerror or final}; free disk space and resume"
        ) from final


def _build(
    key: str, kernel: Kernel, toolchain: Toolchain, target: Target, cache: Cache, limits: BuildLimits, group: Group
) -> Artifact:
    with cache.workspace() as folder:
        started = time.perf_counter()
        try:
            built = toolchain.build(kernel, target, folder, limits, group)
        except BuildError as error:
            cache.put_failure(key, error, folder)
            raise
        return cache.put(key, kernel, toolchain, built, time.perf_counter() - started, folder)


@dataclass(frozen=True)
class BegunBuild:
    """A build in progress or ended. Closing its group ends it."""

    kernel: Kernel
    target: Target
    cache: Path
    group: Group = field(default_factory=Group)
    built: Future[Artifact] = field(default_factory=Future)


_begun: list[BegunBuild] = []


def begin(kernel: Kernel, target: Target, cache: Path, paths: Mapping[str, str], limits: BuildLimits) -> None:
    """Build this kernel in the background, into this cache."""
    where = Cache(cache)
    existing = next(folder for folder in (where.folder, *where.folder.parents) if folder.exists())
    if not os.access(existing, os.W_OK):
        return  # the session reports this, and where it builds instead
    begun = BegunBuild(kernel, target, where.folder)

    def build() -> None:
        try:
            toolchain = toolchain_for(target, kernel.language, paths)
            begun.built.set_result(make(kernel, toolchain, target, where, limits, begun.group))
        except BaseException as error:  # passed to whoever takes the build
            begun.built.set_exception(error)
        begun.group.close()

    _begun.append(begun)
    threading.Thread(target=build, name="deepgen-first-build", daemon=True).start()


def take(kernel: Kernel, target: Target, cache: Path) -> BegunBuild | None:
    """The build of this kernel, if it was begun."""
    with suppress(StopIteration):
        begun = next(one for one in _begun if (one.kernel.id, one.target, one.cache) == (kernel.id, target, cache))
        _begun.remove(begun)
        return begun
    return None
