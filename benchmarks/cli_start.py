"""How long commands take that only answer: CPU seconds, children included, the least of several runs.

python benchmarks/cli_start.py [--studies 1000] [--repeats 3] [--out benchmarks/results/cli_start.json]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import deepgen as dg


@dataclass(frozen=True)
class Row:
    """A command, its CPU seconds, and the most that it should take."""

    command: str
    seconds: float
    limit: float


def cpu_seconds(argv: list[str], folder: Path, repeats: int) -> float:
    """The least of several runs: what is more is other processes' doing. The first compiles modules, as pip does."""
    return min([_once([sys.executable, "-m", "deepgen", *argv], folder) for _ in range(1 + repeats)][1:])


def _once(argv: list[str], folder: Path) -> float:
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    before = os.times()
    subprocess.run(argv, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def make_studies(folder: Path, count: int) -> Path:
    """Copies of a small study under the folder's studies; gives the first."""
    first = dg.tune(dg.gemm(64, 64, 64), target="sim", trials=20, progress=False, out=folder / "deepgen-studies").folder
    for number in range(1, count):
        shutil.copytree(first, first.with_name(f"{first.name}-{number}"))
    return first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="deepgen-") as name:
        folder = Path(name)
        study = str(make_studies(folder, given.studies))
        for argv, limit in (
            (["--version"], 0.3),
            (["top", study], 0.6),
            (["status"], 1.0),
            (["doctor"], 1.0),
            (["space", "gemm", "MNK=1024", "--target", "cpu"], 1.0),
            (["space", "gemm", "MNK=1024", "--target", "cuda:sm_90a"], 1.0),
        ):
            words = ["STUDY" if word == study else word for word in argv]
            shown = "deepgen " + " ".join(words) + (f" ({given.studies} studies)" if argv == ["status"] else "")
            rows.append(Row(shown, cpu_seconds(argv, folder, given.repeats), limit))
            print(f"{rows[-1].seconds:6.2f} s of {limit:.1f}  {shown}", flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
