"""What pyproject.toml cannot say: the compiled way from Python to a kernel is built into the wheel where it can be.

Without a compiler, headers of Python's and numpy, or if it does not compile, the wheel is one without it: then it is
built at its first use, by the compiler that is there (src/deepgen/run/call/compiled.py). An editable install has none
either, as it would not follow its sources.
"""

import hashlib
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("src/deepgen/run/call/c")
SOURCES = ("calls.c", "kinds.h", "arrays.h", "bound.h")


def extensions() -> list[Extension]:
    try:
        import numpy
    except ImportError:
        return []
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    headers = Path(sysconfig.get_paths()["include"], "Python.h")
    able = sys.platform == "linux" and shutil.which(compiler) and headers.exists()
    if not able or sysconfig.get_config_var("Py_GIL_DISABLED") or "editable_wheel" in sys.argv:
        return []
    digest = hashlib.sha256(b"".join((FOLDER / name).read_bytes() for name in SOURCES)).hexdigest()
    return [
        Extension(
            "deepgen.run.call.deepgen_calls",
            [str(FOLDER / "calls.c")],
            depends=[str(FOLDER / name) for name in SOURCES],
            include_dirs=[numpy.get_include()],
            define_macros=[("SOURCES", f'"{digest}"')],
            extra_compile_args=["-O2"],
            optional=True,  # it may fail to compile
        )
    ]


setup(ext_modules=extensions())
