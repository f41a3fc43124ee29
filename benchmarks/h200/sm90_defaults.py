"""What the Hopper GEMM family takes without a search, beside what it took before, the best that is known, and cuBLASLt.

All calls of a problem are interleaved, with a cold L2; every result is checked first. The best is raced as it won and
with its sizes left open, as those of a default are. `next` are ways that the model ranks behind its first, of other
tiles. The configs of before are written by an older checkout, which needs no GPU for it:

    python benchmarks/h200/sm90_defaults.py --write before.json
    python benchmarks/h200/sm90_defaults.py --before before.json --out $OUT
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "src")]

from sm90_candidates import FAMILY, TARGET, fitted  # noqa: E402

from common import run_main  # noqa: E402
from deepgen.baselines.cublaslt import CublasLt  # noqa: E402
from deepgen.kernels.gemm.sm90_gemm.defaults import config, ranked  # noqa: E402
from deepgen.operators import Gemm  # noqa: E402
from deepgen.vocabulary import DeepgenError  # noqa: E402
from gpu_bench import (  # noqa: E402
    FLUSH_BYTES,
    Bench,
    Builder,
    Config,
    Loaded,
    conditions,
    gpu_torch,
    interleaved,
    key_of,
    open_device,
    operator,
    sources,
    suite,
)

ROUNDS = 15


class Format(NamedTuple):
    """As a run of gpu_gemm.py has it, which the file of its results is named after."""

    dtype: str
    layout: str = "nt"
    sums: str = ""

    @property
    def file(self) -> str:
        return "_".join(["gemm", *(word for word in self if word)])

    def problems(self) -> list[Gemm]:
        exact = self.sums == "exact"
        return [operator(shape, self.dtype, self.layout, exact_sums=exact) for shape in suite()]


FORMATS = (
    Format("bf16"), Format("bf16", "nn"), Format("f16"), Format("tf32"), Format("i8"),
    Format("f8e4m3", "nt", "fast"), Format("f8e4m3", "nt", "exact"),
)  # fmt: skip


def best_known(format_: Format, folder: Path) -> dict[Gemm, Config]:
    """Winners of the whole run."""
    rows = json.loads((folder / f"{format_.file}.json").read_text())["rows"]
    return {Gemm.from_json(row["operator"]): row["config"] for row in rows if row["family"] == FAMILY.name}


def following(problem: Gemm, most: int) -> Iterator[Config]:
    """By rank, the first of each tile, after the first of all."""
    space, seen, default = FAMILY.space(problem, TARGET), set[Any](), dict(FAMILY.default(problem, TARGET))
    for way in ranked(problem, TARGET) if most else ():
        tile = (way.bm, way.bn, way.turns, way.fixup)
        made = config(problem, TARGET, way)
        made = fitted(space, made) if made and tile not in seen else None
        if made is not None:
            seen.add(tile)
            if made != default:
                yield made
        if len(seen) > most:
            return


def entrants(problem: Gemm, before: Config | None, best: Config | None, most: int) -> dict[str, Config]:
    """By name, as far as the space has them."""
    named = {"default": dict(FAMILY.default(problem, TARGET))}
    named |= {"before": before} if before else {}
    named |= {"best": best, "best, sizes open": {**best, "FIXED": False}} if best else {}
    named |= {f"next {i + 1}": made for i, made in enumerate(following(problem, most))}
    space = FAMILY.space(problem, TARGET)
    return {name: made for name, made in named.items() if not space.explain(made)}


def raced(problem: Gemm, named: dict[str, Config], builder: Builder, driver: Any, flush: Any) -> dict[str, Any]:
    """Microseconds by name. What is the same under two names is raced once."""
    bench = Bench(problem, flush)
    calls: dict[str, Callable[[], Any]] = {}
    wrong: list[str] = []
    for name, made in {key_of(made): made for made in named.values()}.items():
        kernel = FAMILY.emit(problem, TARGET, made)
        try:
            call = Loaded(bench, kernel, builder.image(kernel), driver)
            if bench.right(call):
                calls[name] = call
            else:
                wrong.append(f"{name}: a wrong result")
        except DeepgenError as error:
            wrong.append(f"{name}: {str(error)[:200]}")
    calls["cublaslt"] = CublasLt().prepare(problem, bench.places, 1)
    with builder.quiet():
        taken = {name: statistics.median(some) for name, some in interleaved(bench, calls, ROUNDS).items()}
    us = {name: taken[key_of(made)] for name, made in named.items() if key_of(made) in taken}
    us["cublaslt"] = taken["cublaslt"]
    shape = [problem.batch, problem.m, problem.n, problem.k]
    return {"shape": shape, "us": us, "default": named["default"], "wrong": wrong}


def over(rows: Sequence[dict[str, Any]], name: str, rival: str) -> float:
    """How many times as long the rival takes, in the mean over the problems that have both."""
    found = [r["us"][rival] / r["us"][name] for r in rows if name in r["us"] and rival in r["us"]]
    return statistics.geometric_mean(found) if found else float("nan")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="only write the defaults of this checkout")
    parser.add_argument("--before", type=Path, help="defaults of an older checkout")
    parser.add_argument("--results", type=Path, default=HERE, help="the folder of gpu_gemm.py's results")
    parser.add_argument("--formats", nargs="+", choices=[f.file for f in FORMATS], help="only these")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of shapes in the suite's order, from 0")
    parser.add_argument("--more", type=int, default=2, help="ways that the model ranks next")
    parser.add_argument("--seconds", type=float, default=150.0, help="after which no other problem is begun")
    parser.add_argument("--cores", type=int, default=15)
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args(argv)
    formats = [f for f in FORMATS if options.formats is None or f.file in options.formats]
    if options.write:
        told = {f.file: [[p.to_json(), dict(FAMILY.default(p, TARGET))] for p in f.problems()] for f in formats}
        options.write.write_text(json.dumps(told) + "\n")
        return
    begun, torch = time.monotonic(), gpu_torch()
    older = json.loads(options.before.read_text()) if options.before else {}
    done: dict[str, list[dict[str, Any]]] = {}
    seen = {"conditions": {**conditions(), "l2": "cold", "rounds": ROUNDS}, "sources": sources((FAMILY.name,))}
    with open_device(options.cores) as (builder, _, driver):
        flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        todo = []
        for f in formats:
            before = {Gemm.from_json(told): made for told, made in older.get(f.file, ())}
            best = best_known(f, options.results)
            for number, problem in enumerate(f.problems()):
                if options.only is None or number in options.only:
                    named = entrants(problem, before.get(problem), best.get(problem), options.more)
                    todo.append((f, problem, named))
                    for made in named.values():
                        builder.start(FAMILY.emit(problem, TARGET, made))
        print(f"{len(todo)} problems, {time.monotonic() - begun:.0f} s", flush=True)
        for f, problem, named in todo:
            if time.monotonic() - begun > options.seconds:
                print("no time for", problem.describe(), flush=True)
                continue
            row = raced(problem, named, builder, driver, flush)
            done.setdefault(f.file, []).append(row)
            words = " ".join(f"{name} {us:.1f}" for name, us in row["us"].items())
            print(f.file, row["shape"], words, *row["wrong"], flush=True)
            torch.cuda.empty_cache()
            (options.out / "sm90_defaults.json").write_text(json.dumps({**seen, "formats": done}, indent=1) + "\n")
    for file, rows in done.items():
        rivals = ("before", "best", "best, sizes open", "cublaslt")
        print(file, *(f"{rival} {over(rows, 'default', rival):.4f}" for rival in rivals))
    print(f"{time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    run_main(main)
