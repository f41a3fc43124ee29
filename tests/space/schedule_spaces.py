"""Spaces as defined by schedule rules: multi-level tiling with cache stages, memory limits, threads and vectors.

An operator consists of its axes and, for each tensor, the number of elements in a tile. Every axis is split into levels
whose factors are knobs. A position knob selects the level at which the tile of a tensor is cached, and so its extents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from deepgen.space import Expr, Space, divides, product, where
from deepgen.space.engine import DEFAULT_MEMORY

Tile = Mapping[str, Expr]  # length of a tile by axis
Elements = Callable[[Tile], Expr]
SHARED_BYTES = 49152


@dataclass(frozen=True)
class Tensors:
    """What is tiled: the axes by name, and the elements of each tensor's tile."""

    name: str
    spatial: Mapping[str, int]
    reduced: Mapping[str, int]
    inputs: Mapping[str, Elements]
    output: Elements
    contiguous: Mapping[str, str]  # by input: the axis along which it is loaded in vectors

    @property
    def axes(self) -> dict[str, int]:
        return {**self.spatial, **self.reduced}


def gemm(m: int, n: int, k: int) -> Tensors:
    return Tensors(
        f"gemm {m}x{n}x{k}",
        {"i": m, "j": n},
        {"k": k},
        {"A": lambda t: t["i"] * t["k"], "B": lambda t: t["k"] * t["j"]},
        lambda t: t["i"] * t["j"],
        {"A": "k", "B": "j"},
    )


def conv(name: str, batch: int, lengths: Sequence[int], ci: int, co: int, kernel: int, stride: int) -> Tensors:
    """A convolution over as many axes as `lengths` has; tiles of its input have a halo."""
    axes = [f"o{i}" for i in range(len(lengths))]
    taps = [f"r{i}" for i in range(len(lengths))]

    def halo(t: Tile) -> Expr:
        return product([(t[o] - 1) * stride + t[r] for o, r in zip(axes, taps, strict=True)])

    return Tensors(
        f"{name} {batch}x{'x'.join(map(str, lengths))}x{ci}x{co} k{kernel}",
        {"n": batch, **dict(zip(axes, lengths, strict=True)), "co": co},
        {"ci": ci, **dict.fromkeys(taps, kernel)},
        {
            "input": lambda t: t["n"] * halo(t) * t["ci"],
            "weight": lambda t: product([t[r] for r in taps]) * t["ci"] * t["co"],
        },
        lambda t: product([t[a] for a in ("n", *axes, "co")]),
        {"input": "ci", "weight": "co"},
    )


def tiled(of: Tensors, levels: int, *, last_derived: bool = False, memory: int = DEFAULT_MEMORY) -> Space:
    """The space of a GPU's schedules. With `last_derived` the innermost factors are not knobs but derived."""
    space = Space(f"{of.name}, {levels} levels" + (", last derived" if last_derived else ""), memory)
    factors = {axis: _split(space, axis, extent, levels, last_derived) for axis, extent in of.axes.items()}
    stages = space.knob("stages", [1, 2, 3, 4])
    used: list[Expr] = []
    for tensor, elements in of.inputs.items():
        cached = space.knob(f"cache_{tensor}", [False, True])
        at = space.knob(f"at_{tensor}", list(range(levels - 1)), when=cached)
        pad = space.knob(f"pad_{tensor}", [0, 8, 16], when=cached)
        tile = {axis: _below(own, at) for axis, own in factors.items()}
        used.append((elements(tile) + pad) * stages * 2)
        width = space.knob(f"vector_{tensor}", [1, 2, 4, 8], when=cached)
        space.require(divides(width, tile[of.contiguous[tensor]]), f"vectors of {tensor} divide its rows")
    written = space.knob("cache_output", [False, True])
    at = space.knob("at_output", list(range(levels - 1)), when=written)
    used.append(of.output({axis: _below(factors[axis], at) for axis in of.spatial}) * 4)
    shared = space.derive("shared_bytes", sum(used[1:], start=used[0]))
    space.require(shared <= SHARED_BYTES, "cached tiles fit in shared memory")
    threads = space.derive("threads", product([factors[a][1] for a in of.spatial]))
    space.require((threads >= 32) & (threads <= 1024), "a block has 32 to 1024 threads")
    inner = product([f for a in of.spatial for f in factors[a][2:]])
    space.require(space.derive("registers", inner) <= 255, "accumulators fit in registers")
    space.knob("unroll", [0, 16, 64, 512, 1024])
    space.knob("order", ["spatial first", "reduced first", "mixed"])
    return space


def _split(space: Space, axis: str, extent: int, levels: int, last_derived: bool) -> list[Expr]:
    divisors = [d for d in range(1, extent + 1) if extent % d == 0]
    knobs = [space.knob(f"{axis}{level}", divisors) for level in range(levels - last_derived)]
    if not last_derived:
        space.require(product(knobs) == extent, f"the levels of {axis} multiply to its extent")
        return knobs
    space.require(extent % product(knobs) == 0, f"the levels of {axis} divide its extent")
    return [*knobs, space.derive(f"{axis}{levels - 1}", extent // product(knobs))]


def _below(factors: Sequence[Expr], at: Expr) -> Expr:
    """The length of a tile cached at a level: the product of all factors below it."""
    tile = product(list(factors[1:]))
    for level in range(1, len(factors) - 1):
        tile = where(at >= level, product(list(factors[level + 1 :])), tile)
    return tile
