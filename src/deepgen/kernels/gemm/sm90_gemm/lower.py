"""How `gemm_sm90.cu` is compiled and launched for a config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deepgen.kernels.gemm import counters, sums
from deepgen.kernels.gemm.sm90_gemm.operands import (
    LINE_BYTES,
    along_k,
    asked,
    block_scales,
    copied,
    copies_required,
    copy_name,
    copying_step,
    factor_bytes,
    factor_macros,
    fetched_at_once,
    lines,
    loaded,
    pitch,
)
from deepgen.kernels.shared import NOTHING, epilogue
from deepgen.operators import Gemm
from deepgen.operators.gemm import ACTIVATIONS, SCALES
from deepgen.vocabulary import (
    Arg,
    DescriptorArg,
    LaunchPlan,
    ScalarArg,
    Size,
    Step,
    TensorArg,
    TensorMapSpec,
    dtype,
)

ATOM_BYTES = 128  # along K, or along rows if these are contiguous: the width of the swizzle
_FIXUPS = {"none": 0, "split": 1, "exchange": 1, "stream": 2, "tail": 3}
_ALIGN, _BARRIER, _FLAG = 1024, 8, 4
_FILE = 65536  # registers per multiprocessor
SWIZZLES = (128, 64, 32)  # bytes
_LONG_ROW, _LONGEST_ROW = 256, 576  # bytes that a warp gathers per store; limit if no shorter rows divide a tile
GRAIN = 32  # bytes of a sector, the unit in which caches write
BY_LINES = ("lines", "sectors")  # store modes in which a warp gathers rows
LOADERS = 256  # threads that load unaligned lines
BUFFER_ROWS = 16  # of C in a warp's store buffer
# L2 cache hints for A, B and C: 1 is evicted first, 2 stays longer.
_CACHES = {"none": (0, 0, 0), "stream": (1, 1, 1), "A": (2, 1, 1), "B": (1, 2, 1)}
# Registers per thread with setmaxnreg: of producers and of consumers, by the number of consumer groups.
PRODUCER_REGISTERS = {2: 40, 3: 56}
CONSUMER_REGISTERS = {2: 232, 3: 152}


@dataclass(frozen=True)
class LoweredSm90:
    """The macros of a config, and what follows from them."""

    macros: Mapping[str, int | str]
    threads: int
    shared_bytes: int
    cluster: int


def lower(gemm: Gemm, config: Mapping[str, Any]) -> LoweredSm90:
    c = config
    size = dtype(gemm.a).bytes
    ping_pong = c["SCHEDULE"] == "ping-pong"
    tile_m = 64 * c["TILES_M"]
    bm = rows_of_tile(c)
    by_copy = c["STORE"] not in ("straight", *BY_LINES)
    uses = dict(zip("ABC", _CACHES[c["CACHE"]], strict=True))
    line, apart = result_line(gemm, c["BN"], c["STORE"]), result_pitch(gemm, c["BN"], c["STORE"])
    cluster = {"M": c["CLUSTER_M"], "N": c["CLUSTER_N"], "K": c.get("CLUSTER_K", 1)}
    macros: dict[str, int | str] = {
        "TYPE_C": "f32" if gemm.c == "tf32" else gemm.c,
        "TYPE_ACC": gemm.acc,
        "TYPE_SCALE": "i32" if gemm.acc == "i32" else "f32",
        "A_K_MAJOR": int(gemm.layout[0] == "n"),
        "B_K_MAJOR": int(gemm.layout[1] == "t"),
        "BETA": int(gemm.beta != 0.0),
        "BIAS": int(gemm.bias),
        "ACTIVATION": ACTIVATIONS.index(gemm.activation),
        "SCALES": 0 if gemm.blocks else SCALES.index(gemm.scales),
        **factor_macros(gemm, c),
        "BM": bm,
        "BN": c["BN"],
        "BK": c["ATOMS"] * ATOM_BYTES // size,
        "TILE_M": tile_m,
        "ATOMS": c["ATOMS"],
        "STAGES": c["STAGES"],
        "CONSUMERS": c["CONSUMERS"],
        "PING_PONG": int(ping_pong),
        "PRODUCERS": producers(c),
        "REGISTERS": CONSUMER_REGISTERS[c["CONSUMERS"]] if c["REGISTERS"] else 0,
        "REGISTERS_DOWN": PRODUCER_REGISTERS[c["CONSUMERS"]] if c["REGISTERS"] else 0,
        "MIN_BLOCKS": c["MIN_BLOCKS"],
        **{f"CLUSTER_{side}": blocks for side, blocks in cluster.items()},
        "FIXUP": _FIXUPS[c["FIXUP"]],
        "PARTS": c.get("PARTS", 1),
        "EXCHANGE": int(c["FIXUP"] in ("exchange", "tail")),
        "GROUP": c["GROUP"],
        "ALONG_N": int(c["ALONG"] == "N"),
        "HILBERT": int(c.get("HILBERT", False)),
        "EXACT": int(promotes(gemm)),
        **{f"CACHE_{name}": use for name, use in uses.items()},
        "A_ROWS": bm if "a" in loaded(gemm, c) else _rows(gemm, bm, c["CLUSTER_N"]),
        "B_LINE": operand_line(gemm, c["BN"]),
        "STORE_TMA": int(by_copy),
        "STORE_LINES": int(c["STORE"] in BY_LINES),
        "OVERLAP": overlap(gemm, c),
        "GRAIN": GRAIN,
        "LATE": int(c["STORE"] == "late"),
        "REUSE": int(c["STORE"] == "reuse"),
        "C_BYTES": dtype(gemm.c).bytes,
        "C_LINE": line,
        "C_PITCH": apart,
        "EPILOGUE_BUFFERS": c.get("BUFFERS", 1),
        "REALIGN": sum(1 << "ab".index(letter) for letter in copied(gemm, c)),
        "A_BY_LANES": int("a" in loaded(gemm, c)),
        "B_BY_LANES": int("b" in loaded(gemm, c)),
        "ELEMENT": size,
        **{f"{letter.upper()}_COPY": wide for letter, wide in asked(gemm, c).items()},
        **_sizes(gemm, c.get("FIXED", False)),
    }
    threads = c["CONSUMERS"] * 128 + int(macros["PRODUCERS"])
    macros["LOADS"] = _loads(
        int(macros["REGISTERS"]) or _FILE // threads // c["MIN_BLOCKS"], c["TILES_M"] * c["BN"] // 2
    )
    return LoweredSm90(macros, threads, shared_bytes(gemm, c), cluster["M"] * cluster["N"] * cluster["K"])


def producers(c: Mapping[str, Any]) -> int:
    """Producer threads: one issues copies while the rest of its warps wait, or all of them load lines."""
    way = c.get("REALIGN")
    return LOADERS if way == "load" else 128 if c["REGISTERS"] or way == "async" else 32


def rows_of_tile(c: Mapping[str, Any]) -> int:
    rows: int = 64 * c["TILES_M"] * (1 if c["SCHEDULE"] == "ping-pong" else c["CONSUMERS"])
    return rows


def shared_bytes(gemm: Gemm, c: Mapping[str, Any]) -> int:
    """Bytes of shared memory per block."""
    stage = c["ATOMS"] * ATOM_BYTES * (rows_of_tile(c) + operand_rows(gemm, c["BN"]))
    buffers = c.get("BUFFERS", int(c["STORE"] in BY_LINES)) * BUFFER_ROWS
    buffers *= result_pitch(gemm, c["BN"], c["STORE"])
    buffers += factor_bytes(gemm, c["BN"], c["TILES_M"])
    whole: int = _ALIGN + c["STAGES"] * (stage + 2 * _BARRIER) + c["CONSUMERS"] * (4 * buffers + _FLAG)
    return whole


def promotes(gemm: Gemm) -> bool:
    """Whether sums are kept in f32 by adding to a second set of them: the chip's own sums of 8-bit floats have fewer
    bits.

    Both sets then take registers, so other tiles fit.
    """
    return gemm.a.startswith("f8") and not gemm.fast_sums


def sets_of_sums(gemm: Gemm, c: Mapping[str, Any]) -> int:
    """Registers for each sum of a thread."""
    return (3 if c.get("AHEAD") else 2) if promotes(gemm) else 1


def _sizes(gemm: Gemm, fixed: bool) -> dict[str, int | str]:
    """Sizes and factors as constants in the code, so that nothing is read or divided before the first fetch."""
    if not fixed:
        return {"FIXED": 0}
    sizes = {"SIZE_M": gemm.m, "SIZE_N": gemm.n, "SIZE_K": gemm.k, "SIZE_BATCH": gemm.batch}
    factors = {"ALPHA": gemm.alpha, "BETA_VALUE": gemm.beta}
    written = {name: int(x) if gemm.acc == "i32" else f"{x!r}f" for name, x in factors.items()}
    return {"FIXED": 1, **sizes, "STRIDE_C": gemm.m * gemm.n, **written}


def matrix_rows(gemm: Gemm) -> int:
    """Rows of A rounded up to groups of eight, which are swizzled together."""
    return -(-gemm.m // 8) * 8


def _rows(gemm: Gemm, bm: int, sharers: int) -> int:
    """Rows of A that are fetched for a tile: no more groups of eight than the matrix has, unless blocks share them."""
    few = matrix_rows(gemm)
    return few if few < bm and sharers == 1 and gemm.layout[0] == "n" else bm


def operand_line(gemm: Gemm, bn: int) -> int:
    """Bytes of a line of B in shared memory: narrow tiles whose columns are contiguous have narrow lines."""
    return min(ATOM_BYTES, bn * dtype(gemm.b).bytes) if gemm.layout[1] == "n" else ATOM_BYTES


def operand_rows(gemm: Gemm, bn: int) -> int:
    """Columns of B that are fetched for a tile: whole lines."""
    return _rounded(bn, operand_line(gemm, bn) // dtype(gemm.b).bytes) if gemm.layout[1] == "n" else bn


def loads_columns(gemm: Gemm, bn: int) -> bool:
    """Whether producers that load unaligned lines of B load the same number in each round."""
    return operand_rows(gemm, bn) % (LOADERS // 8 if gemm.layout[1] == "t" else 64) == 0


def _share(gemm: Gemm, bn: int, sharers: int) -> int:
    """Columns of B that each of the sharing blocks fetches: neighbours overlap if shares are not whole."""
    return _rounded(bn, 8 * sharers) // sharers if gemm.layout[1] == "t" else bn // sharers


def _rounded(n: int, to: int) -> int:
    return -(-n // to) * to


def result_pitch(gemm: Gemm, bn: int, store: str) -> int:
    """Bytes between lines of a buffer: rows that a warp stores itself are an odd multiple of 16 bytes apart."""
    line = result_line(gemm, bn, store)
    return line + (GRAIN + 16 * (line % 32 == 0) if store in BY_LINES else 0)


def overlap(gemm: Gemm, c: Mapping[str, Any]) -> int:
    """Columns that a tile shares with the next one, so that one of them stores a whole sector of each row."""
    if c["STORE"] != "sectors":
        return 0
    size = dtype(gemm.c).bytes
    whole: int = (c["BN"] * size - GRAIN + size) // GRAIN * GRAIN // size
    return int(c["BN"]) - whole


def columns_of_tiles(gemm: Gemm, c: Mapping[str, Any]) -> int:
    """How many tiles there are along N, in whole clusters."""
    shared = overlap(gemm, c)
    wide: int = (c["BN"] - shared) * c["CLUSTER_N"]
    return -(-max(gemm.n - shared, 1) // wide) * int(c["CLUSTER_N"])


def gathers(gemm: Gemm, bn: int) -> bool:
    """Whether a warp gathers at least a whole sector at a time, or all there is."""
    line = result_line(gemm, bn, "lines")
    return line >= GRAIN or line == bn * dtype(gemm.c).bytes


def result_line(gemm: Gemm, bn: int, store: str = "copy") -> int:
    """Bytes of a line of C that is stored at once, as wide as possible; a tile has whole lines.

    128, 64 or 32 bytes are swizzled. 16-bit results may also have an odd multiple of 16 bytes: such lines fall on
    different banks without a swizzle.
    """
    whole = bn * dtype(gemm.c).bytes
    if store in BY_LINES:
        chunk = 8 * dtype(gemm.c).bytes  # columns per instruction
        all_ = [n * chunk for n in range(1, bn // 8 + 1) if bn // 8 % n == 0 and n * chunk <= _LONGEST_ROW]
        even = [n for n in all_ if n in (128, 256)]  # all lanes of a warp then take the same number of chunks
        return max(even or [n for n in all_ if 2 * GRAIN <= n <= _LONG_ROW] or all_)
    swizzled = [line for line in SWIZZLES if whole % line == 0]
    if whole % 128 == 0 or dtype(gemm.c).bytes == 4:
        return swizzled[0]
    odd = [whole // n for n in range(1, 33) if whole % (16 * n) == 0 and whole // (16 * n) % 2]
    short = [line for line in odd if line <= 2 * ATOM_BYTES]
    return max(*short, *swizzled, 0) if max(short) > 32 or swizzled else odd[0]


def _loads(registers: int, sums: int) -> int:
    """How many loads of four elements a thread has in flight when it adds up parts, as registers allow."""
    spare = (min(registers, 255) - sums - 64) // 4
    return next(n for n in (16, 8, 4) if n <= max(spare, 4))


def plan(gemm: Gemm, config: Mapping[str, Any], lowered: LoweredSm90, multiprocessors: int) -> LaunchPlan:
    c, m = config, lowered.macros
    bm, bn, cluster = int(m["BM"]), c["BN"], lowered.cluster
    shared = overlap(gemm, c)
    columns = f"where(N > {shared}, N - {shared}, 1)" if shared else "N"
    tiles = f"ceil_div(M, {bm * c['CLUSTER_M']}) * ceil_div({columns}, {(bn - shared) * c['CLUSTER_N']}) * batch"
    splits, sharers = int(m["PARTS"]) * int(m["CLUSTER_K"]), c["CLUSTER_M"] * c["CLUSTER_N"]
    resident = multiprocessors * c["MIN_BLOCKS"] // cluster - (cluster == 4)  # clusters that run at once
    grid: Size = {
        "none": f"min({tiles}, {resident}) * {cluster}" if c.get("PERSISTENT") else f"{tiles} * {cluster}",
        "split": f"{tiles} * {splits * sharers}",
        "exchange": f"{tiles} * {splits * sharers}",
        "stream": resident,
        "tail": resident * cluster,
    }[c["FIXUP"]]
    over = f"({tiles}) % {resident}"  # tiles beyond the last full round
    slot, counter = bm * bn * 4, 4 * c["CONSUMERS"]
    partial: Arg = NOTHING
    arrived: Arg = NOTHING
    if c["FIXUP"] == "stream":
        partial, arrived = sums(resident * slot), counters(resident * counter)
    elif m["PARTS"] != 1:
        divided = f"where({over} > 0, {over}, 1)" if c["FIXUP"] == "tail" else tiles
        partial = sums(f"{divided} * {slot * int(m['PARTS']) * sharers}")
        arrived = counters(f"{divided} * {counter * cluster}")
    # Even shares include one full round, so that no share is tiny.
    even = f"where({tiles} < {2 * resident}, {tiles}, {resident} + {over})"
    streamed: int | str = {"stream": even, "tail": over}.get(c["FIXUP"], 0)
    scale = "i32" if gemm.acc == "i32" else "f32"
    copies, by_lanes = copied(gemm, c), loaded(gemm, c)
    rows = {"a": int(m["A_ROWS"]) // c["CLUSTER_N"], "b": _share(gemm, bn, c["CLUSTER_M"])}
    args: tuple[Arg, ...] = (
        *_operand(gemm, "a", rows["a"], copies, by_lanes),
        *_operand(gemm, "b", rows["b"], copies, by_lanes),
        *((_result_map(gemm, int(m["C_LINE"])),) if m["STORE_TMA"] else ()),
        TensorArg("C"),
        TensorArg("bias") if gemm.bias else NOTHING,
        TensorArg("scale") if m["SCALES"] else NOTHING,
        partial,
        arrived,
        *(ScalarArg("i32", name) for name in ("M", "N", "K", "batch", "ldc")),
        ScalarArg("i64", "stride_c"),
        *(ScalarArg(scale, name) for name in ("alpha", "beta")),
        ScalarArg("i32", streamed),
        *(block_scales() if gemm.blocks else ()),
        *epilogue.arguments(gemm, "i32"),
    )
    block, blocks = (lowered.threads, 1, 1), (cluster, 1, 1)
    step = Step("gemm", args, (grid, 1, 1), block, blocks, lowered.shared_bytes, bool(copies))
    steps = (copying_step(gemm, copies), step) if copies else (step,)
    requires = [*_aligned(gemm, c), *copies_required(gemm, c), *_split(c, tiles, int(m["BK"]), splits, resident)]
    if m["FIXED"]:
        requires += [
            (f"{name} == {value}", f"{name} = {value}, for which it was made")
            for name, value in gemm.scalars().items()
            if name in ("M", "N", "K", "batch", "ldc", "alpha", "beta") or (name == "stride_c" and gemm.batch > 1)
        ]
    if c["STAGES"] == 1:  # it is let go when the products of the next have begun
        requires.append((f"K <= {m['BK']}", f"at most {m['BK']} elements of K: they are one stage"))
    if m["A_ROWS"] != bm:
        requires.append((f"M <= {m['A_ROWS']}", f"at most {m['A_ROWS']} rows: no more are fetched"))
    return LaunchPlan(steps=steps, requires=tuple(requires))


def _operand(gemm: Gemm, letter: str, rows: int, copies: str, by_lanes: str) -> tuple[Arg, ...]:
    if letter in by_lanes:
        return TensorArg(letter.upper()), ScalarArg("i32", f"ld{letter}"), ScalarArg("i64", f"stride_{letter}")
    return (_operand_map(gemm, letter, rows, copies),)


def _operand_map(gemm: Gemm, letter: str, rows: int, copies: str) -> DescriptorArg:
    """Lines along K, or along rows if K is the outer dimension; then the batch."""
    name, size = letter.upper(), dtype(gemm.a).bytes
    outer = "M" if name == "A" else "N"
    k_inside = along_k(gemm, letter)
    sizes = ("K", outer, "batch") if k_inside else (outer, "K", "batch")
    line = ATOM_BYTES if name == "A" else operand_line(gemm, rows)
    box = (ATOM_BYTES // size, rows, 1) if k_inside else (line // size, ATOM_BYTES // size, 1)
    if letter in copies:
        each = pitch(gemm, letter)
        apart = (each, f"{each} * {lines(gemm, letter)}")
        return DescriptorArg(name, TensorMapSpec(box, str(line), "256", sizes, apart), copy_name(letter))
    apart = _strides(letter, lines(gemm, letter), size)
    return DescriptorArg(name, TensorMapSpec(box, str(line), fetched_at_once(gemm, letter), sizes, apart))


def _result_map(gemm: Gemm, line: int) -> DescriptorArg:
    size = dtype(gemm.c).bytes
    box, swizzle = (line // size, BUFFER_ROWS, 1), str(line) if line in SWIZZLES else "none"
    spec = TensorMapSpec(box, swizzle, sizes=("N", "M", "batch"), strides=_strides("c", "M", size))
    return DescriptorArg("C", spec)


def _strides(letter: str, lines: str, size: int) -> tuple[str, str]:
    # A single matrix has no stride to the next one; its placeholder must still be a multiple of 16 bytes.
    matrix = f"where(batch > 1, stride_{letter}, {lines} * ld{letter})"
    return f"ld{letter} * {size}", f"{matrix} * {size}"


def _aligned(gemm: Gemm, c: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The copy engine's alignment requirements."""
    engine = [letter for letter in "ab" if letter not in copied(gemm, c) + loaded(gemm, c)] + ["c"] * (
        c["STORE"] not in ("straight", *BY_LINES)
    )
    for letter in engine:
        size = dtype(getattr(gemm, letter)).bytes
        whole, name = LINE_BYTES // size, letter.upper()
        yield f"ld{letter} % {whole} == 0", f"lines of {name} that are multiples of 16 bytes"
        apart = f"batch == 1 or stride_{letter} % {whole} == 0"
        yield apart, f"matrices of {name} that lie multiples of 16 bytes apart"


def _split(c: Mapping[str, Any], tiles: str, bk: int, splits: int, resident: int) -> Iterator[tuple[str, str]]:
    """Requirements on a shape of a kernel whose blocks divide K."""
    if splits > 1:
        yield f"ceil_div(K, {bk}) >= {splits}", f"K of more than {bk * (splits - 1)}: it is split {splits} ways"
    most = resident // splits
    if c["FIXUP"] == "tail":
        yield f"{tiles} >= {resident}", f"a result of at least {resident} tiles: a round of whole ones comes first"
        yield f"({tiles}) % {resident} <= {most}", f"at most {most} tiles beyond rounds of {resident}: all at once"
    if c["FIXUP"] == "exchange":
        yield f"{tiles} <= {most}", f"a result of at most {most} tiles: all of them are worked on at once"
