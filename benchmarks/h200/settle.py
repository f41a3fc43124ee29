"""From races of the Hopper family to ratios that are not those of a lucky winner: settled.json.

A race of sm90_race.py ends with several configs beside cuBLASLt, and the fastest of them looks faster than it is. Where
the config that had won before (`finals` of sm90_gemm*.json) was timed again in a later race, its time there counts;
elsewhere that of the second fastest, with the fastest told beside it. Later files go before earlier ones. Needs no GPU:

    python benchmarks/h200/settle.py RACES/*/race.json --again RACES/again/*/race.json --out benchmarks/h200
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "src")]

from gpu_bench import sources  # noqa: E402

# How races call a format: the page's name of it, and the file of what won before.
FORMATS = {
    "bf16": ("bf16 nt", "sm90_gemm"),
    "bf16/nn": ("bf16 nn", "sm90_gemm_bf16_nn"),
    "f16": ("f16 nt", "sm90_gemm_f16"),
    "f8e4m3/nt/bf16": ("f8e4m3 nt, fast sums", "sm90_gemm_f8e4m3_fast"),
    "f8e4m3/nt/bf16/exact": ("f8e4m3 nt, sums in f32", "sm90_gemm_f8e4m3_exact"),
    "i8/nt/i32": ("i8 nt", "sm90_gemm_i8"),
    "tf32": ("tf32 nt", "sm90_gemm_tf32"),
}
HOW = {
    "settled": "the config had won a race before and was timed anew, beside cuBLASLt",
    "second": "the second fastest of five of the same rounds: the fastest of several would look faster than it is",
}
Row = dict[str, Any]


def by_format(files: Iterable[Path]) -> dict[str, dict[tuple[int, ...], Row]]:
    """The latest race of each shape, in the order of the first."""
    out: dict[str, dict[tuple[int, ...], Row]] = {}
    for file in files:
        for row in json.loads(file.read_text())["finals"]:
            out.setdefault(row["of"], {})[tuple(row["shape"])] = row
    return out


def key(config: Any) -> str:
    return json.dumps(config, sort_keys=True)


def told(row: Row, us: float) -> Row:
    assert row["right"], f"{row['of']} {row['shape']} is wrong"
    rival = row["cublaslt_us"]
    return {k: row[k] for k in ("shape", "operator")} | {"us": us, "cublaslt_us": rival, "ratio": rival / us}


def settled(row: Row, won: str) -> Row:
    place = [key(config) for config in (row["config"], *row["top"])].index(won)
    return told(row, row["top_us"][place])


def second(row: Row) -> Row:
    fastest, us = sorted(row["top_us"])[:2]
    return {**told(row, us), "fastest_us": fastest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("races", type=Path, nargs="+", help="race.json of the races that chose, earlier ones first")
    parser.add_argument("--again", type=Path, nargs="*", default=[], help="race.json of those that timed winners anew")
    parser.add_argument("--sources", default=sources(("sm90_gemm",))["sm90_gemm"], help="a digest of what ran")
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args()
    first, again = by_format(options.races), by_format(options.again)
    formats: dict[str, Any] = {}
    for of, (label, file) in FORMATS.items():
        if of in again:
            won = {
                tuple(r["shape"]): key(r["config"]) for r in json.loads((HERE / f"{file}.json").read_text())["finals"]
            }
            formats[label] = {"how": "settled", "rows": [settled(row, won[s]) for s, row in again[of].items()]}
        else:
            formats[label] = {"how": "second", "rows": [second(row) for row in first[of].values()]}
        formats[label]["sources"] = options.sources
    before = json.loads((HERE / "sm90_gemm.json").read_text())["conditions"]
    common = {k: v for k, v in before.items() if k not in ("dtype", "layout", "inputs")}
    made = {"conditions": common, "how": HOW, "formats": formats}
    (options.out / "settled.json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
