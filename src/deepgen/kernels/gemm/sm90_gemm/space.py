"""The space of the Hopper GEMM family: its knobs, and the constraints between them and from the chip."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from deepgen.kernels.gemm.sm90_gemm.lower import (
    ATOM_BYTES,
    BUFFER_ROWS,
    BY_LINES,
    CONSUMER_REGISTERS,
    LOADERS,
    gathers,
    loads_columns,
    matrix_rows,
    overlap,
    producers,
    promotes,
    result_line,
    result_pitch,
    sets_of_sums,
)
from deepgen.kernels.gemm.sm90_gemm.operands import LINE_BYTES, asynchronous, factor_bytes, factor_registers, realigned
from deepgen.kernels.shared import epilogue
from deepgen.operators import Gemm
from deepgen.space import Expr, Space, divides, implies, maximum, minimum, where
from deepgen.space.expr import points
from deepgen.targets import Gpu
from deepgen.vocabulary import dtype

_RESERVED = 36  # registers for addresses, counters and values in flight
_BESIDE_SUMS = 44  # the same where an epilogue's operands are held with sums
_LANE_REGISTERS = 512  # of each lane, on a fourth of a multiprocessor
_FIXED = 1024 + 256  # shared bytes for alignment, barriers and flags
_HELD, _LOADING = 8 * 16, 40  # registers for a line's eight chunks, twice, with the chunks after them; and for the rest
_COPIED_ROWS = 256  # the longest side of a box for the copy engine; tiles have no more columns


def sm90_space(name: str, gemm: Gemm, gpu: Gpu, *, asks: bool = False) -> Space:
    """`asks`: whether producers may copy lines asynchronously."""
    s = Space(name)
    schedule = s.knob("SCHEDULE", ["cooperative", "ping-pong"])
    consumers = s.knob("CONSUMERS", [1, 2, 3])
    tiles_m = s.knob("TILES_M", [1, 2])
    bn = s.knob("BN", _columns(gemm))
    atoms = s.knob("ATOMS", [1, 2])
    stages = s.knob("STAGES", [1, 2, 3, 4, 5, 6, 7, 8, 10, 12])
    registers = s.knob("REGISTERS", [False, True])
    min_blocks = s.knob("MIN_BLOCKS", [1, 2, 3, 4, 6])
    ping_pong = schedule == "ping-pong"
    s.require(implies(ping_pong, consumers == 2), "two warpgroups take turns")
    bm = s.derive("BM", tiles_m * 64 * where(ping_pong, 1, consumers))
    s.require(bm < max(2 * gemm.m, 65), "tiles are not much higher than the matrix")

    cluster_m, cluster_n = _clusters(s, gemm, bm, bn, min_blocks)
    loads, many = _realign(s, gemm, bn, atoms, registers, cluster_m * cluster_n, asynchronous(gemm) if asks else "")
    store, buffers = _result(s, gemm, bn)
    sums = tiles_m * bn // 2
    held = _held(s, gemm, sums, store, tiles_m)
    share = _registers(s, gpu, consumers, bn, held, registers, min_blocks, _producing(registers, loads, many))
    if loads is not False:
        lines = (bm if "a" in realigned(gemm) else 0) + ((bn + 31) // 32 * 32 if "b" in realigned(gemm) else 0)
        s.require(
            implies(loads, lines * _HELD // LOADERS + _LOADING <= share), "two stages fit in producers' registers"
        )
    # If columns are contiguous in B, lines of 64 are fetched, or a single shorter one.
    rows = bn if gemm.layout[1] == "t" else where(bn < 64, bn, (bn + 63) // 64 * 64)
    stage = atoms * ATOM_BYTES * (bm + rows)
    size = dtype(gemm.c).bytes
    line: Expr | int = 128
    row: Expr | int = 0
    for n in _columns(gemm):
        if result_line(gemm, n) != 128:
            line = where(bn == n, result_line(gemm, n), line)
        row = where(bn == n, result_pitch(gemm, n, "lines"), row)
    by_lines = store.isin(list(BY_LINES))
    copied = (store == "copy") | (store == "late")
    by_engine = (store != "straight") & ~by_lines
    s.require(implies(by_engine, line <= 2 * ATOM_BYTES), "a thread's share of a copied line is not long")
    way_out = consumers * 4 * BUFFER_ROWS * where(by_lines, row, where(copied, buffers * line, 0))
    if gemm.blocks:
        way_out = way_out + consumers * 4 * factor_bytes(gemm, bn, tiles_m)
    shared = s.derive("shared_bytes", stage * stages + way_out)
    room = minimum(gpu.shared_per_block, gpu.shared_per_sm // min_blocks - gpu.shared_reserved)
    s.require(shared + _FIXED <= room, "tiles of so many blocks fit in shared memory")
    s.require(implies(store == "reuse", bm * bn * size <= stage * stages), "results fit where the tiles were")
    steps = ceil(gemm.k * dtype(gemm.a).bytes / ATOM_BYTES)
    if steps > 1:
        s.require(stages > 1, "a stage is let go when the products of the next have begun")
    s.require(implies(atoms > 1, steps > 1), "a stage is not longer than K")
    high, wide = bm * cluster_m, bn * cluster_n
    tiles = ((high + gemm.m - 1) // high) * ((wide + gemm.n - 1) // wide) * cluster_m * cluster_n * gemm.batch
    fits = {
        "sums": bm * bn * 4 <= stage * stages,
        "stages": (stages <= 2) | ((stages - 1) * atoms < steps),
        "tiles": tiles,
        "resident": gpu.multiprocessors * min_blocks,
    }
    _sharing(s, gemm, gpu, steps, fits)
    return s


def _held(s: Space, gemm: Gemm, sums: Expr, store: Expr, tiles_m: Expr) -> Expr:
    """A thread's registers for sums, and for what the way out adds to them. Late results take the place of sums, and an
    epilogue's operands that of results."""
    text = epilogue.registers(gemm)
    if promotes(gemm):
        ahead = s.knob("AHEAD", [False, True])  # products of a step run beside the sums of the one before
        s.require(implies(ahead, Expr("knob", (), "ATOMS") == 1), "stages are one step of sums")
        all_ = sums * where(ahead, 3, 2)
        all_ = all_ + factor_registers(gemm, tiles_m) if gemm.blocks else all_
        return all_ + text if text else all_
    if text:
        return where(store == "late", maximum(sums * 3 // 2, sums + 2 * text), sums + text)
    return sums * where(store == "late", 3, 2) // 2


def _clusters(s: Space, gemm: Gemm, bm: Expr, bn: Expr, min_blocks: Expr) -> tuple[Expr, Expr]:
    """Blocks that fetch tiles for each other."""
    cluster_m, cluster_n = s.knob("CLUSTER_M", [1, 2, 4]), s.knob("CLUSTER_N", [1, 2, 4])
    # As a list: with a list among its constraints, a space is compiled in the order in which knobs are declared. That
    # order is good: once the tile is known, most stages and buffers do not fit. Searching for a better one takes
    # seconds.
    small = [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)]
    s.require(points(["CLUSTER_M", "CLUSTER_N"], small), "clusters are small: large ones leave multiprocessors idle")
    s.require(implies(cluster_m * cluster_n > 1, min_blocks == 1), "blocks that share tiles have a multiprocessor each")
    s.require(implies(cluster_m > 1, bm * cluster_m < 2 * gemm.m), "every block of a cluster has rows")
    s.require(implies(cluster_n > 1, bn * cluster_n < 2 * gemm.n), "every block of a cluster has columns")
    # A block fetches its share of a tile: whole groups of eight lines, or of 64 if rows are contiguous.
    s.require(divides(cluster_n * (8 if gemm.layout[0] == "n" else 64), bm), "shares of a tile of A are whole")
    if gemm.layout[0] == "n":  # if rows are contiguous, lines of 64 are fetched for any tile
        fetched = where(cluster_n == 1, minimum(bm, matrix_rows(gemm)), bm)
        s.require(fetched <= _COPIED_ROWS * cluster_n, f"a copy fetches at most {_COPIED_ROWS} rows of A")
    if gemm.layout[1] == "t":  # uneven parts are fetched twice
        s.require(cluster_m * 8 <= bn, "every block of a cluster fetches columns")
    else:
        s.require(implies(cluster_m > 1, divides(cluster_m * 64, bn)), "shares of a tile of B are whole")
    return cluster_m, cluster_n


def _realign(
    s: Space, gemm: Gemm, bn: Expr, atoms: Expr, moved: Expr, sharers: Expr, others: str
) -> tuple[Expr | bool, Expr | bool]:
    """Whether lines are loaded by many producers, through registers or asynchronously; otherwise the copy engine
    fetches them, of unaligned ones copies that are made first."""
    letters = realigned(gemm)
    asks: Expr | bool = False
    if not letters and not others:
        return False, False
    ways = (["load", "copy"] if letters else ["engine"]) + ["async"] * bool(others)
    way = s.knob("REALIGN", ways)
    if others:
        asks = way == "async"
        s.require(implies(asks, (sharers == 1) & (atoms == 1)), "producers that copy lines do so for their own block")
        s.require(implies(asks, ~moved), "producers that copy lines keep their registers: others spill")
        if letters:
            few = where(asks, Expr("knob", (), "CONSUMERS"), 0) <= 2
            s.require(few, "copies of fewer than 16 bytes need registers")
        whole = [n for n in _columns(gemm) if gemm.layout[1] == "t" or n % 64 == 0]
        s.require(implies(asks, bn.isin(whole)), "whole lines of 128 bytes are copied")
    if not letters:
        return False, asks
    loads = way == "load"
    s.require(implies(loads, ~moved & (sharers == 1) & (atoms == 1)), "producers that load lines keep their registers")
    if "b" in letters:
        s.require(implies(loads, bn.isin([n for n in _columns(gemm) if loads_columns(gemm, n)])), "lines fill a round")
    return loads, asks


def _producing(moved: Expr, loads: Expr | bool, many: Expr | bool) -> Expr:
    """Warps of producers."""
    warps = where(moved, 4, 1) if many is False else where(many | moved, 4, 1)
    return warps if loads is False else where(loads, LOADERS // 32, warps)


def _registers(
    s: Space, gpu: Gpu, consumers: Expr, bn: Expr, held: Expr, moved: Expr, min_blocks: Expr, others: Expr
) -> Expr:
    """Requires that sums and everything else fit; with `moved` the producers give registers to the consumers. Returns a
    thread's share before that."""
    groups = consumers * 4 + others  # warps
    s.require(
        implies(moved, (consumers > 1) & (min_blocks == 1)), "registers are moved between three or four warpgroups"
    )
    files = gpu.register_files
    warps = (groups * min_blocks + files - 1) // files  # on the fullest part of a multiprocessor
    share = gpu.registers_per_sm // files // gpu.warp // warps // gpu.register_granule * gpu.register_granule
    kept = where(consumers == 2, CONSUMER_REGISTERS[2], CONSUMER_REGISTERS[3])
    most = minimum(where(moved, kept, share), gpu.registers_per_thread)
    s.require(held + _RESERVED <= most, "sums fit in a thread's registers")
    # The compiler requires that one instruction's operands fit in a thread's registers before these are moved.
    s.require(implies(moved & (consumers == 3), bn // 2 + 26 <= share), "an instruction's sums fit in registers")
    return share


def early(gemm: Gemm, c: Mapping[str, Any]) -> int:
    """Pieces of a tile whose operands of an epilogue are on their way while the tile's products run: as many as
    registers hold."""
    if not gemm.operands or gemm.pair != "none" or c["STORE"] not in ("reuse", "copy", "late") or c["FIXUP"] != "none":
        return 0
    sums = c["TILES_M"] * c["BN"] // 2
    warps = -(-(c["CONSUMERS"] * 128 + producers(c)) // 32 * c["MIN_BLOCKS"] // 4)  # on the fullest part of the chip
    most = CONSUMER_REGISTERS[c["CONSUMERS"]] if c["REGISTERS"] else min(_LANE_REGISTERS // warps, 255)
    chunks = result_line(gemm, c["BN"], c["STORE"]) // (8 * dtype(gemm.c).bytes)
    pieces, each = sums // (4 * chunks), epilogue.operand_registers(gemm, chunks)
    room = most - _BESIDE_SUMS - sums * sets_of_sums(gemm, c)
    return int(pieces if pieces * each <= room else max(room // each - 1, 0))  # one more is in use


def _result(s: Space, gemm: Gemm, bn: Expr) -> tuple[Expr, Expr]:
    """How sums are moved from registers to memory."""
    size = dtype(gemm.c).bytes
    ways = ["straight"]
    if gemm.n * size % LINE_BYTES == 0:
        # Registers then hold results in addition to sums, or two sets of sums.
        ways += ["copy", "reuse", *(["late"] if size == 2 and not promotes(gemm) else [])]
    else:
        ways += ["lines", "sectors"]
    store = s.knob("STORE", ways)
    s.require(
        implies(store.isin(list(BY_LINES)), bn.isin([n for n in _columns(gemm) if gathers(gemm, n)])),
        "warps gather long rows",
    )
    few = [n for n in _columns(gemm) if overlap(gemm, {"STORE": "sectors", "BN": n}) <= n // 4]
    s.require(implies(store == "sectors", bn.isin(few)), "tiles share few columns")
    buffers = s.knob("BUFFERS", [1, 2, 3, 4, 6, 8], when=(store == "copy") | (store == "late"))
    return store, buffers


def _sharing(s: Space, gemm: Gemm, gpu: Gpu, steps: int, fits: dict[str, Expr]) -> None:
    """How the work is divided among blocks."""
    names = ("SCHEDULE", "CLUSTER_M", "CLUSTER_N", "STORE", "BN", "TILES_M", "ATOMS")
    knob = {n: Expr("knob", (), n) for n in names}
    sharers = knob["CLUSTER_M"] * knob["CLUSTER_N"]
    fixup = s.knob("FIXUP", _fixups(gemm, gpu, steps))
    persistent = s.knob("PERSISTENT", [True, False], when=fixup == "none")
    ping_pong, store = knob["SCHEDULE"] == "ping-pong", knob["STORE"]
    s.require(implies(ping_pong, fixup == "none"), "turns are taken over whole tiles")
    s.require(implies(ping_pong & (fixup == "none"), persistent), "turns are taken by blocks that stay")
    tail = fixup == "tail"
    stays = ~ping_pong & ((fixup == "none") | tail)
    s.require(implies(store == "late", stays), "results are late where blocks go on to others")
    s.require(
        implies(store == "reuse", ~ping_pong & (fixup == "none")), "results reuse tiles' memory when all are done"
    )
    s.require(implies((store == "late") & (fixup == "none"), persistent), "blocks that stay have a next tile")
    s.require(implies((store == "reuse") & (fixup == "none"), ~persistent), "no next tile comes where results are")
    s.require(implies(fixup == "none", persistent | fits["stages"]), "no stage stays empty")
    s.require(implies(fixup == "split", fits["stages"]), "no stage of a part stays empty")
    split = fixup == "split"
    cluster_k = s.knob("CLUSTER_K", [1, 2, 3, 4, 5, 6, 7, 8, 16], when=split)
    exchange = fixup == "exchange"
    s.require(implies(fixup == "stream", sharers == 1), "blocks that share tiles do not take even shares")
    s.require(implies(split, implies(cluster_k > 1, sharers == 1)), "a cluster shares tiles or lies along K")
    s.require(implies(exchange | tail, sharers <= 2), "blocks that wait for each other all run: pairs always fit")
    parts = s.knob(
        "PARTS",
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 14, 16, 18, 20, 22, 26, 29, 33, 44, 66, 132],
        when=split | exchange | tail,
    )
    s.require(implies(split | exchange, store == "straight"), "sums of parts are stored straight")
    s.require(implies(store == "lines", stays | ping_pong), "whole tiles are stored by lines")
    s.require(implies(store == "sectors", fixup == "none"), "whole tiles are stored by sectors")
    splits = where(split, cluster_k * parts, parts)
    divided = split | exchange | tail
    s.require(
        implies(divided, (splits > 1) & (splits * knob["ATOMS"] <= steps)), "K is divided, and every part has a step"
    )
    s.require(implies(split, splits <= gpu.multiprocessors), "K is not split more often than there are blocks")
    tiles, resident = fits["tiles"], fits["resident"]
    over = tiles % resident  # beyond the last full round
    s.require(implies(tail, (tiles > resident) & (over > 0)), "tiles go beyond full rounds")
    s.require(
        implies(exchange | tail, where(tail, over, tiles) * parts <= resident),
        "blocks that wait for each other all run",
    )
    chunks = knob["TILES_M"] * knob["BN"] // 8
    s.require(implies(split, divides(cluster_k, chunks)), "the blocks of a cluster share the columns")
    s.require(implies(split, implies(cluster_k > 1, fits["sums"])), "sums fit where the tiles were")
    group = s.knob("GROUP", [1, 2, 4, 8, 12, 16])
    s.knob("ALONG", ["M", "N"])
    hilbert = s.knob("HILBERT", [False, True])
    s.require(implies(hilbert, group.isin([4, 8, 16])), "a curve goes through squares whose sides are powers of two")
    s.knob("CACHE", ["none", "stream", "A", "B"])
    s.knob("FIXED", [True, False])


def _columns(gemm: Gemm) -> list[int]:
    """Widths not much larger than the matrix that the instruction allows and, if columns are contiguous in B, its
    lines."""
    if gemm.layout[1] == "n":
        step, all_ = 16, [16, 32, *range(64, 257, 32)]
    else:
        step = 16 if gemm.acc == "i32" else 8
        all_ = list(range(step, 257, step))
    least = {step, *({LOADERS // 8, 64} if "b" in realigned(gemm) else ())}
    return [n for n in all_ if n < 2 * gemm.n or n in least]


def _fixups(gemm: Gemm, gpu: Gpu, steps: int) -> list[str]:
    """K is divided if the tiles alone would not fill the chip several times."""
    if steps < 2:
        return ["none"]
    few = ceil(gemm.m / 64) * ceil(gemm.n / 64) * gemm.batch < 8 * gpu.multiprocessors
    return ["none", "stream", "tail", *(["split", "exchange"] if few else [])]
