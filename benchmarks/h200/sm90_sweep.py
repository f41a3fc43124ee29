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
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT / "src")]

from sm90_candidates import FAMILY, TARGET, Config, candidates, checks, fitted, neighbours, shapes  # noqa: E402

from deepgen.baselines.cublaslt import CublasLt  # noqa: E402
from deepgen.build import BuildError, BuildLimits, Group, toolchain_for  # noqa: E402
from deepgen.measure.gpu_driver import CUDA, Driver  # noqa: E402
from deepgen.measure.gpu_kernel import GpuKernel  # noqa: E402
from deepgen.operators import Gemm, gemm  # noqa: E402
from deepgen.vocabulary import DeepgenError  # noqa: E402

HANG_SECONDS = 15.0
FLUSH_BYTES = 256 << 20
ROUNDS = 25


# Building ------------------------------------------------------------------------------------------------------------


class Builder:
    """Builds in processes of NVRTC, as many at once as there are cores; results lie in a folder."""

    def __init__(self, cores: int) -> None:
        self._pool, self._folder = ThreadPoolExecutor(cores), Path(tempfile.mkdtemp())
        self._toolchain = toolchain_for(TARGET, "cuda")
        self._built: dict[str, Future[tuple[Any, bytes, dict[str, Any]]]] = {}

    def start(self, op: Gemm, c: Config) -> Future[tuple[Any, bytes, dict[str, Any]]]:
        kernel = FAMILY.emit(op, TARGET, c)
        if kernel.id not in self._built:
            self._built[kernel.id] = self._pool.submit(self._build, kernel)
        return self._built[kernel.id]

    def _build(self, kernel: Any) -> tuple[Any, bytes, dict[str, Any]]:
        folder = self._folder / kernel.id
        folder.mkdir(exist_ok=True)
        with Group() as group:
            built = self._toolchain.build(kernel, TARGET, folder, BuildLimits(), group)
        return kernel, (folder / built.binary).read_bytes(), dict(built.facts)


# On the device -------------------------------------------------------------------------------------------------------


class Bench:
    """The tensors of one problem, the right answer, and how a call on them is timed."""

    def __init__(self, op: Gemm, flush: Any) -> None:
        import torch

        self.op, self.torch, self.flush, self.driver = op, torch, flush, Driver(CUDA)
        dice = torch.Generator(device="cuda").manual_seed(1)
        words = {
            "bf16": "bfloat16",
            "f16": "float16",
            "f32": "float32",
            "tf32": "float32",
            "i8": "int8",
            "i32": "int32",
        }
        words |= {"f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}
        self.tensors: dict[str, Any] = {}
        for t in op.tensors():
            if t.dtype.integer:
                made = torch.randint(-8, 8, t.shape, device="cuda", generator=dice, dtype=torch.int32)
            else:
                made = torch.randn(t.shape, device="cuda", generator=dice)
            self.tensors[t.name] = made.to(getattr(torch, words[t.dtype.name]))
        self.before = self.tensors["C"].clone()
        self.want = self._reference()
        self.scale = max(self.want.norm().item(), 1e-30)
        self.told = ""

    def _reference(self) -> Any:
        torch, op = self.torch, self.op
        wide = {n: t.double() for n, t in self.tensors.items() if n != "C"}
        a = wide["A"] if op.layout[0] == "n" else wide["A"].transpose(-1, -2)
        b = wide["B"] if op.layout[1] == "n" else wide["B"].transpose(-1, -2)
        x = op.alpha * (a @ b)
        if op.scales != "none":
            x = x * (wide["scale"][:, None] if op.scales == "row" else wide["scale"])
        if op.beta:
            x = x + op.beta * self.before.double()
        if op.bias:
            x = x + wide["bias"]
        function = {"relu": torch.relu, "silu": torch.nn.functional.silu}.get(op.activation)
        if op.activation == "gelu":
            return torch.nn.functional.gelu(x, approximate="tanh")
        return function(x) if function else x

    def right(self, call: Callable[[], Any]) -> float:
        """The norm of the error over the norm of the answer, and infinity where a single element is far off."""
        c = self.tensors["C"]
        if self.op.beta:
            c.copy_(self.before)
        elif c.dtype.is_floating_point:
            c.fill_(float("nan"))
        else:
            c.fill_(-77777)
        call()
        self.torch.cuda.synchronize()
        off = c.double() - self.want
        error = (off.norm() / self.scale).item()
        worst = (off.abs() / (self.want.abs() + self.scale / self.want.numel() ** 0.5)).max().item()
        if isfinite(error) and worst < 20 * self.tolerance():
            return float(error)
        bad = ~(off.abs() <= 20 * self.tolerance() * (self.want.abs() + self.scale / self.want.numel() ** 0.5))
        places = bad.nonzero()
        low, high = places.min(dim=0).values.tolist(), places.max(dim=0).values.tolist()
        columns = bad.reshape(-1, bad.shape[-1]).any(dim=0).nonzero().flatten().tolist()
        self.told = f"{len(places)} of {bad.numel()} off, {int(off.isnan().sum())} NaN, from {low} to {high}"
        self.told += f", columns {columns[:6]}...{columns[-3:]} ({len(columns)})"
        return float("inf")

    def tolerance(self) -> float:
        op = self.op
        if op.acc == "i32":
            return 1e-12
        return max(
            {"bf16": 4e-3, "f16": 6e-4}.get(op.c, 1e-5), {"tf32": 2e-3, "f8e4m3": 4e-3, "f8e5m2": 4e-3}.get(op.a, 0)
        )

    def time(self, calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
        """Microseconds of single calls, in random order within each round, each with a cold L2."""
        torch = self.torch
        taken: dict[str, list[float]] = {name: [] for name in calls}
        order, dice = list(calls), random.Random(1)
        for _ in range(rounds):
            dice.shuffle(order)
            events = []
            for name in order:
                self.flush.zero_()
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                calls[name]()
                end.record()
                events.append((name, begin, end))
            torch.cuda.synchronize()
            for name, begin, end in events:
                taken[name].append(begin.elapsed_time(end) * 1e3)
        return taken

    def load(self, kernel: Any, image: bytes) -> Callable[[], None]:
        op = self.op
        loaded = GpuKernel(self.driver, kernel, image)
        addresses = {name: t.data_ptr() for name, t in self.tensors.items()}
        described = {t.name: (t.shape, t.dtype.name) for t in op.tensors()}
        bound = loaded.bind(addresses, op.scalars(), self._allocate, described)
        return bound.run.run

    def _allocate(self, arg: Any, size: int) -> int:
        made = self.torch.full((size + 256,), 255, dtype=self.torch.uint8, device="cuda")
        self.kept = [*getattr(self, "kept", []), made]
        return int(made.data_ptr())


@dataclass(frozen=True)
class Problems:
    """The suite in one format: `bf16`, `bf16/nn`, `i8/nt/i32`, `f8e4m3/nt/bf16/exact`; some shapes: `bf16@3,4`."""

    told: str

    @property
    def words(self) -> str:
        return self.told.partition("@")[0]

    def operators(self) -> list[Gemm]:
        dtype, layout, c = (*self.words.split("/"), "", "")[:3]
        named = {"c": c} if c else {}
        only = self.told.partition("@")[2]
        listed = [shapes()[int(i)] for i in only.split(",")] if only else shapes()
        return [gemm(m, n, k, batch=b, dtype=dtype, layout=layout or "nt", **named) for b, m, n, k in listed]

    @property
    def exact(self) -> bool:
        """8-bit floats are added up in f32, here and by the rival."""
        return self.words.endswith("/exact")

    def fixed(self) -> Config:
        return {"PROMOTE": 1} if self.exact else {}


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
