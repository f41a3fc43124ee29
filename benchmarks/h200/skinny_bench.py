"""Thin operands on an H200: which family is the fastest, by how many rows and in which format.

Every family that serves a problem enters with its config without search and the few that its model ranks first. A heat,
in which all are interleaved, chooses each family's best; the finals time these and the configs without search beside
cuBLASLt, interleaved and with a cold L2. All are checked against float64 first; all add 8-bit floats up in f32. All is
built before the first is timed. Results are written after each problem; `--show` prints the table of those at hand and
needs no GPU.

    python benchmarks/h200/skinny_bench.py --out benchmarks/h200 --seconds 90
    python benchmarks/h200/skinny_bench.py --show
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import wait
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "src")]

import simt_candidates  # noqa: E402
import sm90_candidates  # noqa: E402

from common import by_lines, run_main  # noqa: E402
from deepgen.generators import by_name  # noqa: E402
from deepgen.kernels.base import Generator  # noqa: E402
from deepgen.operators import Gemm  # noqa: E402
from deepgen.targets import Cuda  # noqa: E402
from deepgen.targets.gpu_driver import Driver  # noqa: E402
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
)
from gpu_choices import FAMILIES, TENSOR_CORES, modelled  # noqa: E402
from gpu_known import fitting  # noqa: E402
from gpu_rivals import rivals  # noqa: E402

FILE = "skinny_bench.json"
RIVAL = "cublaslt"
HEAT, FINAL = 9, 31  # rounds
ROWS = (1, 4, 8, 16, 17, 24, 32, 33, 40, 48, 64)
SOME, FEW = (1, 8, 16, 24, 32, 48, 64), (1, 4, 8, 16)
WEIGHTS = ((4096, 4096), (11008, 4096), (4096, 14336))  # N, K
FIRST, ODD = WEIGHTS[0], (4096, 4100)  # lines of 8200 bytes, which are no multiple of 16
Choice = tuple[Generator, Config]


def problems() -> list[Gemm]:
    """The usual format whole; then of others what may differ, and what the family for Hopper refuses."""
    out = [operator((1, m, n, k), "bf16") for n, k in WEIGHTS for m in ROWS]
    out += [operator((1, FIRST[0], m, FIRST[1]), "bf16") for m in SOME]  # thin on the other side
    for dtype, layout, rows, (n, k) in (
        ("bf16", "nn", SOME, FIRST), ("i8", "nt", SOME, FIRST), ("f8e4m3", "nt", SOME, FIRST),
        ("tf32", "nt", SOME, FIRST), ("bf16", "nt", SOME, ODD), ("f8e4m3", "nt", SOME, ODD), ("i8", "nn", SOME, FIRST),
        ("tf32", "nn", SOME, FIRST), ("f32", "nt", FEW, FIRST), ("f32", "nt", FEW, WEIGHTS[2]),
    ):  # fmt: skip
        out += [operator((1, m, n, k), dtype, layout, exact_sums=True) for m in rows]
    return out


def choices(problem: Gemm, target: Cuda, most: int, before: Mapping[str, Config]) -> list[Choice]:
    """Of each family that serves, the config without search, the best of an earlier run, and so many others."""
    out: list[Choice] = []
    for family in map(by_name, FAMILIES.get(problem.a, TENSOR_CORES)):
        if family.refuses(problem, target) is not None:
            continue
        default = dict(family.default(problem, target))
        ranked = [c for c in _ranked(family, problem, target, most + 1) if c != default][:most] if most else []
        known = fitting(family.space(problem, target), before[family.name]) if family.name in before else ()
        configs = {key_of(c): c for c in (default, *known, *ranked)}
        out += [(family, c) for c in configs.values()]
    return out


def _ranked(family: Generator, problem: Gemm, target: Cuda, most: int) -> list[Config]:
    if family.name == "sm90_gemm":
        return sm90_candidates.candidates(problem, most)[:most]
    if family.name == "simt_gemm":
        return simt_candidates.candidates((problem.batch, problem.m, problem.n, problem.k), most)
    return modelled(family, problem, target, most)


class Race:
    """One problem: those that enter are loaded and checked."""

    def __init__(self, bench: Bench, builder: Builder, target: Cuda, driver: Driver, entering: list[Choice]) -> None:
        self.bench, self.entering = bench, dict[str, Choice]()
        self.wrong: list[str] = []
        self.calls: dict[str, Any] = {}
        for family, config in entering:
            name = f"{family.name} {key_of(config)}"
            try:
                kernel = family.emit(bench.problem, target, config)
                call = Loaded(bench, kernel, builder.image(kernel), driver)
            except DeepgenError as error:
                self.wrong.append(f"{name}: {str(error)[:200]}")
                continue
            if bench.right(call):
                self.calls[name], self.entering[name] = call, (family, config)
            else:
                self.wrong.append(f"{name}: a wrong result")

    def timed(self, calls: dict[str, Any], rounds: int) -> dict[str, float]:
        """Median microseconds."""
        taken = interleaved(self.bench, calls, rounds)
        return {name: round(statistics.median(some), 2) for name, some in taken.items()}

    def run(self, target: Cuda) -> dict[str, Any]:
        problem = self.bench.problem
        heat = self.timed(self.calls, HEAT)
        best: dict[str, str] = {}
        for name in sorted(heat, key=lambda name: heat[name]):
            best.setdefault(self.entering[name][0].name, name)
        default = {f.name: name for name, (f, c) in self.entering.items() if c == f.default(problem, target)}
        last = {name: self.calls[name] for name in (*best.values(), *default.values())}
        others, absent = rivals(self.bench, with_triton=False)
        us = self.timed({**last, **{name: call for name, call in others.items() if name == RIVAL}}, FINAL)
        for call in self.calls.values():
            call.close()
        return {
            "operator": problem.to_json(),
            "best": {family: us[name] for family, name in best.items()},
            "default": {family: us[name] for family, name in default.items()},
            RIVAL: us.get(RIVAL, absent.get(RIVAL)),
            "configs": {family: self.entering[name][1] for family, name in best.items()},
            "tried": len(self.calls),
            "wrong": self.wrong,
        }


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Microseconds of each family's best and of the rival, by how many rows there are; our fastest is bold."""
    groups: dict[str, dict[str, dict[int, str]]] = {}
    for row in rows:
        p = Gemm.from_json(row["operator"])
        thin, name = (p.m, f"{p.n}x{p.k}") if p.m <= p.n else (p.n, f"{p.m}x{p.k}, N thin")
        group = groups.setdefault(f"{name} {p.a} {p.layout}", {})
        ahead = min(row["best"].values())
        for family, us in row["best"].items():
            group.setdefault(f"`{family}`", {})[thin] = f"**{us:.1f}**" if us == ahead else f"{us:.1f}"
        if isinstance(row[RIVAL], float):
            group.setdefault("cuBLASLt", {})[thin] = f"{row[RIVAL]:.1f}"
    lines = ["| | | " + " | ".join(map(str, ROWS)) + " |", "|---" * (2 + len(ROWS)) + "|"]
    order = ("`skinny_gemm`", "`mma_gemm`", "`sm90_gemm`", "`simt_gemm`", "cuBLASLt")
    for name, group in groups.items():
        present = [who for who in order if who in group]
        for who in present:
            cells = [name if who == present[0] else "", who, *(group[who].get(m, "") for m in ROWS)]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--few", type=int, default=3, help="configs of each family beside the one without search")
    parser.add_argument("--beside", type=Path, help="results of an earlier run, whose best configs enter, too")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no problem is begun")
    parser.add_argument("--cores", type=int, default=15)
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args(argv)
    file = options.out / FILE
    if options.show:
        print(table(json.loads(file.read_text())["rows"]))
        return
    begun = time.monotonic()
    torch, ends = gpu_torch(), begun + options.seconds
    found = json.loads(options.beside.read_text())["rows"] if options.beside else ()
    before = {key_of(row["operator"]): row["configs"] for row in found}
    rows: list[dict[str, Any]] = []
    told: dict[str, Any] = {
        "command": f"python benchmarks/h200/skinny_bench.py --few {options.few}" + " --beside FILE" * bool(before),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "conditions": {**conditions(), "l2": "cold", "rounds": FINAL, "sums": "of 8-bit floats in f32"},
        "sources": sources(TENSOR_CORES),
        "rows": rows,
    }
    with open_device(options.cores) as (builder, target, driver):
        flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        todo, building = list[tuple[Gemm, list[Choice]]](), list[Any]()
        for problem in problems():
            todo.append((problem, choices(problem, target, options.few, before.get(key_of(problem.to_json()), {}))))
            building += [builder.start(family.emit(problem, target, c)) for family, c in todo[-1][1]]
        wait(building)
        print(f"built, {time.monotonic() - begun:.0f} s", flush=True)
        for problem, entering in todo:
            if time.monotonic() > ends:
                break
            rows.append(Race(Bench(problem, flush), builder, target, driver, entering).run(target))
            file.write_text(by_lines(told))
            torch.cuda.empty_cache()
    print(table(rows))
    for row in rows:
        print("\n".join(row["wrong"]), end="\n" if row["wrong"] else "")
    wrong = sum(len(row["wrong"]) for row in rows)
    print(f"{len(rows)} of {len(todo)} problems, {wrong} configs wrong, {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    run_main(main)
