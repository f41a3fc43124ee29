"""How fast spaces are built, counted and sampled, compared with peers in one run.

python benchmarks/space.py [--rounds 5] [--skip-peers] [--json benchmarks/results/space.json]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from deepgen.space import Space
from deepgen_formats.older.files import tuning_space
from harness import alternate, parser, peak_mebibytes, per_call, plain, run_main, save, table
from space_cases import Case, t1_cases, tiling, tuning_configs
from space_peers import builders, runs, space_of

EXPECTED = {
    "convolution": 4362,
    "dedispersion": 11130,
    "gemm": 116928,
    "gemm with KWI [2, 8]": 233856,
    "hotspot": 82984,
}
SAMPLES = 100_000


@dataclass(frozen=True)
class Raced:
    """One space with every builder: median seconds to build and count it."""

    space: str
    product: int
    valid: int
    seconds: dict[str, float]
    times_faster_than_the_fastest_peer: float


@dataclass(frozen=True)
class Alone:
    """One space in a separate process; rates are missing if it has no valid config."""

    space: str
    knobs: int
    product: float
    valid: int
    seconds: float
    mebibytes: float
    mebibytes_more_than_before: float
    samples_a_second: float | None = None
    at_microseconds: float | None = None
    rank_microseconds: float | None = None


def against_peers(rounds: int, seed: int) -> tuple[list[Raced], list[str]]:
    """Every builder on every space, interleaved; imports and caches are not measured."""
    here, missing = builders()
    results = []
    for case in t1_cases():
        product = prod(len(v) for v in case.domains.values())
        names = [name for name in here if runs(name, case, product)]
        counts: dict[str, int] = {}

        def build(name: str, case: Case = case, counts: dict[str, int] = counts) -> None:
            counts[name] = here[name](case)

        taken = alternate({name: per_call(partial(build, name)) for name in names}, rounds, seed=seed)
        if len(set(counts.values())) > 1 or counts["deepgen"] != EXPECTED.get(case.name, counts["deepgen"]):
            raise SystemExit(f"counts of {case.name} differ: {counts}")
        seconds = {name: taken.median(name) for name in names}
        peers = [seconds[name] for name in names if name not in ("deepgen", "numpy open grid")]
        faster = min(peers) / seconds["deepgen"]
        results.append(Raced(case.name, product, counts["deepgen"], seconds, faster))
    return results, missing


def large_names() -> list[str]:
    return [*tuning_configs(), *(f"tiling {size}" for size in (1024, 4096))]


def make(name: str) -> Space:
    if name.startswith("tiling "):
        size = int(name.split()[1])
        return tiling(size, size, size)
    if name.startswith("T1 "):
        return _of_case(next(c for c in t1_cases() if c.name == name[3:]))
    return tuning_space(tuning_configs()[name], 1, name)


def _of_case(case: Case) -> Space:
    from deepgen.space import parse

    space = Space(case.name)
    for knob, values in case.domains.items():
        space.knob(knob, values)
    for text in case.conditions:
        space.require(parse(text), text)
    return space


def measure_alone(name: str) -> Alone:
    """One space in this process: seconds and memory to count it, samples per second, ranks."""
    space_of(t1_cases()[0]).count()
    before = peak_mebibytes()
    start = time.perf_counter()
    space = make(name)
    count = space.count()
    seconds, peak = time.perf_counter() - start, peak_mebibytes()
    rates = _walks(space) if count else ()
    return Alone(name, len(space.knobs), space.product_size(), count, seconds, peak, peak - before, *rates)


def _sampling_seconds(space: Space, seed: int) -> float:
    start = time.perf_counter()
    space.sample(SAMPLES, seed)
    return time.perf_counter() - start


def _walks(space: Space) -> tuple[float, float, float]:
    sampling = statistics.median(_sampling_seconds(space, seed) for seed in range(5))
    ranks = space.sample_ranks(2000, 1)
    start = time.perf_counter()
    configs = [space.at(r) for r in ranks]
    at = time.perf_counter() - start
    start = time.perf_counter()
    again = [space.rank(c) for c in configs]
    rank = time.perf_counter() - start
    if again != ranks:
        raise SystemExit(f"ranks of {space.name} do not come back")
    return SAMPLES / sampling, at / len(ranks) * 1e6, rank / len(ranks) * 1e6


def in_a_process(name: str) -> Alone:
    """In a separate process, so that its memory is measured by itself."""
    argv = [sys.executable, __file__, "--alone", name]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=900)
    return Alone(**json.loads(done.stdout))


def show_peers(rows: Sequence[Raced]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row.seconds))
    print("Build and count, milliseconds; the last column: times faster than the fastest peer")
    times = [[1e3 * row.seconds[name] if name in row.seconds else None for name in names] for row in rows]
    cells = [(r.space, r.valid, *t, r.times_faster_than_the_fastest_peer) for r, t in zip(rows, times, strict=True)]
    print(table(("space", "valid", *names, "times"), cells, width=120))


def show_alone(rows: Sequence[Alone]) -> None:
    heads = ("space", "knobs", "valid", "seconds", "MiB", "samples/s", "at us", "rank us")
    rates = [(r.samples_a_second, r.at_microseconds, r.rank_microseconds) for r in rows]
    cells = [(r.space, r.knobs, f"{r.valid:.4g}", r.seconds, r.mebibytes) for r in rows]
    print(table(heads, [(*cell, *rate) for cell, rate in zip(cells, rates, strict=True)]))


def main() -> None:
    words = parser(__doc__)
    words.add_argument("--rounds", type=int, default=5, help="[5]")
    words.add_argument("--skip-peers", action="store_true")
    words.add_argument("--alone", help="measure one space and print JSON (used by this program)")
    options = words.options()
    if options.alone:
        print(json.dumps(plain(measure_alone(options.alone))))
        return
    peers: list[Raced] = []
    if not options.skip_peers:
        peers, missing = against_peers(options.rounds, options.seed)
        print("\n".join(missing))
        show_peers(peers)
    names = options.chosen([*(f"T1 {case.name}" for case in t1_cases()), *large_names()])
    alone = [in_a_process(name) for name in names]
    show_alone(alone)
    save(options.json, {"against_peers": peers, "alone": alone})


if __name__ == "__main__":
    run_main(main)
