"""The results file of cpu_gemm.py: which race a result belongs to, the bars, and what the results say against them."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from math import exp, log
from pathlib import Path
from typing import Any, TypeAlias

from common import by_lines

Race: TypeAlias = "Mapping[str, Any]"

ENOUGH = 0.90  # of the bound: a shape that reaches it meets its floor whatever the ratio


@dataclass(frozen=True)
class Bar:
    """What the ratios of a group must reach."""

    mean: float  # geometric
    floor: float


_BATCHED = Bar(1.5, 1.0)
_TILES, _VECTORS = Bar(2.0, 1.1), Bar(1.10, 0.95)
# A's dtype, ISA, batched; without a line here there is nothing to reach.
BARS: Mapping[tuple[str, str, bool], Bar] = {
    ("f32", "avx512", False): Bar(1.10, 0.97),
    ("f32", "avx2", False): Bar(1.10, 0.97),
    ("f32", "avx512", True): _BATCHED,
    ("f32", "avx2", True): _BATCHED,
    ("bf16", "amx", False): Bar(1.40, 1.0),
    ("bf16", "amx", True): _BATCHED,
    ("i8", "amx", False): _TILES,
    ("u8", "amx", False): _TILES,
    ("i8", "avx512_vnni", False): _VECTORS,
    ("u8", "avx512_vnni", False): _VECTORS,
    ("i8", "avx_vnni", False): _VECTORS,
    ("u8", "avx_vnni", False): _VECTORS,
}


@dataclass(frozen=True)
class Group:
    """Races that are judged together. A constant B, packed ahead of time, is never mixed with one that is not."""

    dtype: str
    isa: str
    layout: str
    batched: bool
    constant_b: bool
    threads: int
    caches: str

    @staticmethod
    def of(race: Race) -> Group:
        o = race["operator"]
        return Group(
            o["a"], race["isa"], o["layout"], o["batch"] > 1, race["constant_b"], race["threads"], race["caches"]
        )

    @property
    def bar(self) -> Bar | None:
        return None if self.constant_b else BARS.get((self.dtype, self.isa, self.batched))

    def __str__(self) -> str:
        extra = " batched" * self.batched + " constant B" * self.constant_b
        return f"{self.dtype} {self.isa} {self.layout}{extra} {self.threads} {self.caches}"


def read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        return list(json.loads(path.read_text())["races"])
    except (ValueError, KeyError, TypeError):
        raise SystemExit(f"{path} holds no results of this benchmark: give another --out") from None


def merge(path: Path, race: Race) -> None:
    """Add one result, in place of an earlier one of the same race. Several runs may write, and any be cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path.parent, os.O_RDONLY)  # freed when it is closed, however this process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        races = [known for known in read(path) if _key(known) != _key(race)]
        races = sorted([*races, dict(race)], key=_key)
        fresh = path.with_suffix(".new")
        fresh.write_text(by_lines({"races": races}))
        fresh.replace(path)
    finally:
        os.close(lock)


def _key(race: Race) -> tuple[Any, ...]:
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
    """The races to be run again, worst first: those under their floor, and where a mean is missed, all below it."""
    out = []
    for group, found in groups(races).items():
        if group.bar is None:
            continue
        low = mean(found) < group.bar.mean
        out += [r for r in found if misses(r, group.bar) or (low and r["ratio"] < group.bar.mean)]
    return sorted(out, key=lambda race: float(race["ratio"]))


def summary(races: Iterable[Race]) -> str:
    """A line a group, and one for each shape under its floor; `!` marks whatever misses its bar."""
    lines = [f"{'dtype ISA layout threads caches':39} shapes   mean  goal  least  floor"]
    for group, found in groups(races).items():
        bar, least = group.bar, min(race["ratio"] for race in found)
        line = f"{group!s:39} {len(found):6}"
        if bar is None:
            lines.append(f"{line} {mean(found):6.2f}     -  {least:5.2f}      -")
            continue
        low = [race for race in found if misses(race, bar)]
        flags = "!" if mean(found) < bar.mean else " ", "!" if low else " "
        lines.append(f"{line} {mean(found):6.2f}{flags[0]} {bar.mean:.2f}  {least:5.2f}{flags[1]}  {bar.floor:.2f}")
        lines += [
            f"  ! {shape(race)} {race['ratio']:.2f}, {race['share_of_bound']:.0%} of the bound, {found_by(race)}"
            for race in sorted(low, key=lambda race: float(race["ratio"]))
        ]
    lines.append("! misses its bar; a shape at 90% of its bound meets its floor")
    return "\n".join(lines)


def found_by(race: Race) -> str:
    """How the config came about."""
    return f"tuned for {race['tuning_seconds']:.0f} s" if race["tuning_seconds"] else "the default"


def tables(races: Sequence[Race]) -> str:
    """The same in Markdown: a table of the groups, then one of the shapes for each dtype, ISA and layout."""
    found = groups(races)
    parts = [_table(["what", "shapes", "threads", "caches", "mean", "goal", "least", "floor", "misses"], _rows(found))]
    kinds = dict.fromkeys((g.dtype, g.isa, g.layout, g.constant_b) for g in found)
    for kind in kinds:
        mine = {g: rs for g, rs in found.items() if (g.dtype, g.isa, g.layout, g.constant_b) == kind}
        columns = sorted({(g.threads, g.caches) for g in mine})
        by_shape: dict[str, dict[tuple[int, str], str]] = {}
        for group, own in mine.items():
            for race in own:
                cell = f"{race['ratio']:.2f} ({race['share_of_bound']:.2f})"
                by_shape.setdefault(shape(race), {})[group.threads, group.caches] = cell
        heads = ["shape", *(f"{threads} thread{'s' * (threads > 1)}, {caches}" for threads, caches in columns)]
        body = [[name, *(cells.get(column, "-") for column in columns)] for name, cells in by_shape.items()]
        parts.append(f"### {_name(next(iter(mine)))}\n\n{_table(heads, body)}")
    return "\n\n".join(parts)


def _rows(found: Mapping[Group, Sequence[Race]]) -> list[list[str]]:
    rows = []
    for group, races in found.items():
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
    return f"{what} {group.layout} ({group.isa})" + ", constant B" * group.constant_b


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
