"""deepgen's own code as it is sent to hosts, so that every host runs the same version as the driver."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import tarfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import deepgen
from deepgen.extend import metadata_files, own_plugins

_LEFT_OUT = ("__pycache__", ".pyc")


@dataclass(frozen=True)
class Code:
    """An archive of the package and the name under which hosts keep it."""

    name: str
    archive: str = field(repr=False)  # gzipped tar, in base64


@cache
def own_code() -> Code:
    """This installation's packages, sources and kernels, with its plug-ins; the same content gives the same name."""
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
