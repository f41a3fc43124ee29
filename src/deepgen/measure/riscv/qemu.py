"""Programs under qemu on this machine, and the plugin that counts their instructions."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from deepgen.build import BuildLimits, Cache, Group, build_once, default_cache_folder, programs, required
from deepgen.build.process import End, run
from deepgen.measure.riscv.place import COUNTS, REQUEST, Ran
from deepgen.targets import Riscv, host
from deepgen.vocabulary import Json, Kernel, LaunchPlan, Missing, Source

_PLUGIN, _PROGRAM = "count.so", "program"
_NO_PLUGINS_FROM = 10  # Debian 13's takes none; what is between that and 7.2 was not tried
_NO_HALVES_UP_TO = 7  # 7.2 has no zvfh, 10 has
_MOST_MEMORY = 8 << 30  # of address space: qemu's own and its guest's
_MOST_FILE = 4 << 30


class Qemu:
    """An emulator for programs of a user, as the target's processor. Folders of runs are made in `scratch`."""

    counts = True

    def __init__(
        self,
        target: Riscv,
        scratch: Path,
        paths: Mapping[str, str] | None = None,
        cache: Cache | Path | None = None,
    ) -> None:
        """Raises Missing."""
        self.path, version, major = find(paths)
        self.plugin = _plugin(paths, cache)
        self.conditions: Mapping[str, Json] = {"proxy": target.proxy, "qemu": version}
        self.lacks = f"qemu {version} has no vectors of f16" if target.has("zvfh") and major <= _NO_HALVES_UP_TO else ""
        self._target, self._scratch = target, scratch
        self._group = Group()
        self._numbers = itertools.count()

    def run(self, program: Path, inputs: Path, request: str, seconds: float, *, counted: bool) -> Ran:
        folder = self._scratch / f"run-{next(self._numbers)}"
        folder.mkdir()
        for file in inputs.iterdir():
            (folder / file.name).symlink_to(file)
        (folder / REQUEST).write_text(request)
        counting: tuple[str, ...] = ()
        if counted:
            # Under a name of its own in the folder: qemu takes a comma in a path for the end of an option.
            (folder / _PLUGIN).symlink_to(self.plugin)
            counting = ("-plugin", f"./{_PLUGIN},out={COUNTS}")
        if not os.access(program, os.X_OK):  # as in an unpacked bundle; qemu refuses such a file without a word
            program = Path(shutil.copyfile(program, folder / _PROGRAM))
            program.chmod(0o700)
        argv = (self.path, *processor(self._target), *counting, str(program.absolute()), ".")
        limits = BuildLimits(seconds, int(seconds) + 1, _MOST_MEMORY, file_bytes=_MOST_FILE)
        ended = run(argv, folder=folder, limits=limits, group=self._group)
        return Ran(ended.code, ended.end is not End.WALL_CLOCK, ended.seconds, ended.log, folder)

    def close(self) -> None:
        self._group.kill()


def find(paths: Mapping[str, str] | None = None) -> tuple[str, str, int]:
    """The emulator of this machine, its version and the first number of that. Raises Missing."""
    path = required("qemu-riscv64", "kernels for riscv targets cannot be run here", paths)
    version = programs.version(path)
    major = int(version.partition(".")[0]) if version[:1].isdigit() else 0
    if major >= _NO_PLUGINS_FROM:
        raise Missing(
            f"a qemu-riscv64 before {_NO_PLUGINS_FROM}",
            blocks=f"{path} is version {version}, which takes no plugins of this kind: nothing can be counted",
            remedy="Debian 12 has version 7.2, as qemu-user; or name a board with --host.",
        )
    return path, version, major


def processor(target: Riscv) -> tuple[str, str]:
    """The options that make qemu the target's processor."""
    return "-cpu", f"rv64,v=true,vlen={target.vlen},elen=64,vext_spec=v1.0"


def _plugin(paths: Mapping[str, str] | None, cache: Cache | Path | None) -> Path:
    used = cache if isinstance(cache, Cache) else Cache(cache or default_cache_folder())
    text = (resources.files("deepgen.measure.riscv") / "count.c").read_text()
    plugin = Kernel("count_instructions", "c", (Source("count.c", text),), ("-O2",), LaunchPlan(()))
    return Path(build_once(plugin, host.processor(), paths=paths, cache=used).binary).resolve()
