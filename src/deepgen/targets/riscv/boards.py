"""Boards and cores by name: facts from public sources, each named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Board:
    """One chip. Caches are in bytes, as one core sees them; 0 where a source gives none."""

    model: str
    vlen: int  # bits of a vector register
    cores: int
    mhz: int
    l1d_bytes: int
    l2_bytes: int
    l3_bytes: int
    extensions: tuple[str, ...]  # beyond rv64gcv
    costs: str  # the table of `costs.py` that weights its instructions
    sources: tuple[str, ...]


BOARDS: Mapping[str, Board] = {
    "k1": Board(
        model="SpacemiT K1 (X60)",
        vlen=256,
        cores=8,
        mhz=1600,
        l1d_bytes=32 << 10,
        l2_bytes=512 << 10,
        l3_bytes=0,
        extensions=("zvfh",),
        costs="x60",
        sources=(
            "cores, vector length, caches: SpacemiT K1 datasheet, docs.banana-pi.org/en/BPI-F3/SpacemiT_K1_datasheet",
            "clock of the 1.6 GHz package: wiki.postmarketos.org/wiki/Banana_Pi_BPI-F3_(bananapi-bpi-f3)",
            "zvfh: the processor spacemit-x60 in LLVM 19, llvm/lib/Target/RISCV/RISCVProcessors.td",
        ),
    ),
    "sg2044": Board(
        model="Sophgo SG2044 (C920v2)",
        vlen=128,
        cores=64,
        mhz=2600,
        l1d_bytes=64 << 10,
        l2_bytes=2 << 20,
        l3_bytes=64 << 20,
        extensions=(),
        costs="lmul",  # no table of this core has been published
        sources=("all facts: N. Brown, An evaluation of the Sophon SG2044, arXiv:2508.13840, section 2.1",),
    ),
    "p670": Board(
        model="SiFive P670",
        vlen=128,
        cores=1,
        mhz=1000,
        l1d_bytes=32 << 10,
        l2_bytes=0,
        l3_bytes=0,
        extensions=(),
        costs="p600",
        sources=(
            "vector length: LLVM 19's scheduling model of the P600 series, RISCVSchedSiFiveP600.td",
            "cores, clock and caches are chosen by who builds a chip with it: a plain number each, assumed",
        ),
    ),
}
