"""What the default strategy's own thinking costs a trial on large spaces, as processor time of one thread.

    python benchmarks/model_time.py [--trials 200] [--json benchmarks/results/model_time.json]

The spaces are those of deepgen's own families for a large GEMM. No kernel is built: a trial's time is made up from its
config's knobs, the same in every run, since what the strategy costs hardly depends on it.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common import run_main, save
from deepgen import targets
from deepgen.generators import by_name
from deepgen.operators import gemm
from deepgen.space import Space
from deepgen.tuning import search
from deepgen.tuning.search.base import Setting
from deepgen.vocabulary import Measurement, Trial, Verdict, digest

PROBLEM = (4096, 4096, 4096)
FAMILIES = (
    ("sm90_gemm", "cuda:h200", "bf16"),
    ("mma_gemm", "cuda:sm_80", "bf16"),
    ("simt_gemm", "cuda:sm_80", "f32"),
    ("x86_gemm", "x86:avx512", "f32"),
)


def seconds(config: Mapping[str, Any]) -> float:
    """A made-up time: each knob's value slows it down by something of its own."""
    parts = [int(digest([name, str(value)], 8), 16) / 16**8 for name, value in sorted(config.items())]
    return 1e-3 * math.exp(sum(parts) / len(parts))


def searched(space: Space, trials: int) -> float:
    """Milliseconds of a trial."""
    space.count()  # compiled before the clock runs
    strategy = search.make("model", Setting(space, 0))
    started, made = time.process_time(), 0.0
    for number in range(trials):
        (config,) = strategy.ask(1)
        before = time.process_time()
        measured = Measurement(Verdict.CORRECT, samples=(seconds(config),))
        trial = Trial(number, space.rank(config), config, "", measured)
        made += time.process_time() - before
        strategy.tell(trial)
    return 1e3 * (time.process_time() - started - made) / trials


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--families", nargs="*", help="these only")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args(argv)
    rows = []
    for family, target, dtype in FAMILIES:
        if given.families and family not in given.families:
            continue
        space = by_name(family).space(gemm(*PROBLEM, dtype=dtype, layout="nt"), targets.resolve(target))
        row = {"family": family, "target": target, "configs": space.count(), "knobs": len(space.knobs)}
        rows.append({**row, "ms_a_trial": round(searched(space, given.trials), 2)})
        print(
            f"{family:12} {target:12} {row['configs']:.2g} configs  {rows[-1]['ms_a_trial']:.1f} ms a trial", flush=True
        )
    if given.json is not None:
        save(given.json, {"trials": given.trials, "rows": rows})


if __name__ == "__main__":
    run_main(main)
