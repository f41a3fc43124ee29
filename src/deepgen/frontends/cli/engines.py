"""Where the work of a command is done: on this machine, or by an engine from a plug-in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.registry import Registry

if TYPE_CHECKING:
    from deepgen.settings import Settings
    from deepgen.tuning.engines import Engine


def chosen(name: str, address: str | None) -> Callable[[Settings, int | None], Engine]:
    """A function that creates the engine of that name; reports errors before any work is done."""
    if name not in ENGINES:
        raise BadInput(f"unknown engine {name!r}", allowed=" or ".join(ENGINES.names()))
    make = ENGINES.get(name)
    if name == LOCAL and address is not None:
        raise BadInput("--address is given without --engine ray", allowed="it names a Ray cluster")
    return lambda settings, jobs: make(settings, jobs, address)


def on_this_machine(settings: Settings, jobs: int | None, address: str | None) -> Engine:
    from deepgen.tuning.engines import local_engine

    return local_engine(settings, jobs)


LOCAL = "local"
# Arguments: the settings, the number of concurrent builds, and the address of the engine.
ENGINES: Registry[Callable[[Settings, int | None, str | None], Engine]] = Registry(
    "deepgen.engines", "engine", {LOCAL: "deepgen.frontends.cli.engines:on_this_machine"}
)


def words(name: str, address: str | None) -> str:
    """The options that select the same engine again."""
    options = "" if name == LOCAL else f" --engine {name}"
    return options if address is None else f"{options} --address {address}"
