"""RISC-V targets with the vector extension: architectures, known boards, and instruction costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from deepgen.targets.base import Target
from deepgen.targets.cpu import Cpu
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.json import JsonObject


@dataclass(frozen=True)
class Board:
    """One chip. Cache sizes are in bytes, as seen by one core; 0 if the source gives none."""

    model: str
    vlen: int  # bits per vector register
    cores: int
    mhz: int
    l1d_bytes: int
    l2_bytes: int
    l3_bytes: int
    extensions: tuple[str, ...]  # beyond rv64gcv
    costs: str  # the table that weights its instructions
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
        costs="lmul",  # no table for this core has been published
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


_BASE = "rv64gcv"
_LENGTHS = {f"zvl{bits}b": bits for bits in (128, 256, 512, 1024)}
_OPTIONAL = ("zvfh", "zvfbfwma")
_HOST = "host"  # keyword in a name
_MHZ = 1000  # for an architecture without a board, so that one cycle of its costs is a nanosecond


@dataclass(frozen=True)
class Riscv(Cpu):
    """One core of a 64-bit RISC-V CPU with vectors: a board reached over SSH, or else qemu."""

    runner: ClassVar[str] = "riscv"
    computes: ClassVar[bool] = False  # its kernels cannot be called from processes on this machine
    shares_cores_with_builds: ClassVar[bool] = False  # instruction counts cannot be disturbed
    own_kind: ClassVar[str] = "riscv"
    machine: ClassVar[str] = "riscv64"
    family: ClassVar[str] = "64-bit RISC-V with vectors"
    features: ClassVar[tuple[str, ...]] = ("v", *_LENGTHS, *_OPTIONAL)
    arches: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    vlen: int = 128  # bits per vector register; the code also runs with longer registers
    mhz: int = _MHZ
    costs: str = "lmul"  # the table that weights instruction counts
    host: str = ""  # USER@HOST[:PORT] of a board; empty: qemu on this machine

    @property
    def host_cores(self) -> int:
        return 0

    @property
    def proxy(self) -> str:
        return "" if self.host else "weighted instruction counts under qemu, not times"

    @property
    def counts_a_second(self) -> float:
        return self.mhz * 1e6

    @property
    def device_kind(self) -> str:
        return self.name

    @property
    def vector_bytes(self) -> int:
        return self.vlen // 8

    @property
    def vector_registers(self) -> int:
        return 32

    @property
    def march(self) -> str:
        """The architecture string for compilers."""
        return "_".join((_BASE, *(feature for feature in self.isa if feature != "v")))

    def runs_on(self, device: Target) -> bool:
        return isinstance(device, Riscv) and device.vlen >= self.vlen and set(self._optional()) <= set(device.isa)

    def build_facts(self) -> JsonObject:
        # The same programs run on every host.
        return {"name": self.name.partition(",")[0], "march": self.march}

    def describe(self) -> str:
        measured = f"measured on {self.host}" if self.host else f"costs {self.costs}: {self.proxy}"
        return f"{self.name}: {self.model}, {self.vlen}-bit vectors, {measured}"

    def _optional(self) -> tuple[str, ...]:
        return tuple(feature for feature in self.isa if feature in _OPTIONAL)


def on_board(target: Target, host: str) -> Riscv:
    """The same target on a board reached over SSH as USER@HOST[:PORT]."""
    assert isinstance(target, Riscv)
    if target.host:
        raise BadInput(f"{target.name} is on {target.host}, but {host} is named too", allowed="one host")
    return replace(target, name=f"{target.name},{_HOST}={host}", host=host)


def parse_riscv(arch: str) -> Riscv:
    """The target of an architecture string or a board's name; `,host=USER@HOST` names the host that runs kernels."""
    arch, comma, host = arch.partition(f",{_HOST}=")
    if comma:
        return on_board(parse_riscv(arch), host)
    if board := BOARDS.get(arch):
        return Riscv(
            name=f"riscv:{arch}",
            model=board.model,
            isa=("v", f"zvl{board.vlen}b", *board.extensions),
            cores=1,  # qemu cannot measure more: counts of several cores are not a time
            l1d_bytes=board.l1d_bytes,
            l2_bytes=board.l2_bytes,
            l3_bytes=board.l3_bytes,
            vlen=board.vlen,
            mhz=board.mhz,
            costs=board.costs,
        )
    base, *extensions = arch.split("_")
    lengths = [word for word in extensions if word in _LENGTHS]
    if base != _BASE or len(lengths) != 1 or not set(extensions) <= {*_LENGTHS, *_OPTIONAL}:
        names = [f"riscv:{_BASE}_{length}" for length in _LENGTHS] + [f"riscv:{board}" for board in BOARDS]
        allowed = (
            ", ".join(names) + f"; an architecture may be followed by {' or '.join(f'_{word}' for word in _OPTIONAL)}"
        )
        raise BadInput(f"unknown target riscv:{arch}", allowed=allowed)
    optional = tuple(word for word in _OPTIONAL if word in extensions)
    return Riscv(
        name="_".join((f"riscv:{_BASE}", lengths[0], *optional)),
        model=f"a {_BASE} core",
        isa=("v", lengths[0], *optional),
        cores=1,
        # Typical of current small cores, such as the X60.
        l1d_bytes=32 << 10,
        l2_bytes=512 << 10,
        l3_bytes=0,
        vlen=_LENGTHS[lengths[0]],
    )


SCALAR = ("scalar", "scalar_float", "scalar_divide", "load", "store", "branch", "other", "vset")
_MEMORY = ("unit", "strided", "indexed", "segment")
VECTOR = (
    *(f"vector_{kind}" for kind in ("arithmetic", "widening", "divide", "reduction", "permutation", "move")),
    *(f"vector_{way}_{kind}" for way in ("load", "store") for kind in _MEMORY),
)
CLASSES = (*SCALAR, *VECTOR)


@dataclass(frozen=True)
class Costs:
    """Instruction costs. `each`: cycles of a scalar instruction. `register`: cycles per vector register that an
    instruction works on; a part of a register costs as much as a whole one. Classes without an entry cost 1."""

    name: str
    source: str
    each: Mapping[str, float] = field(default_factory=dict)
    register: Mapping[str, float] = field(default_factory=dict)

    def cycles(self, kind: str, registers: float) -> float:
        """The cycles of one instruction that works on that many vector registers (0 for scalar instructions)."""
        if kind in SCALAR:
            return self.each.get(kind, 1.0)
        return self.register.get(kind, 1.0) * max(registers, 1.0)


_LOADS = tuple(f"vector_load_{kind}" for kind in _MEMORY)
_STORES = tuple(f"vector_store_{kind}" for kind in _MEMORY)
TABLES: Mapping[str, Costs] = {
    table.name: table
    for table in (
        Costs(
            "lmul",
            "no core: an instruction costs 1, one with vectors 1 for each register that it works on",
        ),
        Costs(
            "p600",
            "LLVM 19, RISCVSchedSiFiveP600.td: four integer pipes, two for branches, two for floats and for vectors, "
            "two ports for scalar memory, one for vector loads and one for stores; divisions of 32 bits; segments 12 "
            "cycles and one for each element, here of 32 bits; reductions assumed as permutations, on one pipe",
            {
                "scalar": 0.25,
                "scalar_float": 0.5,
                "scalar_divide": 19.0,
                "load": 0.5,
                "store": 0.5,
                "branch": 0.5,
            },
            {
                "vector_arithmetic": 0.5,
                "vector_widening": 0.5,
                "vector_divide": 12.0,
                "vector_load_segment": 16.0,
                "vector_store_segment": 16.0,
            },
        ),
        Costs(
            "x60",
            "LLVM 21, RISCVSchedSpacemitX60.td: two instructions a cycle, in order; one vector unit for floats and one "
            "for integers; data paths of half a register, so that memory takes two cycles for each. That arithmetic "
            "takes one is measured: 32 GFLOP/s of vfmacc.vv in f32 (book.j4orz.ai/assets/rooflinejupiter.html). "
            "Divisions of 32 bits",
            {"scalar": 0.5, "load": 0.5, "store": 0.5, "scalar_divide": 12.0},
            {
                **dict.fromkeys((*_LOADS, *_STORES), 2.0),
                "vector_divide": 12.0,
            },
        ),
    )
}


__all__ = ["BOARDS", "Board", "Riscv", "on_board", "parse_riscv"]
