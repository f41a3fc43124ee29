"""Where the work of a command is done: on this machine, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable

from deepgen.frontends.api import local_engine
from deepgen.settings import Settings
from deepgen.tuning.engines import Engine
from deepgen.vocabulary.errors import BadInput


def chosen(name: str, address: str | None) -> Callable[[Settings, int | None], Engine]:
    """How to make the engine of that name; says what is wrong before any work is done."""
    if name not in ("local", "ray"):
        raise BadInput(f"unknown engine {name!r}", allowed="local or ray")
    if name == "local":
        if address is not None:
            raise BadInput("--address is given without --engine ray", allowed="it names a Ray cluster")
        return local_engine

    def ray(settings: Settings, jobs: int | None) -> Engine:
        from deepgen_cluster.ray import RayEngine

        limits = settings.build_limits()
        if address is not None:  # its nodes have folders and programs of their own
            return RayEngine(address=address, build_slots=jobs, limits=limits)
        slots = jobs or settings.limits.jobs
        return RayEngine(build_slots=slots, limits=limits, cache=settings.cache, toolchains=settings.programs())

    return ray


def words(name: str, address: str | None) -> str:
    """The options that choose the same engine again."""
    options = "" if name == "local" else f" --engine {name}"
    return options if address is None else f"{options} --address {address}"
