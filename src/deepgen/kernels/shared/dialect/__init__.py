"""One dialect for CUDA and HIP, which families on GPUs are written in, and its emulation on a processor."""

from __future__ import annotations

from importlib import resources

from deepgen.vocabulary import Source


def source(name: str) -> str:
    """The text of one of its headers."""
    return resources.files(__package__).joinpath(name).read_text()


def sources(language: str) -> tuple[Source, ...]:
    """The headers that a kernel in this language includes."""
    return tuple(Source(name, source(name)) for name in ("dialect.h", f"dialect_{language}.h"))
