"""The values that knobs of the f32 GEMM on x86 may have, and what they follow from."""

from __future__ import annotations

from collections.abc import Sequence

from deepgen.kernels.shared.x86_common import covering
from deepgen.operators import Gemm
from deepgen.targets import X86

FLOAT = 4  # bytes
ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16)
VECTORS = (1, 2, 3, 4, 6, 8)
BLOCK_M = (32, 64, 128, 256, 512, 1024, 2048, 4096)
BLOCK_N = (64, 128, 192, 256, 384, 512, 1024, 2048, 4096)
_BLOCK_K = (8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 2048)
NEXT = ("none", "l2", "l1")  # where the next matrix of a batch is asked into; places are the numbers of the macro
WORTH_A_THREAD = 1_000_000  # flops; waking another thread takes as long as computing these
_WORTH_HELP = 32 * WORTH_A_THREAD  # flops of a thread's part; in less time none falls behind so far that help pays
LEAST_SLICE = 256  # steps of K; below it adding the slices up costs more than it gains
_LOW = 64  # rows of C up to which a block of K may be short: the few passes over C that it takes are cheap
_AHEAD_BYTES = 256 << 10  # of A and B in a task that gemm_fma.c still asks for all at once


def along_k(gemm: Gemm) -> tuple[bool, bool]:
    """Whether the left operand runs along K: turned by SWAP, and as given."""
    return gemm.layout[1] == "t", gemm.layout[0] == "n"


def along_n(gemm: Gemm) -> tuple[bool, bool]:
    """Whether the right operand runs along the columns of C: turned by SWAP, and as given."""
    return gemm.layout[0] == "t", gemm.layout[1] == "n"


def all_at_once(gemm: Gemm) -> list[int]:
    """The rows of C where sums along K take all of them, so that B is read once: 7 is in no other tile."""
    return [gemm.m] if gemm.layout == "nt" and gemm.m <= 8 else []


def small(gemm: Gemm) -> bool:
    return (gemm.m + gemm.n) * gemm.k * FLOAT <= _AHEAD_BYTES


def up_to(values: Sequence[int], most: int) -> list[int]:
    """The values that are not above the size they divide."""
    return [v for v in values if v <= most]


def depths(gemm: Gemm) -> list[int]:
    """Blocks of K: short ones only where C is low."""
    return covering([v for v in _BLOCK_K if v >= 128 or gemm.m <= _LOW], gemm.k)


def tiles(cpu: X86, height: int, width: int) -> list[tuple[int, int]]:
    """The register tiles that the registers and a matrix of this size allow: rows and vectors."""
    lanes = cpu.vector_bytes // FLOAT
    rows, vectors = up_to(ROWS, min(height, lanes)), up_to(VECTORS, -(-width // lanes))
    return [(r, v) for r in rows for v in vectors if r * v + v + 1 <= cpu.vector_registers]


def large_tiles(cpu: X86, height: int, width: int) -> list[tuple[int, int]]:
    """Those of them that are at least half of the largest, or a third where no strip is left with fewer rows."""
    allowed = tiles(cpu, height, width)
    full = max(r * v for r, v in allowed)
    return [(r, v) for r, v in allowed if (2 if height % r else 3) * r * v >= full]


def most_block_bytes(cpu: X86) -> int:
    """What a thread's share of L3 holds."""
    return max(cpu.l3_bytes // cpu.cores, cpu.l2_bytes)


def partitions(gemm: Gemm) -> list[str]:
    both = ["mn"] if min(gemm.m, gemm.n) > 1 else []
    by_matrices = ["batch"] if gemm.batch > 1 else []
    return ["m", *both, "n", "k", *by_matrices]


def worth_help(gemm: Gemm, threads: int, inner: str | None) -> bool:
    """Whether a thread that is done should help the others, with strips of A that pass over their blocks of B."""
    return inner == "b" and gemm.batch < threads and gemm.flops() >= _WORTH_HELP * threads > _WORTH_HELP
