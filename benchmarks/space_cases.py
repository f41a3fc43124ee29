"""The spaces that benchmarks/space.py measures, in the form of the peers: domains and conditions in Python syntax."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepgen.space import Expr, Space, divides, implies, parse_values, product, where

DATA = Path(__file__).parent.parent / "data"
T1 = ("convolution", "dedispersion", "gemm", "hotspot")


@dataclass(frozen=True)
class Case:
    """A space that every peer can build: domains and conditions as text."""

    name: str
    domains: dict[str, list[Any]]
    conditions: tuple[str, ...]


def t1_cases() -> list[Case]:
    """The four recorded kernels, and two of them with wider domains."""
    cases = [_t1(name, {}) for name in T1]
    return [
        *cases[:3],
        _t1("gemm", {"KWI": [2, 8]}, " with KWI [2, 8]"),
        _t1("gemm", {"KWI": [2, 8], "KREG": [1, 2, 4], "MWG": [16, 32, 64, 128, 256]}, ", wider still"),
        cases[3],
    ]


def _t1(name: str, wider: dict[str, list[Any]], suffix: str = "") -> Case:
    data = json.loads((DATA / "recorded" / f"{name}.T1.json").read_text(encoding="utf-8"))["ConfigurationSpace"]
    domains = {p["Name"]: parse_values(p["Values"]) for p in data["TuningParameters"]} | wider
    return Case(name + suffix, domains, tuple(c["Expression"] for c in data["Conditions"]))


def tuning_configs() -> dict[str, dict[str, Any]]:
    """The legacy tuning configs by name."""
    files = sorted((DATA / "deepgen" / "TuningConfigs").glob("*.json"))
    return {f.stem: json.loads(f.read_text(encoding="utf-8")) for f in files}


def tiling(m: int = 1024, n: int = 1024, k: int = 1024, shared_bytes: int = 49152) -> Space:
    """A matrix product as defined by schedule rules: 60 knobs.

    Three axes in four levels each; the positions at which the tiles of A, B and C are cached select their extents; one
    memory limit sums the products of all of them.
    """
    space = Space(f"tiling {m} x {n} x {k}", memory=2 << 30)  # a large one takes more memory than the default to count
    axes = {axis: _split(space, axis, extent) for axis, extent in (("i", m), ("j", n), ("k", k))}
    at = {tensor: space.knob(f"cache_{tensor}_at", [0, 1, 2]) for tensor in "ABC"}
    pad = {tensor: space.knob(f"pad_{tensor}", [0, 4, 8]) for tensor in "AB"}
    stages = space.knob("stages", [1, 2, 3, 4])

    def inner(axis: str, tensor: str) -> Expr:
        f = axes[axis]
        return where(at[tensor] == 0, f[1] * f[2] * f[3], where(at[tensor] == 1, f[2] * f[3], f[3]))

    tile_a = space.derive("tile_A", inner("i", "A") * (inner("k", "A") + pad["A"]))
    tile_b = space.derive("tile_B", inner("j", "B") * (inner("k", "B") + pad["B"]))
    tile_c = space.derive("tile_C", inner("i", "C") * inner("j", "C"))
    used = space.derive("shared_bytes", ((tile_a + tile_b) * stages + tile_c) * 2)
    space.require(used <= shared_bytes, "cached tiles fit in shared memory")
    threads = space.derive("threads", axes["i"][1] * axes["j"][1])
    space.require((threads >= 32) & (threads <= 1024), "a block has 32 to 1024 threads")
    blocks = space.knob("blocks_per_core", [1, 2, 4, 8])
    space.require(threads * blocks <= 2048, "resident threads fit a core")
    registers = space.derive("registers", axes["i"][2] * axes["i"][3] * axes["j"][2] * axes["j"][3])
    space.require(registers <= 256, "accumulators fit in registers")
    for tensor, axis in (("A", "k"), ("B", "j"), ("C", "j")):
        width = space.knob(f"vector_{tensor}", [1, 2, 4, 8])
        space.require(divides(width, axes[axis][3]), f"vectors of {tensor} divide the innermost loop")
    _annotate(space, axes)
    _free(space)
    return space


def _split(space: Space, axis: str, extent: int) -> list[Expr]:
    factors = [d for d in range(1, extent + 1) if extent % d == 0]
    levels = [space.knob(f"{axis}{level}", factors) for level in range(4)]
    space.require(product(levels) == extent, f"the levels of {axis} multiply to its extent")
    return levels


def _annotate(space: Space, axes: dict[str, list[Expr]]) -> None:
    for axis, levels in axes.items():
        for level, factor in enumerate(levels):
            how = space.knob(f"{axis}{level}_loop", ["plain", "unrolled"])
            space.require(implies(how == "unrolled", factor <= 16), f"only short loops are unrolled: {axis}{level}")


def _free(space: Space) -> None:
    """Knobs that rules add independently of the rest."""
    space.permutation("outer_order", ["i", "j", "k"])
    space.permutation("inner_order", ["i", "j", "k"])
    swizzle = space.knob("swizzle", [1, 2, 4, 8])
    space.knob("swizzle_along", ["rows", "columns"], when=swizzle > 1)
    split = space.knob("split_k", [1, 2, 4, 8])
    space.knob("split_reduce", ["atomic", "workspace"], when=split > 1)
    for tensor in "ABC":
        space.knob(f"hint_{tensor}", ["default", "streaming", "keep"])
        space.knob(f"bank_layout_{tensor}", ["linear", "swizzled"])
        space.knob(f"prefetch_{tensor}", [0, 1, 2])
    for number in range(60 - len(space.knobs)):
        space.knob(f"rewrite_{number}", [False, True])


# The conditions of the recorded kernels as Python functions, for peers that take functions. Written with & and | so
# that the same function works on single values and on numpy arrays.


def _shared_image(
    use_shmem: Any,
    block_size_x: Any,
    tile_size_x: Any,
    filter_width: Any,
    block_size_y: Any,
    tile_size_y: Any,
    filter_height: Any,
) -> Any:
    width = block_size_x * tile_size_x + (filter_width - 1)
    return (use_shmem == 0) | (width * (block_size_y * tile_size_y + (filter_height - 1)) < 12 * 1024)


def _shared_grid(
    block_size_x: Any, tile_size_x: Any, temporal_tiling_factor: Any, block_size_y: Any, tile_size_y: Any, sh_power: Any
) -> Any:
    width = block_size_x * tile_size_x + temporal_tiling_factor * 2
    return width * (block_size_y * tile_size_y + temporal_tiling_factor * 2) * (2 + sh_power) * 4 <= 49152


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "use_padding==0 or block_size_x % 32 != 0": lambda use_padding, block_size_x: (
        (use_padding == 0) | (block_size_x % 32 != 0)
    ),
    "block_size_x*block_size_y<=1024": lambda block_size_x, block_size_y: block_size_x * block_size_y <= 1024,
    "use_padding==0 or use_shmem != 0": lambda use_padding, use_shmem: (use_padding == 0) | (use_shmem != 0),
    "use_shmem == 0 or (((block_size_x*tile_size_x+(filter_width-1)))*((block_size_y*tile_size_y+(filter_height-1))))"
    " < 12*1024": _shared_image,
    "32 <= block_size_x * block_size_y <= 1024": lambda block_size_x, block_size_y: (
        (block_size_x * block_size_y >= 32) & (block_size_x * block_size_y <= 1024)
    ),
    "tile_size_x > 1 or tile_stride_x == 0": lambda tile_size_x, tile_stride_x: (
        (tile_size_x > 1) | (tile_stride_x == 0)
    ),
    "tile_size_y > 1 or tile_stride_y == 0": lambda tile_size_y, tile_stride_y: (
        (tile_size_y > 1) | (tile_stride_y == 0)
    ),
    "KWG % KWI == 0": lambda KWG, KWI: KWG % KWI == 0,
    "MWG % (MDIMC * VWM) == 0": lambda MWG, MDIMC, VWM: MWG % (MDIMC * VWM) == 0,
    "NWG % (NDIMC * VWN) == 0": lambda NWG, NDIMC, VWN: NWG % (NDIMC * VWN) == 0,
    "MWG % (MDIMA * VWM) == 0": lambda MWG, MDIMA, VWM: MWG % (MDIMA * VWM) == 0,
    "NWG % (NDIMB * VWN) == 0": lambda NWG, NDIMB, VWN: NWG % (NDIMB * VWN) == 0,
    "KWG % ((MDIMC * NDIMC)/MDIMA) == 0": lambda KWG, MDIMC, NDIMC, MDIMA: KWG % ((MDIMC * NDIMC) / MDIMA) == 0,
    "KWG % ((MDIMC * NDIMC)/NDIMB) == 0": lambda KWG, MDIMC, NDIMC, NDIMB: KWG % ((MDIMC * NDIMC) / NDIMB) == 0,
    "not (MWG == 128 and NWG == 128 and MDIMC == 8 and NDIMC == 8)": lambda MWG, NWG, MDIMC, NDIMC: (
        (MWG != 128) | (NWG != 128) | (MDIMC != 8) | (NDIMC != 8)
    ),
    "block_size_x*block_size_y>= 32": lambda block_size_x, block_size_y: block_size_x * block_size_y >= 32,
    "temporal_tiling_factor % loop_unroll_factor_t == 0": lambda temporal_tiling_factor, loop_unroll_factor_t: (
        temporal_tiling_factor % loop_unroll_factor_t == 0
    ),
    "block_size_x*block_size_y <= 1024": lambda block_size_x, block_size_y: block_size_x * block_size_y <= 1024,
    "(block_size_x*tile_size_x+ temporal_tiling_factor * 2) * (block_size_y*tile_size_y+ temporal_tiling_factor * 2) "
    "* (2+sh_power) * 4 <= 49152": _shared_grid,
}
