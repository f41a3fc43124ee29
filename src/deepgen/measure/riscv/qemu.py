"""Programs under qemu: which one is here, how a program is started, and the plugin that counts its instructions."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from deepgen.build import BuildLimits, Cache, Group, build_once, default_cache_folder, programs, required
from deepgen.build.process import Finished, run
from deepgen.targets import Riscv, host
from deepgen.vocabulary import Kernel, LaunchPlan, Source

COUNTS = "counts"  # the file that the plugin writes
_PLUGIN, _PROGRAM = "count.so", "program"
_MOST_MEMORY = 8 << 30  # of address space: qemu's own and its guest's
_MOST_FILE = 4 << 30


@dataclass(frozen=True)
class Qemu:
    """An emulator for the user's programs, and the plugin built for it."""

    path: str
    version: str
    plugin: Path

    def run(
        self, program: Path, folder: Path, target: Riscv, seconds: float, group: Group, *, counted: bool
    ) -> Finished:
        """Run a program in a folder that has its request. What is counted is in the file `counts` there."""
        counting: tuple[str, ...] = ()
        if counted:
            # Under a name of its own in the folder: qemu takes a comma in a path for the end of an option.
            (folder / _PLUGIN).symlink_to(self.plugin)
            counting = ("-plugin", f"./{_PLUGIN},out={COUNTS}")
        if not os.access(program, os.X_OK):  # as in an unpacked bundle; qemu refuses such a file without a word
            program = Path(shutil.copyfile(program, folder / _PROGRAM))
            program.chmod(0o700)
        argv = (self.path, *processor(target), *counting, str(program.absolute()), ".")
        limits = BuildLimits(seconds, int(seconds) + 1, _MOST_MEMORY, file_bytes=_MOST_FILE)
        return run(argv, folder=folder, limits=limits, group=group)


def processor(target: Riscv) -> tuple[str, str]:
    """The options that make qemu the target's processor."""
    return "-cpu", f"rv64,v=true,vlen={target.vlen},elen=64,vext_spec=v1.0"


def find(paths: Mapping[str, str] | None = None, cache: Cache | Path | None = None) -> Qemu:
    """The emulator of this machine. Raises Missing."""
    path = required("qemu-riscv64", "kernels for riscv targets cannot be run here", paths)
    used = cache if isinstance(cache, Cache) else Cache(cache or default_cache_folder())
    text = (resources.files("deepgen.measure.riscv") / "count.c").read_text()
    plugin = Kernel("count_instructions", "c", (Source("count.c", text),), ("-O2",), LaunchPlan(()))
    built = build_once(plugin, host.processor(), paths=paths, cache=used)
    return Qemu(path, programs.version(path), Path(os.path.realpath(built.binary)))
