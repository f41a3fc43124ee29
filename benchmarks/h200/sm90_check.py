"""The Hopper GEMM family on a device: every feature checked against float64 on small odd problems.

Needs torch, numpy and NVRTC on a host with a Hopper GPU; no installation of deepgen. Layouts, formats, epilogues,
edges, orders of tiles and ways to share out K. Builds run on all cores; the device is used by a worker process that is
killed when it hangs, at the cost of the one config it was at.

    PYTHONPATH=src python benchmarks/h200/sm90_check.py --out $OUT
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT / "benchmarks"), str(ROOT / "src")]

from sm90_bench import Bench  # noqa: E402
from sm90_candidates import FAMILY, TARGET, Config, checks  # noqa: E402

from common import run_main  # noqa: E402
from deepgen.operators import Gemm  # noqa: E402
from deepgen.vocabulary import DeepgenError  # noqa: E402
from gpu_bench import FLUSH_BYTES, Builder, gpu_torch  # noqa: E402

HANG_SECONDS = 15.0
JOURNAL = "checks.jsonl"


class Worker:
    """Runs what is to be checked, one line of a journal for each thing done."""

    def __init__(self, out: Path, cores: int) -> None:
        self.journal, torch = out / JOURNAL, gpu_torch()
        self.builder = Builder(TARGET, cores)
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        self.done = read(self.journal)

    def say(self, row: dict[str, Any]) -> None:
        with self.journal.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def run(self) -> None:
        todo = [(op, c) for op, c in checks() if key_of(op, c) not in self.done]
        for op, c in todo:
            self.builder.start(FAMILY.emit(op, TARGET, c))
        benches: dict[str, Bench] = {}
        for op, c in todo:
            name = json.dumps(op.to_json())
            if name not in benches:
                benches[name] = Bench(op, self.flush)
            self.check(benches[name], c)
        self.builder.close()

    def check(self, bench: Bench, c: Config) -> None:
        """Twice: counters must be left as they were found."""
        row: dict[str, Any] = {"key": key_of(bench.op, c), "problem": bench.op.describe(), "config": c}
        try:
            kernel = FAMILY.emit(bench.op, TARGET, c)
            future = self.builder.start(kernel)
            while not future.done():  # told to whoever watches: it is not the device that takes so long
                (self.journal.parent / "alive").write_text(str(time.monotonic()))
                time.sleep(0.01)
            image = self.builder.image(kernel)
            self.say({**row, "why": "hung or crashed"})
            call = bench.load(kernel, image)
            error = max(bench.right(call), bench.right(call))
        except DeepgenError as failure:
            self.say({**row, "why": str(failure)[:300]})
            return
        self.say({**row, "error": error, "why": "" if error < bench.tolerance() else f"wrong: {bench.told}"})


def key_of(op: Gemm, c: Config) -> str:
    return json.dumps([op.to_json(), c], sort_keys=True)


def read(journal: Path) -> dict[str, dict[str, Any]]:
    """What was said last of each thing."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    return {row["key"]: row for row in map(json.loads, lines)}


def watch(options: argparse.Namespace) -> None:
    """Keep a worker at it; one that hangs or crashes is followed by another."""
    journal = options.out / JOURNAL
    journal.unlink(missing_ok=True)
    ends = time.monotonic() + options.seconds
    while time.monotonic() < ends:
        before = len(read(journal))
        child = subprocess.Popen([sys.executable, *sys.argv, "--worker"])
        seen, since = [""], time.monotonic() + HANG_SECONDS  # importing takes a while
        while child.poll() is None:
            time.sleep(0.2)
            now = [str(f.stat().st_mtime_ns) for f in (journal, options.out / "alive") if f.exists()]
            if now != seen:
                seen, since = now, max(since, time.monotonic())
            if time.monotonic() - since > HANG_SECONDS or time.monotonic() > ends:
                child.kill()
                child.wait()
        if child.returncode == 0 or len(read(journal)) == before:
            break
        print(f"the worker ended with {child.returncode}; going on after the config it was at", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--cores", type=int, default=16)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.worker:
        Worker(options.out, options.cores).run()
        return 0
    watch(options)
    rows = list(read(options.out / JOURNAL).values())
    bad = [row for row in rows if row["why"]]
    print(f"{len(rows)} of {len(checks())} checked, {len(bad)} bad")
    for row in bad[:40]:
        print("  BAD", row["problem"], row["why"], row.get("error"), json.dumps(row["config"]))
    return int(bool(bad) or len(rows) < len(checks()))


if __name__ == "__main__":
    run_main(main)
