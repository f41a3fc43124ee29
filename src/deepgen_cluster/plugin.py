"""What this package adds to deepgen besides its commands. Imports are lazy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepgen.extend import Engine, Runs, Settings


def engine(settings: Settings, jobs: int | None, address: str | None) -> Engine:
    """The engine of `--engine ray`."""
    from deepgen_cluster.ray import RayEngine

    limits = settings.build_limits()
    if address is not None:  # its nodes have their own folders and programs
        return RayEngine(address=address, build_slots=jobs, limits=limits)
    slots = jobs or settings.limits.jobs
    return RayEngine(build_slots=slots, limits=limits, cache=settings.cache, toolchains=settings.programs())


def runs() -> Runs:
    """Folders of cluster runs, for reports and for the browser."""
    from deepgen_cluster.folder import runs as of_clusters

    return of_clusters()
