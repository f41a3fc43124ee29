"""The agent for a host: this file and one request are sent to the host's Python over SSH; it replies with one line of
JSON.

It needs only the standard library, so that `deepgen cluster check` can report what a host lacks.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import io
import json
import os
import platform
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

ANSWER = "deepgen-agent:"  # marks the answer: a login shell may print other things
MARK = "DEEPGEN_CLUSTER_NODE"
OWN = Path(".deepgen")
PACKAGES = ("ray", "numpy", "typer", "rich")
_LEADERS = ("raylet", "gcs_server")
_SCRATCH, _SHORT = "deepgen-", "/tmp"
_SOON = 0.05
_GRACE = 1.0  # seconds: processes of a node have no state to save
_TRIES = 3  # attempts to start a node: Ray allows half a minute for each, which a busy host may exceed


class Refused(Exception):
    """The request cannot be fulfilled; the message is a clause that follows the host's name."""


class _TooSlow(Refused):
    """Ray gave up waiting for its own node."""


def answer(request: dict[str, Any]) -> None:
    """Handle the request in the current folder, and print the result."""
    try:
        outcome: dict[str, Any] = {"ok": OPERATIONS[request.pop("do")](**request)}
    except Refused as error:
        outcome = {"refused": str(error)}
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "the disk is full" if full else f"{error.filename or ''}: {error.strerror}".strip(": ")
        outcome = {"refused": what}
    print("\n" + ANSWER + json.dumps(outcome), flush=True)


def facts(code: str | None = None, build: list[str] = [], measure: list[str] = []) -> dict[str, Any]:  # noqa: B006
    """Facts about this host; with deepgen's code also its tools and devices, and whether it supports these targets."""
    report: dict[str, Any] = {
        "hostname": socket.gethostname(),
        "folder": str(Path.cwd()),
        "writable": os.access(".", os.W_OK),
        "free_bytes": shutil.disk_usage(".").free,
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": {name: _version(name) for name in PACKAGES},
        "codes": [path.name for path in (OWN / "code").glob("*")],
        "nodes": status(),
        "doctor": None,
        "targets": None,
        "problem": None,
    }
    if code is not None and all(report["packages"].values()):
        with tempfile.TemporaryDirectory(prefix="deepgen-") as folder:
            _unpack(code, Path(folder))
            try:
                report["doctor"] = json.loads(_python(folder, "deepgen", "doctor", "--json"))
                wanted = json.dumps([build, measure])
                report["targets"] = json.loads(_python(folder, "deepgen_cluster.probe", wanted))
            except (Refused, ValueError) as error:
                report["problem"] = str(error)
    return report


def probe(code: str, build: list[str], measure: list[str]) -> dict[str, Any]:
    """Whether this host supports the targets, according to the code installed here under that name."""
    folder = str(Path.cwd() / OWN / "code" / code)
    return dict(json.loads(_python(folder, "deepgen_cluster.probe", json.dumps([build, measure]))))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _python(code: str, module: str, *words: str) -> str:
    """The output of a module of that code, run in a folder where no file can shadow a package."""
    environment = {**os.environ, "PYTHONPATH": code}
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *words],
            env=environment, cwd=code, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Refused("deepgen did not answer within two minutes") from None
    if done.returncode:
        raise Refused((done.stderr.strip().splitlines() or ["deepgen cannot be started"])[-1])
    return done.stdout


def read(path: str) -> str | None:
    """A file's content; None if it does not exist."""
    try:
        return base64.b64encode(Path(path).read_bytes()).decode()
    except (FileNotFoundError, NotADirectoryError):
        return None


def write(path: str, content: str) -> None:
    """Write a file atomically."""
    where = Path(path)
    where.parent.mkdir(parents=True, exist_ok=True)
    fresh = where.with_name(f".{where.name}.{os.getpid()}.new")
    try:
        fresh.write_bytes(base64.b64decode(content))
        fresh.replace(where)
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink()


def install(name: str, code: str) -> None:
    """Unpack a version of deepgen's code into this folder, atomically."""
    folder = OWN / "code" / name
    fresh = OWN / f"{name}.{os.getpid()}.new"
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        _unpack(code, fresh)
        with contextlib.suppress(OSError):  # another process was faster
            fresh.replace(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _unpack(code: str, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(code))) as archive:
        archive.extractall(folder)


def start(
    name: str,
    cluster: str,
    owner: str,
    label: str,
    words: list[str],
    variables: dict[str, str],
    ip: str,
    token: str,
    code: str | None,
) -> bool:
    """Start the Ray node of that name, unless it is already up in this cluster and with this code.

    `words` follow `ray start`; `code` is the name under which `install` stored it.
    """
    with _alone():
        record = _records().get(name)
        if record and record["cluster"] == cluster and record["code"] == code and _leaders(record):
            return False
        if record:
            _end(record)
        identity = {"name": name, "cluster": cluster, "owner": owner, "label": label, "code": code}
        words = [*words, "--node-ip-address", ip] if _is_own(ip) else words
        for tries in range(1, _TRIES + 1):
            try:
                _run_ray(words, variables, _recorded(identity, token), code)
                break
            except _TooSlow:
                if tries == _TRIES:
                    raise
        return True


def _recorded(identity: dict[str, Any], token: str) -> dict[str, Any]:
    """A record with a scratch folder, written before the node starts: an interrupted start can be found and ended."""
    # Ray's sockets go there. Their paths must be short, and that of this folder may be long.
    short = _SHORT if os.access(_SHORT, os.W_OK) else None
    scratch = tempfile.mkdtemp(prefix=_SCRATCH, dir=short)
    record = {**identity, "mark": secrets.token_hex(16), "scratch": scratch, "since": time.time()}
    _write_private(_file(identity["name"], ".json"), json.dumps(record))
    _write_private(Path(scratch, "token"), token)
    return record


def status() -> dict[str, Any]:
    """The nodes that were started from this folder on this host, by name."""
    return {name: _shown(record) for name, record in _records().items()}


def stop(owner: str, force: bool) -> dict[str, Any]:
    """Stop the owner's nodes that were started from this folder, with all their child processes."""
    with _alone():
        records = _records().values()
        ours = [record for record in records if force or record["owner"] == owner]
        others = sorted({record["label"] for record in records if record not in ours})
        return {"ended": sum(_end(record) for record in ours), "others": others}


def _run_ray(words: list[str], variables: dict[str, str], record: dict[str, Any], code: str | None) -> None:
    environment = {
        **os.environ,
        **variables,
        MARK: record["mark"],
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(Path(record["scratch"], "token")),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # deepgen decides which cards a process sees
    }
    if code is not None:
        paths = [str(Path.cwd() / OWN / "code" / code), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--temp-dir", record["scratch"], *words]
    log_file = _file(record["name"], ".log")
    with log_file.open("wb") as log:
        child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # In another folder: otherwise `python -m` would import files of this one that are named like a package.
            cwd=record["scratch"],
            start_new_session=True,
        )
        try:
            code_ = child.wait(120)
        except subprocess.TimeoutExpired:
            code_ = None
    if code_ == 0 and _leaders(record):
        return
    why = [line for line in log_file.read_text(errors="replace").splitlines() if line.strip()]
    _end(record)
    shown = "; ".join(re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in why[-3:])
    kind = _TooSlow if code_ is not None and "timed out during startup" in shown else Refused
    raise kind(f"ray start {'took over two minutes' if code_ is None else 'failed'}: {shown or 'no output'}")


def _is_own(ip: str) -> bool:
    """Whether an address is this host's own; behind network address translation Ray has to find it itself."""
    with socket.socket() as probe:
        try:
            probe.bind((ip, 0))
        except OSError:
            return False
    return True


def _shown(record: dict[str, Any]) -> dict[str, Any]:
    members = _marked(record["mark"])
    kept = {key: record[key] for key in ("cluster", "owner", "label", "since")}
    return {**kept, "up": bool(_leaders(record)), "processes": len(members)}


def _leaders(record: dict[str, Any]) -> list[int]:
    """The processes that a node cannot run without."""
    return [pid for pid in _marked(record["mark"]) if _executable(pid) in _LEADERS]


def _end(record: dict[str, Any]) -> int:
    """Ask the node's processes to exit, kill those that do not, and make sure that none is left."""
    ended = _family(record["mark"])
    _signal(ended, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE
    while _running(ended) and time.monotonic() < deadline:
        time.sleep(_SOON)
    deadline = time.monotonic() + 10.0
    # Until no new one is found: a process may start another while it is being killed.
    while left := {**_running(ended), **_family(record["mark"])}:
        ended.update(left)
        _signal(left, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise Refused(f"processes {', '.join(map(str, sorted(left)))} could not be killed")
        time.sleep(_SOON)
    scratch = Path(record["scratch"])  # of this shape: a record may have come with the folder that it lies in
    if scratch.name.startswith(_SCRATCH) and str(scratch.parent) in (_SHORT, tempfile.gettempdir()):
        shutil.rmtree(scratch, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        _file(record["name"], ".json").unlink()
    return len(ended)


# Processes: a pid and a start time, so that a later process with the same pid is not mistaken for it


def _marked(mark: str) -> dict[int, str]:
    """Every process that inherited the node's mark, whatever its session or parent is now."""
    wanted = f"{MARK}={mark}".encode()
    starts = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    starts[int(entry.name)] = _stat(int(entry.name))[1]
    return {pid: started for pid, started in starts.items() if started}


def _family(mark: str) -> dict[int, str]:
    """The marked processes and all their descendants, marked or not."""
    processes = _marked(mark)
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children.setdefault(_stat(int(entry.name))[0], []).append(int(entry.name))
    wave = list(processes)
    while wave:
        wave = [child for pid in wave for child in children.get(pid, []) if child not in processes]
        processes.update({pid: _stat(pid)[1] for pid in wave})
    return {pid: started for pid, started in processes.items() if started}


def _stat(pid: int) -> tuple[int, str]:
    """Parent and start time; no start time for a process all of whose threads have exited, reaped or not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, ""
    ended = fields[0] in ("Z", "X") and int(fields[17]) <= 1
    return int(fields[1]), "" if ended else fields[19]


def _running(processes: dict[int, str]) -> dict[int, str]:
    return {pid: started for pid, started in processes.items() if _stat(pid)[1] == started}


def _signal(processes: dict[int, str], signum: signal.Signals) -> None:
    for pid in _running(processes):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def _executable(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""


# The record of a node, under the host's name, since several hosts may share this folder over the network


def _file(name: str, suffix: str) -> Path:
    return OWN / "cluster" / f"{socket.gethostname()}.{name}{suffix}"


def _records() -> dict[str, dict[str, Any]]:
    records = {}
    for path in sorted((OWN / "cluster").glob(f"{socket.gethostname()}.*.json")):
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError, KeyError):  # whatever else lies there
            record = json.loads(path.read_text())
            if _file(record["name"], ".json") == path:
                records[record["name"]] = record
    return records


def _write_private(path: Path, text: str) -> None:
    fresh = path.with_name(path.name + ".new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    fresh.replace(path)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """A lock: one process at a time starts or stops nodes of this folder."""
    path = OWN / "cluster" / f"{socket.gethostname()}.lock"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


OPERATIONS: dict[str, Callable[..., Any]] = {
    "facts": facts,
    "probe": probe,
    "read": read,
    "write": write,
    "install": install,
    "start": start,
    "status": status,
    "stop": stop,
}
