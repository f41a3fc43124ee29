"""How fast spaces are built, counted and sampled, side by side with the peers in one run.

    python benchmarks/space.py [--rounds 5] [--skip-peers]

Writes benchmarks/results/space.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from math import prod
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from common import peak_mebibytes, run_main, save
from deepgen.space import Space
from deepgen_formats.older.files import tuning_space
from space_cases import Case, t1_cases, tiling, tuning_configs
from space_peers import builders, deepgen_space, runs

RESULTS = Path(__file__).parent / "results" / "space.json"
EXPECTED = {
    "convolution": 4362,
    "dedispersion": 11130,
    "gemm": 116928,
    "gemm with KWI [2, 8]": 233856,
    "hotspot": 82984,
}
SAMPLES = 100_000


def against_peers(rounds: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Every builder on every space, interleaved; the median of the rounds."""
    here, missing = builders()
    results = []
    for case in t1_cases():
        product = prod(len(v) for v in case.domains.values())
        times: dict[str, list[float]] = {name: [] for name in here if runs(name, case, product)}
        counts: dict[str, int] = {}
        for build in (here[name] for name in times):
            build(case)  # imports and caches are not what is measured
        for _ in range(rounds):
            for name, taken in times.items():
                start = time.perf_counter()
                counts[name] = here[name](case)
                taken.append(time.perf_counter() - start)
        if len(set(counts.values())) > 1 or counts["deepgen"] != EXPECTED.get(case.name, counts["deepgen"]):
            raise SystemExit(f"counts of {case.name} differ: {counts}")
        seconds = {name: statistics.median(taken) for name, taken in times.items()}
        peers = {n: s for n, s in seconds.items() if n not in ("deepgen", "numpy open grid")}
        results.append(
            {
                "space": case.name,
                "product": product,
                "valid": counts["deepgen"],
                "seconds": seconds,
                "times_faster_than_the_fastest_peer": min(peers.values()) / seconds["deepgen"],
            }
        )
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


def measure_alone(name: str) -> dict[str, Any]:
    """One space in this process alone: seconds and memory to count it, samples a second, ranks."""
    deepgen_space(t1_cases()[0])
    before = peak_mebibytes()
    start = time.perf_counter()
    space = make(name)
    count = space.count()
    seconds = time.perf_counter() - start
    peak = peak_mebibytes()
    found: dict[str, Any] = {
        "space": name,
        "knobs": len(space.knobs),
        "product": space.product_size(),
        "valid": count,
        "seconds": seconds,
        "mebibytes": peak,
        "mebibytes_more_than_before": peak - before,
    }
    return found | (_walks(space) if count else {})


def _sampling_seconds(space: Space, seed: int) -> float:
    start = time.perf_counter()
    space.sample(SAMPLES, seed)
    return time.perf_counter() - start


def _walks(space: Space) -> dict[str, Any]:
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
    return {
        "samples_a_second": SAMPLES / sampling,
        "at_microseconds": at / len(ranks) * 1e6,
        "rank_microseconds": rank / len(ranks) * 1e6,
    }


def in_processes(names: list[str]) -> list[dict[str, Any]]:
    """Each space in a process of its own, so that its memory is its own."""
    results = []
    for name in names:
        done = subprocess.run(
            [sys.executable, __file__, "--alone", name], check=True, capture_output=True, text=True, timeout=900
        )
        results.append(json.loads(done.stdout))
    return results


def show_peers(results: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(n for r in results for n in r["seconds"]))
    table = Table("space", "product", "valid", *names, "x fastest peer", title="Build and count, milliseconds")
    for r in results:
        cells = [f"{1e3 * r['seconds'][n]:,.1f}" if n in r["seconds"] else "-" for n in names]
        ratio = f"{r['times_faster_than_the_fastest_peer']:.1f}"
        table.add_row(r["space"], f"{r['product']:,}", f"{r['valid']:,}", *cells, ratio)
    Console().print(table)


def show_alone(results: list[dict[str, Any]]) -> None:
    columns = ("space", "knobs", "product", "valid", "seconds", "MiB", "samples/s", "at us", "rank us")
    table = Table(*columns, title="Spaces that cannot be listed")
    for r in results:
        walks = [
            f"{r[k]:,.0f}" if k in r else "-" for k in ("samples_a_second", "at_microseconds", "rank_microseconds")
        ]
        size = f"{r['product']:.2e}"
        valid = f"{r['valid']:,}" if r["valid"] < 10**12 else f"{r['valid']:.4e}"
        table.add_row(r["space"], str(r["knobs"]), size, valid, f"{r['seconds']:.3f}", f"{r['mebibytes']:.0f}", *walks)
    Console().print(table)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--skip-peers", action="store_true")
    arguments.add_argument("--alone", help="measure one space and print JSON")
    given = arguments.parse_args()
    if given.alone:
        print(json.dumps(measure_alone(given.alone)))
        return
    peers: list[dict[str, Any]] = []
    if not given.skip_peers:
        peers, missing = against_peers(given.rounds)
        for sentence in missing:
            print(sentence)
        show_peers(peers)
    alone = in_processes([*(f"T1 {c.name}" for c in t1_cases()), *large_names()])
    show_alone(alone)
    save(RESULTS, {"against_peers": peers, "alone": alone})


if __name__ == "__main__":
    run_main(main)
