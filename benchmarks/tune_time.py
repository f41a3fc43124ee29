"""How long a fixed study takes, against another source tree of deepgen: the whole of `deepgen tune`, in turns.

    python benchmarks/tune_time.py --before CHECKOUT [--rounds 11] [--json FILE] [WORDS OF deepgen tune ...]

Each tree has a build cache of its own, filled by a run that is not counted; every run begins a new study.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from common import run_main, save

HERE = Path(__file__).resolve().parents[1]
STUDY = (
    "gemm", "MNK=384", "--trials", "24", "--strategy", "random", "--seed", "1", "--no-second-look", "--no-transfer"
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="root of the other source tree")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path, default=None, help="where the figures are written")
    options, words = parser.parse_known_args()
    words = words or list(STUDY)
    trees = {"before": options.before.resolve(), "now": HERE}
    with TemporaryDirectory() as scratch:
        for name, tree in trees.items():
            _seconds(tree, words, Path(scratch) / name, 0)
        rounds = [_round(trees, words, Path(scratch), number) for number in range(1, options.rounds + 1)]
    ratio = median(each["now"] / each["before"] for each in rounds)
    before, now = (median(each[side] for each in rounds) for side in ("before", "now"))
    print(f"deepgen tune {' '.join(words)}")
    print(f"before {before:.2f} s   now {now:.2f} s   ratio {ratio:.3f} (median of {len(rounds)} rounds)")
    if options.json:
        save(options.json, {"words": words, "before": before, "now": now, "ratio": ratio, "rounds": rounds})


def _round(trees: dict[str, Path], words: list[str], scratch: Path, number: int) -> dict[str, float]:
    """One study by each tree; who is first changes from round to round."""
    sides = list(trees) if number % 2 else list(reversed(trees))
    return {side: _seconds(trees[side], words, scratch / side, number) for side in sides}


def _seconds(tree: Path, words: list[str], scratch: Path, number: int) -> float:
    env: dict[str, Any] = {
        **os.environ,
        "PYTHONPATH": str(tree / "src"),
        "XDG_CACHE_HOME": str(scratch / "cache"),
        "XDG_CONFIG_HOME": str(scratch / "config"),
    }
    argv = [sys.executable, "-m", "deepgen", "tune", *words, "--out", str(scratch / f"studies-{number}"), "--json"]
    started = time.perf_counter()
    subprocess.run(argv, env=env, check=True, capture_output=True)
    return time.perf_counter() - started


if __name__ == "__main__":
    run_main(main)
