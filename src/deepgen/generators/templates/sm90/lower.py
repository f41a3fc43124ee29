"""From a config to what `gemm_sm90.cu` is compiled with and how it is launched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deepgen.operators import Gemm
from deepgen.operators.gemm import ACTIVATIONS, SCALES
from deepgen.vocabulary import Arg, LaunchPlan, ScalarArg, Size, Step, TensorArg, TensorMapArg, WorkspaceArg
from deepgen.vocabulary.dtypes import dtype

ATOM_BYTES = 128  # along K, or along rows where these are contiguous: as wide as the swizzle
LINE_BYTES = 16  # what the copy engine asks lines of memory to be multiples of
_FIXUPS = {"none": 0, "split": 1, "exchange": 1, "stream": 2}
_ALIGN, _BARRIER, _FLAG = 1024, 8, 4
_BUFFER = 2048  # bytes of a warp's share of C on its way out
# Registers of a thread, with setmaxnreg: of producers, and of consumers by how many groups of them there are.
PRODUCER_REGISTERS = {2: 40, 3: 56}
CONSUMER_REGISTERS = {2: 232, 3: 152}


@dataclass(frozen=True)
class Lowered:
    """The macros of a config, and what follows from them."""

    macros: Mapping[str, int | str]
    threads: int
    shared_bytes: int
    cluster: int


def lower(gemm: Gemm, config: Mapping[str, Any]) -> Lowered:
    c = config
    size = dtype(gemm.a).bytes
    ping_pong = c["SCHEDULE"] == "ping-pong"
    tile_m = 64 * c["TILES_M"]
    bm = tile_m * (1 if ping_pong else c["CONSUMERS"])
    by_copy = c["STORE"] == "copy"
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
        "SCALES": SCALES.index(gemm.scales),
        "BM": bm,
        "BN": c["BN"],
        "BK": c["ATOMS"] * ATOM_BYTES // size,
        "TILE_M": tile_m,
        "ATOMS": c["ATOMS"],
        "STAGES": c["STAGES"],
        "CONSUMERS": c["CONSUMERS"],
        "PING_PONG": int(ping_pong),
        "PRODUCERS": 128 if c["REGISTERS"] else 32,
        "REGISTERS": CONSUMER_REGISTERS[c["CONSUMERS"]] if c["REGISTERS"] else 0,
        "REGISTERS_DOWN": PRODUCER_REGISTERS[c["CONSUMERS"]] if c["REGISTERS"] else 0,
        "MIN_BLOCKS": c["MIN_BLOCKS"],
        **{f"CLUSTER_{side}": blocks for side, blocks in cluster.items()},
        "FIXUP": _FIXUPS[c["FIXUP"]],
        "PARTS": c.get("PARTS", 1),
        "EXCHANGE": int(c["FIXUP"] == "exchange"),
        "GROUP": c["GROUP"],
        "ALONG_N": int(c["ALONG"] == "N"),
        "STORE_TMA": int(by_copy),
        "EPILOGUE_BUFFERS": c["BUFFERS"] if by_copy else 1,
    }
    stage = c["ATOMS"] * ATOM_BYTES * (bm + c["BN"])
    buffers = c["CONSUMERS"] * 4 * c["BUFFERS"] * _BUFFER if by_copy else 0
    shared = _ALIGN + c["STAGES"] * (stage + 2 * _BARRIER) + buffers + c["CONSUMERS"] * _FLAG
    threads = c["CONSUMERS"] * 128 + int(macros["PRODUCERS"])
    return Lowered(macros, threads, shared, cluster["M"] * cluster["N"] * cluster["K"])


def plan(gemm: Gemm, config: Mapping[str, Any], lowered: Lowered, multiprocessors: int) -> LaunchPlan:
    c, m = config, lowered.macros
    bm, bn, cluster = int(m["BM"]), c["BN"], lowered.cluster
    tiles = f"ceil_div(M, {bm * c['CLUSTER_M']}) * ceil_div(N, {bn * c['CLUSTER_N']}) * batch"
    splits = int(m["PARTS"]) * int(m["CLUSTER_K"])
    resident = multiprocessors * c["MIN_BLOCKS"] // cluster  # clusters that run at once
    grid: Size = {
        "none": f"min({tiles}, {resident}) * {cluster}" if c.get("PERSISTENT") else f"{tiles} * {cluster}",
        "split": f"{tiles} * {splits}",
        "exchange": f"{tiles} * {splits}",
        "stream": resident,
    }[c["FIXUP"]]
    slot, counter = bm * bn * 4, 4 * c["CONSUMERS"]
    partial: Arg = _NOTHING
    arrived: Arg = _NOTHING
    if c["FIXUP"] == "stream":
        partial, arrived = _sums(resident * slot), _counters(resident * counter)
    elif m["PARTS"] != 1:
        partial = _sums(f"{tiles} * {slot * int(m['PARTS'])}")
        arrived = _counters(f"{tiles} * {counter * int(m['CLUSTER_K'])}")
    # Tiles beyond the last full round are shared out evenly, with one full round so that no share is tiny.
    rest = f"where({tiles} < {2 * resident}, {tiles}, {resident} + ({tiles}) % {resident})"
    streamed: int | str = rest if c["FIXUP"] == "stream" else 0
    scale = "i32" if gemm.acc == "i32" else "f32"
    args: tuple[Arg, ...] = (
        _operand_map(gemm, "A", bm // c["CLUSTER_N"]),
        _operand_map(gemm, "B", bn // c["CLUSTER_M"]),
        *((_result_map(),) if c["STORE"] == "copy" else ()),
        TensorArg("C"),
        TensorArg("bias") if gemm.bias else _NOTHING,
        TensorArg("scale") if gemm.scales != "none" else _NOTHING,
        partial,
        arrived,
        *(ScalarArg("i32", name) for name in ("M", "N", "K", "batch", "ldc")),
        ScalarArg("i64", "stride_c"),
        *(ScalarArg(scale, name) for name in ("alpha", "beta")),
        ScalarArg("i32", streamed),
    )
    step = Step("gemm", args, (grid, 1, 1), (lowered.threads, 1, 1), (cluster, 1, 1), lowered.shared_bytes)
    return LaunchPlan(steps=(step,), requires=(*_aligned(gemm, c), *_split(c, tiles, int(m["BK"]), splits, resident)))


_NOTHING = ScalarArg("i64", 0)


def _sums(size: Size) -> WorkspaceArg:
    return WorkspaceArg("partial", size)


def _counters(size: Size) -> WorkspaceArg:
    return WorkspaceArg("arrived", size, zeroed=True, lasting=True)


def _operand_map(gemm: Gemm, name: str, rows: int) -> TensorMapArg:
    """Lines of K, or of rows where K is the outer dimension; then the batch."""
    letter, size = name.lower(), dtype(gemm.a).bytes
    outer = "M" if name == "A" else "N"
    k_inside = gemm.layout[0] == "n" if name == "A" else gemm.layout[1] == "t"
    lines = outer if k_inside else "K"
    sizes = [*(["K", outer] if k_inside else [outer, "K"]), "batch"]
    wide = ATOM_BYTES // size
    box = [wide, rows, 1] if k_inside else [wide, wide, 1]
    spec: dict[str, Any] = {"box": box, "swizzle": "128", "l2": "256", "sizes": sizes}
    return TensorMapArg(name, {**spec, **_strides(letter, lines, size)})


def _result_map() -> TensorMapArg:
    spec: dict[str, Any] = {"box": [64, 16, 1], "swizzle": "128", "sizes": ["N", "M", "batch"]}
    return TensorMapArg("C", {**spec, **_strides("c", "M", 2)})


def _strides(letter: str, lines: str, size: int) -> dict[str, Any]:
    # A single matrix has no stride to the next; what stands for it must be a multiple of 16 bytes all the same.
    matrix = f"where(batch > 1, stride_{letter}, {lines} * ld{letter})"
    return {"strides": [f"ld{letter} * {size}", f"{matrix} * {size}"]}


def _aligned(gemm: Gemm, c: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the copy engine asks of tensors in memory."""
    copied = [("a", dtype(gemm.a).bytes), ("b", dtype(gemm.b).bytes)] + ([("c", 2)] if c["STORE"] == "copy" else [])
    for letter, size in copied:
        whole, name = LINE_BYTES // size, letter.upper()
        yield f"ld{letter} % {whole} == 0", f"lines of {name} that are multiples of 16 bytes"
        apart = f"batch == 1 or stride_{letter} % {whole} == 0"
        yield apart, f"matrices of {name} that lie multiples of 16 bytes apart"


def _split(c: Mapping[str, Any], tiles: str, bk: int, splits: int, resident: int) -> Iterator[tuple[str, str]]:
    """What a kernel whose blocks share out K asks of a shape."""
    if splits > 1:
        yield f"ceil_div(K, {bk}) >= {splits}", f"K of more than {bk * (splits - 1)}: it is split {splits} ways"
    if c["FIXUP"] == "exchange":
        most = resident // splits
        yield f"{tiles} <= {most}", f"a result of at most {most} tiles: all of them are worked on at once"
