"""How long do commands take that only answer? CPU seconds, children included, the least of several runs.

    python benchmarks/cli_start.py [--studies 1000] [--rounds 3] [--json benchmarks/results/cli_start.json]

Two source trees are compared by times_before_after.py.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import deepgen as dg
from harness import Samples, alternate, parser, processor_seconds, run_main, save, table
from harness.trees import Tree

SPACE = ("space", "gemm", "MNK=1024", "--target")
STUDY = "STUDY"  # stands for a study's folder
LIMITS = {
    ("--version",): 0.3,
    ("top", STUDY): 0.6,
    ("status",): 1.0,
    ("doctor",): 1.0,
    (*SPACE, "cpu"): 1.0,
    (*SPACE, "cuda:sm_90a"): 1.0,
}


@dataclass(frozen=True)
class Row:
    """A command, its CPU seconds, and the most that it should take."""

    command: str
    seconds: float
    limit: float


def make_studies(folder: Path, count: int) -> Path:
    """Copies of a small study under the folder's studies; the first."""
    first = dg.tune(dg.gemm(64, 64, 64), target="sim", trials=20, progress=False, out=folder / "deepgen-studies").folder
    for number in range(1, count):
        shutil.copytree(first, first.with_name(f"{first.name}-{number}"))
    return first


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--studies", type=int, default=1000, help="that `status` lists [1000]")
    words.add_argument("--rounds", type=int, default=3, help="[3]")
    options = words.options()
    with tempfile.TemporaryDirectory(prefix="deepgen-") as name:
        tree = Tree(Path(dg.__file__).parents[1], Path(name))
        study = str(make_studies(Path(name), options.studies))

        def run(command: tuple[str, ...]) -> Callable[[], float]:
            argv = [study if word == STUDY else word for word in command]
            return lambda: processor_seconds(lambda: tree.run(*argv))

        taken: Samples = alternate({" ".join(one): run(one) for one in LIMITS}, options.rounds, seed=options.seed)
    rows = [Row(f"deepgen {' '.join(one)}", taken.least(" ".join(one)), limit) for one, limit in LIMITS.items()]
    print(table(("command", "CPU s", "limit"), [(row.command, row.seconds, row.limit) for row in rows]))
    save(options.json, rows, studies=options.studies)
    return int(any(row.seconds > row.limit for row in rows))


if __name__ == "__main__":
    run_main(main)
