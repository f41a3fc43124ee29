"""Softmax on a device: odd sizes, rows of one column to a million, every format; every config tried must be right.

PYTHONPATH=src python benchmarks/h200/rows_check.py --out rows_check.json
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "src")]

from tuned_check import check_all  # noqa: E402

import deepgen as dg  # noqa: E402
from common import run_main  # noqa: E402
from deepgen.operators.softmax import DTYPES  # noqa: E402

SHAPES = ((4096, 1024), (1000, 1001), (33, 50257), (100_003, 6), (3, 1_000_003), (777, 1))


def main() -> int:
    problems = [dg.softmax(rows, cols, dtype=dtype) for rows, cols in SHAPES for dtype in DTYPES]
    return check_all(problems, str(__doc__), "rows_check")


if __name__ == "__main__":
    run_main(main)
