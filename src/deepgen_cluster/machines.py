"""Machines that run `agent.py`, either a host over SSH or this one, and the archive of deepgen's code sent to them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import deepgen
from deepgen.extend import foreign, metadata_files, own_plugins
from deepgen_cluster import agent, ssh
from deepgen_cluster.model import Host
from deepgen_cluster.ssh import Ask, HostError

if TYPE_CHECKING:
    import asyncssh


CALL_SECONDS = 300.0
_VENVS = (".venv/bin/python", "venv/bin/python", "python3", "python")
_NO_FOLDER, _NO_PYTHON = 81, 82
# Works with any login shell: it only has to parse one quoted command line that starts this.
_LAUNCH = f"""
case $1 in "~/"*) folder=$HOME/${{1#"~/"}} ;; *) folder=$1 ;; esac
cd -- "$folder" 2>/dev/null || exit {_NO_FOLDER}
shift
for python in "$@"; do
    command -v -- "$python" >/dev/null 2>&1 && exec "$python" -
done
exit {_NO_PYTHON}
"""
T = TypeVar("T")


def command(host: Host) -> str:
    """The command for a host's login shell: start Python in the folder, with its program on stdin."""
    pythons = (host.python,) if host.python else _VENVS
    return shlex.join(["/bin/sh", "-c", _LAUNCH, "deepgen", host.folder, *pythons])


def program(request: dict[str, Any]) -> str:
    """The agent with one request, both sent on stdin, so that a token never appears in a command line."""
    text = Path(agent.__file__).read_text(encoding="utf-8")
    # Python puts the current folder first on its path when it reads a program from stdin.
    head, mark, body = text.partition("from __future__ import annotations\n")
    assert mark
    return f"{head}{mark}import sys\nsys.path = [p for p in sys.path if p]\n{body}\nanswer({request!r})\n"


class Remote:
    """A connected host."""

    def __init__(self, host: Host, connection: asyncssh.SSHClientConnection) -> None:
        self.host, self._connection = host, connection

    @property
    def seen_from(self) -> str:
        """The local address of the connection to the host."""
        return str(self._connection.get_extra_info("sockname")[0])

    async def call(self, do: str, **request: Any) -> Any:
        import asyncssh

        try:
            done = await asyncio.wait_for(
                self._connection.run(command(self.host), input=program({"do": do, **request}), errors="replace"),
                CALL_SECONDS,
            )
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise HostError(self.host, f"did not answer within {CALL_SECONDS:g} s") from error
        except (OSError, asyncssh.Error) as error:
            raise HostError(self.host, f"the connection was lost: {error}") from error
        return _outcome(self.host, done.returncode, str(done.stdout or ""), str(done.stderr or ""))


class Here:
    """This machine, without SSH; `folder` holds its records."""

    host: Host | None = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def call(self, do: str, **request: Any) -> Any:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-",
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await child.communicate(program({"do": do, **request}).encode())
        return _outcome(None, child.returncode, out.decode(errors="replace"), err.decode(errors="replace"))


Machine = Remote | Here


@asynccontextmanager
async def reach(host: Host, password: Ask) -> AsyncIterator[Remote]:
    """A connection to a host, closed at the end of the block."""
    ssh.library()
    connection = await ssh.connect(host, password)
    try:
        yield Remote(host, connection)
    finally:
        connection.close()


async def on_each(
    hosts: Sequence[Host], password: Ask, work: Callable[[Remote], Awaitable[T]]
) -> dict[Host, T | HostError]:
    """Do the same on all hosts concurrently; an error on one is its result and does not stop the others."""

    async def one(host: Host) -> T | HostError:
        try:
            async with reach(host, password) as machine:
                return await work(machine)
        except HostError as error:
            return error

    return dict(zip(hosts, await asyncio.gather(*map(one, hosts)), strict=True))


def raise_errors(outcomes: dict[Host, T | HostError]) -> dict[Host, T]:
    """The results if all succeeded; otherwise raises one error that names every failed host."""
    errors = [outcome for outcome in outcomes.values() if isinstance(outcome, HostError)]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise HostError(None, "; ".join(map(str, errors)))
    return {host: outcome for host, outcome in outcomes.items() if not isinstance(outcome, HostError)}


def _outcome(host: Host | None, code: int | None, out: str, err: str) -> Any:
    answers = [line for line in out.splitlines() if line.startswith(agent.ANSWER)]
    if answers:
        where = f"the answer of {host or 'this machine'}"
        answer = foreign.parse(answers[-1][len(agent.ANSWER) :], where)
        if isinstance(answer, dict) and "refused" in answer:
            raise HostError(host, str(answer["refused"]))
        with foreign.shaped(where, "is not valid"):
            return answer["ok"]
    if code == _NO_FOLDER and host:
        raise HostError(
            host, f"the folder {host.folder} does not exist; create it: mkdir -p {shlex.quote(host.folder)}"
        )
    if code == _NO_PYTHON and host:
        tried = host.python or ", ".join(_VENVS)
        raise HostError(host, f"no Python in {host.folder}: tried {tried}; create one there: python3 -m venv .venv")
    last = (err.strip().splitlines() or [f"code {code}"])[-1]
    raise HostError(host, f"the agent exited without an answer: {last}")


_LEFT_OUT = ("__pycache__", ".pyc")


@dataclass(frozen=True)
class Code:
    """An archive of the package, and the name under which hosts store it."""

    name: str
    archive: str = field(repr=False)  # gzipped tar, in base64


@cache
def own_code() -> Code:
    """This installation's packages, sources and kernels, with its plug-ins; equal content gives the same name."""
    root = Path(deepgen.__file__).parents[1]
    plugins = own_plugins()
    modules = [__name__, *(place for places in plugins.values() for place in places.values())]
    packages = sorted({"deepgen", *(re.split(r"[.:]", module)[0] for module in modules)})
    paths = (path for name in packages for path in sorted((root / name).rglob("*")))
    files = {
        path.relative_to(root).as_posix(): path.read_bytes() for path in paths if path.is_file() and not _left_out(path)
    }
    files |= {name: text.encode() for name, text in metadata_files(plugins, deepgen.__version__).items()}
    content = hashlib.sha256()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=6) as archive:
        for name, data in files.items():
            content.update(f"{name}\0{len(data)}\0".encode() + data)
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    name = f"{deepgen.__version__}-{content.hexdigest()[:12]}"
    return Code(name, base64.b64encode(packed.getvalue()).decode())


def _left_out(path: Path) -> bool:
    return any(part.endswith(_LEFT_OUT) for part in path.parts)
