"""Convolutions on a device: odd sizes in both layouts and all dtypes, every tried config checked against float64.

PYTHONPATH=src python benchmarks/h200/conv2d_check.py --out benchmarks/h200/conv2d_check.json
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "src")]

from tuned_check import check_all  # noqa: E402

import deepgen as dg  # noqa: E402
from common import run_main  # noqa: E402
from deepgen.operators.conv2d import FORMATS, LAYOUTS  # noqa: E402

# N, H, W, CI, CO, k, stride, pad
SHAPES = (
    (16, 56, 56, 64, 64, 3, 1, 1),
    (3, 29, 37, 19, 45, 3, 2, 1),
    (2, 57, 31, 3, 65, 7, 2, 3),
    (5, 17, 23, 131, 33, 1, 1, 0),
    (1, 5, 6, 9, 7, 5, 3, 2),
)


def main() -> int:
    problems = [
        dg.conv2d(*shape[:6], stride=shape[6], pad=shape[7], dtype=dtype, layout=layout)
        for shape in SHAPES
        for layout in LAYOUTS
        for dtype in FORMATS
    ]
    return check_all(problems, str(__doc__), "conv2d_check")


if __name__ == "__main__":
    run_main(main)
