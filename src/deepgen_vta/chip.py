"""VTA, the Versatile Tensor Accelerator, for simulation: its matrix instruction, buffers and clock as data.

Sources: the paper (Moreau et al., "A Hardware-Software Blueprint for Flexible Deep Learning Specialization",
arXiv:1807.04188) for the modules and their instructions; the repository apache/tvm-vta for numbers:
`config/pynq_sample.json` for shapes, formats and buffers, `config/pkg_config.py` for clock and bus of that board.
Facts marked as assumed have no source: they are round numbers of a plausible size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from deepgen.extend import BadInput, Kind, Target

if TYPE_CHECKING:
    from deepgen.extend import Runner, RunnerOptions, Task

INPUT, WEIGHT, ACCUMULATOR, MICRO_OP = "input", "weight", "accumulator", "micro_op"
BUFFERS = (INPUT, WEIGHT, ACCUMULATOR, MICRO_OP)
MICRO_OP_BYTES = 4


@dataclass(frozen=True)
class Vta(Target):
    """One configuration of the accelerator. A matrix instruction multiplies a row of `block` by `block` x `block`."""

    languages: ClassVar[tuple[str, ...]] = ("vta",)
    runner: ClassVar[str] = "vta"
    computes: ClassVar[bool] = False  # results exist only in the simulator
    simulated: ClassVar[bool] = True

    block: int = 16  # LOG_BLOCK 4
    rows: int = 1  # LOG_BATCH 0: rows of the left matrix in one instruction
    input_bytes: int = 32 << 10  # LOG_INP_BUFF_SIZE 15
    weight_bytes: int = 256 << 10  # LOG_WGT_BUFF_SIZE 18
    accumulator_bytes: int = 128 << 10  # LOG_ACC_BUFF_SIZE 17
    micro_op_bytes: int = 32 << 10  # LOG_UOP_BUFF_SIZE 15
    mhz: int = 100  # the board's clock
    bus_bytes: int = 8  # transferred per cycle: a bus of 64 bits
    # The sample configurations store results in 8 bits. Here all 32 bits are stored, as products of i8 need them.
    stored_bytes: int = 4
    memory_latency: int = 32  # cycles until the first bytes of a transfer arrive; assumed
    start_cycles: int = 4  # cycles for a module to start an instruction; assumed

    @property
    def bandwidth(self) -> float:
        return self.bus_bytes * self.mhz / 1e3

    def peak(self, dtype: str) -> float | None:
        return 2 * self.rows * self.block**2 * self.mhz / 1e3 if dtype in ("i8", "i32") else None

    def element_bytes(self, buffer: str) -> int:
        """The bytes at one address of a buffer."""
        sizes = {INPUT: self.rows * self.block, WEIGHT: self.block**2, ACCUMULATOR: 4 * self.rows * self.block}
        return sizes.get(buffer, MICRO_OP_BYTES)

    def depth(self, buffer: str) -> int:
        """The number of addresses of a buffer."""
        return int(getattr(self, f"{buffer}_bytes")) // self.element_bytes(buffer)

    def describe(self) -> str:
        return f"{self.name}: simulated, {self.rows}x{self.block}x{self.block} i8, {self.mhz} MHz"


BOARDS: Mapping[str, Vta] = {"pynq": Vta("vta:pynq")}


def parse_vta(board: str) -> Vta:
    """The accelerator on a board; by default the first board."""
    if (board or "pynq") not in BOARDS:
        raise BadInput(f"unknown target vta:{board}", allowed="one of " + ", ".join(f"vta:{name}" for name in BOARDS))
    return BOARDS[board or "pynq"]


def kind() -> Kind:
    return Kind(parse_vta, Vta.from_json)


def runner(task: Task, options: RunnerOptions) -> Runner:
    from deepgen_vta.runner import VtaRunner  # imported here, so that looking up the kind does not load numpy

    return VtaRunner(task)
