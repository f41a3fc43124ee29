"""Which configs of the Hopper GEMM family are worth a try: by a model, near a good one, and to check every feature."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from deepgen.generators.templates.sm90.defaults import seconds as predicted
from deepgen.generators.templates.sm90.sm90_gemm import Sm90Gemm
from deepgen.operators import Gemm, gemm
from deepgen.space import Space
from deepgen.targets.cuda import parse_cuda

ROOT = Path(__file__).resolve().parents[2]
Config = dict[str, Any]
FAMILY, TARGET = Sm90Gemm(), parse_cuda("h200")
SUITES = ROOT / "data/suites.json"

# (consumers, tiles_m, BN, schedule)
TILES = [
    (2, 1, 256, "c"), (2, 2, 128, "c"), (2, 1, 192, "c"), (2, 1, 128, "c"), (3, 1, 192, "c"), (3, 1, 128, "c"),
    (3, 1, 96, "c"), (2, 1, 224, "c"), (2, 1, 160, "c"), (2, 2, 96, "c"), (2, 1, 96, "c"), (2, 1, 64, "c"),
    (1, 1, 256, "c"), (1, 1, 192, "c"), (1, 1, 128, "c"), (1, 1, 96, "c"), (1, 1, 64, "c"), (1, 1, 32, "c"),
    (1, 1, 48, "c"), (1, 2, 64, "c"), (1, 2, 128, "c"), (1, 1, 16, "c"),
    (2, 2, 128, "p"), (2, 1, 256, "p"), (2, 1, 192, "p"), (2, 1, 128, "p"), (2, 1, 64, "p"),
]  # fmt: skip
STAGES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)


def shapes() -> list[tuple[int, int, int, int]]:
    suite = json.loads(SUITES.read_text())["gpu"]
    return [(1, m, n, k) for m, n, k in suite["gemm"]] + [tuple(s) for s in suite["batched_gemm"]]


def config(op: Gemm, space: Space, tile: tuple[int, int, int, str], **other: Any) -> Config | None:
    """The config with as many stages as fit, or none when the space has no such point."""
    consumers, tiles_m, bn, schedule = tile
    whole = other.get("FIXUP", "none") in ("none", "stream")
    copy = op.c in ("bf16", "f16") and op.n % 8 == 0 and bn % 64 == 0 and whole
    made: Config = {
        "SCHEDULE": "ping-pong" if schedule == "p" else "cooperative", "CONSUMERS": consumers, "TILES_M": tiles_m,
        "BN": bn, "ATOMS": 1, "STAGES": 4, "REGISTERS": consumers > 1 and tiles_m * bn >= 192, "MIN_BLOCKS": 1,
        "CLUSTER_M": 1, "CLUSTER_N": 1, "STORE": "copy" if copy else "straight", "BUFFERS": 2, "FIXUP": "none",
        "PERSISTENT": True, "GROUP": 8, "ALONG": "M", **other,
    }  # fmt: skip
    if made["STORE"] != "copy":
        made.pop("BUFFERS", None)
    if made["FIXUP"] != "none":
        made.pop("PERSISTENT")
    most = other.get("STAGES")
    for stages in [most] if most else reversed(STAGES):
        made["STAGES"] = stages
        if not space.explain(made):
            return made
    return None


def candidates(op: Gemm, most: int) -> list[Config]:
    space = FAMILY.space(op, TARGET)
    found: list[tuple[float, Config]] = []
    steps = ceil(op.k / 64)
    for tile in TILES:
        bm = 64 * tile[1] * (1 if tile[3] == "p" else tile[0])
        tiles = ceil(op.m / bm) * ceil(op.n / tile[2]) * op.batch
        some: list[Config | None] = []
        for cluster in ({}, {"CLUSTER_M": 2}, {"CLUSTER_N": 2}):
            some.append(config(op, space, tile, **cluster))
            if tile[3] == "c" and tiles <= 4 * 132:
                some.append(config(op, space, tile, PERSISTENT=False, **cluster))
        if tile[3] == "c":
            for blocks in (2, 3, 4):
                some.append(config(op, space, tile, PERSISTENT=False, MIN_BLOCKS=blocks))
            if steps > 4 and tiles % 132 and tiles < 8 * 132:
                some.append(config(op, space, tile, FIXUP="stream"))
            most_splits = min(steps, 132 // tiles) if tiles else 0
            for parts in (2, 3, 4, 6, 8, 11, 16, 20, 26, 33, 44, 66):
                if parts <= most_splits:
                    some.append(config(op, space, tile, FIXUP="exchange", PARTS=parts))
            for cluster_k in (1, 2, 3, 4, 5, 6, 7, 8, 16):
                for parts in {1, most_splits // cluster_k}:
                    if 1 < cluster_k * parts <= most_splits:
                        split = {"FIXUP": "split", "CLUSTER_K": cluster_k, "PARTS": parts}
                        some.append(config(op, space, tile, **split))
        found += [(predicted(op, TARGET, c), c) for c in some if c is not None]
    found.sort(key=lambda pair: pair[0])
    return varied([c for _, c in found], most)


def varied(ranked: list[Config], most: int) -> list[Config]:
    """The best, but no more than a few of one tile and of one way to share out: the model is not that good."""
    seen: dict[Any, int] = {}
    out: list[Config] = []
    for c in ranked:
        tile = (c["CONSUMERS"], c["TILES_M"], c["BN"])
        way = (*tile, c["SCHEDULE"], c["FIXUP"], c["MIN_BLOCKS"], c["CLUSTER_M"], c["CLUSTER_N"])
        if c not in out and seen.get(tile, 0) < 7 and seen.get(way, 0) < {"split": 2, "exchange": 3}.get(c["FIXUP"], 1):
            seen[tile], seen[way] = seen.get(tile, 0) + 1, seen.get(way, 0) + 1
            out.append(c)
        if len(out) == most:
            break
    return out


def _near(parts: int) -> list[int]:
    listed = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 14, 16, 18, 20, 22, 26, 29, 33, 44, 66, 132]
    at = listed.index(parts)
    return listed[max(at - 2, 0) : at] + listed[at + 1 : at + 3]


def neighbours(op: Gemm, c: Config) -> Iterator[Config]:
    """One knob changed at a time, and the stages refitted."""
    space = FAMILY.space(op, TARGET)
    for knob, values in (
        ("GROUP", (1, 2, 4, 8, 16)), ("ALONG", ("M", "N")), ("ATOMS", (1, 2)), ("BUFFERS", (1, 2, 4)),
        ("STORE", ("straight", "copy")), ("PERSISTENT", (True, False)), ("MIN_BLOCKS", (1, 2, 3, 4)),
        ("CLUSTER_M", (1, 2)), ("CLUSTER_N", (1, 2)), ("REGISTERS", (True, False)),
        ("BN", (c["BN"] - 32, c["BN"] - 16, c["BN"] + 16, c["BN"] + 32)),
        ("PARTS", _near(c.get("PARTS", 1))), ("CLUSTER_K", (1, 2, 3, 4, 6, 8, 16)),
        ("STAGES", (c["STAGES"] - 2, c["STAGES"] - 1)),
    ):  # fmt: skip
        for value in values:
            if c.get(knob) in (None, value) and knob != "BUFFERS":
                continue
            other = {**c, knob: value}
            if other["STORE"] == "copy":
                other.setdefault("BUFFERS", 2)
            else:
                other.pop("BUFFERS", None)
            for stages in (other["STAGES"],) if knob == "STAGES" else reversed(STAGES):
                if other != c and not space.explain({**other, "STAGES": stages}):
                    yield {**other, "STAGES": stages}
                    break


def checks() -> list[tuple[Gemm, Config]]:
    """Small odd problems that try each feature at least once."""
    out: list[tuple[Gemm, Config]] = []

    def add(op: Gemm, tile: tuple[int, int, int, str], **other: Any) -> None:
        space = FAMILY.space(op, TARGET)
        made = config(op, space, tile, **other)
        if made is None:
            print("no such config:", op.describe(), tile, other)
        else:
            out.append((op, made))

    base = gemm(1000, 776, 520, dtype="bf16", layout="nt")
    coop, ping, one, three, tall = (
        (2, 1, 256, "c"),
        (2, 2, 128, "p"),
        (1, 1, 64, "c"),
        (3, 1, 192, "c"),
        (2, 2, 128, "c"),
    )
    for tile in (coop, ping, one, three, tall, (1, 1, 48, "c"), (2, 1, 64, "p")):
        add(base, tile)
    add(base, coop, STORE="straight")
    add(base, coop, PERSISTENT=False)
    add(base, coop, ATOMS=2)
    for cluster in ({"CLUSTER_M": 2}, {"CLUSTER_N": 2}, {"CLUSTER_M": 2, "CLUSTER_N": 2}, {"CLUSTER_M": 4}):
        add(base, (2, 1, 128, "c"), **cluster)
    add(base, (2, 1, 128, "p"), CLUSTER_M=2)
    splits: list[tuple[int, int]] = [(2, 1), (4, 1), (8, 1), (16, 1), (1, 3), (2, 4), (3, 2)]
    for split in splits:
        add(
            replace(base, k=2056),
            (1, 1, 96 if split[0] == 3 else 128, "c"),
            FIXUP="split",
            CLUSTER_K=split[0],
            PARTS=split[1],
        )
    add(replace(base, k=2056), (2, 1, 128, "c"), FIXUP="split", CLUSTER_K=4, PARTS=2)
    for parts in (2, 3, 9, 33):
        add(gemm(200, 136, 5000, dtype="bf16", layout="nt"), (1, 1, 64, "c"), FIXUP="exchange", PARTS=min(parts, 9))
        add(gemm(100, 120, 5000, dtype="bf16", layout="nt"), (2, 1, 128, "c"), FIXUP="exchange", PARTS=parts)
    for shape in ((1000, 776, 520), (3000, 2048, 1032), (100, 72, 16384)):
        add(gemm(*shape, dtype="bf16", layout="nt"), (2, 1, 128, "c"), FIXUP="stream")
    add(base, one, FIXUP="stream", MIN_BLOCKS=3)
    for layout in ("nn", "tn", "tt"):
        op = replace(base, layout=layout)
        add(op, coop)
        add(op, (2, 1, 128, "c"))
        add(replace(op, n=768), (2, 1, 128, "c"), CLUSTER_M=2)
        add(op, (2, 1, 128, "c"), CLUSTER_M=2)
        add(op, (2, 1, 256, "c"), CLUSTER_M=2)
        add(op, tall, CLUSTER_N=2)
        add(op, one, ATOMS=2)
    add(replace(base, a="f16", b="f16", c="f16"), coop)
    add(replace(base, c="f32"), coop)
    add(replace(base, n=777), coop)
    add(replace(base, batch=5, m=200, n=136), (2, 1, 128, "c"))
    add(replace(base, batch=5, m=200, n=136), (2, 1, 128, "p"))
    add(replace(base, batch=3, m=200, n=136), one, FIXUP="split", CLUSTER_K=2, PARTS=2)
    full: dict[str, Any] = {"alpha": 0.5, "beta": 2.0, "bias": True, "activation": "gelu", "scales": "row"}
    add(replace(base, **full), coop)
    add(replace(base, **full), coop, STORE="straight")
    add(replace(base, bias=True, activation="silu", scales="column"), coop)
    add(replace(base, activation="relu", scales="tensor"), (2, 1, 128, "p"))
    add(gemm(1000, 776, 520, dtype="tf32", layout="nt"), coop)
    add(gemm(1000, 776, 528, dtype="i8", layout="nt"), coop)
    add(
        gemm(1000, 776, 2064, dtype="i8", layout="nt", alpha=3.0, beta=2.0),
        (1, 1, 128, "c"),
        FIXUP="split",
        CLUSTER_K=2,
        PARTS=2,
    )
    for eight in ("f8e4m3", "f8e5m2"):
        add(gemm(1000, 776, 528, dtype=eight, layout="nt", c="bf16"), coop)
    return out
