"""Result files of gemm.py: which race a result belongs to, the bars, and how results compare with them."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from math import exp, log
from pathlib import Path
from typing import Any, TypeAlias

from harness import by_lines, markdown, write
from harness.race import OURS

Race: TypeAlias = "Mapping[str, Any]"  # in the form of a file: the fields of gemm.Result

ENOUGH = 0.90  # of the bound: a shape that reaches it meets its floor whatever the ratio
H200 = "sm_90a"


@dataclass(frozen=True)
class Bar:
    """The ratios that a group must reach."""

    mean: float  # geometric
    floor: float


_BATCHED = Bar(1.5, 1.0)
_TILES, _VECTORS = Bar(2.0, 1.1), Bar(1.10, 0.95)
# A's dtype, instruction set, batched; groups not listed here have no bar.
BARS: Mapping[tuple[str, str, bool], Bar] = {
    ("f32", "avx512", False): Bar(1.10, 0.97), ("f32", "avx2", False): Bar(1.10, 0.97),
    ("f32", "avx512", True): _BATCHED, ("f32", "avx2", True): _BATCHED, ("bf16", "amx", False): Bar(1.40, 1.0),
    ("bf16", "amx", True): _BATCHED, ("i8", "amx", False): _TILES, ("u8", "amx", False): _TILES,
    ("i8", "avx512_vnni", False): _VECTORS, ("u8", "avx512_vnni", False): _VECTORS,
    ("i8", "avx_vnni", False): _VECTORS, ("u8", "avx_vnni", False): _VECTORS, ("f32", H200, False): Bar(1.10, 0.95),
    ("tf32", H200, False): Bar(1.08, 0.97), ("bf16", H200, False): Bar(1.06, 0.97),
    ("f16", H200, False): Bar(1.06, 0.97), ("f8e4m3", H200, False): Bar(1.05, 0.95),
    ("i8", H200, False): Bar(1.05, 0.95),
}  # fmt: skip


@dataclass(frozen=True)
class Group:
    """Races that are judged together. A constant B, packed ahead of time, is never mixed with others."""

    dtype: str
    isa: str
    layout: str
    batched: bool
    constant_b: bool
    threads: int  # 0 on a GPU
    caches: str
    fast_sums: bool = False

    @staticmethod
    def of(race: Race) -> Group:
        o = race["operator"]
        kind = (o["a"], race["isa"], o["layout"], o["batch"] > 1, race["constant_b"], race["threads"], race["caches"])
        return Group(*kind, bool(o.get("fast_sums", False)))

    @property
    def bar(self) -> Bar | None:
        return None if self.constant_b else BARS.get((self.dtype, self.isa, self.batched))

    def __str__(self) -> str:
        extra = " batched" * self.batched + " constant B" * self.constant_b + " fast sums" * self.fast_sums
        return f"{self.dtype} {self.isa} {self.layout}{extra} {self.threads or ''} {self.caches}"


def read(path: Path) -> list[dict[str, Any]]:
    """The races of a file, including those under benchmarks/h200 that an earlier program wrote."""
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_text())
        return [_of_h200(row) for row in content["rows"]] if "rows" in content else list(content["races"])
    except (ValueError, KeyError, TypeError):
        raise SystemExit(f"{path} contains no results of this benchmark: give another file") from None


def _of_h200(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the earlier program (17fbba4c): times in microseconds, ratios by rival."""
    us = row["us"]
    ratios = row["ratio"] if isinstance(row["ratio"], dict) else {n: us[n] / us["ours"] for n in us if n != "ours"}
    batch, m, n, k = row["shape"]
    operator = row.get("operator") or {"a": "f32", "layout": "nn", "batch": batch, "m": m, "n": n, "k": k}
    names = {"torch": "torch-gpu"}  # the baselines' names
    rivals = {names.get(name, name): {"seconds": us[name] * 1e-6, "ratio": one} for name, one in ratios.items()}
    return {
        "operator": operator,
        "isa": H200,
        "constant_b": False,
        "threads": 0,
        "caches": "cold",
        "ratio": ratios["cublaslt"],
        "share_of_bound": row["roofline"]["share"] if "roofline" in row else 0.0,
        "generator": row.get("family", "simt_gemm"),
        "config": row["config"],
        "tuning_seconds": 0.0,
        "contenders": {OURS: {"seconds": us["ours"] * 1e-6}, **rivals},
    }


def merge(path: Path, race: Race) -> None:
    """Add one result, replacing an earlier one of the same race. Several runs may write concurrently, and any may be
    killed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path.parent, os.O_RDONLY)  # released when it is closed, however this process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        races = [other for other in read(path) if key(other) != key(race)]
        write(path, by_lines({"races": sorted([*races, dict(race)], key=key)}))
    finally:
        os.close(lock)


def key(race: Race) -> tuple[Any, ...]:
    return *astuple(Group.of(race)), shape(race)


def shape(race: Race) -> str:
    o = race["operator"]
    batch = f"{o['batch']}b" if o["batch"] > 1 else ""
    return f"{batch}{o['m']}x{o['n']}x{o['k']}"


def misses(race: Race, bar: Bar) -> bool:
    return bool(race["ratio"] < bar.floor and race["share_of_bound"] < ENOUGH)


def mean(races: Sequence[Race]) -> float:
    return exp(sum(log(race["ratio"]) for race in races) / len(races))


def groups(races: Iterable[Race]) -> dict[Group, list[Race]]:
    out: dict[Group, list[Race]] = {}
    for race in races:
        if race["ratio"] is not None:
            out.setdefault(Group.of(race), []).append(race)
    return dict(sorted(out.items(), key=lambda item: astuple(item[0])))


def wanting(races: Iterable[Race]) -> list[Race]:
    """The races to be run again, worst first: those under their floor, and if a mean is missed, all below it."""
    out = []
    for group, members in groups(races).items():
        if group.bar is None:
            continue
        low = mean(members) < group.bar.mean
        out += [r for r in members if misses(r, group.bar) or (low and r["ratio"] < group.bar.mean)]
    return sorted(out, key=lambda race: float(race["ratio"]))


def summary(races: Iterable[Race]) -> str:
    """A line per group, and one for each shape under its floor; `!` marks whatever misses its bar."""
    lines = [f"{'dtype ISA layout threads caches':39} shapes   mean  goal  least  floor"]
    for group, members in groups(races).items():
        bar, least = group.bar, min(race["ratio"] for race in members)
        line = f"{group!s:39} {len(members):6}"
        if bar is None:
            lines.append(f"{line} {mean(members):6.2f}     -  {least:5.2f}      -")
            continue
        low = [race for race in members if misses(race, bar)]
        flags = "!" if mean(members) < bar.mean else " ", "!" if low else " "
        lines.append(f"{line} {mean(members):6.2f}{flags[0]} {bar.mean:.2f}  {least:5.2f}{flags[1]}  {bar.floor:.2f}")
        lines += [
            f"  ! {shape(race)} {race['ratio']:.2f}, {race['share_of_bound']:.0%} of the bound, {origin(race)}"
            for race in sorted(low, key=lambda race: float(race["ratio"]))
        ]
    lines.append("! misses its bar; a shape at 90% of its bound meets its floor")
    return "\n".join(lines)


def origin(race: Race) -> str:
    """Where the config came from."""
    return f"tuned for {race['tuning_seconds']:.0f} s" if race["tuning_seconds"] else "the default"


def tables(races: Sequence[Race]) -> str:
    """Like `summary`, in Markdown: a table of the groups, then one of the shapes for each dtype, ISA and layout."""
    every = groups(races)
    heads = ["what", "shapes", "threads", "caches", "mean", "goal", "least", "floor", "misses"]
    parts = [markdown(heads, _rows(every))]
    kinds = dict.fromkeys((g.dtype, g.isa, g.layout, g.constant_b, g.fast_sums) for g in every)
    for kind in kinds:
        mine = {g: rs for g, rs in every.items() if (g.dtype, g.isa, g.layout, g.constant_b, g.fast_sums) == kind}
        columns = sorted({(g.threads, g.caches) for g in mine})
        by_shape: dict[str, dict[tuple[int, str], str]] = {}
        for group, own in mine.items():
            for race in own:
                cell = f"{race['ratio']:.2f} ({race['share_of_bound']:.2f})"
                by_shape.setdefault(shape(race), {})[group.threads, group.caches] = cell
        heads = ["shape", *(f"{threads} thread{'s' * (threads > 1)}, {caches}" for threads, caches in columns)]
        body = [[name, *(cells.get(column, "-") for column in columns)] for name, cells in by_shape.items()]
        parts.append(f"### {_name(next(iter(mine)))}\n\n{markdown(heads, body)}")
    return "\n\n".join(parts)


def _rows(every: Mapping[Group, Sequence[Race]]) -> list[list[str]]:
    rows = []
    for group, races in every.items():
        bar, least = group.bar, min(race["ratio"] for race in races)
        missed = [f"{shape(race)} {race['ratio']:.2f}" for race in races if bar and misses(race, bar)]
        if bar and mean(races) < bar.mean:
            missed.insert(0, "the mean")
        row = [_name(group) + ", batches" * group.batched, len(races), group.threads, group.caches]
        row += [f"{mean(races):.2f}", bar.mean if bar else "-", f"{least:.2f}", bar.floor if bar else "-"]
        rows.append([*map(str, row), ", ".join(missed) or ("none" if bar else "-")])
    return rows


def _name(group: Group) -> str:
    what = "u8 x i8" if group.dtype == "u8" else group.dtype
    sums = ", fast sums" * group.fast_sums
    return f"{what} {group.layout} ({group.isa}){sums}" + ", constant B" * group.constant_b
