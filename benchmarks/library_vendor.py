"""How well a vendor's time at a shape is predicted from its times at others: cuBLASLt on an H200, as recorded.

Each of the suite's shapes is left out in turn. Printed is the root of the mean square of the logarithms of measured
over predicted times: with the library's model of a vendor (baselines/yardstick.py), whose constants were fitted to
products in bf16 alone, and with the device's bound in its place.

    python benchmarks/library_vendor.py [FILE ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from math import log, sqrt
from pathlib import Path

from common import run_main, save
from deepgen import targets
from deepgen.baselines.yardstick import reached
from deepgen.libraries.predict import away, weight
from deepgen.operators import Gemm
from deepgen.tuning.speed import bound

RESULTS = Path(__file__).resolve().parent / "h200"
H200 = targets.resolve("cuda:h200")


def error(timed: Sequence[tuple[Gemm, float]], model: Callable[[Gemm], float]) -> float:
    """Of a model that is corrected by what it is off at the other shapes."""
    off = {operator: log(seconds / model(operator)) for operator, seconds in timed}
    squares = []
    for operator, own in off.items():
        others = {other: weight(away(operator, other, H200)) for other in off if other != operator}
        mean = sum(share * off[other] for other, share in others.items()) / sum(others.values())
        squares.append((own - mean) ** 2)
    return sqrt(sum(squares) / len(squares))


def errors(file: Path) -> dict[str, float]:
    """For the plain products of one file."""
    rows = [row for row in json.loads(file.read_text())["rows"] if "cublaslt" in row["us"]]
    timed = [(Gemm.from_json(row["operator"]), row["us"]["cublaslt"] * 1e-6) for row in rows]
    single = [(operator, seconds) for operator, seconds in timed if operator.batch == 1]
    return {"yardstick": error(single, _reached), "bound": error(single, _bound)}


def _reached(operator: Gemm) -> float:
    seconds = reached(operator, H200)
    assert seconds is not None, "it is a product on a GPU"
    return seconds


def _bound(operator: Gemm) -> float:
    seconds = bound(operator, H200.peak(operator.a), H200.bandwidth).seconds
    assert seconds is not None, "its rates are known"
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", default=sorted(RESULTS.glob("gemm_*.json")))
    parser.add_argument("--json", type=Path, help="where results are written")
    options = parser.parse_args()
    found = {file.stem: errors(file) for file in options.files}
    for name, row in found.items():
        print(f"{name:>24}  yardstick {row['yardstick']:.3f}  bound {row['bound']:.3f}")
    if options.json is not None:
        save(options.json, found)


if __name__ == "__main__":
    run_main(main)
