"""How long spaces that schedule rules make take to be opened and sampled, and how much memory: each in its own process.

    python benchmarks/rule_spaces.py [--only TEXT]

Opens each space, draws 100 configs and checks them with `explain`. Writes benchmarks/results/rule_spaces.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from common import peak_mebibytes, run_main, save
from deepgen.space.partial import Partial
from deepgen.space.solver import Solver
from rule_space_cases import cases

RESULTS = Path(__file__).parent / "results" / "rule_spaces.json"
SAMPLES = 100
MOST_SECONDS, MOST_MEBIBYTES = 5.0, 1024.0


def measure(name: str) -> dict[str, Any]:
    """One space in this process alone."""
    space = cases()[name]()
    wall, busy = time.perf_counter(), time.process_time()
    configs = space.sample(SAMPLES, 1)
    seconds, busy = time.perf_counter() - wall, time.process_time() - busy
    engine = space._ready()[0]
    size = None if isinstance(engine, Solver) else space.size()
    return {
        "space": name,
        "knobs": len(space.knobs),
        "requirements": len(space.requirements),
        "product": space.product_size(),
        "count": None if size is None else size.count,
        "exact": size is not None and size.exact,
        "relative_error": None if size is None else size.error,
        "method": "solver" if isinstance(engine, Solver) else "rejection" if isinstance(engine, Partial) else "diagram",
        "accepted": size.count / space.ranks if size is not None else None,
        "uniform": space.uniform,
        "valid_samples": sum(space.explain(c) == [] for c in configs),
        "distinct_samples": len({json.dumps(c) for c in configs}),
        "seconds": seconds,
        "processor_seconds": busy,
        "mebibytes": peak_mebibytes(),
    }


def in_a_process(name: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--alone", name]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def show(results: list[dict[str, Any]]) -> None:
    columns = ("space", "knobs", "requirements", "configs", "method", "accepted", "valid", "seconds", "CPU s", "MiB")
    table = Table(*columns, title=f"Opened, and {SAMPLES} samples drawn")
    for r in results:
        count = "-" if r["count"] is None else f"{r['count']:.4e}" if r["exact"] else f"about {r['count']:.2e}"
        accepted = "-" if r["accepted"] is None else f"{r['accepted']:.0%}"
        sizes = (r["space"], str(r["knobs"]), str(r["requirements"]), count, r["method"], accepted)
        costs = (f"{r['seconds']:.1f}", f"{r['processor_seconds']:.1f}", f"{r['mebibytes']:.0f}")
        table.add_row(*sizes, str(r["valid_samples"]), *costs)
    Console(width=160).print(table)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", default="", help="only spaces whose names hold this text")
    arguments.add_argument("--alone", help="measure one space and print JSON")
    given = arguments.parse_args()
    if given.alone:
        print(json.dumps(measure(given.alone)))
        return 0
    results = [in_a_process(name) for name in cases() if given.only in name]
    show(results)
    if not given.only:
        save(RESULTS, results)
    invalid = [r["space"] for r in results if r["valid_samples"] < SAMPLES]
    over = [r["space"] for r in results if r["processor_seconds"] > MOST_SECONDS or r["mebibytes"] > MOST_MEBIBYTES]
    print(f"{len(results)} spaces; with invalid samples: {invalid or 'none'}")
    print(f"over {MOST_SECONDS:.0f} s of one processor or {MOST_MEBIBYTES:.0f} MiB: {over or 'none'}")
    return int(bool(invalid or over))


if __name__ == "__main__":
    run_main(main)
