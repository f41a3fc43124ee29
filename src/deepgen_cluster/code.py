"""deepgen's own code as it is sent to hosts, so that every host runs the same version as the driver."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import deepgen

_LEFT_OUT = ("__pycache__", ".pyc")
_PACKAGES = ("deepgen", "deepgen_cluster", "deepgen_formats", "deepgen_triton_cpu", "deepgen_vta")


@dataclass(frozen=True)
class Code:
    """An archive of the package and the name under which hosts keep it."""

    name: str
    archive: str = field(repr=False)  # gzipped tar, in base64


@cache
def own_code() -> Code:
    """This installation's packages, sources and kernels; the same content gives the same name."""
    root = Path(deepgen.__file__).parents[1]
    paths = (path for name in _PACKAGES for path in sorted((root / name).rglob("*")))
    files = [path for path in paths if path.is_file() and not _left_out(path)]
    content = hashlib.sha256()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=6) as archive:
        for path in files:
            name = path.relative_to(root).as_posix()
            data = path.read_bytes()
            content.update(f"{name}\0{len(data)}\0".encode() + data)
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    name = f"{deepgen.__version__}-{content.hexdigest()[:12]}"
    return Code(name, base64.b64encode(packed.getvalue()).decode())


def _left_out(path: Path) -> bool:
    return any(part.endswith(_LEFT_OUT) for part in path.parts)
