"""The families on warp-wide products against the best of cuBLASLt: verified, interleaved, with a cold L2.

Shapes are those of data/suites.json, layout nt. Thin ones are tried in both families. For each shape the configs that
the families' own models rank first, a few of each tile and way to share out, are built on all cores, checked and timed;
the best and the default then run against cuBLASLt. Groups of shapes run in child processes with a time limit, so that a
kernel that hangs costs its group only. Needs torch, numpy and cuda-bindings; no installation of deepgen.

    python benchmarks/h200/mma_gemm.py --dtype bf16 --tune 90 --out benchmarks/h200
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
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE), str(HERE.parents[1] / "src")]

from deepgen.baselines.cublaslt import CublasLt  # noqa: E402
from deepgen.generators.base import Generator  # noqa: E402
from deepgen.generators.templates.mma import defaults as mma  # noqa: E402
from deepgen.generators.templates.mma.mma_gemm import MmaGemm  # noqa: E402
from deepgen.generators.templates.skinny import defaults as skinny  # noqa: E402
from deepgen.generators.templates.skinny.skinny_gemm import SkinnyGemm  # noqa: E402
from deepgen.operators import Gemm  # noqa: E402
from deepgen.targets import Cuda  # noqa: E402
from deepgen.vocabulary import DeepgenError  # noqa: E402
from gpu_bench import FLUSH_BYTES, Bench, Config, Loaded, key_of, open_device, operator  # noqa: E402
from gpu_gemm import conditions, interleaved, shapes  # noqa: E402

MMA, SKINNY = MmaGemm(), SkinnyGemm()
GROUPS = 3  # child processes
Choice = tuple[Generator, Config]


def ranked(problem: Gemm, target: Cuda, most: int) -> list[Choice]:
    """The default first, then what the models like, no more than three of one tile and way to share out."""
    out: list[Choice] = []
    for family, module in ((SKINNY, skinny), (MMA, mma)):
        if family.refuses(problem, target) is not None:
            continue
        space, seen = family.space(problem, target), dict[Any, int]()
        made = list(module.candidates(problem, target))
        if family is MMA:
            made += [{**c, "FIXUP": "step"} for c in made if c["FIXUP"] == "last"]
        found = sorted(made, key=lambda c: module.seconds(problem, target, c))
        chosen = [dict(family.default(problem, target))]
        for c in found:
            kind = tuple(c.get(k) for k in ("BM", "BN", "WARPS_K", "FIXUP", "TILES", "WARPS_R", "SPLITS"))
            if seen.get(kind, 0) < 2 and not space.explain(c):
                seen[kind] = seen.get(kind, 0) + 1
                chosen.append(c)
            if len(chosen) > most:
                break
        out += [(family, c) for c in {key_of(c): c for c in chosen}.values()]
    return out


class Worker:
    """Measures some shapes."""

    def __init__(self, dtype: str, result: str | None, most: int) -> None:
        import torch

        self.torch, self.dtype, self.result, self.most = torch, dtype, result, most
        self.builder, self.target, self.driver = open_device(16)
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def run(self, numbers: list[int], seconds: float, out: Path) -> None:
        todo = [(n, operator(shapes()[n], self.dtype, self.result)) for n in numbers]
        choices = {n: ranked(problem, self.target, self.most) for n, problem in todo}
        for n, problem in todo:
            for family, config in choices[n]:
                self.builder.start(family.emit(problem, self.target, config))
        for n, problem in todo:
            bench = Bench(shapes()[n], problem, self.flush)
            row = self.measure(bench, choices[n], seconds / len(numbers))
            with out.open("a") as lines:
                lines.write(json.dumps({"number": n, **row}) + "\n")
            del bench
            self.torch.cuda.empty_cache()

    def load(self, bench: Bench, choice: Choice) -> Loaded:
        kernel = choice[0].emit(bench.problem, self.target, choice[1])
        return Loaded(bench, kernel, self.builder.start(kernel).result(), self.driver)

    def measure(self, bench: Bench, choices: list[Choice], seconds: float) -> dict[str, Any]:
        ends, found, wrong = time.monotonic() + seconds, list[tuple[float, int]](), list[str]()
        queue, seen = list(enumerate(choices)), set[str]()
        known = list(choices)
        while queue:
            for number, choice in queue:
                if len(found) > 2 and time.monotonic() > ends:
                    break
                seen.add(choice[0].name + key_of(choice[1]))
                try:
                    call = self.load(bench, choice)
                except (RuntimeError, DeepgenError) as error:
                    wrong.append(f"{choice[0].name} {choice[1]}: {str(error)[:200]}")
                    continue
                if not bench.right(call):
                    wrong.append(f"{choice[0].name} {choice[1]}: wrong")
                    continue
                taken = statistics.median(bench.time(call, 10, min(found)[0] if found else 0.0))
                found.append((taken, number))
                call.close()
            queue = []
            if found and time.monotonic() < ends:
                for _, best in sorted(found)[:2]:
                    family, config = known[best]
                    for near in family.space(bench.problem, self.target).neighbors(config):
                        if family.name + key_of(dict(near)) not in seen and len(queue) < 40:
                            known.append((family, dict(near)))
                            queue.append((len(known) - 1, known[-1]))
                            self.builder.start(family.emit(bench.problem, self.target, dict(near)))
        best = min(found)[1]
        calls: dict[str, Callable[[], Any]] = {
            "ours": self.load(bench, known[best]),
            "default": self.load(bench, known[0]),
            "cublaslt": CublasLt().prepare(bench.problem, bench.places, 1),
        }
        before = {name: bench.right(call) for name, call in calls.items()}
        us = {name: statistics.median(some) for name, some in interleaved(bench, calls).items()}
        after = {name: bench.right(call) for name, call in calls.items()}
        return {
            "shape": list(bench.shape),
            "us": us,
            "ratio": us["cublaslt"] / us["ours"],
            "ratio_default": us["cublaslt"] / us["default"],
            "correct": {name: before[name] and after[name] for name in calls},
            "family": known[best][0].name,
            "config": known[best][1],
            "tried": len(found),
            "wrong": wrong,
            "all": [{"us": t, "family": known[n][0].name, "config": known[n][1]} for t, n in sorted(found)[:12]],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--c", help="dtype of the result, where it is another")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--tune", type=float, default=90.0, help="seconds for all shapes")
    parser.add_argument("--most", type=int, default=20, help="configs of a family that its model adds to the default")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of shapes in the suite's order, from 0")
    parser.add_argument("--child", type=Path, help="measure in this process, and add lines to this file")
    options = parser.parse_args()
    numbers = options.only if options.only is not None else list(range(len(shapes())))
    if options.child:
        Worker(options.dtype, options.c, options.most).run(numbers, options.tune, options.child)
        return
    import torch

    options.out.mkdir(parents=True, exist_ok=True)
    lines, begun = options.out / "rows.jsonl", conditions(torch)
    lines.unlink(missing_ok=True)
    for group in range(GROUPS):
        some = numbers[group::GROUPS]
        share = options.tune * len(some) / len(numbers)
        words = [sys.executable, __file__, "--dtype", options.dtype, "--tune", str(share), "--most", str(options.most)]
        words += ["--child", str(lines), *(["--c", options.c] if options.c else []), "--only", *map(str, some)]
        try:
            subprocess.run(words, timeout=share * 1.5 + 30, check=False)
        except subprocess.TimeoutExpired:
            print("a group of shapes ran out of time:", some)
    rows = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    rows.sort(key=lambda row: int(row["number"]))
    for row in rows:
        times = " ".join(f"{name} {us:.1f}" for name, us in row["us"].items())
        print(row["shape"], times, f"{row['ratio']:.3f} {row['ratio_default']:.3f}", row["family"], row["tried"],
              "" if all(row["correct"].values()) else "WRONG", len(row["wrong"]) or "")  # fmt: skip
    if rows:
        geomean = statistics.geometric_mean([row["ratio"] for row in rows])
        print(f"{len(rows)} shapes, geometric mean over cuBLASLt {geomean:.3f}")
    told = {"command": " ".join(sys.argv), "begin": begun, "end": conditions(torch), "rows": rows}
    (options.out / f"mma_gemm_{options.dtype}.json").write_text(json.dumps(told, indent=1) + "\n")
    lines.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
