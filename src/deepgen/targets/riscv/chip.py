"""RISC-V targets: an architecture string such as rv64gcv_zvl256b, or a board by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from deepgen.targets.base import Target
from deepgen.targets.cpu import Cpu
from deepgen.targets.riscv.boards import BOARDS
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.json import JsonObject

_BASE = "rv64gcv"
_LENGTHS = {f"zvl{bits}b": bits for bits in (128, 256, 512, 1024)}
_OPTIONAL = ("zvfh", "zvfbfwma")
_HOST = "host"  # the word in a name
_MHZ = 1000  # of an architecture without a board, so that a cycle of its costs is a nanosecond


@dataclass(frozen=True)
class Riscv(Cpu):
    """One core of a 64-bit RISC-V processor with vectors: a board that is reached by SSH, or else qemu."""

    runner: ClassVar[str] = "riscv"
    computes: ClassVar[bool] = False  # its kernels cannot be called from this machine's processes
    shares_cores_with_builds: ClassVar[bool] = False  # instructions are counted, which nothing disturbs
    own_kind: ClassVar[str] = "riscv"
    machine: ClassVar[str] = "riscv64"
    family: ClassVar[str] = "64-bit RISC-V with vectors"
    features: ClassVar[tuple[str, ...]] = ("v", *_LENGTHS, *_OPTIONAL)
    arches: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    vlen: int = 128  # bits of a vector register; code for it also runs where registers are longer
    mhz: int = _MHZ
    costs: str = "lmul"  # the table that weights counts of instructions
    host: str = ""  # USER@HOST[:PORT] of a board; empty: qemu on this machine

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
        """The architecture as compilers are told."""
        return "_".join((_BASE, *(feature for feature in self.isa if feature != "v")))

    def runs_on(self, found: Target) -> bool:
        return isinstance(found, Riscv) and found.vlen >= self.vlen and set(self._optional()) <= set(found.isa)

    def build_facts(self) -> JsonObject:
        # The same programs run in every place.
        return {"name": self.name.partition(",")[0], "march": self.march}

    def describe(self) -> str:
        measured = f"measured on {self.host}" if self.host else f"costs {self.costs}: {self.proxy}"
        return f"{self.name}: {self.model}, {self.vlen}-bit vectors, {measured}"

    def _optional(self) -> tuple[str, ...]:
        return tuple(feature for feature in self.isa if feature in _OPTIONAL)


def on_board(target: Target, host: str) -> Riscv:
    """The same target on a board that SSH reaches as USER@HOST[:PORT]."""
    assert isinstance(target, Riscv)
    if target.host:
        raise BadInput(f"{target.name} is on {target.host}, and {host} is named too", allowed="one host")
    return replace(target, name=f"{target.name},{_HOST}={host}", host=host)


def parse_riscv(arch: str) -> Riscv:
    """The target of an architecture string or a board's name; `,host=USER@HOST` names where kernels run."""
    arch, comma, host = arch.partition(f",{_HOST}=")
    if comma:
        return on_board(parse_riscv(arch), host)
    if board := BOARDS.get(arch):
        return Riscv(
            name=f"riscv:{arch}",
            model=board.model,
            isa=("v", f"zvl{board.vlen}b", *board.extensions),
            cores=1,  # what qemu can tell of: counts of several cores are not a time
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
        allowed = ", ".join(names) + f"; after an architecture also {' or '.join(f'_{word}' for word in _OPTIONAL)}"
        raise BadInput(f"unknown target riscv:{arch}", allowed=allowed)
    optional = tuple(word for word in _OPTIONAL if word in extensions)
    return Riscv(
        name="_".join((f"riscv:{_BASE}", lengths[0], *optional)),
        model=f"a {_BASE} core",
        isa=("v", lengths[0], *optional),
        cores=1,
        # Those of small cores of today, such as the X60.
        l1d_bytes=32 << 10,
        l2_bytes=512 << 10,
        l3_bytes=0,
        vlen=_LENGTHS[lengths[0]],
    )
