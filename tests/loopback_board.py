"""A local test board: a real SSH server on a loopback address, with a separate user, and qemu as its processor.

Only root can add a user, and mount a disk that can be filled; otherwise the board belongs to this user, on the existing
disk. Its programs can use only the commands that a bare board has.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from deepgen.run.riscv.qemu import find, processor
from deepgen.targets import Riscv
from deepgen.vocabulary import Missing
from loopback_ssh import make_key, serve

ROOT = os.getuid() == 0 and shutil.which("useradd", path="/usr/sbin:/sbin") is not None
DISK_BYTES = 16 << 20
_TOOLS = ("awk", "cat", "chmod", "find", "ln", "mkdir", "mv", "rm", "sh", "sleep", "tar")
_SETTINGS = "SetEnv PATH={folder}/bin XDG_CACHE_HOME={folder}/disk\n"
_SSH = """#!/bin/sh
exec {ssh} -F none -i {folder}/user -o UserKnownHostsFile={folder}/known -o GlobalKnownHostsFile=/dev/null \
    -o KexAlgorithms=curve25519-sha256 "$@"
"""
# What a board has and this machine lacks: its name, and a processor that runs its programs.
_UNAME = "#!/bin/sh\necho riscv64\n"
_TIMEOUT = """#!/bin/sh
[ -e {folder}/before ] && sh {folder}/before
[ "$4" = perf ] && exec {timeout} "$@"
exec {timeout} "$1" "$2" "$3" {qemu} "$4" "$5"
"""
_PERF = """#!/bin/sh
for word; do
    shift
    [ "$word" = ./program ] && set -- "$@" {qemu}
    set -- "$@" "$word"
done
exec {perf} "$@"
"""
# The server's process for a connection is the parent of the shell that runs a program.
DROP = "kill -KILL $(awk '{print $4}' /proc/$(awk '{print $4}' /proc/$PPID/stat)/stat)\n"
KILL = "kill -KILL $PPID\n"


@dataclass(frozen=True)
class LoopbackBoard:
    """The board, as its owner sees it. `client`: the folder with the `ssh` that reaches it, to be first in PATH."""

    folder: Path
    user: str
    port: int

    @property
    def host(self) -> str:
        return f"{self.user}@127.0.0.1:{self.port}"

    @property
    def client(self) -> Path:
        return self.folder / "client"

    @property
    def disk(self) -> Path:
        return self.folder / "disk"

    def accept(self, key: str = "host") -> None:
        """Record its host key as known, or a different key."""
        public = (self.folder / f"{key}.pub").read_text()
        (self.folder / "known").write_text(f"[127.0.0.1]:{self.port} {public}")

    def before(self, script: str, times: int | None = None) -> None:
        """A script to run on the board before the next programs, this many times; before every one if None."""
        left = self.folder / "disk" / "left"
        if times is not None:
            left.write_text("x" * times)
            left.chmod(0o666)
            script = f'[ -s {left} ] || exit 0; x=$(cat {left}); printf %s "${{x#x}}" >{left}; {script}'
        (self.folder / "before").write_text(script)

    def calm(self) -> None:
        """Remove all disturbances."""
        for file in (self.folder / "before", self.disk / "left", self.disk / "ballast"):
            file.unlink(missing_ok=True)

    def fill(self) -> None:
        """Fill its disk completely."""
        with (self.disk / "ballast").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError:
                return

    def perf(self, *, there: bool) -> None:
        """Install perf on the board or remove it; it is this machine's perf, which counts what qemu executes."""
        (self.folder / "bin/perf").unlink(missing_ok=True)
        if there and shutil.which("perf"):
            (self.folder / "bin/perf").symlink_to(self.folder / "perf")

    def script(self, name: str, text: str) -> None:
        _script(self.folder / name, text)

    def files(self) -> list[str]:
        """The files on its disk."""
        # Files that vanish meanwhile are skipped, which rglob does not do.
        found = (Path(folder, name) for folder, _, names in os.walk(self.disk) for name in names)
        return sorted(str(path.relative_to(self.disk)) for path in found)

    def sessions(self) -> list[Path]:
        """Folders of tuning runs."""
        return sorted(self.disk.glob("deepgen-board/*"))

    def processes(self) -> list[str]:
        """The commands of its user, if that is a separate user."""
        found = []
        for entry in Path("/proc").iterdir() if self.user != getpass.getuser() else ():
            try:
                if entry.name.isdecimal() and entry.owner() == self.user:
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip())
            except (OSError, KeyError):  # it has already ended
                continue
        return [command for command in found if command]


@contextmanager
def loopback(target: Riscv, disk_bytes: int = DISK_BYTES) -> Iterator[LoopbackBoard]:
    """A board with that processor. Raises Missing if a required program is not installed."""
    paths = {name: shutil.which(name) or shutil.which(name, path="/usr/sbin") for name in _NEEDED}
    for name, package in _NEEDED.items():
        if paths[name] is None:
            raise Missing(name, blocks="a board on this machine", remedy=f"Install {package}.")
    with ExitStack() as left:
        folder = Path(tempfile.mkdtemp(prefix="deepgen-loopback-"))
        left.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        user = _add_user(folder, left) if ROOT else getpass.getuser()
        _make_disk(folder / "disk", disk_bytes, left)
        for name in ("host", "user"):
            make_key(folder / name)
        _install(folder, target, paths)
        settings = _SETTINGS.format(folder=folder)
        sshd, user_key = f"{paths['sshd']}", folder / "user.pub"
        process, port = serve(sshd, folder, key=folder / "host", authorized=user_key, more=settings)
        left.callback(process.wait)
        left.callback(process.terminate)
        made = LoopbackBoard(folder, user, port)
        made.accept()
        yield made


_NEEDED = {"sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client", "timeout": "coreutils"}


def _install(folder: Path, target: Riscv, paths: dict[str, str | None]) -> None:
    (folder / "bin").mkdir()
    for tool in _TOOLS:
        (folder / "bin" / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
    path, _, version = find()
    qemu = " ".join((path, *processor(target, version)))
    words = {**paths, "qemu": qemu, "folder": str(folder), "perf": shutil.which("perf")}
    for name, text in {"bin/uname": _UNAME, "bin/timeout": _TIMEOUT, "client/ssh": _SSH, "perf": _PERF}.items():
        _script(folder / name, re.sub(r"\{(\w+)\}", lambda word: f"{words[word[1]]}", text))


def _script(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    file.write_text(text)
    file.chmod(0o755)


def _add_user(folder: Path, left: ExitStack) -> str:
    """A user with a home in the folder, removed with all of their processes."""
    name = f"board{os.getpid()}"
    account = ("--system", "--create-home", "--home-dir", str(folder / "home"), "--shell", "/bin/sh", "-p", "*")
    subprocess.run(["useradd", *account, name], check=True)
    left.callback(subprocess.run, ["userdel", "--force", name], check=False, capture_output=True)
    return name


def _make_disk(disk: Path, disk_bytes: int, left: ExitStack) -> None:
    disk.mkdir()
    disk.chmod(0o777)
    if ROOT:
        options = f"size={disk_bytes},mode=777"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], check=False, capture_output=True
        )
        if done.returncode == 0:
            left.callback(subprocess.run, ["umount", "--lazy", str(disk)], check=False)
