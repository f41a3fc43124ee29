"""Which configs of the Hopper GEMM family are worth a try: by a model, near a good one, and to check every feature."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from deepgen.kernels.gemm.sm90_gemm import Sm90Gemm
from deepgen.kernels.gemm.sm90_gemm.defaults import STAGES, Way, config, ranked
from deepgen.operators import Gemm, gemm
from deepgen.space import Space
from deepgen.targets.cuda import parse_cuda

ROOT = Path(__file__).resolve().parents[2]
Config = dict[str, Any]
FAMILY, TARGET = Sm90Gemm(), parse_cuda("h200")
SUITES = ROOT / "data/suites.json"


def shapes() -> list[tuple[int, int, int, int]]:
    suite = json.loads(SUITES.read_text())["gpu"]
    return [(1, m, n, k) for m, n, k in suite["gemm"]] + [tuple(s) for s in suite["batched_gemm"]]


def fitted(space: Space, made: Config) -> Config | None:
    """The config with as many stages as fit and the knobs that others ask for; None where there is no such point."""
    c = dict(made)
    if c["STORE"] in ("copy", "late"):
        c.setdefault("BUFFERS", 2)
    else:
        c.pop("BUFFERS", None)
    if c["FIXUP"] == "none":
        c.setdefault("PERSISTENT", c["STORE"] != "reuse")
    else:
        c.pop("PERSISTENT", None)
    for stages in reversed(STAGES):
        if not space.explain({**c, "STAGES": stages}):
            return {**c, "STAGES": stages}
    return None


def candidates(op: Gemm, most: int) -> list[Config]:
    """The best by the model, but few of one kind: it is not that good. Then changes that it knows nothing of."""
    space = FAMILY.space(op, TARGET)
    columns = next(knob.values for knob in space.knobs if knob.name == "BN")
    seen: dict[Any, int] = {}
    out: list[Config] = []
    ways = ranked(op, TARGET, [int(n) for n in columns if isinstance(n, int)])
    # Ping-pong is behind in the model more often than on the device.
    for way in [*ways, *(way for way in ways if way.turns and way.tiles_m == 2)]:
        tile = (way.bm, way.bn)
        kind = (*tile, way.turns, way.fixup, way.cluster)
        most_now = most + (most // 2) * (way.turns and way.tiles_m == 2)
        if seen.get(tile, 0) >= 4 or seen.get(kind, 0) >= 2 or len(out) >= most_now:
            continue
        made = config(op, TARGET, way)
        made = fitted(space, made) if made else None
        if made is not None:
            seen[tile], seen[kind] = seen.get(tile, 0) + 1, seen.get(kind, 0) + 1
            out.append(made)
    changes: list[Config] = [{"CACHE": "stream"}, {"CACHE": "A"}, {"CACHE": "B"}, {"ATOMS": 2}]
    changes += [{"STORE": "copy", "PERSISTENT": True}, {"STORE": "late", "PERSISTENT": True}, {"ALONG": "N"}]
    for c in out[:2]:
        more = [fitted(space, {**c, **change}) for change in changes if {**c, **change} != c]
        out += [m for m in more if m is not None and m not in out]
    return out


def _near(parts: int) -> list[int]:
    listed = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 14, 16, 18, 20, 22, 26, 29, 33, 44, 66, 132]
    at = listed.index(parts)
    return listed[max(at - 2, 0) : at] + listed[at + 1 : at + 3]


def neighbours(op: Gemm, c: Config) -> Iterator[Config]:
    """One knob changed at a time, and the stages refitted."""
    space = FAMILY.space(op, TARGET)
    for knob, values in (
        ("CACHE", ("none", "stream", "A", "B")), ("GROUP", (1, 2, 4, 8, 12, 16)), ("ALONG", ("M", "N")),
        ("STORE", ("straight", "copy", "late", "reuse")), ("ATOMS", (1, 2)), ("BUFFERS", (1, 2, 3, 4, 6, 8)),
        ("PERSISTENT", (True, False)), ("MIN_BLOCKS", (1, 2, 3, 4)),
        ("CLUSTER_M", (1, 2)), ("CLUSTER_N", (1, 2)), ("REGISTERS", (True, False)),
        ("BN", (c["BN"] - 32, c["BN"] - 16, c["BN"] - 8, c["BN"] + 8, c["BN"] + 16, c["BN"] + 32)),
        ("PARTS", _near(c.get("PARTS", 1))), ("CLUSTER_K", (1, 2, 3, 4, 6, 8, 16)),
        ("FIXED", (True, False)), ("HILBERT", (True, False)), ("STAGES", (c["STAGES"] - 2, c["STAGES"] - 1)),
    ):  # fmt: skip
        for value in values:
            if c.get(knob) in (None, value):
                continue
            other = {**c, knob: value}
            if knob == "STORE" and c["FIXUP"] == "none":
                other["PERSISTENT"] = value != "reuse"
            if knob == "STAGES":
                if not space.explain(other):
                    yield other
            elif (made := fitted(space, other)) is not None:
                yield made


Tile = tuple[int, int, int, str]  # consumers, tiles_m, BN, and c for cooperative or p for ping-pong
COOP, PING, ONE, THREE, TALL = (2, 1, 256, "c"), (2, 2, 128, "p"), (1, 1, 64, "c"), (3, 1, 192, "c"), (2, 2, 128, "c")
BASE = gemm(1000, 776, 520, dtype="bf16", layout="nt")
FULL: dict[str, Any] = {"alpha": 0.5, "beta": 2.0, "bias": True, "activation": "gelu", "scales": "row"}


class Checks:
    """Small odd problems that try each feature at least once, no config twice: results are kept by config."""

    def __init__(self) -> None:
        self.all: list[tuple[Gemm, Config]] = []

    def add(self, op: Gemm, tile: Tile, **other: Any) -> None:
        made = config(op, TARGET, Way(*tile[:3], turns=tile[3] == "p"))
        assert made is not None, tile
        if other.get("FIXUP", "none") != "none":
            other = {"STORE": "copy" if other["FIXUP"] == "stream" else "straight", **other}
        if other.get("STORE", "") in ("copy", "late"):
            other = {"PERSISTENT": True, **other}
        fitting = fitted(FAMILY.space(op, TARGET), {**made, **other})
        if fitting is None:
            print("no such config:", op.describe(), tile, other)
        else:
            self.all.append((op, fitting))

    def work(self) -> None:
        """How it is shared out."""
        add = self.add
        for tile in (COOP, PING, ONE, THREE, TALL, (1, 1, 48, "c"), (2, 1, 64, "p")):
            add(BASE, tile)
        add(BASE, COOP, STORE="straight")
        add(BASE, COOP, ATOMS=2)
        for cluster in ({"CLUSTER_M": 2}, {"CLUSTER_N": 2}, {"CLUSTER_M": 2, "CLUSTER_N": 2}, {"CLUSTER_M": 4}):
            add(BASE, (2, 1, 128, "c"), **cluster)
        add(BASE, (2, 1, 128, "p"), CLUSTER_M=2)
        splits: list[tuple[int, int]] = [(2, 1), (4, 1), (8, 1), (16, 1), (1, 3), (2, 4), (3, 2)]
        for split in splits:
            add(
                replace(BASE, k=2056),
                (1, 1, 96 if split[0] == 3 else 128, "c"),
                FIXUP="split",
                CLUSTER_K=split[0],
                PARTS=split[1],
            )
        add(replace(BASE, k=2056), (2, 1, 128, "c"), FIXUP="split", CLUSTER_K=4, PARTS=2)
        for parts in (2, 3, 9):
            add(gemm(200, 136, 5000, dtype="bf16", layout="nt"), (1, 1, 64, "c"), FIXUP="exchange", PARTS=parts)
        for parts in (2, 3, 9, 33):
            add(gemm(100, 120, 5000, dtype="bf16", layout="nt"), (2, 1, 128, "c"), FIXUP="exchange", PARTS=parts)
        for shape in ((1000, 776, 520), (3000, 2048, 1032), (100, 72, 16384)):
            add(gemm(*shape, dtype="bf16", layout="nt"), (2, 1, 128, "c"), FIXUP="stream")
        add(BASE, ONE, FIXUP="stream", MIN_BLOCKS=3)

    def formats(self) -> None:
        """Layouts, formats and epilogues; tf32 and i8 come with the ways out."""
        add = self.add
        for layout in ("nn", "tn", "tt"):
            op = replace(BASE, layout=layout)
            add(op, COOP)
            add(op, (2, 1, 128, "c"))
            add(replace(op, n=768), (2, 1, 128, "c"), CLUSTER_M=2)
            add(op, (2, 1, 128, "c"), CLUSTER_M=2)
            add(op, (2, 1, 256, "c"), CLUSTER_M=2)
            add(op, TALL, CLUSTER_N=2)
            add(op, ONE, ATOMS=2)
        add(replace(BASE, a="f16", b="f16", c="f16"), COOP)
        add(replace(BASE, c="f32"), COOP)
        add(replace(BASE, n=777), COOP)
        add(replace(BASE, batch=5, m=200, n=136), (2, 1, 128, "c"))
        add(replace(BASE, batch=5, m=200, n=136), (2, 1, 128, "p"))
        add(replace(BASE, batch=3, m=200, n=136), ONE, FIXUP="split", CLUSTER_K=2, PARTS=2)
        add(replace(BASE, **FULL), COOP)
        add(replace(BASE, **FULL), COOP, STORE="straight")
        add(replace(BASE, bias=True, activation="silu", scales="column"), COOP)
        add(replace(BASE, activation="relu", scales="tensor"), (2, 1, 128, "p"))
        add(
            gemm(1000, 776, 2064, dtype="i8", layout="nt", alpha=3.0, beta=2.0),
            (1, 1, 128, "c"),
            FIXUP="split",
            CLUSTER_K=2,
            PARTS=2,
        )
        for eight in ("f8e4m3", "f8e5m2"):
            add(gemm(1000, 776, 528, dtype=eight, layout="nt", c="bf16", fast_sums=True), COOP)
        exact = gemm(1000, 776, 4112, dtype="f8e4m3", layout="nt", c="bf16")
        for tile in ((2, 1, 128, "c"), (3, 1, 96, "c"), (2, 1, 128, "p")):
            add(exact, tile)
        add(exact, (2, 1, 128, "c"), ATOMS=2, STAGES=3)
        add(replace(exact, c="f32"), (2, 1, 128, "c"))

    def ways_out(self) -> None:
        """Results of all widths; what goes with them."""
        add = self.add
        # Ways out of the block: odd widths, 32-bit results, results that are late or lie where tiles were.
        large = gemm(3000, 2056, 520, dtype="bf16", layout="nt")
        for bn in (256, 192, 168, 96, 80, 64, 16):
            add(large, (2, 1, bn, "c"), STORE="late", REGISTERS=True)
            add(large, (2, 1, bn, "c"), STORE="copy", BUFFERS=1)
            add(large, (2, 1, bn, "c"), STORE="reuse", PERSISTENT=False)
        add(large, (2, 2, 128, "c"), STORE="late", REGISTERS=True, CLUSTER_M=2)
        add(replace(large, k=72), (2, 1, 256, "c"), STORE="late", REGISTERS=True)
        add(replace(large, k=72, batch=3), (2, 1, 256, "c"), STORE="late", REGISTERS=True)
        add(replace(large, **FULL), (2, 1, 192, "c"), STORE="late", REGISTERS=True)
        add(replace(large, **FULL), (2, 2, 168, "c"), STORE="copy")
        for store in ("copy", "reuse", "straight"):
            for tile in (COOP, THREE, (1, 1, 48, "c"), (2, 1, 80, "c"), (2, 2, 72, "c")):
                add(gemm(1000, 776, 520, dtype="tf32", layout="nt"), tile, STORE=store, PERSISTENT=store != "reuse")
                if tile[2] % 16 == 0:
                    add(gemm(1000, 776, 528, dtype="i8", layout="nt"), tile, STORE=store, PERSISTENT=store != "reuse")
        add(gemm(1000, 776, 528, dtype="i8", layout="nt"), (2, 1, 128, "p"))
        add(replace(BASE, c="f32", **FULL), PING)
        for cache in ("stream", "A", "B"):
            add(BASE, COOP, CACHE=cache)
            add(BASE, (2, 1, 128, "c"), CACHE=cache, CLUSTER_M=2, CLUSTER_N=2)
        # Parts of K among blocks that share tiles.
        deep = gemm(300, 264, 5000, dtype="bf16", layout="nt")
        for cluster in ({"CLUSTER_M": 2}, {"CLUSTER_N": 2}):
            add(deep, (2, 1, 128, "c"), FIXUP="exchange", PARTS=5, **cluster)
            add(deep, (2, 1, 128, "c"), FIXUP="split", PARTS=5, CLUSTER_K=1, **cluster)
            add(replace(deep, batch=3), (2, 1, 128, "c"), FIXUP="split", PARTS=3, CLUSTER_K=1, **cluster)
        # Sizes that are part of the code.
        for op in (BASE, replace(BASE, **FULL), replace(BASE, batch=5, m=200, n=136), replace(BASE, layout="tt")):
            add(op, (2, 1, 128, "c"), FIXED=True)
            add(op, (2, 1, 128, "p"), FIXED=True, GROUP=1)
            add(op, (1, 1, 64, "c"), STORE="straight", FIXED=True)
        add(gemm(1000, 776, 2064, dtype="i8", layout="nt", alpha=3.0, beta=2.0), (1, 1, 128, "c"), FIXED=True)
        for way in (
            {"FIXUP": "exchange", "PARTS": 5},
            {"FIXUP": "split", "CLUSTER_K": 4, "PARTS": 2},
            {"FIXUP": "stream"},
        ):
            add(deep, (2, 1, 128, "c"), FIXED=True, **way)
        wide = gemm(2000, 2056, 136, dtype="bf16", layout="nt")
        for group in (4, 8, 16):
            add(wide, (1, 1, 64, "c"), HILBERT=True, GROUP=group, FIXED=group == 8)
            add(replace(wide, batch=3), (2, 1, 64, "p"), HILBERT=True, GROUP=group, ALONG="N", CLUSTER_M=2)
        add(wide, (1, 1, 64, "c"), GROUP=12, FIXED=True)
        add(replace(wide, batch=3), (2, 1, 64, "p"), GROUP=12, CLUSTER_M=2)
        # Shares of a tile that overlap.
        for bn, high in ((168, 2), (72, 2), (40, 4), (200, 4)):
            add(replace(BASE, n=1200), (2 if bn > 40 else 1, 1, bn, "c"), CLUSTER_M=high)
            add(replace(BASE, n=1200), (2, 1, bn, "p"), CLUSTER_M=high, FIXED=True)
        # Parts of the tiles beyond the last full round.
        over = gemm(1600, 2304, 1032, dtype="bf16", layout="nt")
        for store in ("copy", "late", "straight"):
            for fixed in (True, False):
                add(over, (2, 1, 192, "c"), FIXUP="tail", PARTS=5, STORE=store, REGISTERS=True, FIXED=fixed)
        add(over, (2, 1, 192, "c"), FIXUP="tail", PARTS=3, STORE="late", REGISTERS=True, CLUSTER_M=2)
        add(replace(over, layout="nn", **FULL), (2, 1, 192, "c"), FIXUP="tail", PARTS=4, STORE="copy", CLUSTER_N=2)
        # Narrow and odd tiles of a B whose columns are contiguous.
        for layout in ("nn", "tn"):
            for bn in (16, 32, 96, 160, 224):
                add(replace(BASE, layout=layout), (1 if bn < 64 else 2, 1, bn, "c"))
                add(replace(BASE, layout=layout), (1 if bn < 64 else 2, 1, bn, "c"), ATOMS=2)


def checks() -> list[tuple[Gemm, Config]]:
    made = Checks()
    made.work()
    made.formats()
    made.ways_out()
    return made.all
