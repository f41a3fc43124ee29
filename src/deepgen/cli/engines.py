"""Where the work of a command is done: on this machine, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable

from deepgen.cli import toolchain
from deepgen.engines import Engine, LocalEngine
from deepgen.settings import Settings
from deepgen.vocabulary.errors import BadInput


def local(settings: Settings, jobs: int | None) -> LocalEngine:
    """The local engine as the settings want it."""
    return LocalEngine(
        jobs=jobs or settings.limits.jobs,
        cache=settings.cache,
        toolchains=toolchain.paths(settings),
        limits=toolchain.limits(settings),
    )


def chosen(name: str, address: str | None) -> Callable[[Settings, int | None], Engine]:
    """How to make the engine of that name; says what is wrong before any work is done."""
    if name not in ("local", "ray"):
        raise BadInput(f"unknown engine {name!r}", allowed="local or ray")
    if name == "local":
        if address is not None:
            raise BadInput("--address is given without a Ray cluster", allowed="only with --engine ray")
        return local

    def ray(settings: Settings, jobs: int | None) -> Engine:
        from deepgen.engines.ray import RayEngine

        limits = toolchain.limits(settings)
        if address is not None:  # its nodes have folders and programs of their own
            return RayEngine(address=address, build_slots=jobs, limits=limits)
        slots = jobs or settings.limits.jobs
        return RayEngine(build_slots=slots, limits=limits, cache=settings.cache, toolchains=toolchain.paths(settings))

    return ray


def words(name: str, address: str | None) -> str:
    """The options that choose the same engine again."""
    given = "" if name == "local" else f" --engine {name}"
    return given if address is None else f"{given} --address {address}"
