"""The place of a chaos run: separate small disks, a clock that can be set, and a command line that runs inside."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from deepgen.vocabulary import Missing
from faults import family

SRC = Path(__file__).parents[2] / "src"
DISKS = {"studies": 64, "cache": 128, "temp": 256}  # MiB
_BALLAST = "ballast"
_POINTS = f"""[deepgen.generators]
{family.NAME} = chaos_family:DisturbedGemm
"""


@dataclass(frozen=True)
class Place:
    """A folder with a short path, which Ray needs for its sockets, visible only inside the run's own namespace."""

    root: Path

    def disk(self, name: str) -> Path:
        return self.root / name[0]

    def prepare(self) -> None:
        """Mount the disks, build the clock, and write the plug-in and the settings."""
        for name, size in DISKS.items():
            self.disk(name).mkdir()
            _command("mount", "-t", "tmpfs", "-o", f"size={size}m,mode=700", "chaos", str(self.disk(name)))
        _command("mount", "-t", "tmpfs", "-o", "mode=1777", "chaos", "/dev/shm")
        self._clock_file.write_bytes(bytes(8))
        clock = str(Path(__file__).with_name("clock.c"))
        _command("gcc", "-shared", "-fPIC", "-O2", "-o", str(self._clock_library), clock, "-ldl")
        plugin = self.root / "plugin"
        points = plugin / "chaos_family-1.dist-info"
        points.mkdir(parents=True)
        (points / "METADATA").write_text("Metadata-Version: 2.1\nName: chaos_family\nVersion: 1\n")
        (points / "entry_points.txt").write_text(_POINTS)
        shutil.copyfile(family.__file__, plugin / "chaos_family.py")
        (plugin / "torch.py").write_text("raise ImportError\n")  # a baseline that is slow to import
        for folder in ("work", "logs", "config", "data"):
            (self.root / folder).mkdir()

    @property
    def work(self) -> Path:
        """The current folder of commands."""
        return self.root / "work"

    @property
    def _clock_file(self) -> Path:
        return self.root / "clock"

    @property
    def _clock_library(self) -> Path:
        return self.root / "clock.so"

    def environment(self) -> dict[str, str]:
        """The environment of everything that is disturbed."""
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(SRC), str(self.root / "plugin"))),
            "XDG_CACHE_HOME": str(self.disk("cache")),
            "XDG_CONFIG_HOME": str(self.root / "config"),
            "XDG_DATA_HOME": str(self.root / "data"),
            "TMPDIR": str(self.disk("temp")),
            "LD_PRELOAD": str(self._clock_library),
            "CHAOS_CLOCK": str(self._clock_file),
            "COLUMNS": "80",
        }

    def calm_environment(self) -> dict[str, str]:
        """The same with the correct time and with other disks, for reference runs."""
        calm = self.root / "calm"
        calm.mkdir(exist_ok=True)
        undisturbed = {k: v for k, v in self.environment().items() if k not in ("LD_PRELOAD", "CHAOS_CLOCK")}
        return {**undisturbed, "XDG_CACHE_HOME": str(calm), "TMPDIR": str(calm)}

    @cached_property
    def _clock(self) -> mmap.mmap:
        with self._clock_file.open("r+b") as file:
            return mmap.mmap(file.fileno(), 8)

    def clock(self) -> int:
        """The clock's offset from the correct time in seconds."""
        return int(struct.unpack("=q", self._clock[:8])[0] // 1_000_000_000)

    def set_clock(self, seconds: int) -> None:
        """Set the clock to this offset from the correct time."""
        self._clock[:8] = struct.pack("=q", seconds * 1_000_000_000)

    def fill(self, name: str) -> int:
        """Fill a disk completely. Returns the bytes that were free."""
        folder = self.disk(name)
        results = os.statvfs(folder)
        free = results.f_bavail * results.f_frsize
        with (folder / _BALLAST).open("wb", buffering=0) as file:
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, free)
            file.seek(0, os.SEEK_END)
            try:
                while True:
                    file.write(bytes(4096))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
        return free

    def make_room(self, name: str) -> None:
        (self.disk(name) / _BALLAST).unlink(missing_ok=True)


def _command(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Missing(words[0], blocks="there can be no chaos run", remedy=f"Install {words[0]}.") from error
    if done.returncode:
        raise Missing(
            f"the right to run {' '.join(words[:3])}",
            blocks="there can be no chaos run",
            remedy=f"It said: {done.stderr.strip()}",
        )


def apart(program: list[str]) -> list[str]:
    """A command that runs a program with its own processes and disks only, and ends everything with it."""
    alone = ["unshare", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    # The shell is the first process there, and adopts orphans.
    return [*alone, "sh", "-c", '"$@"; exit $?', "sh", sys.executable, *program]
