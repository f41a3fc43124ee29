"""Convolutions on a device: odd sizes in both layouts and all dtypes, every tried config checked against float64.

PYTHONPATH=src python benchmarks/h200/conv2d_check.py --out benchmarks/h200/conv2d_check.json
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "src")]

import deepgen as dg  # noqa: E402
from common import run_main, save  # noqa: E402
from deepgen.operators.conv2d import FORMATS, LAYOUTS  # noqa: E402

# N, H, W, CI, CO, k, stride, pad
SHAPES = (
    (16, 56, 56, 64, 64, 3, 1, 1),
    (3, 29, 37, 19, 45, 3, 2, 1),
    (2, 57, 31, 3, 65, 7, 2, 3),
    (5, 17, 23, 131, 33, 1, 1, 0),
    (1, 5, 6, 9, 7, 5, 3, 2),
)
FINE = ("correct", "not_run")


def problems() -> list[dg.Conv2d]:
    return [
        dg.conv2d(*shape[:6], stride=shape[6], pad=shape[7], dtype=dtype, layout=layout)
        for shape in SHAPES
        for layout in LAYOUTS
        for dtype in FORMATS
    ]


def check(problem: dg.Conv2d, target: str, trials: int, folder: Path) -> dict[str, Any]:
    """The study of one problem as a row of the table."""
    begin = time.monotonic()
    study = dg.tune(problem, target=target, trials=trials, keep_top=2, baselines=False, transfer=False, out=folder)
    told = study.summary()
    bad = [t for t in study.trials() if t.measurement is not None and t.measurement.verdict.value not in FINE]
    return {
        "operator": problem.describe(),
        "trials": told["trials"],
        "winner": told["winner"],
        "bad": [{"config": dict(t.config), "verdict": t.measurement.verdict.value, "detail": t.measurement.detail}
                for t in bad if t.measurement is not None],
        "seconds": round(time.monotonic() - begin, 1),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cuda:native")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=540.0, help="no study begins later")
    parser.add_argument("--out", type=Path, default=HERE / "conv2d_check.json")
    options = parser.parse_args()
    ends, todo, rows = time.monotonic() + options.seconds, problems(), list[dict[str, Any]]()
    with TemporaryDirectory() as folder:
        for problem in todo:
            if time.monotonic() > ends:
                break
            row = check(problem, options.target, options.trials, Path(folder))
            rows.append(row)
            best = row["winner"]
            speed = f"{best['seconds'] * 1e6:9.1f} us {best['gflops']:9.1f} GFLOP/s" if best else "no winner"
            counts = ", ".join(f"{count} {verdict}" for verdict, count in row["trials"].items())
            print(f"{row['operator']:58} {speed:32} {counts} ({row['seconds']} s)", flush=True)
            save(options.out, {"of": len(todo), "rows": rows})
    wrong = [row["operator"] for row in rows if row["bad"] or row["winner"] is None]
    print(f"{len(rows)} of {len(todo)} problems tuned; with something wrong: {', '.join(wrong) or 'none'}")
    return int(bool(wrong))


if __name__ == "__main__":
    run_main(main)
