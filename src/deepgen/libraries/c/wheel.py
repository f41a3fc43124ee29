"""An exported library as a wheel: a Python package that needs numpy, but neither deepgen nor a compiler."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory

from deepgen import __version__
from deepgen.libraries.c.export import NAME, Exported, check_folder, export
from deepgen.libraries.c.functions import ExportedFunction, NotInC
from deepgen.libraries.c.source import ABI_VERSION
from deepgen.libraries.winners import Library
from deepgen.operators import Operator
from deepgen.space import parse
from deepgen.space.expr import Expr
from deepgen.targets import host
from deepgen.vocabulary import Json, JsonObject
from deepgen.vocabulary.dtypes import dtype

_TIME = (1980, 1, 1, 0, 0, 0)  # the same content is the same file


def write_wheel(library: Library, folder: Path, name: str = NAME) -> tuple[Path, Exported]:
    """Write NAME-VERSION-py3-none-linux_MACHINE.whl into a folder."""
    check_folder(folder)
    with TemporaryDirectory(prefix="deepgen-wheel-") as scratch:
        exported = export(library, Path(scratch) / "exported", name)
        tag = f"py3-none-linux_{host.machine()}"
        files = {**_package(exported), **_metadata(name, tag)}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{__version__}-{tag}.whl"
    record = f"{name}-{__version__}.dist-info/RECORD"
    rows = [f"{file},sha256={_digest(data)},{len(data)}" for file, data in files.items()]
    files[record] = "\n".join([*rows, f"{record},,", ""]).encode()
    fresh = path.with_suffix(".new")
    with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, data in files.items():
            about = zipfile.ZipInfo(file, _TIME)
            about.external_attr = 0o644 << 16
            about.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(about, data)
    fresh.replace(path)
    return path, exported


def _package(exported: Exported) -> dict[str, bytes]:
    name, lib = exported.name, exported.library.parent
    module = resources.files("deepgen.libraries.c").joinpath("python_package.py").read_bytes()
    about: JsonObject = {
        "library": exported.library.name,
        "abi": ABI_VERSION,
        "functions": [_function(function) for function in exported.functions],
    }
    kernels = sorted((lib / name).iterdir())
    return {
        f"{name}/__init__.py": module,
        f"{name}/functions.json": json.dumps(about, indent=1).encode(),
        f"{name}/lib/{exported.library.name}": exported.library.read_bytes(),
        **{f"{name}/lib/{name}/{kernel.name}": kernel.read_bytes() for kernel in kernels},
    }


def _metadata(name: str, tag: str) -> Mapping[str, bytes]:
    info = f"{name}-{__version__}.dist-info"
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {__version__}\nSummary: Tuned kernels, made by deepgen\n"
    wheel = f"Wheel-Version: 1.0\nGenerator: deepgen {__version__}\nRoot-Is-Purelib: false\nTag: {tag}\n"
    return {
        f"{info}/METADATA": f"{head}Requires-Python: >=3.10\nRequires-Dist: numpy\n".encode(),
        f"{info}/WHEEL": wheel.encode(),
    }


def _function(function: ExportedFunction) -> JsonObject:
    signature = function.operator.signature()
    tensors: list[Json] = [
        {
            "name": param.name,
            "dtype": dtype(signature.dtype_of(param)).storage,
            "shape": [_size(size) for size in param.shape],
            "read": param.read,
            "written": param.written,
            "strides": len(function.strides[param.name]),
        }
        for param in function.tensors
    ]
    tuned = ", ".join(timed.operator.describe() for entry in function.entries for timed in entry.timed)
    return {
        "name": function.name.removeprefix("deepgen_"),
        "symbol": function.name,
        "doc": f"Tuned: {tuned}.",
        "gpu": function.on_gpu,
        "sizes": list(function.sizes),
        "tensors": tensors,
        "shapes": [_shapes(entry.operator) for entry in function.entries] if function.fixed else [],
    }


def _shapes(operator: Operator) -> JsonObject:
    """Sizes of an operator that tells shapes by numbers alone, and the shapes of its tensors."""
    tensors = operator.signature().tensors
    shapes: JsonObject = {param.name: [_size(size) for size in param.shape] for param in tensors}
    return {"sizes": dict(operator.sizes()), "tensors": shapes}


def _size(size: int | str) -> Json:
    return size if isinstance(size, int) else _tree(parse(size))


def _tree(expr: Expr) -> Json:
    """A size as the package computes it."""
    if expr.op == "knob":
        return str(expr.data)
    if expr.op == "const" and isinstance(expr.data, int):
        return expr.data
    if expr.op in ("+", "-", "*", "//"):
        return [expr.op, *(_tree(arg) for arg in expr.args)]
    raise NotInC(f"a tensor has the size '{expr}', which the Python package cannot compute")


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
