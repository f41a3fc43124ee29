"""VTA: the accelerator as data (`chip`), and the programs that it runs (`program`)."""

from deepgen_vta.target.chip import (
    ACCUMULATOR,
    BUFFERS,
    INPUT,
    MICRO_OP,
    MICRO_OP_BYTES,
    WEIGHT,
    Vta,
    parse_vta,
)

__all__ = ["ACCUMULATOR", "BUFFERS", "INPUT", "MICRO_OP", "MICRO_OP_BYTES", "WEIGHT", "Vta", "parse_vta"]
