"""This process's connection to a Ray cluster, and the small cluster that is started if none is named.

Ray has one connection per process, so its users are counted here: the first session opens it and the last one closes
it. A connection that the program opened itself is used and left open.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepgen.extend import DeepgenError, Missing, Scratch, host, install_extra, sweep
from deepgen_cluster.ray import devices
from deepgen_cluster.ray.lease import Renewals

NAMESPACE = "deepgen"
STORE_BYTES = 256 << 20  # binaries are small, and few are in flight at a time
_REGISTERS = 180.0  # seconds for a node of our own to start: Ray's own half a minute is too short on a busy host
_LONGEST = 20  # of a temporary folder's name: Ray's sockets add 87 to it, and the system's limit is 107

# Ray reads these only from the environment of its process, some of them only at import.
_MANNERS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_MODE, _TOKEN, _TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


@dataclass(frozen=True)
class Local:
    """A cluster of one node that lives as long as its sessions."""

    build_slots: int
    testers: int


class _Held:
    """The single connection."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sessions = 0
        self.to: str | Local | None = None
        self.scratch: Scratch | None = None  # of the local cluster
        self.before: dict[str, str | None] = {}  # the original environment
        self.renewals: Renewals | None = None


_held = _Held()


def connect(to: str | Local, token: Path | None = None) -> Any:
    """Connect, and return Ray's module. Each call needs a `disconnect`."""
    with _held.lock:
        if _held.sessions == 0:
            _open(to, token)
        elif _held.to != to and _held.to is not None:
            raise DeepgenError(
                f"this process is connected to the Ray cluster {_name(_held.to)} and cannot use {_name(to)} at the "
                "same time; run it in a process of its own"
            )
        _held.sessions += 1
    return imported()


def disconnect() -> None:
    """Called when a session has ended."""
    with _held.lock:
        _held.sessions -= 1
        if _held.sessions == 0:
            renewals, _held.renewals = _held.renewals, None
            if renewals is not None:
                renewals.close()
            if _held.to is not None:
                _close()


def keep(actor: Any) -> None:
    """Keep the actor alive as long as the connection."""
    with _held.lock:
        _held.renewals = _held.renewals or Renewals(imported())
        _held.renewals.add(actor)


def imported() -> Any:
    """Ray's module."""
    try:
        import ray
    except ImportError as error:
        remedy = install_extra("cluster")
        raise Missing("Ray", blocks="nothing can run on a Ray cluster", remedy=remedy) from error
    return ray


def _name(cluster: str | Local) -> str:
    return "of its own" if isinstance(cluster, Local) else cluster


def _open(to: str | Local, token: Path | None) -> None:
    if "ray" in sys.modules and imported().is_initialized():
        _held.to = None  # opened by the program, which will close it
        return
    sweep()
    _held.before = {}
    _set(_MANNERS)
    try:
        _connect(to, token)
    except BaseException:
        _close()
        raise
    _held.to = to


def _connect(to: str | Local, token: Path | None) -> None:
    options: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": logging.CRITICAL}
    if isinstance(to, Local):
        _held.scratch = Scratch("ray", _short_folder())
        token = _new_token(_held.scratch.path)
        options |= {
            "address": "local",
            "num_cpus": 0,  # roles are requested instead; Ray would start a process for each CPU
            "resources": devices.of_node(to.build_slots, to.testers),
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
            "_temp_dir": str(_held.scratch.path / "r"),  # a folder inside ours, since Ray makes it world-writable
            "_system_config": {
                "enable_worker_prestart": False,
                "gcs_rpc_server_reconnect_timeout_s": 5,  # workers exit soon after we are killed
                "worker_maximum_startup_concurrency": host.usable_cores(),
                "num_workers_soft_limit": to.build_slots + to.testers,  # kept while idle
            },
        }
    else:
        options["address"] = to
    if token is not None:
        _set({_MODE: "token", _TOKEN_PATH: str(token), _TOKEN: None})
    ray = imported()
    if token is not None:
        apply_environment(ray)
    _silence_ray_logs(ray)
    try:
        with _own_signals(), _patience(ray):
            ray.init(**options)
    except ray.exceptions.AuthenticationError as error:
        raise DeepgenError(f"the Ray cluster at {_name(to)} does not accept this token; {_HOW_TOKENS}") from error
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        what = "no Ray cluster can be started here" if isinstance(to, Local) else f"no Ray cluster answers at {to}"
        raise DeepgenError(f"{what}: {_first_line(error)}") from error


_HOW_TOKENS = "Ray reads it from the file that RAY_AUTH_TOKEN_PATH names, with RAY_AUTH_MODE=token"


def _close() -> None:
    ray = imported()
    if ray.is_initialized():
        with _own_signals():
            ray.shutdown()
    tokens_were = _MODE in _held.before
    _set(_held.before)
    if tokens_were:
        apply_environment(ray)
    _held.before, _held.to = {}, None
    scratch, _held.scratch = _held.scratch, None
    if scratch is not None:
        scratch.close()


def _set(variables: dict[str, Any]) -> None:
    """Set environment variables of this process; None removes one."""
    for name, value in variables.items():
        _held.before.setdefault(name, os.environ.get(name))
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _new_token(folder: Path) -> Path:
    path = folder / "token"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(secrets.token_hex(32))
    return path


def apply_environment(ray: Any) -> None:
    """Apply changed settings: Ray decides at import whether tokens are used, and keeps the first token it read."""
    mode = os.environ.get(_MODE, "disabled")
    ray._raylet.Config.initialize(json.dumps({"AUTH_MODE": mode}))
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()
    if mode == "token" and ray._raylet.get_authentication_mode() != ray._raylet.AuthenticationMode.TOKEN:
        raise DeepgenError(
            "Ray was imported without token authentication and cannot be switched to it now: set "
            "RAY_AUTH_MODE=token in the environment first, or connect with ray.init() yourself"
        )


def _silence_ray_logs(ray: Any) -> None:
    """Suppress messages of raylets, which Ray prints to all drivers. What matters reaches us as an exception."""
    ray._private.worker.print_to_stdstream = lambda data, ignore_prefix: None


@contextmanager
def _patience(ray: Any) -> Iterator[None]:
    """Wait longer than Ray does for a node that it has started to register."""
    services = ray._private.services
    get_node = services.get_node

    def registered(*args: Any) -> Any:
        latest = time.monotonic() + _REGISTERS
        while True:
            try:
                return get_node(*args)
            except RuntimeError:
                if time.monotonic() > latest:
                    raise
                time.sleep(0.1)

    services.get_node = registered
    try:
        yield
    finally:
        services.get_node = get_node


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep our SIGTERM handler, which closes a study's journal; Ray would replace it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _short_folder() -> str:
    usual = tempfile.gettempdir()
    return usual if len(usual) <= _LONGEST else "/tmp"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
