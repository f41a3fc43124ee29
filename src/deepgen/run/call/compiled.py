"""The compiled path from Python to a kernel: a small extension in C (`c/`).

Wheels include it if they were built with a compiler (setup.py). Otherwise the local compiler builds it once, like a
kernel, and it is cached with them. Without a compiler or Python's headers, or on a Python without the GIL, there is no
extension; everything then runs in Python, with the same results and errors.
"""

from __future__ import annotations

import os
import sysconfig
from contextlib import suppress
from functools import cache as once
from hashlib import sha256
from importlib import import_module
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np

from deepgen.vocabulary import Artifact, DeepgenError, Kernel, LaunchPlan, Source

_SOURCES = ("calls.c", "kinds.h", "arrays.h", "bound.h")
_FOLDER = Path(__file__).with_name("c")
_NAME = "deepgen_calls"


@once
def core() -> Any:
    """The extension; None if it is unavailable.

    `Bound` runs a bound kernel: it is called with addresses and a stream. `Caller` is a base class of objects that are
    called with arrays.
    """
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    if (installed := _installed()) is not None:
        return installed
    from deepgen.toolchains import programs  # imported late: with a wheel's extension, compilers are not needed

    headers = programs.python_headers()
    return None if headers is None else built(_kernel(headers))


def built(kernel: Kernel) -> Any:
    """An extension, built or from the cache; None if it is unavailable."""
    try:
        artifact = _artifact(kernel)
        return None if artifact is None else _loaded(kernel.name, artifact.binary)
    except (DeepgenError, ImportError, OSError):
        return None


def _installed() -> Any:
    """The wheel's extension; None if it is missing, does not load, or its sources have changed since."""
    try:
        module = import_module(f"{__package__}.{_NAME}")
        sources = b"".join((_FOLDER / name).read_bytes() for name in _SOURCES)
    except (ImportError, RuntimeError, OSError):  # numpy raises RuntimeError for an extension built for another numpy
        return None
    return module if getattr(module, "sources", None) == sha256(sources).hexdigest() else None


def _artifact(kernel: Kernel) -> Artifact | None:
    """The built extension; None if it cannot be cached, as every process would wait for the compiler."""
    from deepgen import targets
    from deepgen.toolchains import Cache, build_once, cache_key, default_cache_folder, toolchain_for

    target, cache = targets.resolve("cpu"), Cache(default_cache_folder())
    with suppress(OSError):
        cache.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.access(cache.folder, os.W_OK):
        return build_once(kernel, target, cache=cache)
    return cache.get(cache_key(kernel, toolchain_for(target, kernel.language), target))


def _kernel(headers: str) -> Kernel:
    """The versions identify the headers, which an update may replace in place."""
    sources = tuple(Source(name, (_FOLDER / name).read_text()) for name in _SOURCES)
    versions = f"-DVERSIONS={sysconfig.get_config_var('SOABI')}_{np.__version__}"
    return Kernel(_NAME, "c", sources, (versions, f"-I{headers}", f"-I{np.get_include()}"), LaunchPlan(()))


def _loaded(name: str, binary: str) -> Any:
    spec = spec_from_file_location(name, binary, loader=ExtensionFileLoader(name, binary))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
