"""What limits the kernels at hand, in one command that ends in time: a check of every feature, ablations, counters.

In turn: sm90_check.py, whether all that the Hopper family has is right; ablate.py, the shapes furthest under par with
parts left out; ablate_counters.py, the same by ncu; ablate_order.py, the order of tiles. A step that fails is told and
the others go on. Results lie in OUT, and what the steps print in OUT/ablation.log. Where the counters say what is in
the results, ablate_limiter.py, which needs no GPU, writes it into them.

    python benchmarks/h200/ablation.py --results benchmarks/h200 --out benchmarks/h200 --seconds 360
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "src")]

from steps import Clock, ended, started  # noqa: E402

from common import run_main  # noqa: E402
from deepgen.vocabulary import DeepgenError  # noqa: E402

MOST, CHECK_SECONDS = 16, 75.0
LEAST = 20.0  # seconds: with less a step is not begun
Step = tuple[str, tuple[str, ...]]


def steps(results: Path, cache: Path, out: Path, most: int) -> list[Step]:
    shapes = ("--results", str(results), "--most", str(most))
    kept = ("--cache", str(cache), "--out", str(out))
    return [
        ("sm90_check.py", ("--seconds", f"{CHECK_SECONDS:.0f}", "--out", str(cache))),
        ("ablate.py", (*shapes, *kept)),
        ("ablate_counters.py", (*shapes, *kept)),
        ("ablate_order.py", kept),
    ]


def run(todo: Sequence[Step], seconds: float, log: IO[str]) -> list[str]:
    """Steps that did not end well."""
    clock, failed = Clock(seconds), []
    for name, words in todo:
        begun = clock.spent()
        if clock.left() < LEAST:
            why = "no time is left"
        else:
            with started([str(HERE / name), *words], log) as child:
                why = ended(child, clock.left())
        print(f"{name:20} {clock.spent() - begun:4.0f} s  {why or 'done'}", flush=True)
        failed += [f"{name}: {why}"] if why else []
    return failed


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE, help="the folder of gpu_gemm.py's results")
    parser.add_argument("--most", type=int, default=MOST, help="shapes that are looked into")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--seconds", type=float, default=360.0, help="for all of it")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    # Builds of a step that was killed may still write there.
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache,
        (options.out / "ablation.log").open("w") as log,
    ):
        failed = run(steps(options.results, Path(cache), options.out, options.most), options.seconds, log)
    print((options.out / "ablation.log").read_text()[-8000:], flush=True)
    if failed:
        raise DeepgenError("; ".join(failed))


if __name__ == "__main__":
    run_main(main)
