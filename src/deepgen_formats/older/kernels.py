"""Its configs as points of the SIMT family: any legal one maps to a kernel that builds and is right."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, lcm
from typing import Any

from deepgen.extend import WIDEST_ACCESS, BadInput, Gemm, Gpu
from deepgen_formats.older.files import DTYPE_CODES

_SUMS = {"f32": "f32", "f64": "f64", "f16": "f32", "bf16": "f32", "i8": "i32"}


def older_operator(config: Mapping[str, Any]) -> Gemm:
    """The problem that a config, or a tuning config's first candidates, is of. IS_ATRANS 1: A is stored K x M."""
    first = {key: value[0] if isinstance(value, list) else value for key, value in config.items()}
    a, b, c = (DTYPE_CODES[first[f"DATATYPE_{side}"]] for side in "ABC")
    if a not in _SUMS:
        raise BadInput(f"DATATYPE_A is {a}", allowed="one of " + ", ".join(_SUMS))
    layout = "tn" if first["IS_ATRANS"] else "nn"
    m, n, k = (first[f"{axis}_SIZE"] for axis in "MNK")
    return Gemm(m, n, k, batch=first.get("BATCH_SIZE", 1), a=a, b=b, c=c, acc=_SUMS[a], layout=layout)


def simt_config(config: Mapping[str, Any], gemm: Gemm, gpu: Gpu) -> dict[str, Any]:
    """Our knobs for its own. Widths that a chip or a size does not allow become the widest that they do.

    Its rules let groups share a tile that has no step of K for each: it gets as many as it takes.
    """
    c = config
    if c["WARP_SIZE"] != gpu.warp:
        raise BadInput(f"WARP_SIZE is {c['WARP_SIZE']} on {gpu.name}", allowed=str(gpu.warp))
    size, split_u = gemm.dtypes[0].bytes, c["LOCAL_SPLIT_U"]
    wide_c = WIDEST_ACCESS // max(gemm.dtypes[2].bytes, gemm.dtypes[3].bytes)
    tile = {"A": c["THREAD_SIZE_M"], "B": c["THREAD_SIZE_N"]}
    run = {side: gcd(c[f"THREAD_SCATTER_WIDTH_{side}"], gcd(tile[side], WIDEST_ACCESS // size)) for side in "AB"}
    store = c["GLOB_STORE_WIDTH"] if split_u > 1 else run["B"]
    return {
        "BM": c["BLOCK_SIZE_M"], "BN": c["BLOCK_SIZE_N"], "BK": lcm(c["BLOCK_SIZE_K"], split_u),
        "TM": tile["A"], "TN": tile["B"],
        "LANES_M": c["WARP_LAYOUT_M"], "LANE_ORDER": 0, "SPLIT_U": split_u, "MIN_BLOCKS": 1,
        "INNER_A": "row", "INNER_B": "row", "COPY": "registers", "PAD": 0,
        "REG_PREFETCH": bool(c["REG_PREFETCH"]), "STAGES": 2 if c["SHARED_PREFETCH"] else 1,
        "UNROLL": max(1, c["UNROLL_NUM"]), "LOAD_CONTINUOUS": bool(c["LOAD_CONTINUOUS"]),
        "LOAD_A": _load(c, gemm, "A"), "LOAD_B": _load(c, gemm, "B"),
        "THREAD_SCATTER_A": run["A"], "THREAD_SCATTER_B": run["B"],
        "WARP_SCATTER_A": _spread(c["WARP_SCATTER_WIDTH_A"], run["A"], tile["A"]),
        "WARP_SCATTER_B": _spread(c["WARP_SCATTER_WIDTH_B"], run["B"], tile["B"]),
        "STAGE_ROWS": _stage_rows(c, gemm, gpu) if split_u > 1 else 0,
        "REDUCE_CONTINUOUS": bool(c.get("REDUCE_C_CONTINUOUS", 0)) or split_u == 1,
        "STORE": gcd(gcd(store, wide_c), gcd(gemm.n, c["BLOCK_SIZE_N"])),
        "MAPPING": max(1, c["BLOCK_MAPPING"]), "FIXUP": "none", "GUARD": "sizes",
    }  # fmt: skip


def _load(c: Mapping[str, Any], gemm: Gemm, side: str) -> int:
    """As wide as asked for, or as the memory's lines, the tile's lines and the chip allow."""
    scalars, low = gemm.scalars(), side.lower()
    along_k = gemm.layout["AB".index(side)] == ("n" if side == "A" else "t")
    line = c["BLOCK_SIZE_K"] if along_k else c["BLOCK_SIZE_M" if side == "A" else "BLOCK_SIZE_N"]
    stride = int(scalars[f"stride_{low}"]) if gemm.batch > 1 else 0
    most = gcd(WIDEST_ACCESS // gemm.dtypes[0].bytes, gcd(line, gcd(int(scalars[f"ld{low}"]), stride)))
    return gcd(c[f"GLOB_LOAD_WIDTH_{side}"], most)


def _spread(asked: int, run: int, tile: int) -> int:
    """The widest that is not more than asked for, holds whole runs and divides the tile."""
    return max(width for width in range(run, tile + 1, run) if tile % width == 0 and (width <= asked or width == run))


def _stage_rows(c: Mapping[str, Any], gemm: Gemm, gpu: Gpu) -> int:
    """Rows of a thread that go through shared memory at once when groups are added up: as many as fit."""
    threads_m = c["BLOCK_SIZE_M"] // c["THREAD_SIZE_M"]
    line = (c["BLOCK_SIZE_N"] + gpu.warp) * gemm.dtypes[3].bytes
    rows = [r for r in range(1, c["THREAD_SIZE_M"] + 1) if c["THREAD_SIZE_M"] % r == 0]
    return max((r for r in rows if c["LOCAL_SPLIT_U"] * threads_m * r * line <= gpu.shared_per_block), default=1)
