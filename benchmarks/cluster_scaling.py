"""How much of a cluster's build slots and devices the Ray engine uses, and what it costs a trial.

Builds of 1 s and measurements of 0.25 s on average, both lognormal, on the simulated device: they sleep, so a small
machine can simulate many. The ideal is the same queue with exactly the same times and nothing else: every build slot
takes the next kernel as soon as it is free, every device the next built one, and nothing takes time in between.

    python benchmarks/cluster_scaling.py                        all points, then the zero-length trials
    python benchmarks/cluster_scaling.py --slots 8 --testers 2  one point, merged into the results
    python benchmarks/cluster_scaling.py --zero 20000           the zero-length trials alone
"""

from __future__ import annotations

import heapq
import resource
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepgen import targets
from deepgen.kernels.sim import SimTiles
from deepgen.operators import gemm
from deepgen.run.measure.base import Task
from deepgen.targets.sim import duration
from deepgen.vocabulary import Kernel
from deepgen.vocabulary.json import canonical
from deepgen_cluster.ray import RayEngine
from deepgen_cluster.ray.session import RaySession
from harness import RESULTS, parser, read, run_main, save, table

BAR = 0.9
SLOTS, TESTERS = (1, 2, 4, 8, 16, 32), (1, 2, 4, 8)
BUILD, MEASURE = 1.0, 0.25
IDEAL_SECONDS = 20.0  # target duration of a point: with more trials, its start and end matter less
ZERO = 20_000
BINS = 10
OPERATOR = gemm(256, 256, 256)
FAMILY = SimTiles()


def kernels(first: int = 0) -> Iterator[tuple[dict[str, Any], Kernel]]:
    """All different, so that none comes from the cache."""
    plain = targets.resolve("sim")
    space = FAMILY.space(OPERATOR, plain)
    for rank in range(first, space.count()):
        config = space.at(rank)
        yield config, FAMILY.emit(OPERATOR, plain, config)


def ideal_seconds(builds: list[float], measures: list[float], slots: int, testers: int) -> float:
    """The end of the last measurement if nothing but builds and measurements takes time."""
    free_slots, free_testers = [0.0] * slots, [0.0] * testers
    built = []
    for build, measure in zip(builds, measures, strict=True):
        end = heapq.heappop(free_slots) + build
        heapq.heappush(free_slots, end)
        built.append((end, measure))
    last = 0.0
    for ready, measure in sorted(built):
        end = max(ready, heapq.heappop(free_testers)) + measure
        heapq.heappush(free_testers, end)
        last = max(last, end)
    return last


def run(session: RaySession, inputs: Iterator[Kernel], heard: Callable[[int], None] = lambda ended: None) -> int:
    """Like the tuner: as many in flight as the session accepts, until all have ended. Returns their number."""
    submitted = ended = 0
    exhausted = False
    while not exhausted or ended < submitted:
        while not exhausted and submitted - ended < session.slots:
            kernel = next(inputs, None)
            exhausted = kernel is None
            if kernel is not None:
                session.submit(submitted, kernel)
                submitted += 1
        ended += len(session.results(timeout=0.25))
        heard(ended)
    return ended


def warm_up(session: RaySession, slots: int, supply: Iterator[tuple[dict[str, Any], Kernel]]) -> None:
    """Run until there is a process for each build slot: Ray starts them once per cluster."""
    until = time.monotonic() + 90.0

    def more() -> Iterator[Kernel]:
        yield next(supply)[1]
        while workers() < slots and time.monotonic() < until:
            yield next(supply)[1]

    run(session, more())


def workers() -> int:
    """The number of Ray processes that build, or wait to."""
    hits = 0
    for place in Path("/proc").glob("[0-9]*"):
        try:
            hits += (place / "cmdline").read_bytes().startswith((b"ray::build", b"ray::IDLE"))
        except OSError:
            continue
    return hits


@dataclass(frozen=True)
class Point:
    """Build slots and devices, and the throughput compared with the ideal."""

    slots: int
    testers: int
    trials: int
    seconds: float
    per_second: float
    ideal_per_second: float
    share: float


@dataclass(frozen=True)
class Zero:
    """Trials that take no time: milliseconds for each, and how much the driver's memory grew."""

    trials: int
    ms: float
    grown_mib: float
    bins: list[dict[str, float]]


def point(slots: int, testers: int) -> Point:
    task = Task(OPERATOR, targets.resolve(f"sim:build_seconds={BUILD},measure_seconds={MEASURE}"))
    count = max(20, round(IDEAL_SECONDS * min(slots / BUILD, testers / MEASURE)))
    supply = kernels()
    with tempfile.TemporaryDirectory() as folder:
        engine = RayEngine(build_slots=slots, testers=testers, cache=Path(folder))
        with engine.open(task) as session:
            until = time.monotonic() + 60.0
            while session.slots < slots + testers and time.monotonic() < until:
                time.sleep(0.1)
            warm_up(session, slots, supply)
            chosen = [next(supply) for _ in range(count)]
            started = time.perf_counter()
            run(session, iter([kernel for _, kernel in chosen]))
            seconds = time.perf_counter() - started
    builds = [duration(BUILD, kernel.id) for _, kernel in chosen]
    measures = [duration(MEASURE, canonical([task.seed, "takes", config])) for config, _ in chosen]
    ideal = ideal_seconds(builds, measures, slots, testers)
    return Point(slots, testers, count, seconds, count / seconds, count / ideal, ideal / seconds)


def zero(trials: int) -> Zero:
    """Trials that take no time: what remains is the engine, Ray, and the files of the cache."""
    task = Task(OPERATOR, targets.resolve("sim"))
    marks: deque[tuple[int, float, int]] = deque()
    with tempfile.TemporaryDirectory() as folder, RayEngine(build_slots=2, cache=Path(folder)).open(task) as session:
        supply = kernels()
        run(session, (next(supply)[1] for _ in range(500)))
        step = max(1, trials // BINS)

        def heard(ended: int) -> None:
            if ended >= step * len(marks):
                marks.append((ended, time.perf_counter(), resident()))

        heard(0)
        run(session, (next(supply)[1] for _ in range(trials)), heard)
    bins = [
        {"from": a[0], "to": b[0], "ms": (b[1] - a[1]) / (b[0] - a[0]) * 1e3, "resident_mib": b[2] / (1 << 20)}
        for a, b in zip(list(marks)[:-1], list(marks)[1:], strict=True)
        if b[0] > a[0]
    ]
    first, last = bins[0]["resident_mib"], bins[-1]["resident_mib"]
    mean = (marks[-1][1] - marks[0][1]) / (marks[-1][0] - marks[0][0]) * 1e3
    return Zero(trials, mean, last - first, bins)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def show(points: Sequence[Point], zeros: Zero | None) -> None:
    heads = ("slots", "testers", "trials", "a second", "ideal", "share")
    cells = [(p.slots, p.testers, p.trials, p.per_second, p.ideal_per_second, p.share) for p in points]
    print(table(heads, cells))
    if points:
        worst = min(row.share for row in points)
        print(f"worst {worst:.3f} of the ideal, over {len(points)} points (bar: {BAR:g})")
    if zeros:
        print(
            f"{zeros.trials} zero-length trials: {zeros.ms:.2f} ms each; the driver grew by {zeros.grown_mib:.1f} MiB"
        )


def merged(path: Path, points: Sequence[Point], zeros: Zero | None) -> tuple[list[Point], Zero | None]:
    """These results, and those of earlier runs that they do not replace."""
    before = read(path) or {"points": [], "zero": None}
    rows = {(row.slots, row.testers): row for row in [*(Point(**row) for row in before["points"]), *points]}
    return [rows[key] for key in sorted(rows)], zeros or (Zero(**before["zero"]) if before["zero"] else None)


def main() -> None:
    words = parser(__doc__, json=RESULTS / "cluster_scaling.json")
    words.add_argument("--slots", type=int, nargs="+", help="build slots of the points to run")
    words.add_argument("--testers", type=int, nargs="+", help="devices of the points to run")
    words.add_argument("--zero", type=int, help="run so many zero-length trials, and no points")
    options = words.options()
    points: list[Point] = []
    if options.zero is None:
        for slots in options.slots or SLOTS:
            for testers in options.testers or TESTERS:
                row = point(slots, testers)
                print(f"{slots} slots, {testers} testers: {row.share:.3f} of the ideal", flush=True)
                points.append(row)
    zeros = zero(options.zero or ZERO) if options.zero or not (options.slots or options.testers) else None
    every, zeros = merged(options.file, points, zeros)
    show(every, zeros)
    save(options.json, {"points": every, "zero": zeros, "bar": BAR})


if __name__ == "__main__":
    run_main(main)
