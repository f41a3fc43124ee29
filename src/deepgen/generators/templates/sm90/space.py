"""The space of the Hopper GEMM family: its knobs, and what they require of each other and of the chip."""

from __future__ import annotations

from math import ceil

from deepgen.generators.templates.sm90.lower import ATOM_BYTES, CONSUMER_REGISTERS, LINE_BYTES
from deepgen.operators import Gemm
from deepgen.space import Expr, Space, divides, implies, where
from deepgen.targets.gpu import Gpu
from deepgen.vocabulary.dtypes import dtype

_RESERVED = 36  # registers for addresses, counters and numbers on their way
_BUFFER = 2048
_FIXED = 1024 + 256  # shared bytes for alignment, barriers and flags


def sm90_space(name: str, gemm: Gemm, gpu: Gpu) -> Space:
    s = Space(name)
    schedule = s.knob("SCHEDULE", ["cooperative", "ping-pong"])
    consumers = s.knob("CONSUMERS", [1, 2, 3])
    tiles_m = s.knob("TILES_M", [1, 2])
    bn = s.knob("BN", _columns(gemm))
    atoms = s.knob("ATOMS", [1, 2])
    stages = s.knob("STAGES", [1, 2, 3, 4, 5, 6, 7, 8, 10, 12])
    registers = s.knob("REGISTERS", [False, True])
    min_blocks = s.knob("MIN_BLOCKS", [1, 2, 3, 4, 6])
    s.require(implies(schedule == "ping-pong", consumers == 2), "two warpgroups take turns")
    bm = s.derive("BM", tiles_m * 64 * where(schedule == "ping-pong", 1, consumers))
    s.require(bm < max(2 * gemm.m, 65), "tiles are not much higher than the matrix")
    _registers(s, gpu, consumers, tiles_m * bn // 2, registers, min_blocks)

    cluster_m, cluster_n = s.knob("CLUSTER_M", [1, 2, 4]), s.knob("CLUSTER_N", [1, 2, 4])
    s.require(cluster_m * cluster_n <= 4, "clusters are small: large ones leave multiprocessors idle")
    s.require(implies(cluster_m * cluster_n > 1, min_blocks == 1), "blocks that share tiles have a multiprocessor each")
    s.require(implies(cluster_m > 1, bm * cluster_m < 2 * gemm.m), "every block of a cluster has rows")
    s.require(implies(cluster_n > 1, bn * cluster_n < 2 * gemm.n), "every block of a cluster has columns")
    # A block fetches its share of a tile: whole groups of eight lines, or of 64 where rows are contiguous.
    s.require(divides(cluster_n * (8 if gemm.layout[0] == "n" else 64), bm), "shares of a tile of A are whole")
    s.require(divides(cluster_m * (8 if gemm.layout[1] == "t" else 64), bn), "shares of a tile of B are whole")

    store, buffers = _result(s, gemm, bn)
    stage = atoms * ATOM_BYTES * (bm + bn)
    shared = s.derive("shared_bytes", stage * stages + where(store == "copy", consumers * 4 * buffers * _BUFFER, 0))
    s.require(shared + _FIXED <= gpu.shared_per_block, "tiles fit in shared memory")
    taken = (shared + _FIXED + gpu.shared_reserved) * min_blocks
    s.require(taken <= gpu.shared_per_sm, "so many blocks' tiles fit in a multiprocessor")
    steps = ceil(gemm.k * dtype(gemm.a).bytes / ATOM_BYTES)
    if steps > 1:
        s.require(stages > 1, "a stage is let go when the products of the next have begun")
    s.require(implies(atoms > 1, steps > 1), "a stage is not longer than K")
    tiles = ((bm + gemm.m - 1) // bm) * ((bn + gemm.n - 1) // bn) * gemm.batch
    fits = {
        "sums": bm * bn * 4 <= stage * stages,
        "stages": (stages <= 2) | ((stages - 1) * atoms < steps),
        "blocks": gpu.multiprocessors * min_blocks // tiles,
    }
    _sharing(s, gemm, gpu, steps, fits)
    return s


def _registers(s: Space, gpu: Gpu, consumers: Expr, sums: Expr, moved: Expr, min_blocks: Expr) -> None:
    """Sums and all else fit; with `moved` the producers give registers to the consumers."""
    groups = where(moved, consumers + 1, consumers) * 4 + where(moved, 0, 1)  # warps
    s.require(
        implies(moved, (consumers > 1) & (min_blocks == 1)), "registers are moved between three or four warpgroups"
    )
    files = gpu.register_files
    warps = (groups * min_blocks + files - 1) // files  # of the fullest part of a multiprocessor
    given = gpu.registers_per_sm // files // gpu.warp // warps // gpu.register_granule * gpu.register_granule
    kept = where(consumers == 2, CONSUMER_REGISTERS[2], CONSUMER_REGISTERS[3])
    s.require(sums + _RESERVED <= where(moved, kept, given), "sums fit in a thread's registers")
    s.require(sums + _RESERVED <= gpu.registers_per_thread, "a thread has no more registers than the chip allows")


def _result(s: Space, gemm: Gemm, bn: Expr) -> tuple[Expr, Expr]:
    """How sums come from registers to memory."""
    size = dtype(gemm.c).bytes
    aligned = gemm.n * size % LINE_BYTES == 0
    store = s.knob("STORE", ["straight", "copy"] if size == 2 and aligned else ["straight"])
    buffers = s.knob("BUFFERS", [1, 2, 4], when=store == "copy")
    s.require(implies(store == "copy", divides(64, bn)), "copies of the result are 64 columns wide")
    return store, buffers


def _sharing(s: Space, gemm: Gemm, gpu: Gpu, steps: int, fits: dict[str, Expr]) -> None:
    """How the work is shared out among blocks."""
    knob = {n: Expr("knob", (), n) for n in ("SCHEDULE", "CLUSTER_M", "CLUSTER_N", "STORE", "BN", "TILES_M", "ATOMS")}
    alone = knob["CLUSTER_M"] * knob["CLUSTER_N"] == 1
    fixup = s.knob("FIXUP", _fixups(gemm, gpu, steps))
    persistent = s.knob("PERSISTENT", [True, False], when=fixup == "none")
    turns = knob["SCHEDULE"] == "ping-pong"
    s.require(implies(turns, fixup == "none"), "turns are taken over whole tiles")
    s.require(implies(turns & (fixup == "none"), persistent), "turns are taken by blocks that stay")
    s.require(implies(fixup != "none", alone), "blocks that share tiles do not share out K")
    s.require(implies(fixup == "none", persistent | fits["stages"]), "no stage stays empty")
    s.require(implies(fixup == "split", fits["stages"]), "no stage of a part stays empty")
    split = fixup == "split"
    cluster_k = s.knob("CLUSTER_K", [1, 2, 3, 4, 5, 6, 7, 8, 16], when=split)
    exchange = fixup == "exchange"
    parts = s.knob(
        "PARTS", [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 14, 16, 18, 20, 22, 26, 29, 33, 44, 66, 132], when=split | exchange
    )
    s.require(implies(exchange, (parts > 1) & (parts <= fits["blocks"])), "blocks that wait for each other all run")
    s.require(implies(exchange, parts * knob["ATOMS"] <= steps), "every block has a step of K")
    s.require(implies(exchange, knob["STORE"] == "straight"), "shares of a tile are stored straight")
    s.require(
        implies(split, cluster_k * parts <= gpu.multiprocessors), "K is not split more often than there are blocks"
    )
    s.require(implies(split, cluster_k * parts > 1), "K is split")
    s.require(implies(split, cluster_k * parts * knob["ATOMS"] <= steps), "every part of K has a step")
    s.require(implies(split, knob["STORE"] == "straight"), "sums of parts are stored straight")
    chunks = knob["TILES_M"] * knob["BN"] // 8
    s.require(implies(split, divides(cluster_k, chunks)), "the blocks of a cluster share the columns")
    s.require(implies(split, implies(cluster_k > 1, fits["sums"])), "sums fit where the tiles were")
    s.knob("GROUP", [1, 2, 4, 8, 16])
    s.knob("ALONG", ["M", "N"])


def _columns(gemm: Gemm) -> list[int]:
    """Not much wider than the matrix; whole chunks of 64 where columns are contiguous in B."""
    step = 16 if gemm.layout[1] == "t" else 64
    return [n for n in range(step, 257, step) if n < 2 * gemm.n or n == step]


def _fixups(gemm: Gemm, gpu: Gpu, steps: int) -> list[str]:
    """K is divided where the tiles alone would not fill the chip a few times."""
    if steps < 2:
        return ["none"]
    few = ceil(gemm.m / 64) * ceil(gemm.n / 64) * gemm.batch < 8 * gpu.multiprocessors
    return ["none", "stream", *(["split", "exchange"] if few else [])]
