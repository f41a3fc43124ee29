"""A build that was begun before there was a pool for it: the first kernel's, while the tuner imports the rest."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from deepgen.targets import Target
from deepgen.toolchains.base import BuildLimits
from deepgen.toolchains.cache import Cache
from deepgen.toolchains.find import toolchain_for
from deepgen.toolchains.group import Group
from deepgen.toolchains.pool import make
from deepgen.vocabulary import Artifact, Kernel


@dataclass(frozen=True)
class BegunBuild:
    """Under way or ended. Closing its group ends it."""

    kernel: Kernel
    target: Target
    cache: Path
    group: Group = field(default_factory=Group)
    built: Future[Artifact] = field(default_factory=Future)


_begun: list[BegunBuild] = []


def begin(kernel: Kernel, target: Target, cache: Path, paths: Mapping[str, str], limits: BuildLimits) -> None:
    """Build this kernel in the background, into that cache."""
    where = Cache(cache)
    existing = next(folder for folder in (where.folder, *where.folder.parents) if folder.exists())
    if not os.access(existing, os.W_OK):
        return  # the session says so, and where it builds instead
    begun = BegunBuild(kernel, target, where.folder)

    def build() -> None:
        try:
            toolchain = toolchain_for(target, kernel.language, paths)
            begun.built.set_result(make(kernel, toolchain, target, where, limits, begun.group))
        except BaseException as error:  # for whoever takes it
            begun.built.set_exception(error)
        begun.group.close()

    _begun.append(begun)
    threading.Thread(target=build, name="deepgen-first-build", daemon=True).start()


def take(kernel: Kernel, target: Target, cache: Path) -> BegunBuild | None:
    """The build of this kernel, where it was begun."""
    with suppress(StopIteration):
        begun = next(one for one in _begun if (one.kernel.id, one.target, one.cache) == (kernel.id, target, cache))
        _begun.remove(begun)
        return begun
    return None
