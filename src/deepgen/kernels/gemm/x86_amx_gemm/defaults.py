"""A good config of the AMX family without any search, from the sizes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deepgen.kernels.shared.x86 import all_cores, sides, swaps
from deepgen.operators import Gemm
from deepgen.targets import X86

_WORTH_A_THREAD = 20_000_000  # operations; with fewer, waking another thread takes as long as it saves
BYTES_WORTH_A_THREAD = 1 << 20  # the same for work that waits for memory
_WORTH_FETCHING = 64 << 10  # bytes of one product in a batch
_SMALL_BLOCK = 32 << 10  # bytes; two thirds of L1
_LARGE = 4 << 20  # bytes of a constant B: two huge pages
_DEEP = 16  # times the larger side of C: K from which it is divided; at 4, adding up slices costs more than it saves
_SLICES = 2  # of K per thread
_PAGES = 64  # two thirds of the entries in the first-level TLB
_ROUND = (64, 128, 256, 512, 1024, 2048, 4096, 8192)


def default_config(gemm: Gemm, cpu: X86, *, constant_b: bool = False) -> Mapping[str, Any]:
    """A constant B is the right operand, packed before all runs."""
    element = gemm.dtypes[0].bytes
    swap = not constant_b and _default_swap(gemm)
    left, right = sides(gemm, swap)
    # The right operand is used once: best from L1, right after packing.
    passing_by = left <= 32 and right >= 1024 and not constant_b and _may_wait(cpu, left, right)
    rows, columns = _panel(left, right, passing_by)
    nc, kc = _small_block(gemm, right) if passing_by else _block(gemm, cpu, left, right)
    copied = _left_is_copied(gemm, left, right, nc, kc) and _may_wait(cpu, left, right)
    if copied:
        kc = 1024 // element  # 32 rows of it stay in L1
    config: dict[str, Any] = {
        "SWAP": swap,
        "MR": rows,
        "NR": columns,
        "NC": nc,
        "KC": kc,
        "K_OUTSIDE": passing_by,
        "PACK_LEFT": copied,
        "PASSING": "right",
        "SNAKE": kc * element > 1024,
        "ASIDE": True,
        "AHEAD": _ahead(gemm, cpu, left, right, kc),
        "AHEAD_RESULT": True,
        **({} if constant_b else {"GATHER": 8, "PACK_AHEAD": 0}),
        "STORE": "direct" if gemm.c == gemm.acc else "buffer",
        "HUGE_PAGES": constant_b and right * gemm.k * element >= _LARGE,
    }
    return {**config, **_threads(gemm, cpu, left, right, rows * 16, columns * 16, nc)}


def _ahead(gemm: Gemm, cpu: X86, left: int, right: int, kc: int) -> str:
    """Prefetch instructions take buffers that tile loads need: hardware prefetches the operands of one product
    better."""
    if gemm.batch > 1:  # hardware prefetches small ones while the previous one is computed
        return "item" if gemm.least_bytes() // gemm.batch >= _WORTH_FETCHING else "none"
    return "panel" if right >= 64 or left * kc * gemm.dtypes[0].bytes <= cpu.l2_bytes else "none"


def _default_swap(gemm: Gemm) -> bool:
    choices = swaps(gemm)
    return choices[0] if len(choices) == 1 else gemm.n > gemm.m


def _panel(left: int, right: int, passing_by: bool) -> tuple[int, int]:
    """Tiles of sums: 2 x 2 needs the fewest loads per product; a thin operand has one tile against several of the
    other."""
    if left <= 16:  # if sums wait after a step or two, it is slower when more of them wait at a time
        return 1, min(2 if passing_by else 4, 1 << (-(-right // 16) - 1).bit_length())
    if right <= 16:
        return 2, 1  # 32 rows are read at a time: as many as hardware prefetches
    return 2, 2


def _small_block(gemm: Gemm, right: int) -> tuple[int, int]:
    """Columns and elements along K of a block that stays in L1.

    Such an operand is contiguous across K (`_default_swap`): a block has only as many rows as have their pages in the
    TLB.
    """
    element = gemm.dtypes[0].bytes
    rows = _at_most(_ROUND, _PAGES * 4096 // (right * element))
    kc = min(rows, 256, _at_least(_ROUND, gemm.k))
    return _SMALL_BLOCK // (kc * element), kc


def _block(gemm: Gemm, cpu: X86, left: int, right: int) -> tuple[int, int]:
    """Columns and elements along K of the right operand's block, which stays in L2."""
    element = gemm.dtypes[0].bytes
    whole = _at_least(_ROUND, gemm.k)
    nc = min(_at_least(_ROUND, right), 4096)
    share = 8 if left <= 64 else 4  # of L2; with few rows a block is used once or twice, best soon after packing
    while nc > 256 and nc * whole * element > cpu.l2_bytes // share:
        nc //= 2
    kc = whole
    while kc > 1024 and nc * kc * element > cpu.l2_bytes // 8 and left * nc * 4 <= cpu.l2_bytes // 4:
        kc //= 2
    while nc > 64 and (nc * kc * element > cpu.l2_bytes or (kc < gemm.k and not _may_wait(cpu, left, min(nc, right)))):
        nc //= 2
    return nc, kc


def _may_wait(cpu: X86, left: int, right: int) -> bool:
    """Whether these sums can wait for the next block of K: they must stay in caches."""
    return left * right * 4 <= 2 * cpu.l2_bytes


def _left_is_copied(gemm: Gemm, left: int, right: int, nc: int, kc: int) -> bool:
    """Whether the left operand is copied, because rows whole pages apart share a set of L1 and are evicted before
    reuse.

    A copy is worthwhile if each element is copied once and used with several panels of the other operand.
    """
    return left > 32 and 128 <= right <= nc and kc < gemm.k and gemm.k * gemm.dtypes[0].bytes % 4096 == 0


def _at_least(values: Sequence[int], wanted: int) -> int:
    return next((v for v in values if v >= wanted), values[-1])


def _at_most(values: Sequence[int], wanted: int) -> int:
    return max((v for v in values if v <= wanted), default=values[0])


def _threads(gemm: Gemm, cpu: X86, left: int, right: int, rows: int, columns: int, nc: int) -> Mapping[str, Any]:
    """All cores if there is enough work; they draw blocks of columns one by one, so a slow core gets fewer."""
    little = gemm.flops() < _WORTH_A_THREAD * cpu.cores and gemm.least_bytes() < BYTES_WORTH_A_THREAD * cpu.cores
    if little:
        return {"THREADS": 1}
    if _is_deep(gemm, cpu, left, right):
        return {"THREADS": cpu.cores, "PARTITION": "k", "TASKS": _SLICES}
    spread = all_cores(gemm, cpu, left, right, rows, columns)
    if left <= 32 or spread.get("PARTITION") != "right":
        return spread
    return {**spread, "TASKS": _at_most((1, 2, 4), -(-right // (cpu.cores * nc)))}


def _is_deep(gemm: Gemm, cpu: X86, left: int, right: int) -> bool:
    """Whether all cores divide K: each then packs only its own slices, and the sums of all of them stay in caches."""
    near = _SLICES * cpu.cores * left * right * 4 <= 2 * cpu.l2_bytes
    enough = gemm.flops() >= _WORTH_A_THREAD * cpu.cores and gemm.k >= _SLICES * cpu.cores * 256
    return cpu.cores > 1 and gemm.batch == 1 and gemm.k >= _DEEP * max(left, right) and near and enough
