"""The compiled way from Python to a kernel: a small extension in C (`c/`), built once by the compiler that is here.

It is built as kernels are, and kept where they are kept. Where there is no compiler, no headers of Python's, or a
Python without its lock, there is no extension: then everything is done in Python, with the same results and errors.
"""

from __future__ import annotations

import sysconfig
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np

from deepgen import targets
from deepgen.toolchains import build_once, programs
from deepgen.vocabulary import DeepgenError, Kernel, LaunchPlan, Source

_SOURCES = ("calls.c", "kinds.h", "arrays.h", "bound.h")
_NAME = "deepgen_calls"


@cache
def core() -> Any:
    """The extension; None where it cannot be had.

    `Bound` carries out a bound kernel: it is called with addresses and a stream. `Caller` is a base class of what is
    called with arrays.
    """
    headers = programs.python_headers()
    if headers is None or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    try:
        return _loaded(build_once(_kernel(headers), targets.resolve("cpu")).binary)
    except (DeepgenError, ImportError, OSError):
        return None


def _kernel(headers: str) -> Kernel:
    """The versions are of what headers describe: an update may put others in their place."""
    folder = Path(__file__).with_name("c")
    sources = tuple(Source(name, (folder / name).read_text()) for name in _SOURCES)
    versions = f"-DVERSIONS={sysconfig.get_config_var('SOABI')}_{np.__version__}"
    return Kernel(_NAME, "c", sources, (versions, f"-I{headers}", f"-I{np.get_include()}"), LaunchPlan(()))


def _loaded(binary: str) -> Any:
    spec = spec_from_file_location(_NAME, binary, loader=ExtensionFileLoader(_NAME, binary))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
