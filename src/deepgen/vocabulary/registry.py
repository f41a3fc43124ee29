"""Objects by name, imported on first use: registries, built in or provided by installed packages through entry points,
and a package's own names, so that importing it stays fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from deepgen.vocabulary.errors import BadInput, DeepgenError

T = TypeVar("T")
DISTRIBUTION = "deepgen-kernels"  # our distribution, whose entry points are our own plug-ins


@dataclass(frozen=True)
class Broken:
    """A plug-in that cannot be loaded."""

    group: str
    name: str
    package: str
    why: str


class Registry(Generic[T]):
    """Objects by name. `own` gives the place of each built-in object, `module:attribute`, which is imported on lookup.

    Plug-ins add names through entry points of the group. Built-in names take precedence.
    """

    def __init__(self, group: str, what: str, own: Mapping[str, str], also: Mapping[str, str] | None = None) -> None:
        """`also`: further places by names that other code uses, which are not listed."""
        self.group, self.what, self._own, self._also = group, what, own, also or {}
        self._loaded: dict[str, T] = {}

    @property
    def own(self) -> tuple[str, ...]:
        """The built-in names, in order."""
        return tuple(self._own)

    def place(self, name: str) -> str:
        """The module of a built-in name, without importing it."""
        return self._own[name].partition(":")[0]

    def names(self) -> tuple[str, ...]:
        """All names, built-in ones first, without importing anything."""
        return (*self._own, *(name for name in sorted(_entry_points(self.group)) if name not in self._own))

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in _entry_points(self.group)

    def get(self, name: str) -> T:
        """The object with this name. Raises BadInput for an unknown name and DeepgenError for a broken plug-in."""
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def working(self, without: tuple[str, ...] = ()) -> list[T]:
        """All objects, except plug-ins that cannot be loaded, and built-in names with one of the prefixes `without`."""
        out = [self.get(name) for name in self._own if not name.startswith(without)]
        for name in self.names()[len(self._own) :]:
            try:
                out.append(self.get(name))
            except DeepgenError:
                continue
        return out

    def broken(self) -> list[Broken]:
        """The plug-ins that cannot be loaded, with reasons. Imports all of them."""
        failures = []
        for name, entry in sorted(_entry_points(self.group).items()):
            if name in self._own:
                why = f"{name!r} is also a built-in name, which takes precedence"
                failures.append(Broken(self.group, name, _package(entry), why))
                continue
            try:
                self.get(name)
            except DeepgenError as error:
                failures.append(Broken(self.group, name, _package(entry), str(error)))
        return failures

    def _load(self, name: str) -> T:
        if place := self._own.get(name) or (self._also.get(name) if name not in self else None):
            module, _, attribute = place.partition(":")
            own: T = getattr(import_module(module), attribute)
            return own
        entry = _entry_points(self.group).get(name)
        if entry is None:
            raise BadInput(f"unknown {self.what} {name!r}", allowed="one of " + ", ".join(self.names()))
        try:
            plugged: T = entry.load()
        except Exception as error:  # a third-party module may raise anything when imported
            what = f"{self.what} {name!r} of package {_package(entry)} cannot be loaded"
            raise DeepgenError(f"{what}: {type(error).__name__}: {error}") from error
        return plugged


class Lowering(Protocol):
    """Converts Triton's IR to C for CPUs."""

    RELEASE: str  # Triton release, such as 3.9
    ENTRY: str  # the function in that C code that runs a whole grid

    def digest(self) -> str:
        """A digest of its code: another version generates other kernels."""
        ...


# Provided by a plug-in with the name `triton`, and imported only for such kernels.
LOWERINGS: Registry[Callable[[], Lowering]] = Registry("deepgen.lowerings", "lowering to C", {})
# Called when modules such as `deepgen.triton_cpu` are imported, if a plug-in provides it.
DOORS: Registry[Callable[[], None]] = Registry("deepgen.doors", "module", {})


@lru_cache(maxsize=None)  # noqa: UP033  bundles run on Python 3.8
def _entry_points(group: str) -> Mapping[str, Any]:
    """The entry points by name: our own source tree's first; if two installed packages use a name, the first counts."""
    from importlib import metadata  # imported late: built-in names do not need it, and it takes long to import

    places = _declared_in_source_tree().get(group, {})
    by_name: dict[str, Any] = {name: metadata.EntryPoint(name, place, group) for name, place in places.items()}
    try:
        installed = metadata.entry_points(group=group)
    except TypeError:  # Python before 3.10, on which bundles run
        everything: Any = metadata.entry_points()
        installed = everything.get(group, ())
    for entry in installed:
        by_name.setdefault(entry.name, entry)
    return by_name


def own_plugins() -> Mapping[str, Mapping[str, str]]:
    """The plug-ins of deepgen's own distribution: group -> name -> `module:attribute`."""
    from importlib import metadata

    if declared := _declared_in_source_tree():
        return declared
    by_group: dict[str, dict[str, str]] = {}
    try:
        entries = metadata.distribution(DISTRIBUTION).entry_points
    except metadata.PackageNotFoundError:
        return by_group
    for entry in entries:
        if entry.group.startswith("deepgen."):
            by_group.setdefault(entry.group, {})[entry.name] = entry.value
    return by_group


def metadata_files(plugins: Mapping[str, Mapping[str, str]], version: str) -> dict[str, str]:
    """The files with which importlib finds these plug-ins in a folder with copies of their packages."""
    folder = f"{DISTRIBUTION.replace('-', '_')}-{version}.dist-info"
    groups = ((group, (f"{name} = {place}" for name, place in places.items())) for group, places in plugins.items())
    return {
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {version}\n",
        f"{folder}/entry_points.txt": "\n".join("\n".join((f"[{group}]", *lines, "")) for group, lines in groups),
    }


@lru_cache(maxsize=None)  # noqa: UP033
def _declared_in_source_tree() -> Mapping[str, Mapping[str, str]]:
    """The entry points in pyproject.toml, if deepgen runs from its source tree: that need not be installed, and the
    metadata of an editable installation may be older than the file.
    """
    source = Path(__file__).parents[2]
    project = source.parent / "pyproject.toml"
    if source.name != "src" or not project.is_file():
        return {}
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    about = toml.loads(project.read_text(encoding="utf-8")).get("project", {})
    groups = about.get("entry-points", {}) if about.get("name") == DISTRIBUTION else {}
    return {group: places for group, places in groups.items() if group.startswith("deepgen.")}


def _package(entry: Any) -> str:
    dist = getattr(entry, "dist", None)
    return f"{dist.name} {dist.version}" if dist is not None else str(entry.value)


def lazy(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The package's `__getattr__` and `__dir__`. `names`: for each module, its names separated by spaces.

    Type checkers and editors get the same names from imports under TYPE_CHECKING, and `__all__`.
    """
    where = {name: module for module, listed in names.items() for name in listed.split()}

    def __getattr__(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(where[name], package), name)

    def __dir__() -> list[str]:
        return sorted({*vars(import_module(package)), *where})

    return __getattr__, __dir__
