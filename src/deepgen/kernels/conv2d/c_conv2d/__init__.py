"""2-D convolution in portable C, for any CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.kernels import Rank
from deepgen.kernels.shared import c_kernel, covering, served, thread_counts
from deepgen.operators import Conv2d, Operator
from deepgen.operators.conv2d import OUT_H, OUT_W
from deepgen.space import Space
from deepgen.targets import Cpu, Riscv, Target
from deepgen.vocabulary import Arg, Kernel, LaunchPlan, ScalarArg, Step, TensorArg, WorkspaceArg

_SOURCES = ("conv2d.c", "numbers.h", "cpu_pool.h", "x86_pool.h")
_COLUMNS = (1, 2, 3, 4, 6, 8, 12)
_VECTORS = (1, 2, 3, 4)
_CHANNELS = (16, 32, 64, 128, 256)
# The dimensions of x and y in the order image, row, column, channel; of weight in the order row, column, in, out.
_IMAGE = {"nhwc": (0, 1, 2, 3), "nchw": (0, 2, 3, 1)}
_FILTER = {"nhwc": (0, 1, 2, 3), "nchw": (2, 3, 1, 0)}


class CConv2d:
    """Register tiles of output columns and channels, blocks of input channels, threads: any sizes, both layouts."""

    name = "c_conv2d"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Cpu):
            return "it supports CPUs only"
        if not isinstance(operator, Conv2d):
            return "it supports conv2d only"
        if not operator.is_plain:
            return "it supports filters with one k, stride and pad for both dimensions, and weights that are not packed"
        return None

    def rank(self, operator: Operator, target: Target) -> Rank:
        """Kernels by rules come first: of 22 drawn shapes in f32 they were faster in 18 on x86, and of 14 on Arm in
        all; for i8 they use dot products. On RISC-V they were not compared."""
        if isinstance(target, Riscv):
            return Rank.SPECIALISED
        return Rank.SURPASSED if served(operator, target, Conv2d, Cpu)[0].dtype == "i8" else Rank.GENERAL

    def space(self, operator: Operator, target: Target) -> Space:
        conv, cpu = served(operator, target, Conv2d, Cpu)
        s = Space(self.name)
        columns = s.knob("TW", covering(_COLUMNS, conv.out_w))
        vectors = s.knob("NV", covering(_VECTORS, -(-conv.co // _lanes(conv, cpu))))
        s.knob("CI_BLOCK", covering(_CHANNELS, conv.ci))
        s.knob("OUTER", ["rows", "channels"])
        s.knob("THREADS", thread_counts(cpu.cores))
        held = s.derive("registers", columns * vectors + vectors + 1)
        s.require(held <= cpu.vector_registers, "sums, filters and one input fit in the vector registers")
        return s

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        conv, cpu = served(operator, target, Conv2d, Cpu)
        of, acc, out = conv.dtypes
        macros = {
            "TYPE_X": of.name,
            "TYPE_ACC": acc.name,
            "TYPE_Y": out.name,
            "VECTOR_BYTES": cpu.vector_bytes,
            **{knob: config[knob] for knob in ("TW", "NV", "CI_BLOCK")},
            "CHANNELS_OUTSIDE": int(config["OUTER"] == "channels"),
        }
        return c_kernel(
            self.name, __name__, _SOURCES, macros, LaunchPlan((Step("deepgen_conv2d", _arguments(conv, cpu, config)),))
        )

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        """The tile with the most multiply-adds per element read."""
        space = self.space(operator, target)
        values = {knob.name: knob.values for knob in space.knobs}
        rest = {"CI_BLOCK": values["CI_BLOCK"][-1], "OUTER": "rows", "THREADS": values["THREADS"][-1]}
        tiles = [{"TW": tw, "NV": nv, **rest} for tw in values["TW"] for nv in values["NV"]]
        fitting = [tile for tile in tiles if not space.explain(tile)]
        return max(fitting, key=lambda tile: tile["TW"] * tile["NV"] / (tile["TW"] + tile["NV"]))


def _lanes(conv: Conv2d, cpu: Cpu) -> int:
    return cpu.vector_bytes // conv.dtypes[1].bytes


def _arguments(conv: Conv2d, cpu: Cpu, config: Mapping[str, Any]) -> tuple[Arg, ...]:
    panel = config["NV"] * _lanes(conv, cpu)
    packed = f"ceil_div(CO, {panel}) * {config['NV'] * cpu.vector_bytes} * CI * k * k"
    places = {"x": _IMAGE, "weight": _FILTER, "y": _IMAGE}
    strides = (f"stride_{name}_{place}" for name, order in places.items() for place in order[conv.layout])
    sizes = ("N", "H", "W", "CI", "CO", "k", "stride", "pad", OUT_H, OUT_W)
    return (
        *(TensorArg(name) for name in places),
        WorkspaceArg("packed", packed),
        *(ScalarArg("i64", value) for value in (*sizes, *strides)),
        ScalarArg("i32", config["THREADS"]),
    )
