"""What a child of the constrained genetic algorithm costs: a config drawn within restrictions, in processor time.

    python benchmarks/draw_within.py [--only TEXT] [--json benchmarks/results/draw_within.json]

Two ways: the restricted space is compiled (`Space.restrict`), or the compiled whole space is walked
(`Space.draw_within`). Two fifths of the knobs keep to the values of two random configs, as the algorithm has it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from common import run_main, save
from deepgen.space import Space
from rule_space_cases import cases

CHILDREN = 6
KEY_SHARE = 0.4
SPACES = (
    "gemm 1024x1024x1024, 3 levels",
    "gemm 1024x1024x1024, 4 levels",
    "gemm 4096x4096x4096, 4 levels",
    "conv2d 16x56x56x64x64 k3, 4 levels",
    "conv3d 8x8x56x56x64x64 k3, 4 levels",
)


def restrictions(space: Space) -> list[dict[str, set[Any]]]:
    """Of some children: what their key knobs may be."""
    rng = np.random.default_rng(0)
    keys = [space.knobs[i].name for i in rng.permutation(len(space.knobs))[: round(KEY_SHARE * len(space.knobs))]]
    drawn = space.sample(2 * CHILDREN, 1)
    pairs = zip(drawn[::2], drawn[1::2], strict=True)
    return [{k: {c[k] for c in pair if k in c} for k in keys if any(k in c for c in pair)} for pair in pairs]


def milliseconds(draw: Callable[[dict[str, set[Any]]], object], asked: list[dict[str, set[Any]]]) -> float:
    spent = []
    for values in asked:
        started = time.process_time()
        draw(values)
        spent.append(1e3 * (time.process_time() - started))
    return median(spent)


def measure(name: str) -> dict[str, Any]:
    space = cases()[name]()
    asked = restrictions(space)
    return {
        "space": name,
        "configs": str(space.size()),
        "compiled_ms": milliseconds(lambda values: space.restrict(values).sample(1, 0), asked),
        "walked_ms": milliseconds(lambda values: space.draw_within(values, 0), asked),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", default="", help="only spaces whose names hold this text")
    arguments.add_argument("--json", type=Path, help="where the figures go")
    given = arguments.parse_args()
    results = [measure(name) for name in SPACES if given.only in name]
    table = Table("space", "configs", "compiled, ms", "walked, ms", title=f"One child, median of {CHILDREN}")
    for row in results:
        table.add_row(row["space"], row["configs"], f"{row['compiled_ms']:.0f}", f"{row['walked_ms']:.1f}")
    Console(width=120).print(table)
    if given.json:
        save(given.json, results)


if __name__ == "__main__":
    run_main(main)
