"""Triton kernels on processors: Triton's own IR of a kernel (TTIR) becomes C, one call of it for the whole grid."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from deepgen_triton_cpu.lowering.lower import ENTRY, Lowered, lower
from deepgen_triton_cpu.lowering.ttir import RELEASE, ttir_of


@cache
def digest() -> str:
    """Of all that makes C of Triton's IR: the same kernel may become other C with another version of it."""
    files = sorted(p for p in Path(__file__).parent.iterdir() if p.suffix in (".py", ".h"))
    return hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()[:16]


__all__ = ["ENTRY", "RELEASE", "Lowered", "digest", "lower", "ttir_of"]
