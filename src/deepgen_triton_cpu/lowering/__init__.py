"""Triton kernels on CPUs: Triton's IR of a kernel (TTIR) becomes C, with one call for the whole grid."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from deepgen_triton_cpu.lowering.lower import ENTRY, Lowered, flags, lower, sources
from deepgen_triton_cpu.lowering.ttir import RELEASE, ttir_of


@cache
def digest() -> str:
    """Of all that makes C of Triton's IR: the same kernel may become other C with another version of it."""
    files = sorted(p for p in Path(__file__).parent.iterdir() if p.suffix in (".py", ".h"))
    return hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()[:16]


def lowered(name: str, options: Mapping[str, Any], **described: Any) -> dict[str, Any]:
    """The kernel in C, with all that it includes, and the flags it is compiled with; the rest is as Triton takes it."""
    kernel = lower(ttir_of(**described))
    files = {file.name: file.text for file in sources(kernel.text, name)}
    return {"scratch": kernel.scratch, "files": files, "flags": flags(bool(options.get("enable_fp_fusion", True)))}


__all__ = ["ENTRY", "RELEASE", "Lowered", "digest", "lower", "lowered", "ttir_of"]
