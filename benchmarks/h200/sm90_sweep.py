"""The Hopper GEMM family on a device: every feature checked against float64, then configs of many shapes timed.

Needs torch, numpy and NVRTC on a host with a Hopper GPU; no installation of deepgen. `--check` tries layouts, formats,
epilogues, edges and ways to share out K on small odd shapes. The sweep takes, for each shape, configs that a model
ranks first (or those of `--configs`, a file of an earlier run), checks and times them with a cold L2, varies the best
knob by knob, and times the winner against the best of cuBLASLt, interleaved. Builds run on all cores; the device is
used by a worker process that is killed when it hangs, at the cost of the one config it was at.

    PYTHONPATH=src python benchmarks/h200/sm90_sweep.py --check --seconds 120 --out $OUT
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT / "src")]

from sm90_bench import FLUSH_BYTES, Bench, Builder, Problems  # noqa: E402
from sm90_candidates import FAMILY, TARGET, Config, candidates, checks, fitted, neighbours  # noqa: E402

from deepgen.baselines.cublaslt import CublasLt  # noqa: E402
from deepgen.build import BuildError  # noqa: E402
from deepgen.operators import Gemm  # noqa: E402
from deepgen.vocabulary import DeepgenError  # noqa: E402

HANG_SECONDS = 15.0
ROUNDS = 25


class Worker:
    """Runs what the parent lists, one line of a journal for each thing done."""

    def __init__(self, out: Path, seconds: float, cores: int) -> None:
        import torch

        self.journal, self.ends = out / "sweep.jsonl", time.monotonic() + seconds
        self.builder = Builder(cores)
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        self.torch = torch
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        self.done: dict[str, dict[str, Any]] = {row["key"]: row for row in map(json.loads, lines)}

    def say(self, row: dict[str, Any]) -> dict[str, Any]:
        with self.journal.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.done[row["key"]] = row
        return row

    def alive(self) -> None:
        """Told to whoever watches: it is not the device that takes so long."""
        (self.journal.parent / "alive").write_text(str(time.monotonic()))

    def tried(self, bench: Bench, c: Config, beat: float = 1e30) -> dict[str, Any]:
        """Check and time one config, unless an earlier worker did or died of it."""
        op = bench.op
        key = json.dumps([op.to_json(), c], sort_keys=True)
        if key in self.done:
            return self.done[key]
        try:
            future = self.builder.start(op, c)
            while not future.done():
                self.alive()
                time.sleep(0.01)
            kernel, image, facts = future.result()
        except BuildError as refused:
            return self.say({"key": key, "shape": op.describe(), "config": c, "us": None, "why": str(refused)[:300]})
        row = {"key": key, "shape": op.describe(), "config": c, "us": None, "why": "hung or crashed", "facts": facts}
        self.say(row)
        try:
            run = bench.load(kernel, image)
            error = bench.right(run)
            samples = bench.time({"it": run}, 3)["it"]
            if min(samples) < 1.15 * beat:
                samples += bench.time({"it": run}, 6)["it"]
            error = max(error, bench.right(run))
        except DeepgenError as failure:
            return self.say({**row, "why": str(failure)[:300]})
        good = error < bench.tolerance()
        return self.say(
            {**row, "us": statistics.median(samples), "error": error, "why": "" if good else f"wrong: {bench.told}"}
        )

    def check(self) -> None:
        todo = checks()
        for op, c in todo:
            self.builder.start(op, c)
        benches: dict[str, Bench] = {}
        for op, c in todo:
            name = json.dumps(op.to_json())
            if name not in benches:
                benches[name] = Bench(op, self.flush)
            self.tried(benches[name], c)

    def sweep(
        self, todo: list[tuple[Problems, Gemm]], some: Callable[[Problems, Gemm], list[Config]], rounds: int
    ) -> None:
        """All shapes' first configs, then what is near the best of them, then the finals: builds keep ahead."""
        ops = [op for _, op in todo]
        asked: list[list[Config]] = []
        for of, op in todo:
            self.alive()
            asked.append(some(of, op))
            for c in asked[-1]:
                self.builder.start(op, c)
        found: list[list[tuple[float, Config]]] = [[] for _ in ops]
        for turn in range(rounds + 1):
            for op, configs in zip(ops, asked, strict=True):
                for c in configs:
                    self.builder.start(op, c)
            ends = time.monotonic() + (self.ends - time.monotonic()) / (rounds + 1 - turn)
            for i, (op, configs) in enumerate(zip(ops, asked, strict=True)):
                share = (ends - time.monotonic()) / (len(ops) - i)
                self.shape(todo[i][0], op, configs, found[i], time.monotonic() + share, last=turn == rounds)
            if turn < rounds:
                for i, (op, best) in enumerate(zip(ops, found, strict=True)):
                    self.alive()
                    asked[i] = [n for _, c in best[:2] for n in neighbours(op, c)]

    def shape(
        self, of: Problems, op: Gemm, configs: list[Config], found: list[tuple[float, Config]], ends: float, last: bool
    ) -> None:
        key = f"final {of.words} {op.describe()}"
        if key in self.done:
            return
        bench = Bench(op, self.flush)
        for c in configs:
            row = self.tried(bench, c, found[0][0] if found else 1e30)
            if row["us"] and not row["why"] and (row["us"], c) not in found:
                found.append((row["us"], c))
                found.sort(key=lambda pair: pair[0])
            if time.monotonic() > ends:
                break
        if last and found:
            self.final(of, bench, key, found)
        del bench
        self.torch.cuda.empty_cache()

    def final(self, of: Problems, bench: Bench, key: str, found: list[tuple[float, Config]]) -> None:
        op = bench.op
        rivals: dict[str, Callable[[], Any]] = {}
        for i, (_, c) in enumerate(found[:4]):
            kernel, image, _ = self.builder.start(op, c).result()
            rivals[f"ours{i}"] = bench.load(kernel, image)
        places = {n: SimpleNamespace(address=t.data_ptr()) for n, t in bench.tensors.items()}
        rivals["cublaslt"] = CublasLt(fast_sums=not of.exact).prepare(op, places, 1)
        taken = bench.time(rivals, ROUNDS)
        us = {name: statistics.median(samples) for name, samples in taken.items()}
        best = min((us[n], i) for i, n in enumerate(us) if n != "cublaslt")[1]
        error = bench.right(rivals[f"ours{best}"])
        self.say({
            "key": key, "of": of.words, "shape": op.describe(), "operator": op.to_json(), "us": us[f"ours{best}"],
            "cublaslt": us["cublaslt"], "ratio": us["cublaslt"] / us[f"ours{best}"], "right": error < bench.tolerance(),
            "config": found[best][1], "tried": len(found), "top": [c for _, c in found[:6]],
            "tflops": op.flops() / us[f"ours{best}"] / 1e6,
        })  # fmt: skip


def report(out: Path) -> None:
    rows = {}
    for line in (out / "sweep.jsonl").read_text().splitlines():
        row = json.loads(line)
        rows[row["key"]] = row
    finals = [r for k, r in rows.items() if k.startswith("final ")]
    others = [r for k, r in rows.items() if not k.startswith("final ")]
    bad = [r for r in others if r["why"]]
    print(f"{len(others)} configs tried, {len(bad)} bad")
    for r in bad[:40]:
        print("  BAD", r["shape"], r["why"], r.get("error"), json.dumps(r["config"]))
    for r in finals:
        c = r["config"]
        words = f"{c['SCHEDULE'][0]}{c['CONSUMERS']}x{c['TILES_M']}x{c['BN']} s{c['STAGES']} a{c['ATOMS']} "
        words += f"cl{c['CLUSTER_M']}{c['CLUSTER_N']} b{c['MIN_BLOCKS']} {c['STORE'][:2]}{c.get('BUFFERS', '')} "
        words += f"{c['FIXUP'][:3]}{c.get('CLUSTER_K', '')}/{c.get('PARTS', '')} g{c['GROUP']}{c['ALONG']} "
        words += f"{c['CACHE']} {c.get('PROMOTE', '')}/{r['tried']}"
        times = f"{r['us']:8.2f} {r['cublaslt']:8.2f} {r['ratio']:5.3f} {r['tflops']:5.0f}"
        shape = "x".join(str(r["operator"][name]) for name in ("batch", "m", "n", "k"))
        print(f"{r['of']:>7} {shape:>19} {times} {'' if r['right'] else 'WRONG '}{words}")
    for of in dict.fromkeys(r["of"] for r in finals):
        ratios = [r["ratio"] for r in finals if r["of"] == of]
        print(
            f"{of}: geometric mean {statistics.geometric_mean(ratios):.4f}, least {min(ratios):.3f}, of {len(ratios)}"
        )
    (out / "sweep.json").write_text(json.dumps({"finals": finals, "bad": bad}, indent=1))


def suited(of: Problems, op: Gemm, configs: list[Config]) -> list[Config]:
    """Configs of another format or layout as far as this one has them, and what is taken without search."""
    space = FAMILY.space(op, TARGET)
    names = {knob.name for knob in space.knobs}
    known = [{"CACHE": "none", **({"PROMOTE": 0} if "PROMOTE" in names else {}), **c, **of.fixed()} for c in configs]
    known = [{k: v for k, v in c.items() if k in names} for c in known]
    out: list[Config] = []
    for c in known:
        copied, straight = {**c, "STORE": "copy", "PERSISTENT": True}, {**c, "STORE": "straight"}
        some = [c if not space.explain(c) else fitted(space, c), fitted(space, copied), fitted(space, straight)]
        out += [made for made in some if made is not None][:1]
    return out


def _shape(op: Gemm) -> tuple[int, int, int, int]:
    return op.batch, op.m, op.n, op.k


def work(options: argparse.Namespace) -> None:
    """What the worker process does."""
    worker = Worker(options.out, options.seconds, options.cores)
    if options.check:
        worker.check()
    if not options.most and not options.configs:
        return
    todo = [(of, op) for of in map(Problems, options.of) for op in of.operators()]
    known: list[tuple[str, Gemm, list[Config]]] = []
    for file in options.configs:
        for row in json.loads(file.read_text())["finals"]:
            known.append((row.get("of", ""), Gemm.from_json(row["operator"]), row["top"]))

    def some(of: Problems, op: Gemm) -> list[Config]:
        same = [(of.words != words, top) for words, o, top in known if _shape(o) == _shape(op)]
        before = suited(of, op, [c for _, top in sorted(same, key=lambda pair: pair[0]) for c in top])
        listed = [*before, *(candidates(op, options.most, **of.fixed()) if options.most else [])]
        return [c for i, c in enumerate(listed) if c not in listed[:i]]

    worker.sweep(todo, some, options.rounds)


def watch(options: argparse.Namespace) -> None:
    """Keep a worker at it; one that hangs or crashes is followed by another."""
    journal = options.out / "sweep.jsonl"
    journal.unlink(missing_ok=True)
    ends = time.monotonic() + options.seconds
    while ends - time.monotonic() > 5:
        command = [sys.executable, *sys.argv, "--worker", "--seconds", str(ends - time.monotonic())]
        child = subprocess.Popen(command)
        seen, since = [""], time.monotonic() + HANG_SECONDS  # importing takes a while
        while child.poll() is None:
            time.sleep(0.2)
            now = [str(f.stat().st_mtime_ns) for f in (journal, options.out / "alive") if f.exists()]
            if now != seen:
                seen, since = now, max(since, time.monotonic())
            if time.monotonic() - since > HANG_SECONDS or time.monotonic() > ends + 15:
                child.kill()
                child.wait()
        if child.returncode == 0:
            break
        print(f"the worker ended with {child.returncode}; going on after the config it was at", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--cores", type=int, default=16)
    parser.add_argument("--check", action="store_true")
    parser.add_argument(
        "--of",
        nargs="+",
        default=["bf16"],
        help="dtype, then /layout, /c and /exact, and @ and places in the list of shapes",
    )
    parser.add_argument("--most", type=int, default=16, help="configs of each shape that the model ranks first")
    parser.add_argument("--rounds", type=int, default=1, help="of variations")
    parser.add_argument(
        "--configs", type=Path, nargs="*", default=[], help="files of earlier runs: begin with their configs"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.worker:
        work(options)
        return
    watch(options)
    report(options.out)


if __name__ == "__main__":
    main()
