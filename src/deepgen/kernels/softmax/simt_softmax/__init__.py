"""Softmax on the plain arithmetic units of GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from deepgen.kernels import Rank
from deepgen.kernels.shared import gpu_kernel, language_of, resolved, served, sources
from deepgen.operators import Operator, Softmax
from deepgen.space import Space, all_of, any_of, ceil_div, divides, implies
from deepgen.targets import Gpu, Hip, Target
from deepgen.vocabulary import Arg, Kernel, LaunchPlan, ScalarArg, Size, Source, Step, TensorArg, dtype

WIDEST = 16  # bytes of one load or store
_TEAMS = (8, 16, 32, 64, 128, 256, 512, 1024)
_ROWS = (1, 2, 4, 8, 16)
_KEEPS = ("registers", "shared", "memory")
_MOST_KEPT = 64  # registers of a thread for its part of a row
_RESERVED = 24  # registers for everything else
_USUAL_THREADS = 128  # per block, if rows are short
_USUAL_LOADS = 4  # per thread


def softmax_space(name: str, softmax: Softmax, gpu: Gpu) -> Space:
    s = Space(name)
    team, rows = s.knob("TEAM", [n for n in _TEAMS if n <= gpu.threads_per_block]), s.knob("ROWS", list(_ROWS))
    width = s.knob("WIDTH", _widths(softmax))
    keep = s.knob("KEEP", list(_KEEPS))
    s.knob("METHOD", ["two", "online"])

    threads = s.derive("threads", team * rows)
    s.require(threads <= gpu.threads_per_block, "a block has no more threads than the chip allows")
    s.require(divides(gpu.warp, threads), "a block is made of whole warps")
    used = all_of(team * width < 2 * softmax.cols, rows < 2 * softmax.rows)
    s.require(any_of(threads == gpu.warp, used), "no more than half of a block is idle, but for a single warp")
    sums = softmax.arithmetic.bytes
    items = s.derive("items", ceil_div(softmax.cols, team * width))
    held = items * width * (sums // 4)
    # Compilers keep the address of each load in a register.
    needed = held + 2 * items + _RESERVED
    fits = all_of(held <= _MOST_KEPT, needed * threads <= gpu.registers_per_sm)
    s.require(implies(keep == "registers", fits), "a thread's columns fit in its registers")
    # A reduction takes up to four numbers per thread.
    shared = (items * width + 4) * threads * sums
    s.require(implies(keep == "shared", shared <= gpu.shared_per_block), "a block's rows fit in shared memory")
    return s


def _candidates(softmax: Softmax, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """Candidates in order of preference, a few of the widest loads per thread first; the last one always fits."""
    width = _widths(softmax)[-1]
    wanted = softmax.cols / (width * _USUAL_LOADS)
    fitting = [n for n in _TEAMS if n <= gpu.threads_per_block and (n >= wanted or n == gpu.threads_per_block)]
    for keep in _KEEPS:
        for team in fitting:
            for rows in (n for n in reversed(_ROWS) if n == 1 or n * team <= _USUAL_THREADS):
                yield {"TEAM": team, "ROWS": rows, "WIDTH": width, "KEEP": keep, "METHOD": "two"}
    yield {"TEAM": gpu.warp, "ROWS": 1, "WIDTH": width, "KEEP": "memory", "METHOD": "two"}


def _widths(softmax: Softmax) -> list[int]:
    """A load must not cross the end of a row, and rows must start aligned."""
    most = WIDEST // dtype(softmax.dtype).bytes
    return [n for n in (1, 2, 4, 8) if n <= most and softmax.cols % n == 0]


_OWN = ("softmax_simt.cu", "exponential.h", "team.h")
_KEEP_MACROS = {"memory": 0, "shared": 1, "registers": 2}
_MOST_COLS = 1 << 30  # columns are counted in 32 bits
_MOST_BLOCKS = (1 << 31) - 1
_MOST_THREADS_HIP = (1 << 32) - 1  # of a whole grid


class SimtSoftmax:
    """A team of threads per row, several rows per block, values kept or read again: any rows and columns, CUDA and
    HIP."""

    name = "simt_softmax"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Gpu):
            return "it supports GPUs only"
        if not isinstance(operator, Softmax):
            return "it supports softmax only"
        if operator.cols > _MOST_COLS:
            return f"cols must be at most {_MOST_COLS}"
        return None

    def rank(self, operator: Operator, target: Target) -> Rank:
        """Kernels by rules keep what they load of a row in registers, and its exponentials too: they were faster for
        every shape that was measured. It is left for formats without rules, and for binaries that serve any shape."""
        return Rank.SURPASSED

    def space(self, operator: Operator, target: Target) -> Space:
        return softmax_space(self.name, *served(operator, target, Softmax, Gpu))

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        softmax, gpu = served(operator, target, Softmax, Gpu)
        own = macros(softmax, gpu, config)
        return gpu_kernel(self.name, language_of(gpu), files(totals=False), own, _plan(softmax, gpu, config))

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return next(ranked(*served(operator, target, Softmax, Gpu)))


def files(*, totals: bool) -> tuple[Source, ...]:
    """The sources; `totals`: rows are not divided by their sums, which are stored beside them."""
    return tuple(replace(one, text=resolved(one.text, {"TOTALS": totals})) for one in sources(__name__, _OWN))


def macros(softmax: Softmax, gpu: Gpu, config: Mapping[str, Any]) -> dict[str, int | str]:
    return {
        "TYPE": softmax.dtype,
        "TYPE_ACC": softmax.arithmetic.name,
        "WARP": gpu.warp,
        **{knob: config[knob] for knob in ("TEAM", "ROWS", "WIDTH")},
        "PARTS": _parts(config["TEAM"]),
        "KEEP": _KEEP_MACROS[config["KEEP"]],
        "ONLINE": int(config["METHOD"] == "online"),
        "ITEMS": _items(softmax, config) if config["KEEP"] == "registers" else 1,
    }


def ranked(softmax: Softmax, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """Configs that the space admits, in order of preference."""
    space = softmax_space("default", softmax, gpu)
    return (config for config in _candidates(softmax, gpu) if not space.explain(config))


def _items(softmax: Softmax, config: Mapping[str, Any]) -> int:
    """Packs of columns per thread."""
    return -(-softmax.cols // int(config["TEAM"] * config["WIDTH"]))


def _parts(team: int) -> int:
    """About as many parts as each of them has values to combine: the first power of two whose square reaches the
    team."""
    return 1 << (team.bit_length() // 2)


def _plan(softmax: Softmax, gpu: Gpu, config: Mapping[str, Any]) -> LaunchPlan:
    whole = _step(softmax, config, TensorArg("x"), TensorArg("y"), "rows", ("cols", "stride_x_0", "stride_y_0"))
    return LaunchPlan(steps=(whole,), requires=_requires(softmax, gpu, config, _reduction(softmax, config)))


def step_inside(softmax: Softmax, config: Mapping[str, Any], x: Arg, totals: Arg, rows: str) -> Step:
    """For so many dense rows of a workspace, which become exponentials, and for their sums."""
    step = _step(softmax, config, x, x, rows, (softmax.cols,) * 3)
    return replace(step, args=(*step.args, totals))


def _reduction(softmax: Softmax, config: Mapping[str, Any]) -> int:
    """Bytes of shared memory that a block's reductions take, as in team.h."""
    team, rows = config["TEAM"], config["ROWS"]
    return int(2 * softmax.arithmetic.bytes * rows * (team + _parts(team)))


def _step(
    softmax: Softmax, config: Mapping[str, Any], x: Arg, y: Arg, rows: str, cols: tuple[Size, Size, Size]
) -> Step:
    """`cols`: the number of columns, and the strides of x and y."""
    team, each, width = config["TEAM"], config["ROWS"], config["WIDTH"]
    count, *strides = cols
    reduction = _reduction(softmax, config)
    kept = f"ceil_div({count}, {team * width}) * {width * team * each * softmax.arithmetic.bytes}"
    return Step(
        "softmax",
        (x, y, ScalarArg("i64", rows), ScalarArg("i32", count), *(ScalarArg("i64", stride) for stride in strides)),
        grid=(f"ceil_div({rows}, {each})", 1, 1),
        block=(team * each, 1, 1),
        shared_bytes=f"{reduction} + {kept}" if config["KEEP"] == "shared" else reduction,
    )


def _requires(softmax: Softmax, gpu: Gpu, config: Mapping[str, Any], reduction: int) -> tuple[tuple[str, str], ...]:
    """`reduction`: bytes of shared memory in addition to kept values."""
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
