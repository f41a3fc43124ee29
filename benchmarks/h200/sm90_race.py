"""The Hopper GEMM family against itself: for each shape many configs, all of them interleaved from the first round on.

Chips get warm and slow down under products, so that what is timed first looks best: a sweep in order does not tell
apart configs that differ by a percent or two. Here every round times each config that is left once, in random order and
with a cold L2, and the slower ones leave after each heat. What earlier runs found and what the model ranks first begin;
neighbours of the best follow; the last five meet cuBLASLt. `race.json` is in the form that `gpu_known.py` reads,
`heats.jsonl` has the time of everything that was tried.

    PYTHONPATH=src python benchmarks/h200/sm90_race.py --of bf16 f16@10,18 --out $OUT
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "src")]

from sm90_bench import Bench, Problems  # noqa: E402
from sm90_candidates import FAMILY, TARGET, Config, candidates, neighbours  # noqa: E402

from common import run_main  # noqa: E402
from deepgen.baselines.cublaslt import CublasLt  # noqa: E402
from deepgen.operators import Gemm  # noqa: E402
from deepgen.vocabulary import DeepgenError  # noqa: E402
from gpu_bench import FLUSH_BYTES, Builder, gpu_torch, interleaved, key_of  # noqa: E402
from gpu_known import Found, fitting, found_before  # noqa: E402

HEATS = ((3, 16), (5, 8), (9, 5))  # rounds, and how many configs stay
FINAL_ROUNDS = 31


@dataclass
class Race:
    """One problem: who is in, and what was measured of whom."""

    of: Problems
    op: Gemm
    queue: list[Config]
    wrong: list[str] = field(default_factory=list)
    tried: int = 0
    heats: list[tuple[float, str]] = field(default_factory=list)  # microseconds in the first heat of each turn


def first(op: Gemm, before: list[Found], options: argparse.Namespace) -> list[Config]:
    """What was found for this shape, the same format's first; what the model says; what needs no search."""
    space = FAMILY.space(op, TARGET)

    def apart(other: Gemm) -> int:
        return (other.a != op.a) + 2 * (other.layout != op.layout)

    same = [(apart(f.problem), f.config) for f in before if f.family == FAMILY.name and _shape(f.problem) == _shape(op)]
    known = [c for _, c in sorted(same, key=lambda pair: pair[0])]
    found: dict[str, Config] = {}
    for c in known:
        # Older configs lack the younger knobs: their first values are the better ones.
        for made in fitting(space, c):
            if len(found) < options.known:
                found[key_of(made)] = made
    listed = candidates(op, options.most) if options.most else []
    for c in [*({**c, "FIXED": True} for c in listed), dict(FAMILY.default(op, TARGET))]:
        if not space.explain(c):
            found[key_of(c)] = c
    return list(found.values())


class Course:
    """The device, and how configs run on it."""

    def __init__(self, cores: int) -> None:
        self.torch, self.builder = gpu_torch(), Builder(TARGET, cores)
        self.flush = self.torch.empty(FLUSH_BYTES, dtype=self.torch.uint8, device="cuda")

    def enter(self, race: Race, bench: Bench) -> dict[str, Callable[[], Any]]:
        """Those of the queue that build and are right."""
        calls: dict[str, Callable[[], Any]] = {}
        for c in race.queue:
            try:
                kernel = FAMILY.emit(race.op, TARGET, c)
                call = bench.load(kernel, self.builder.image(kernel))
                error = bench.right(call)
            except DeepgenError as failure:
                race.wrong.append(f"{key_of(c)}: {str(failure)[:200]}")
                continue
            if error < bench.tolerance():
                calls[key_of(c)] = call
            else:
                race.wrong.append(f"{key_of(c)}: wrong by {error}, {bench.told}")
        race.tried += len(calls)
        return calls

    def run(self, race: Race, last: bool) -> dict[str, Any] | None:
        """Heats; then neighbours of the best are queued, or, at last, the best meet the rival."""
        bench = Bench(race.op, self.flush)
        calls = self.enter(race, bench)
        for rounds, most in HEATS:
            if len(calls) > most:
                us = timed(bench, calls, rounds)
                order = sorted(calls, key=lambda name: us[name])
                if rounds == HEATS[0][0]:
                    race.heats += [(us[name], name) for name in order]
                calls = {name: calls[name] for name in order[:most]}
        race.queue = [json.loads(name) for name in calls]
        return self.final(race, bench, calls) if last and calls else None

    def final(self, race: Race, bench: Bench, calls: dict[str, Callable[[], Any]]) -> dict[str, Any]:
        op = race.op
        places = {n: SimpleNamespace(address=t.data_ptr()) for n, t in bench.tensors.items()}
        rival = {"cublaslt": CublasLt().prepare(op, places, 1)}
        us = timed(bench, {**calls, **rival}, FINAL_ROUNDS)
        order = sorted(calls, key=lambda name: us[name])
        best = us[order[0]]
        return {
            "of": race.of.words, "shape": [op.batch, op.m, op.n, op.k], "operator": op.to_json(), "us": best,
            "cublaslt_us": us["cublaslt"], "ratio": us["cublaslt"] / best, "tflops": op.flops() / best / 1e6,
            "right": bench.right(calls[order[0]]) < bench.tolerance(), "tried": race.tried, "wrong": race.wrong,
            "config": json.loads(order[0]), "top": [json.loads(name) for name in order[1:]],
            "top_us": [us[name] for name in order],
        }  # fmt: skip


def timed(bench: Any, calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median microseconds. Of the bench only its torch and what it fills the L2 with are used."""
    return {name: statistics.median(some) for name, some in interleaved(bench, calls, rounds).items()}


def _shape(op: Gemm) -> tuple[int, int, int, int]:
    return op.batch, op.m, op.n, op.k


def told(r: dict[str, Any]) -> str:
    c = r["config"]
    words = f"{c['SCHEDULE'][0]}{c['CONSUMERS']}x{c['TILES_M']}x{c['BN']} s{c['STAGES']} a{c['ATOMS']} "
    words += f"R{int(c['REGISTERS'])} cl{c['CLUSTER_M']}{c['CLUSTER_N']} b{c['MIN_BLOCKS']} "
    words += f"{c['STORE'][:2]}{c.get('BUFFERS', '')} {c['FIXUP'][:3]}{c.get('CLUSTER_K', '')}/{c.get('PARTS', '')} "
    words += f"P{int(c.get('PERSISTENT', 0))} g{c['GROUP']}{c['ALONG']} {c['CACHE']} F{int(c['FIXED'])} "
    words += f"of {r['tried']}, {len(r['wrong'])} wrong"
    shape = "x".join(map(str, r["shape"]))
    right = "" if r["right"] else "WRONG "
    return f"{r['of']:>8} {shape:>18} {r['us']:8.2f} {r['cublaslt_us']:8.2f} {r['ratio']:5.3f} {right}{words}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument(
        "--of",
        nargs="+",
        default=["bf16"],
        help="dtype, then /layout, /c and /exact, and @ and places in the list of shapes",
    )
    parser.add_argument("--known", type=int, default=14, help="configs of earlier runs")
    parser.add_argument("--most", type=int, default=8, help="configs that the model ranks first")
    parser.add_argument("--near", type=int, default=24, help="neighbours of the best three")
    parser.add_argument("--rounds", type=int, default=1, help="of neighbours")
    parser.add_argument(
        "--configs", type=Path, nargs="*", default=[], help="files with `finals`: these are tried first"
    )
    parser.add_argument("--cores", type=int, default=16)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    begun, dice = time.monotonic(), random.Random(1)
    asked: list[Found] = []
    for file in options.configs:
        for row in json.loads(file.read_text())["finals"]:
            asked += [Found(Gemm.from_json(row["operator"]), FAMILY.name, c) for c in (row["config"], *row["top"])]
    before = [*asked, *found_before()]
    course = Course(options.cores)
    races = [Race(of, op, first(op, before, options)) for of in map(Problems, options.of) for op in of.operators()]
    finals: list[dict[str, Any]] = []
    for turn in range(options.rounds + 1):
        for race in races:
            for c in race.queue:
                course.builder.start(FAMILY.emit(race.op, TARGET, c))
        for race in races:
            done = course.run(race, last=turn == options.rounds)
            course.torch.cuda.empty_cache()
            if done is not None:
                finals.append(done)
                print(told(done), flush=True)
                (options.out / "race.json").write_text(json.dumps({"finals": finals}, indent=1))
                continue
            near = [n for c in race.queue[:3] for n in neighbours(race.op, c)]
            race.queue += dice.sample(near, min(len(near), options.near))
    for of in dict.fromkeys(r["of"] for r in finals):
        ratios = [r["ratio"] for r in finals if r["of"] == of]
        print(f"{of}: mean {statistics.geometric_mean(ratios):.4f}, least {min(ratios):.3f} of {len(ratios)}")
    for race in races:
        for line in race.wrong[:3]:
            print("BAD", race.op.describe(), line)
    with (options.out / "heats.jsonl").open("w") as file:
        for race in races:
            for us, name in race.heats:
                file.write(json.dumps([race.of.words, race.op.to_json(), us, json.loads(name)]) + "\n")
    course.builder.close()
    print(f"{time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    run_main(main)
