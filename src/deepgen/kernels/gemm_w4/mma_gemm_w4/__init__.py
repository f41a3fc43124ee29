"""Products of few rows with weights of 4 bits: every byte of these is read once, and widened in registers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice, product
from math import ceil
from operator import itemgetter
from typing import Any

from deepgen.kernels import FirstRanked, overlapped
from deepgen.kernels.gemm import counters, sums
from deepgen.kernels.shared import NOTHING, Macros, covering, gpu_kernel, served, sources
from deepgen.operators import GemmW4, Operator
from deepgen.operators.gemm_w4 import PACKED_K, PACKED_N
from deepgen.space import Space, implies
from deepgen.targets import Cuda, Gpu, Target
from deepgen.vocabulary import Arg, Kernel, LaunchPlan, ScalarArg, Step, TensorArg

_OWN = ("gemm_w4_mma.cu", "cluster_blocks.h", "four_bits.h", "dialect_mma.h")
_CLUSTERS = (2, 4, 8)  # blocks: eight are always possible
_MOST_STAGES = 1 << 31  # of all rows of weights: they are counted in 32 bits
_NOTE = 16  # bytes of shared memory for a word between blocks
_RESERVED = 44  # registers for addresses, counters and weights on their way to a product
_RUN = 4  # results that a thread stores at once


class MmaGemmW4(FirstRanked):
    """Packed weights of 4 bits stream through shared memory to registers: f16 and bf16 on sm_80 and later."""

    name = "mma_gemm_w4"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Cuda) or not target.has("ldmatrix", "cp_async"):
            return "it supports NVIDIA GPUs from sm_80 on"
        if not isinstance(operator, GemmW4):
            return "it supports products with weights of 4 bits only"
        if not operator.packed:
            return "it takes weights as deepgen.pack_w4 packs them: weight_layout=packed"
        if operator.n % (least := 4 if operator.zeros else 2):
            return f"N must be a multiple of {least}{' where there are zero points' if operator.zeros else ''}"
        return None

    def space(self, operator: Operator, target: Target) -> Space:
        return _space(*served(operator, target, GemmW4, Cuda))

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        gemm, gpu = served(operator, target, GemmW4, Cuda)
        launch = _plan(gemm, config, gpu.multiprocessors)
        return gpu_kernel(self.name, "cuda", sources(__name__, _OWN), _macros(gemm, config), launch)

    def ranked(self, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
        return iter([dict(config) for config in _ranked(*served(operator, target, GemmW4, Cuda))])

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        return None if self.refuses(operator, target) else _seconds(*served(operator, target, GemmW4, Cuda), config)


def _space(gemm: GemmW4, gpu: Gpu) -> Space:
    s = Space(MmaGemmW4.name)
    tokens = s.knob("TOKENS", covering([8, 16, 32, 64], gemm.m))
    tiles, warps_r, warps_k = (
        s.knob("TILES", [1, 2, 4]),
        s.knob("WARPS_R", [1, 2, 4, 8]),
        s.knob("WARPS_K", [1, 2, 4, 8]),
    )
    unroll, stages = s.knob("UNROLL", [1, 2, 4]), s.knob("STAGES", [2, 3, 4, 6, 8, 12])
    blocks, splits = s.knob("MIN_BLOCKS", [1, 2, 3, 4]), s.knob("SPLITS", [0, 1, 2, 3, 4, 6, 8, 12, 16])
    join = s.knob("JOIN", ["memory", "cluster"] if gpu.has("cluster") else ["memory"])
    s.require(implies(join == "cluster", splits.isin(_CLUSTERS)), "a cluster has 2, 4 or 8 blocks")
    threads = s.derive("threads", warps_r * warps_k * 32)
    s.require(threads <= 512, "a block has 16 warps at most")
    s.require(threads * blocks <= gpu.threads_per_sm, "so many blocks' threads fit in a multiprocessor")
    needed = s.derive("registers", tiles * tokens + 10 * tiles + tokens // 2 + _RESERVED)
    s.require(needed <= gpu.registers_per_thread, "sums and weights fit in a thread's registers")
    s.require(needed * threads * blocks <= gpu.registers_per_sm, "so many blocks' registers fit")
    rows, step = s.derive("rows", warps_r * tiles * PACKED_N), s.derive("step", warps_k * unroll * PACKED_K)
    stage = s.derive("stage_bytes", _stage_bytes(gemm, tokens, rows, step))
    shared = s.derive("shared_bytes", _NOTE + stages * stage + _sum_bytes(tokens, rows, warps_k))
    s.require(shared <= gpu.shared_per_block, "stages and sums fit in shared memory")
    s.require((shared + gpu.shared_reserved) * blocks <= gpu.shared_per_sm, "so many blocks' shares of it fit")
    s.require(implies(rows > PACKED_N, rows < 2 * gemm.n), "blocks are not much higher than the weights")
    s.require(implies(step > PACKED_K, step < 2 * gemm.k), "a stage is not much longer than K")
    s.require(implies(stages > 2, (stages - 2) * step < gemm.k), "stages are filled")
    s.require(implies(splits > 1, (splits - 1) * step < gemm.k), "every part of K has a stage")
    return s


def _stage_bytes(gemm: GemmW4, tokens: Any, rows: Any, step: Any) -> Any:
    """Of shared memory, for numbers or knobs: weights, lines of x half the banks apart, scales and zero points."""
    groups = (step + gemm.group - 1) // gemm.group if gemm.group else 1
    return rows * step // 2 + tokens * (2 * step + 64) + groups * rows * (3 if gemm.zeros else 2)


def _sum_bytes(tokens: Any, rows: Any, warps_k: Any) -> Any:
    return warps_k * tokens * (rows + 4) * 4


def _width(size: int, count: int) -> int:
    """The widest copy of lines of so many numbers."""
    return next(width for width in (16, 8, 4) if count * size % width == 0)


def _macros(gemm: GemmW4, c: Mapping[str, Any]) -> Macros:
    rows, step, of = c["WARPS_R"] * c["TILES"] * PACKED_N, c["WARPS_K"] * c["UNROLL"] * PACKED_K, gemm.dtype
    return {
        "TYPE_A": of,
        "TYPE_B": of,
        "MMA": f"m16n8k16.row.col.f32.{of}.{of}.f32",
        **{knob: value for knob, value in c.items() if knob not in ("SPLITS", "JOIN")},
        "CLUSTER": c["SPLITS"] if c["JOIN"] == "cluster" else 1,
        "GROUP": gemm.group,
        "ZEROS": int(gemm.zeros),
        "COPY_X": _width(2, gemm.k),
        "COPY_S": _width(2, gemm.n),
        "COPY_Z": _width(1, gemm.n) if gemm.zeros else 16,
        "STORE": _RUN if gemm.n % _RUN == 0 else 2,
        "TILED_M": int(gemm.m > c["TOKENS"]),
        "EDGE_N": int(gemm.n % rows != 0),
        "EDGE_K": int(gemm.k % step != 0),
    }


def _plan(gemm: GemmW4, c: Mapping[str, Any], multiprocessors: int) -> LaunchPlan:
    macros = _macros(gemm, c)
    rows, step = c["WARPS_R"] * c["TILES"] * PACKED_N, c["WARPS_K"] * c["UNROLL"] * PACKED_K
    tiles = f"ceil_div(N, {rows}) * ceil_div(M, {c['TOKENS']})"
    splits, resident = c["SPLITS"], multiprocessors * c["MIN_BLOCKS"]
    grid = f"{tiles} * {splits}" if splits else str(resident)
    rounds = f"ceil_div(K, {step})"
    blocks = f"min({grid}, {tiles} * {rounds})"
    shares: tuple[int | str, ...] = *(f"{tiles} * {rounds} {by} {blocks}" for by in ("//", "%")), blocks
    partial: Arg = NOTHING
    arrived: Arg = NOTHING
    if c["JOIN"] == "cluster":
        shares = 0, 0, 0
    elif splits != 1:
        partial, arrived = sums(f"{grid} * {2 * c['TOKENS'] * rows * 4}"), counters(f"{tiles} * 4")
    args = (
        *(TensorArg(name) for name in ("x", "w", "scales")),
        TensorArg("zeros") if gemm.zeros else NOTHING,
        TensorArg("y"),
        partial,
        arrived,
        *(ScalarArg("i32", size) for size in "MNK"),
        *(ScalarArg("i64", stride) for stride in ("stride_x_0", "stride_y_0")),
        *(ScalarArg("i32", size) for size in (rounds, f"ceil_div(M, {c['TOKENS']})", *shares)),
    )
    shared = _NOTE + c["STAGES"] * _stage_bytes(gemm, c["TOKENS"], rows, step)
    shared += _sum_bytes(c["TOKENS"], rows, c["WARPS_K"])
    threads = c["WARPS_R"] * c["WARPS_K"] * 32
    cluster = (int(macros["CLUSTER"]), 1, 1)
    step_of = Step("gemm_w4", args, (grid, 1, 1), (threads, 1, 1), cluster, shared)
    requires = [
        *([] if macros["TILED_M"] else [(f"M <= {c['TOKENS']}", f"M of at most {c['TOKENS']}")]),
        (f"{tiles} * {rounds} < {_MOST_STAGES}", "sizes of fewer than 2^31 stages"),
        *((f"{size} % {by} == 0", f"{size} that is a multiple of {by}") for size, by in _multiples(macros, rows, step)),
        *(
            (f"stride_{name}_0 % {by} == 0", f"rows of {name} that lie multiples of {by} numbers apart")
            for name, by in (("x", int(macros["COPY_X"]) // 2), ("y", macros["STORE"]))
        ),
    ]
    return LaunchPlan((step_of,), requires=tuple(requires))


def _multiples(macros: Macros, rows: int, step: int) -> Iterator[tuple[str, int]]:
    """What sizes must be multiples of, for a kernel to serve them."""
    yield "K", 2 if macros["EDGE_K"] else step
    of_scales = max(int(macros["COPY_S"]) // 2, int(macros["COPY_Z"]) if macros["ZEROS"] else 1, int(macros["STORE"]))
    yield "N", of_scales if macros["EDGE_N"] else rows


# Microseconds, unless said otherwise; fitted to 60 times on an H200 (tests/kernels/gemm_w4_timings.json).
_LAUNCH, _LATENCY = 3.4, 0.5  # of the kernel; from asking to having
_READ, _CACHE = 0.9, 0.93  # of memory's nominal rate: a plain read, and what L2 gives to all multiprocessors
_CLOCK = 1980.0  # a microsecond
# Clocks of a quarter of a multiprocessor: to widen 256 weights, to multiply them by 8 tokens, and a warp's own of a
# stage. What else a stage takes, in clocks, and how many warps hide half of each other's waiting.
_WIDEN, _PRODUCT, _STAGE, _BARRIER, _HALF = 14.2, 5.4, 19.2, 156.0, 1.8
_JOIN, _PART = {"memory": 0.4, "cluster": 0.05}, 0.28  # parts that are added up: once, and for each
_CODE = 0.32  # to read the instructions for 16 rows and 64 steps of K by 16 tokens, which are not unrolled further
# Of the multiprocessors, those that clusters of so many blocks fit on at once: their parts of the chip vary in size.
_CLUSTERED = {1: 1.0, 2: 1.0, 4: 0.91, 8: 0.85}
_ALIKE = 1.04  # times that differ by less are alike: the model is off by 6%


def _seconds(gemm: GemmW4, gpu: Gpu, c: Mapping[str, Any]) -> float:
    """What is read in waves of blocks, by as many as a multiprocessor holds, and what adds up their parts."""
    rows, step, tokens = c["WARPS_R"] * c["TILES"] * PACKED_N, c["WARPS_K"] * c["UNROLL"] * PACKED_K, c["TOKENS"]
    tiles, rounds = ceil(gemm.n / rows) * ceil(gemm.m / tokens), ceil(gemm.k / step)
    cluster = c["SPLITS"] if c["JOIN"] == "cluster" else 1
    processors = max(int(gpu.multiprocessors * _CLUSTERED[cluster] / cluster), 1) * cluster
    slots = processors * c["MIN_BLOCKS"]
    blocks = min(tiles * rounds, tiles * c["SPLITS"] or slots)
    each = ceil(tiles * rounds / blocks)  # stages of a block
    weights, others = rows * step * (0.5 + 2 / (gemm.group or gemm.k)), min(gemm.m, tokens) * step * 2
    rate = gpu.bandwidth_gbs * 1e3  # bytes in a microsecond
    warps = c["WARPS_R"] * c["WARPS_K"]
    needed = rows * step / 256 * (_WIDEN + tokens / 8 * _PRODUCT) + warps * _STAGE
    late = ceil(each / (c["STAGES"] - 1)) * _LATENCY
    whole: float = _LAUNCH + _CODE * c["TILES"] * c["UNROLL"] * max(tokens / 16, 1)
    for alive in [slots] * (blocks // slots) + ([blocks % slots] if blocks % slots else []):
        of_one = ceil(alive / processors)
        clocks = needed / 4 * (1 + _HALF / (of_one * warps)) + _BARRIER / of_one
        memory, cache = alive * each * weights / (rate * _READ), alive * each * others / (rate * _CACHE)
        whole += _LATENCY + overlapped([memory, late, cache + of_one * each * clocks / _CLOCK])
    parts = blocks / tiles
    if parts > 1 or (not c["SPLITS"] and parts % 1):
        whole += _JOIN[c["JOIN"]] + ceil(parts) * _PART
        whole += 2 * blocks * rows * tokens * 4 / (rate * _CACHE) if c["JOIN"] == "memory" else 0.0
    return whole * 1e-6


@lru_cache(64)
def _ranked(gemm: GemmW4, gpu: Gpu) -> tuple[Mapping[str, Any], ...]:
    """Twelve that the space admits, the fastest by the model first, one of each shape of blocks."""
    space, kept = _space(gemm, gpu), dict[tuple[int, ...], Mapping[str, Any]]()
    for config in _in_order(gemm, gpu, space):
        kind = config["TILES"], config["WARPS_R"], config["WARPS_K"], config["SPLITS"]
        if kind not in kept and not space.explain(config):
            kept[kind] = config
            if len(kept) == 12:
                break
    return tuple(kept.values())


def _in_order(gemm: GemmW4, gpu: Gpu, space: Space) -> Iterator[Mapping[str, Any]]:
    """The fastest first, but before it one that the model cannot tell from it, and that has been timed more often."""
    every = [(_seconds(gemm, gpu, config), config) for config in _candidates(gemm, gpu)]
    ordered = sorted(every, key=itemgetter(0))
    fastest = next((seconds for seconds, config in ordered if not space.explain(config)), 0.0)
    alike = (config for seconds, config in every if seconds <= _ALIKE * fastest and not space.explain(config))
    yield from islice(alike, 1)
    yield from (config for _, config in ordered)


def _candidates(gemm: GemmW4, gpu: Gpu) -> Iterator[dict[str, Any]]:
    tokens = covering([8, 16, 32, 64], gemm.m)[-1]
    # What was timed most is first.
    for tiles, (warps_r, warps_k), unroll, stages, blocks, splits, join in product(
        (2, 1, 4), ((1, 1), (8, 1), (2, 4), (1, 8), (4, 2), (4, 1), (2, 2), (1, 4), (1, 2), (2, 1)),
        (2, 1) if tokens > 32 else (1, 2), (6, 4, 8, 3, 2), (1, 2, 3, 4), (0, 1, 2, 4, 8), ("memory", "cluster"),
    ):  # fmt: skip
        rows, step = warps_r * tiles * PACKED_N, warps_k * unroll * PACKED_K
        beyond = rows >= max(2 * gemm.n, 2 * PACKED_N) or step >= max(2 * gemm.k, 2 * PACKED_K)
        if beyond or (max(stages - 1, splits) - 1) * step >= max(gemm.k, 2):  # the space says so too, but slowly
            continue
        if join == "cluster" and not (splits in _CLUSTERS and gpu.has("cluster")):
            continue
        yield {
            "TOKENS": tokens, "TILES": tiles, "WARPS_R": warps_r, "WARPS_K": warps_k, "UNROLL": unroll,
            "STAGES": stages, "MIN_BLOCKS": blocks, "SPLITS": splits, "JOIN": join,
        }  # fmt: skip
