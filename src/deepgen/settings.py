"""Settings: where toolchains, the cache and studies are, the default target, and limits.

They come from `deepgen.toml` in the project, then from the one in the user's config folder, then from defaults, key by
key; each value records its origin. The command line loads them. Python calls use only what they are passed and read no
file by themselves: a settings file names programs to run, and a library should not pick up such a file by chance.

For the same reason a file that is found automatically is used only if no one but this user and root can have written
it. A project's file may have come with a cloned repository, so its keys that name programs to run are ignored until the
user allows them (`deepgen allow`), which is recorded with the file's digest. A file that is named explicitly, in
$DEEPGEN_SETTINGS or by a call of `read`, is the user's own choice.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepgen.vocabulary import foreign
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.folders import default_cache_folder, user_folder, write_whole

if TYPE_CHECKING:
    from deepgen.run.measure.base import Policy
    from deepgen.toolchains import BuildLimits

FILE_NAME = "deepgen.toml"
VARIABLE = "DEEPGEN_SETTINGS"  # a file that is read instead of the project's
LIBRARY = Path("deepgen-library")  # the folder of the default library
_MOST_TOML = 1 << 20  # bytes; its parser is slower than that of JSON


@dataclass(frozen=True)
class Limits:
    """Limits on builds and runs."""

    jobs: int | None = None  # concurrent builds; None: one for each core
    build_seconds: float = 120.0  # of one build
    build_memory_gb: float = 4.0  # of one build
    run_seconds: float | None = None  # of one run of a kernel; None: scaled with the operator's work
    calm_seconds: float | None = None  # how long finals wait for a quiet machine; None: the policy's default
    race_seconds: float | None = None  # duration of the race in the finals; None: the policy's default
    calls_seconds: float | None = None  # how long finals call a winner repeatedly; None: the policy's default


@dataclass(frozen=True)
class Settings:
    """The effective values. `sources` maps each dotted key to the file it came from; defaults are not in it."""

    toolchains: Mapping[str, Path] = field(default_factory=dict)
    cache: Path = field(default_factory=default_cache_folder)
    studies: Path = field(default_factory=lambda: Path.cwd() / "deepgen-studies")
    target: str | None = None  # None: the best device here
    limits: Limits = field(default_factory=Limits)
    sources: Mapping[str, Path] = field(default_factory=dict)

    def source(self, key: str) -> str:
        """The origin of a value: a file, or `default`."""
        return str(self.sources.get(key, "default"))

    def values(self) -> dict[str, Any]:
        """Every value by its dotted key, as in the file."""
        out: dict[str, Any] = {f"toolchains.{name}": path for name, path in self.toolchains.items()}
        out |= {key: getattr(self, key) for key in ("cache", "studies", "target")}
        return out | {f"limits.{f.name}": getattr(self.limits, f.name) for f in fields(Limits)}

    def programs(self) -> dict[str, str]:
        """The configured toolchains, as engines and builds take them."""
        return {name: str(path) for name, path in self.toolchains.items()}

    def with_build_limit(self, seconds: float | None) -> Settings:
        """The settings with this limit on builds; None: unchanged."""
        return self if seconds is None else replace(self, limits=replace(self.limits, build_seconds=seconds))

    def limited(self, policy: Policy) -> Policy:
        """The policy with the configured limits on finals."""
        names = ("calm_seconds", "race_seconds", "calls_seconds")
        return replace(policy, **{name: x for name in names if (x := getattr(self.limits, name)) is not None})

    def build_limits(self) -> BuildLimits:
        from deepgen.toolchains import BuildLimits

        limits = self.limits
        return BuildLimits(
            wall_seconds=limits.build_seconds,
            cpu_seconds=max(1, round(limits.build_seconds)),
            memory_bytes=round(limits.build_memory_gb * (1 << 30)),
        )


def load(start: Path | None = None) -> Settings:
    """The effective settings for a folder (default: the current one), as the command line uses them.

    Raises BadInput for a file that another user may have written.
    """
    named, own = os.environ.get(VARIABLE), user_file()
    candidates = [own, None if named else project_file(start or Path.cwd())]
    files = [path for path in candidates if path is not None and _is_there(path)]
    for path in files:
        _require_own(path)
    doubtful = [path for path in files if path != own and not _is_allowed(path)]
    return _of([*files, *([Path(named).expanduser().absolute()] if named else [])], doubtful)


def read(path: str | Path) -> Settings:
    """The settings of this file only, with defaults for missing keys."""
    return _of([Path(path).expanduser().absolute()])


def _of(files: Iterable[Path], doubtful: Collection[Path] = ()) -> Settings:
    """The last file that contains a key wins. From doubtful files, keys that name programs to run are ignored."""
    merged: dict[str, Any] = {}
    sources: dict[str, Path] = {}
    for path in files:
        values = _flat(path)
        if path in doubtful:
            left_out = [key for key, value in values.items() if runs_programs(key, value)]
            values = {key: value for key, value in values.items() if key not in left_out}
            _tell_left_out(path, left_out)
        merged |= values
        sources |= dict.fromkeys(values, path)
    limits = {k.partition(".")[2]: v for k, v in merged.items() if k.startswith("limits.")}
    toolchains = {k.partition(".")[2]: v for k, v in merged.items() if k.startswith("toolchains.")}
    plain = {k: v for k, v in merged.items() if "." not in k}
    return Settings(toolchains=toolchains, limits=Limits(**limits), sources=sources, **plain)


def runs_programs(key: str, value: Any) -> bool:
    """Whether a value names programs, a folder of binaries that are loaded, or a host to connect to."""
    return key == "cache" or key.startswith("toolchains.") or (key == "target" and "host=" in str(value))


def allow(path: Path, *, allowed: bool = True) -> list[str]:
    """Record that the programs named in a file may run as long as the file is unchanged. Returns these keys."""
    _require_own(path)
    keys = [key for key, value in _flat(path).items() if runs_programs(key, value)]
    kept = _allowed_file()
    if kept is None:
        raise BadInput(
            "there is no home folder to store the permission in", allowed=f"set XDG_CONFIG_HOME, or {VARIABLE}"
        )
    entries = _allowances()
    entries.pop(str(path.resolve()), None)
    if allowed:
        entries[str(path.resolve())] = _digest(path)
    write_whole(kept, json.dumps(entries, indent=1) + "\n")
    return keys


def _is_allowed(path: Path) -> bool:
    return _allowances().get(str(path.resolve())) == _digest(path)


def _allowances() -> dict[str, Any]:
    """Files by path, with their digests when they were allowed."""
    kept = _allowed_file()
    if kept is None or not kept.is_file():
        return {}
    _require_own(kept)
    return read_json(kept, allowed="an object; delete the file and allow the folders again")


def _allowed_file() -> Path | None:
    own = user_file()
    return None if own is None else own.with_name("allowed.json")


def _digest(path: Path) -> str:
    return hashlib.sha256(foreign.read_bytes(path, most=_MOST_TOML)).hexdigest()


def _tell_left_out(path: Path, keys: Collection[str]) -> None:
    if not keys or path in _reported:
        return
    _reported.add(path)
    text = f"deepgen: {path}: {', '.join(keys)} ignored: the file may be someone else's; to use it: deepgen allow"
    print(foreign.printable(text), file=sys.stderr, flush=True)


_reported: set[Path] = set()


def user_file() -> Path | None:
    """The user's own settings file, whether or not it exists; None for a user without a home."""
    folder = user_folder("XDG_CONFIG_HOME", ".config")
    return None if folder is None else folder / FILE_NAME


def _require_own(path: Path) -> None:
    """Raises BadInput unless only this user and root can have written the file, and put it there."""
    try:
        link, file, folder = path.lstat(), path.stat(), path.parent.stat()
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=str(path)) from error
    others = [about.st_uid for about in (link, file) if about.st_uid not in (0, os.getuid())]
    anyone = [what for what, about in (("it", file), ("its folder", folder)) if _open_to_all(about)]
    if others or anyone:
        why = f"it belongs to {_user(others[0])}" if others else f"{anyone[0]} is world-writable"
        raise BadInput(
            f"names programs to run and is ignored: {why}",
            where=str(path),
            allowed=f"use a file of your own; if you trust this one, set {VARIABLE}={path}; to use none, "
            f"set {VARIABLE}={os.devnull}",
        )


def _open_to_all(about: os.stat_result) -> bool:
    """Whether anyone can write it. In a sticky folder, such as /tmp, nobody can replace another user's file."""
    return bool(about.st_mode & stat.S_IWOTH) and not about.st_mode & stat.S_ISVTX


def _user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except PermissionError:  # another user's home, as after `su`: files there are not meant for this user
        return False


def project_file(start: Path) -> Path | None:
    """The nearest settings file from a folder up to the root of its repository.

    Outside a repository only the folder itself is searched: a settings file names programs to run, so one in a shared
    parent folder such as /tmp must not be picked up.
    """
    start = start.resolve()
    folders = [start, *start.parents]
    roots = [i for i, folder in enumerate(folders) if (folder / ".git").exists()]
    for folder in folders[: roots[0] + 1 if roots else 1]:
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
    return None


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file's content; an unreadable or malformed one is an error."""
    # The same parser under two names: part of Python since 3.11, a package before. Imported here because few folders
    # have such a file.
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    text = foreign.read_bytes(path, most=_MOST_TOML)
    try:
        data: dict[str, Any] = toml.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"is not TOML: {error}", where=str(path)) from error
    foreign.check_limits(data, str(path))
    return data


def read_json(path: Path, *, allowed: str) -> dict[str, Any]:
    """The object in a JSON file; `allowed` says what the file should contain, for error messages."""
    data = foreign.read_json(path)
    if not isinstance(data, dict):
        raise BadInput("is not an object", where=str(path), allowed=allowed)
    return data


def _path(value: Any, folder: Path) -> Path | None:
    """A path; relative ones are relative to the settings file."""
    return folder / Path(value).expanduser() if isinstance(value, str) and value else None


def _word(value: Any, folder: Path) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: Any, folder: Path) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 1 else None


def _number(value: Any, folder: Path) -> float | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")
    return float(value) if good else None


def _seconds(value: Any, folder: Path) -> float | None:
    return 0.0 if value == 0 and not isinstance(value, bool) else _number(value, folder)


# How each key is parsed (None: invalid), and what is allowed, in words; toolchains are separate.
_KEYS: Mapping[str, tuple[Callable[[Any, Path], Any], str]] = {
    "cache": (_path, "a folder's path, as a string"),
    "studies": (_path, "a folder's path, as a string"),
    "target": (_word, 'the name of a target, such as "x86:native"'),
    "limits.jobs": (_whole, "must be an integer of at least 1"),
    "limits.build_seconds": (_number, "a positive number"),
    "limits.build_memory_gb": (_number, "a positive number"),
    "limits.run_seconds": (_number, "a positive number"),
    "limits.calm_seconds": (_seconds, "a number of seconds, at least 0"),
    "limits.race_seconds": (_seconds, "a number of seconds, at least 0"),
    "limits.calls_seconds": (_seconds, "a number of seconds, at least 0"),
}
_TABLES = ("toolchains", "limits")


def _flat(path: Path) -> dict[str, Any]:
    """A settings file as dotted keys and checked values."""
    out = {}
    for key, value in read_toml(path).items():
        if key in _TABLES and not isinstance(value, dict):
            raise BadInput(f"{key} is {value!r}", where=str(path), allowed=f"a table: [{key}]")
        items = {f"{key}.{name}": v for name, v in value.items()} if key in _TABLES else {key: value}
        for dotted, content in items.items():
            out[dotted] = _checked(dotted, content, path)
    return out


def _with_toolchains() -> Mapping[str, tuple[Callable[[Any, Path], Any], str]]:
    """All keys. The list of toolchains is in `toolchains`, which is slow to import."""
    from deepgen.toolchains import TOOLS

    return {**{f"toolchains.{name}": (_path, "a program's path, as a string") for name in TOOLS}, **_KEYS}


def _checked(key: str, value: Any, path: Path) -> Any:
    entry = _KEYS.get(key) or _with_toolchains().get(key)
    if entry is None:
        table = key.partition(".")[0] + "." if "." in key else ""
        keys = [k for k in _with_toolchains() if k.startswith(table)]
        raise BadInput(f"unknown key {key}", where=str(path), allowed="one of " + ", ".join(keys))
    read, allowed = entry
    result = read(value, path.parent)
    if result is None:
        raise BadInput(f"{key} is {value!r}", where=str(path), allowed=allowed)
    return result
