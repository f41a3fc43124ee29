"""Softmax on GPUs: what the family in `softmax_simt.cu` serves, and its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

from deepgen.kernels.shared import dialect
from deepgen.kernels.softmax.simt_softmax.space import choose, softmax_space
from deepgen.operators import Operator, Softmax
from deepgen.space import Space
from deepgen.targets import Target
from deepgen.targets.gpu import Gpu
from deepgen.targets.hip import Hip
from deepgen.vocabulary import Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg

_OWN = ("softmax_simt.cu", "exponential.h", "team.h")
_KEEPS = {"memory": 0, "shared": 1, "registers": 2}
_MOST_COLS = 1 << 30  # columns are counted in 32 bits
_MOST_BLOCKS = (1 << 31) - 1
_MOST_THREADS_HIP = (1 << 32) - 1  # of a whole grid


class SimtSoftmax:
    """A team of threads a row, several rows a block, values kept or read anew: any rows and columns, CUDA and HIP."""

    name = "simt_softmax"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Gpu):
            return "it serves GPUs only"
        if not isinstance(operator, Softmax):
            return "it serves softmax only"
        if operator.cols > _MOST_COLS:
            return f"cols must be at most {_MOST_COLS}"
        return None

    def space(self, operator: Operator, target: Target) -> Space:
        return softmax_space(self.name, *_served(operator, target))

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        softmax, gpu = _served(operator, target)
        hip = isinstance(gpu, Hip)
        macros: dict[str, int | str] = {
            "TYPE": softmax.dtype,
            "TYPE_ACC": softmax.arithmetic.name,
            "WARP": gpu.warp,
            **{knob: config[knob] for knob in ("TEAM", "ROWS", "WIDTH")},
            "PARTS": _parts(config["TEAM"]),
            "KEEP": _KEEPS[config["KEEP"]],
            "ONLINE": int(config["METHOD"] == "online"),
            "ITEMS": _items(softmax, config) if config["KEEP"] == "registers" else 1,
        }
        language = "hip" if hip else "cuda"
        own = (Source(name, resources.files(__package__).joinpath(name).read_text()) for name in _OWN)
        return Kernel(
            name=self.name,
            language=language,
            sources=(*own, *dialect.sources(language)),
            flags=("-std=c++17", *(f"-D{name}={value}" for name, value in macros.items())),
            plan=_plan(softmax, gpu, config),
        )

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return choose(*_served(operator, target))


def _items(softmax: Softmax, config: Mapping[str, Any]) -> int:
    """Packs of columns that a thread has."""
    return -(-softmax.cols // int(config["TEAM"] * config["WIDTH"]))


def _parts(team: int) -> int:
    """As many as each of them has values to join, about: the first power of two whose square reaches the team."""
    return 1 << (team.bit_length() // 2)


def _plan(softmax: Softmax, gpu: Gpu, config: Mapping[str, Any]) -> LaunchPlan:
    team, rows, width = config["TEAM"], config["ROWS"], config["WIDTH"]
    threads, sums = team * rows, softmax.arithmetic.bytes
    reduction = 2 * sums * (threads + rows * _parts(team))  # as in team.h
    kept = f"ceil_div(cols, {team * width}) * {width * threads * sums}"
    step = Step(
        "softmax",
        (
            TensorArg("x"),
            TensorArg("y"),
            ScalarArg("i64", "rows"),
            ScalarArg("i32", "cols"),
            ScalarArg("i64", "stride_x_0"),
            ScalarArg("i64", "stride_y_0"),
        ),
        grid=(f"ceil_div(rows, {rows})", 1, 1),
        block=(threads, 1, 1),
        shared_bytes=f"{reduction} + {kept}" if config["KEEP"] == "shared" else reduction,
    )
    return LaunchPlan(steps=(step,), requires=_requires(softmax, gpu, config, reduction))


def _requires(softmax: Softmax, gpu: Gpu, config: Mapping[str, Any], reduction: int) -> tuple[tuple[str, str], ...]:
    """`reduction`: bytes of shared memory beside what is kept there."""
    team, rows, width = config["TEAM"], config["ROWS"], config["WIDTH"]
    threads = team * rows
    most_cols = {
        "registers": _items(softmax, config) * team * width,
        "shared": (gpu.shared_per_block - reduction) // (width * threads * softmax.arithmetic.bytes) * team * width,
        "memory": _MOST_COLS,
    }[config["KEEP"]]
    most_blocks = _MOST_THREADS_HIP // threads if isinstance(gpu, Hip) else _MOST_BLOCKS
    out = [
        (f"cols <= {most_cols}", f"at most {most_cols} columns"),
        (f"ceil_div(rows, {rows}) <= {most_blocks}", f"at most {most_blocks * rows} rows"),
    ]
    if width > 1:
        out.append((f"cols % {width} == 0", f"a multiple of {width} columns"))
        for tensor in ("x", "y"):
            apart = f"rows of {tensor} that begin a multiple of {width} elements apart"
            out.append((f"stride_{tensor}_0 % {width} == 0", apart))
    return tuple(out)


def _served(operator: Operator, target: Target) -> tuple[Softmax, Gpu]:
    assert isinstance(operator, Softmax) and isinstance(target, Gpu), "ask refuses() first"
    return operator, target
