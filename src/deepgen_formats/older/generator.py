"""The SIMT family restricted to exactly the space of a legacy file, with its configs converted to points of that
family.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import gcd, lcm
from typing import Any

from deepgen import Gemm
from deepgen.extend import BadInput, Gpu, JsonObject, Kernel, Operator, Space, Target, generator_by_name
from deepgen_formats.older import files
from deepgen_formats.older.files import DTYPE_CODES

_WIDEST = 16  # bytes of one load or store
NAME = "legacy_simt"  # the name in studies, which stays the same even if others change


class OlderGenerator:
    """A generator for a legacy file. Its recipe, which a study records, is the file's content and the rule."""

    name = NAME
    results_file = True  # next to the journal of its studies

    def __init__(self, data: Mapping[str, Any], strategy: int = 1, where: str = "tuning config") -> None:
        self.recipe: JsonObject = {"data": dict(data), "strategy": strategy}
        self._data, self._strategy, self._where = data, strategy, where
        template = data["template"] if files.is_space_file(data) else data
        self._candidates = files.check_tuning_config(template, where)
        self._family = generator_by_name("simt_gemm")
        try:
            self.operator = older_operator(self._candidates)
        except BadInput as error:
            raise BadInput(error.what, where=where, allowed=error.allowed) from error

    @staticmethod
    def from_recipe(recipe: Mapping[str, Any]) -> OlderGenerator:
        return OlderGenerator(recipe["data"], recipe["strategy"])

    @cached_property
    def _space(self) -> Space:
        # Not named after the file: the same content is the same space, whatever its path.
        if files.is_space_file(self._data):
            return files.points_space(self._data)
        return files.tuning_space(self._data, self._strategy)

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if operator != self.operator:
            return f"{self._where} is of {self.operator.describe()}"
        if not isinstance(target, Gpu):
            return "legacy configs are for GPUs"
        sizes = self._candidates["WARP_SIZE"]
        if target.warp not in sizes:
            return f"WARP_SIZE is {', '.join(map(str, sizes))}, and warps of {target.name} have {target.warp} lanes"
        return self._family.refuses(operator, target)

    def space(self, operator: Operator, target: Target) -> Space:
        assert isinstance(target, Gpu), "ask refuses() first"
        if len(self._candidates["WARP_SIZE"]) > 1:  # a file for several kinds of GPU: restricted to this one
            return self._space.restrict({"WARP_SIZE": [target.warp]})
        return self._space

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        assert isinstance(operator, Gemm) and isinstance(target, Gpu), "ask refuses() first"
        return self._family.emit(operator, target, simt_config(config, operator, target))

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        """The first point: in a space that someone else chose, no point is known to be good."""
        return self.space(operator, target).at(0)


_SUMS = {"f32": "f32", "f64": "f64", "f16": "f32", "bf16": "f32", "i8": "i32"}


def older_operator(config: Mapping[str, Any]) -> Gemm:
    """The problem of a config, or of a tuning config's first candidates. IS_ATRANS 1: A is stored K x M."""
    first = {key: value[0] if isinstance(value, list) else value for key, value in config.items()}
    a, b, c = (DTYPE_CODES[first[f"DATATYPE_{side}"]] for side in "ABC")
    if a not in _SUMS:
        raise BadInput(f"DATATYPE_A is {a}", allowed="one of " + ", ".join(_SUMS))
    layout = "tn" if first["IS_ATRANS"] else "nn"
    m, n, k = (first[f"{axis}_SIZE"] for axis in "MNK")
    return Gemm(m, n, k, batch=first.get("BATCH_SIZE", 1), a=a, b=b, c=c, acc=_SUMS[a], layout=layout)


def simt_config(config: Mapping[str, Any], gemm: Gemm, gpu: Gpu) -> dict[str, Any]:
    """Our knobs for a legacy config. Widths that a chip or a size does not allow become the widest allowed.

    Legacy rules let groups share a tile that has fewer steps of K than groups: its K is increased to fit.
    """
    c = config
    if c["WARP_SIZE"] != gpu.warp:
        raise BadInput(f"WARP_SIZE is {c['WARP_SIZE']} on {gpu.name}", allowed=str(gpu.warp))
    size, split_u = gemm.dtypes[0].bytes, c["LOCAL_SPLIT_U"]
    wide_c = _WIDEST // max(gemm.dtypes[2].bytes, gemm.dtypes[3].bytes)
    tile = {"A": c["THREAD_SIZE_M"], "B": c["THREAD_SIZE_N"]}
    run = {side: gcd(c[f"THREAD_SCATTER_WIDTH_{side}"], gcd(tile[side], _WIDEST // size)) for side in "AB"}
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
    """The load width: as requested, or as wide as the memory's rows, the tile's rows and the chip allow."""
    scalars, low = gemm.scalars(), side.lower()
    along_k = gemm.layout["AB".index(side)] == ("n" if side == "A" else "t")
    line = c["BLOCK_SIZE_K"] if along_k else c["BLOCK_SIZE_M" if side == "A" else "BLOCK_SIZE_N"]
    stride = int(scalars[f"stride_{low}"]) if gemm.batch > 1 else 0
    most = gcd(_WIDEST // gemm.dtypes[0].bytes, gcd(line, gcd(int(scalars[f"ld{low}"]), stride)))
    return gcd(c[f"GLOB_LOAD_WIDTH_{side}"], most)


def _spread(asked: int, run: int, tile: int) -> int:
    """The largest width that is not above the requested one, is a multiple of the run and divides the tile."""
    return max(width for width in range(run, tile + 1, run) if tile % width == 0 and (width <= asked or width == run))


def _stage_rows(c: Mapping[str, Any], gemm: Gemm, gpu: Gpu) -> int:
    """Rows of a thread that go through shared memory at once when groups are summed: as many as fit."""
    threads_m = c["BLOCK_SIZE_M"] // c["THREAD_SIZE_M"]
    line = (c["BLOCK_SIZE_N"] + gpu.warp) * gemm.dtypes[3].bytes
    rows = [r for r in range(1, c["THREAD_SIZE_M"] + 1) if c["THREAD_SIZE_M"] % r == 0]
    return max((r for r in rows if c["LOCAL_SPLIT_U"] * threads_m * r * line <= gpu.shared_per_block), default=1)
