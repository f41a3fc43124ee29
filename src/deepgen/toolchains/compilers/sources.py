"""A kernel's files on disk."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from deepgen.vocabulary import BadInput, Kernel


def write_sources(kernel: Kernel, folder: Path) -> None:
    """Put a kernel's files where a compiler finds them."""
    for source in kernel.sources:
        name = PurePosixPath(source.name)
        if name.is_absolute() or ".." in name.parts or source.name.startswith("-") or not name.parts:
            raise BadInput(f"kernel {kernel.name}: source {source.name!r}", allowed="a relative name in its folder")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.text, encoding="utf-8")
