"""One kernel, from the cache or from its toolchain."""

from __future__ import annotations

import time

from deepgen.targets import Target
from deepgen.toolchains.base import BuildError, BuildLimits, Toolchain
from deepgen.toolchains.cache import Cache, cache_key
from deepgen.toolchains.group import Group
from deepgen.vocabulary import Artifact, DeepgenError, Kernel


def make(
    kernel: Kernel, toolchain: Toolchain, target: Target, cache: Cache, limits: BuildLimits, group: Group
) -> Artifact:
    """The artifact of a kernel.

    Raises BuildError, DeepgenError when there is no room to build in, CancelledError when the group was killed.
    """
    key = cache_key(kernel, toolchain, target)
    found = cache.get(key)
    if found is not None:
        return found
    for last in (False, False, True):
        group.admit()
        try:
            return _build(key, kernel, toolchain, target, cache, limits, group)
        except BuildError as error:
            # Killed by somebody, or not started: twice may be bad luck.
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
        # No verdict on the kernel: it was not even tried.
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
