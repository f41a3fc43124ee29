"""How long do spaces that schedule rules make take to be opened and sampled, and how much memory?

    python benchmarks/rule_spaces.py [--only TEXT] [--json benchmarks/results/rule_spaces.json]

Each in a process of its own: opened, 100 configs drawn, and all of them checked with `explain`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass

from deepgen.space.relax import Partial
from deepgen.space.solver import SolverEngine
from harness import parser, peak_mebibytes, plain, run_main, save, table
from rule_space_cases import cases

SAMPLES = 100
MOST_SECONDS, MOST_MEBIBYTES = 5.0, 1024.0


@dataclass(frozen=True)
class Row:
    space: str
    knobs: int
    requirements: int
    product: float
    count: float | None
    exact: bool
    relative_error: float | None
    method: str
    accepted: float | None
    uniform: bool
    valid_samples: int
    distinct_samples: int
    seconds: float
    processor_seconds: float
    mebibytes: float

    @property
    def cells(self) -> tuple[object, ...]:
        configs = "-" if self.count is None else f"{'' if self.exact else 'about '}{self.count:.2e}"
        return self.space, self.knobs, configs, self.method, self.valid_samples, self.processor_seconds, self.mebibytes


def measure(name: str) -> Row:
    """One space in this process alone."""
    space = cases()[name]()
    wall, busy = time.perf_counter(), time.process_time()
    configs = space.sample(SAMPLES, 1)
    seconds, busy = time.perf_counter() - wall, time.process_time() - busy
    engine = space._ready()[0]
    size = None if isinstance(engine, SolverEngine) else space.size()
    return Row(
        space=name,
        knobs=len(space.knobs),
        requirements=len(space.requirements),
        product=space.product_size(),
        count=None if size is None else size.count,
        exact=size is not None and size.exact,
        relative_error=None if size is None else size.error,
        method="solver"
        if isinstance(engine, SolverEngine)
        else "rejection"
        if isinstance(engine, Partial)
        else "diagram",
        accepted=size.count / space.ranks if size is not None else None,
        uniform=space.uniform,
        valid_samples=sum(space.explain(c) == [] for c in configs),
        distinct_samples=len({json.dumps(c) for c in configs}),
        seconds=seconds,
        processor_seconds=busy,
        mebibytes=peak_mebibytes(),
    )


def in_a_process(name: str) -> Row:
    command = [sys.executable, __file__, "--alone", name]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    return Row(**json.loads(done.stdout))


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--alone", help="measure one space and print JSON (used by this program)")
    options = words.options()
    if options.alone:
        print(json.dumps(plain(measure(options.alone))))
        return 0
    rows = [in_a_process(name) for name in options.chosen(cases())]
    print(table(("space", "knobs", "configs", "method", "valid", "CPU s", "MiB"), [row.cells for row in rows]))
    save(options.json, rows)
    invalid = [row.space for row in rows if row.valid_samples < SAMPLES]
    over = [row.space for row in rows if row.processor_seconds > MOST_SECONDS or row.mebibytes > MOST_MEBIBYTES]
    print(f"{len(rows)} spaces; with invalid samples: {invalid or 'none'}")
    print(f"over {MOST_SECONDS:.0f} s of one processor or {MOST_MEBIBYTES:.0f} MiB: {over or 'none'}")
    return int(bool(invalid or over))


if __name__ == "__main__":
    run_main(main)
