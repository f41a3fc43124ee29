"""RISC-V processors with the vector extension: what can be built for, boards as data, and what instructions cost."""

from deepgen.targets.riscv.boards import BOARDS, Board
from deepgen.targets.riscv.chip import Riscv, on_board, parse_riscv

__all__ = ["BOARDS", "Board", "Riscv", "on_board", "parse_riscv"]
