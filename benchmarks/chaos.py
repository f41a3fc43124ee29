"""Real studies, disturbed: kills, full disks, clock jumps, suspended processes, lost workers; nothing is lost or twice.

`deepgen tune` runs with real compilers and real kernels, some of which crash, hang, are wrong or do not compile. It is
hit by faults drawn from a seed, and restarted until its study is done; then another study begins, until all faults have
hit. A separate watcher reads the journal the whole time. What must hold:

- a trial that has ended stays as it is, a config is tried once, and trials follow from the asks;
- at its end a study has the same configs and verdicts as one of the same seed that nothing disturbed;
- commands end with 0, with 1 and a sentence while a disk is full, or by the signal they were sent; no traceback;
- processes end with the command that started them; what killed runs leave on disk is removed by `deepgen clean`;
- the winner loads and is correct.

On Ray, clocks are set back by seconds only: Ray's own timers stop for as long as a clock is set back.

It runs in separate namespaces (`unshare`), with separate small disks; nothing outside is touched.

    python benchmarks/chaos.py --engine local --minutes 30 --faults 200 --seed 1 --json FILE
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console
from rich.table import Table

from faults.kinds import EVERYWHERE, ON_RAY
from faults.nodes import Nodes
from faults.place import Place, apart
from faults.schedule import Schedule
from faults.studies import SPECS, Bench, calm
from harness import RESULTS, Options, parser, run_main, save

_INSIDE = "DEEPGEN_CHAOS_PLACE"
OVERTIME = 0.5  # of the given time, beyond it, for faults that found no target
LAST_STUDY = 480.0  # seconds after the last fault
WRAP_UP = LAST_STUDY + 600.0  # in addition to the time of the faults: the calm studies before, and the checks after


def main() -> int:
    words = parser(__doc__, seed=1, json=RESULTS / "chaos.json")
    words.add_argument("--engine", choices=("local", "ray"), default="local")
    words.add_argument("--nodes", type=int, default=2, help="of the Ray cluster, beside its head")
    words.add_argument("--minutes", type=float, default=30.0, help="over which the faults are spread")
    words.add_argument("--faults", type=int, default=200, help="that hit")
    words.add_argument("--study", choices=[spec.name for spec in SPECS], help="this one only; all in turn otherwise")
    words.add_argument("--trials", type=int, help="of each study")
    names = sorted(kind.name for kind in (*EVERYWHERE, *ON_RAY))
    words.add_argument("--kind", choices=names, action="append", help="of faults, these only; all otherwise")
    options = words.options()
    if _INSIDE in os.environ:
        return inside(options, Place(Path(os.environ.pop(_INSIDE))))
    return outside(options)


def outside(options: Options) -> int:
    """Create the place and run inside it; however that ends, nothing of it remains."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Ray's sockets need a folder with a short path.
    root = Path(tempfile.mkdtemp(prefix="dgc-", dir="/tmp"))
    process = subprocess.Popen(apart(sys.argv), env={**os.environ, _INSIDE: str(root)})
    try:
        return process.wait(options.minutes * 60.0 * (1.0 + OVERTIME) + WRAP_UP)
    except subprocess.TimeoutExpired:
        print(f"not over {WRAP_UP:.0f} seconds after its time: given up", file=sys.stderr)
        return 1
    finally:
        process.send_signal(signal.SIGKILL)  # and with it everything inside
        process.wait()
        shutil.rmtree(root, ignore_errors=True)


def inside(options: Options, place: Place) -> int:
    place.prepare()
    chance = Random(options.seed)
    evidence = options.file.with_suffix(".evidence")
    kinds = [*EVERYWHERE, *(ON_RAY if options.engine == "ray" else [])]
    kinds = [kind for kind in kinds if options.kind is None or kind.name in options.kind]
    specs = [
        replace(spec, trials=options.trials or spec.trials) for spec in SPECS if options.study in (None, spec.name)
    ]
    undisturbed = {spec.name: calm(place, spec) for spec in specs}
    nodes = Nodes(place.root, place.environment(), options.nodes) if options.engine == "ray" else None
    started = time.monotonic()
    seconds = options.minutes * 60.0
    overtime = OVERTIME * seconds
    schedule = Schedule(kinds, options.faults, seconds, overtime, chance)
    bench = Bench(place, schedule, chance, evidence, started + seconds + overtime + LAST_STUDY, nodes)
    while not bench.schedule.over:
        spec = specs[bench.report.studies % len(specs)]
        bench.disturb(spec, undisturbed[spec.name])
        say(bench, started)
    if bench.nodes is not None:
        bench.nodes.close()
    results = summary(options, bench, started)
    show(results)
    save(options.json, results)
    return 1 if results["violations"] else 0


def say(bench: Bench, started: float) -> None:
    report, hits = bench.report, sum(bench.schedule.hits.values())
    print(
        f"{time.monotonic() - started:6.0f} s: {hits} faults, {report.studies} studies, {report.runs} runs, "
        f"{len(report.violations)} violations",
        flush=True,
    )


def summary(options: Options, bench: Bench, started: float) -> dict[str, Any]:
    schedule, report = bench.schedule, bench.report
    left = bench.left_behind()
    report.violations += [
        f"left behind, {where}: {what}" for where, what in left.items() if what and where != "removed by clean"
    ]
    return {
        "engine": options.engine,
        "seed": options.seed,
        "seconds": round(time.monotonic() - started, 1),
        "faults": sum(schedule.hits.values()),
        "asked_for": schedule.count,
        "by_group": dict(schedule.groups.most_common()),
        "by_kind": dict(sorted(schedule.hits.items())),
        "not_hit": dict(sorted(schedule.left.items())),
        "studies": report.studies,
        "runs": report.runs,
        "exit_codes": dict(report.codes.most_common()),
        "errors_said": dict(report.errors.most_common()),
        "removed_by_clean": len(left["removed by clean"]),
        "violations": report.violations,
    }


def show(results: dict[str, Any]) -> None:
    table = Table(title=f"chaos on the {results['engine']} engine, seed {results['seed']}")
    table.add_column("fault")
    table.add_column("hits", justify="right")
    for name, count in results["by_kind"].items():
        table.add_row(name, str(count))
    table.add_section()
    table.add_row("all", f"{results['faults']} of {results['asked_for']}")
    console = Console()
    console.print(table)
    console.print(
        f"{results['studies']} studies in {results['runs']} runs, {results['seconds']:.0f} s; "
        f"exit codes {results['exit_codes']}; {len(results['violations'])} violations"
    )
    for violation in results["violations"]:
        console.print(f"- {violation}", markup=False)


if __name__ == "__main__":
    run_main(main)
