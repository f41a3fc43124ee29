"""Are right kernels called right, and is a short search short? Large results on an H200, in a few minutes.

    PYTHONPATH=src python benchmarks/h200/open_spine.py --seconds 540 --out benchmarks/h200/open_spine.json

`verdicts`: f32 problems whose long sums were once called wrong: no verdict may be wrong, cuBLASLt's included.
`totals`: what a search of some seconds takes in all where results are large, references and finals included.
`references`: each format's reference as the device computes it, compared with numpy on a thousand elements.
`sums`: long sums of 16-bit numbers with f32 results: how much of the tolerance the baselines' errors take.

A part that the time does not suffice for is left out and told. With `--target sim` there are searches only.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "src")]

import deepgen as dg  # noqa: E402
from deepgen import targets  # noqa: E402
from deepgen.operators import Gemm, gemm  # noqa: E402
from deepgen.run.measure.base import Contender, Task  # noqa: E402
from deepgen.run.measure.gpu_bench import GpuBench  # noqa: E402
from deepgen.run.measure.gpu_checks import Checks  # noqa: E402
from deepgen.run.measure.gpu_reference import DeviceReference  # noqa: E402
from deepgen.run.measure.helpers import build_helpers  # noqa: E402
from deepgen.targets import Cuda, Target  # noqa: E402
from deepgen.targets.gpu_driver import CUDA, Driver  # noqa: E402
from deepgen.toolchains import build_once  # noqa: E402
from deepgen.tuning.engines import LocalEngine  # noqa: E402
from deepgen.vocabulary import DeepgenError  # noqa: E402

MOST_BEYOND = 10.0  # seconds that a search may take beside its budget
WRONG_BEFORE = (gemm(7680, 2560, 2560), gemm(1760, 7000, 1760))
LARGE = (
    gemm(10240, 10240, 512, dtype="bf16", layout="nt"),
    gemm(10240, 10240, 512, layout="nt"),
    gemm(3072, 3072, 64, dtype="bf16", layout="nt", batch=12),
)
ODD = (1000, 1111, 1234)
FORMATS = ("f64", "f32", "tf32", "f16", "bf16", "f8e4m3", "f8e5m2", "i8")
LONG = tuple(gemm(2048, 2048, k, dtype=of, c="f32", layout="nt") for of in ("f16", "bf16") for k in (2048, 16384))
USUAL_SECONDS = {"verdicts": 40.0, "totals": 60.0, "references": 40.0, "sums": 60.0}  # of a part

Row = dict[str, Any]


def searched(operator: Gemm, target: Target, search: float, folder: Path) -> Row:
    """One search from nothing: its verdicts, its time in all, the baselines."""
    engine = LocalEngine(cache=folder / "cache")
    started = time.monotonic()
    study = dg.tune(operator, target=target, trials=100_000, time_budget=search, out=folder / "studies", engine=engine)
    took = time.monotonic() - started
    summary: Row = dict(study.summary())
    finals = study.finals() or {}
    told = {str(row.get("reference")) for row in finals.get("conditions", []) if isinstance(row, dict)}
    return {
        "problem": operator.describe(),
        "search_seconds": search,
        "total_seconds": took,
        "trials": summary["trials"],
        "winner_seconds": (summary["winner"] or {}).get("seconds"),
        "baselines": summary["baselines"],
        "baselines_lost": summary["baselines_lost"],
        "dropped": finals.get("dropped", []),
        "references": sorted(told),
    }


def verdicts(target: Target, search: float, folder: Path) -> Iterator[Row]:
    for operator in WRONG_BEFORE:
        row = searched(operator, target, search, folder)
        lost = row["trials"].get("wrong", 0) + len(row["baselines_lost"]) + len(row["dropped"])
        yield {**row, "ok": lost == 0 and (bool(row["baselines"]) or not isinstance(target, Cuda))}


def totals(target: Target, search: float, folder: Path) -> Iterator[Row]:
    for operator in LARGE:
        row = searched(operator, target, search, folder)
        yield {**row, "ok": row["total_seconds"] <= search + MOST_BEYOND}


def references(target: Target, search: float, folder: Path) -> Iterator[Row]:
    """Every format, on inputs of every kind; then the largest, timed."""
    driver = Driver(CUDA)
    for operator in (*(gemm(*ODD, dtype=of, layout="nt") for of in FORMATS), *LARGE):
        task = Task(operator, target)
        helpers = build_helpers(task, lambda kernel: build_once(kernel, target))
        checks = Checks(driver, helpers["harness"].binary.read_bytes())
        reference = DeviceReference(driver, helpers["reference"])
        told, taken = {}, {}
        for probe in operator.probes() if operator not in LARGE else ("normal",):
            started = time.monotonic()
            bench = GpuBench(driver, checks, operator, 1, probe, folder, reference)
            taken[probe], told[probe] = time.monotonic() - started, bench.reference
            bench.close()
        ok = set(told.values()) == {"device"}
        yield {"problem": operator.describe(), "references": told, "bench_seconds": taken, "ok": ok}


def sums(target: Target, search: float, folder: Path) -> Iterator[Row]:
    for operator in LONG:
        with LocalEngine(cache=folder / "cache").open(Task(operator, target)) as session:
            names = session.baselines()
            measured = session.compare([Contender(name) for name in names], 3, 1)
        told = {n: {"verdict": str(m.verdict), "error": m.error} for n, m in zip(names, measured, strict=True)}
        yield {"problem": operator.describe(), "baselines": told, "ok": all(m.ok for m in measured)}


PARTS: dict[str, Callable[[Target, float, Path], Iterator[Row]]] = {
    "verdicts": verdicts,
    "totals": totals,
    "references": references,
    "sums": sums,
}


def words(part: str, row: Row) -> str:
    if part == "references":
        seconds = max(row["bench_seconds"].values())
        return f"{', '.join(sorted(set(row['references'].values())))}; a bench at most {seconds:.2f} s"
    if part == "sums":
        shares = (f"{name} {told['verdict']} {told['error']}" for name, told in row["baselines"].items())
        return "share of the tolerance: " + ", ".join(shares)
    ratios = ", ".join(f"{b['name']} {b['ratio']:.3f}" for b in row["baselines"]) or "no baselines"
    lost = "".join(f"; {b['name']} {b['verdict']}" for b in row["baselines_lost"])
    return f"{row['total_seconds']:.1f} s in all; {row['trials']}; ours against {ratios}{lost}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=540.0, help="no part begins that would end later [540]")
    parser.add_argument("--search", type=float, default=8.0, help="seconds of each search [8]")
    parser.add_argument("--target", default="cuda:native", help="[cuda:native]")
    parser.add_argument("--only", nargs="*", choices=PARTS, help="these parts")
    parser.add_argument("--out", type=Path, default=Path("open_spine.json"))
    given = parser.parse_args(argv)
    target = targets.resolve(given.target)
    names = [n for n in given.only or PARTS if isinstance(target, Cuda) or n in ("verdicts", "totals")]
    end = time.monotonic() + given.seconds
    record: Row = {"target": target.to_json(), "parts": {}, "left_out": []}
    for name in names:
        if time.monotonic() + USUAL_SECONDS[name] * given.search / 8.0 > end:
            record["left_out"].append(name)
            print(f"{name:10}  left out: the time does not suffice", flush=True)
            continue
        record["parts"][name] = _told(name, target, given.search)
        given.out.write_text(json.dumps(record, indent=1) + "\n")
    bad = [row for rows in record["parts"].values() for row in rows if not row["ok"]]
    print(f"{sum(map(len, record['parts'].values()))} rows, {len(bad)} bad")
    return 1 if bad or record["left_out"] else 0


def _told(name: str, target: Target, search: float) -> list[Row]:
    """The rows of a part, printed as they come; an error ends the part and is its last row."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for row in PARTS[name](target, search, Path(folder)):
                rows.append(row)
                mark = "ok " if row["ok"] else "BAD"
                print(f"{name:10}  {mark}  {row['problem']:32}  {words(name, row)}", flush=True)
        except DeepgenError as error:
            rows.append({"problem": "", "error": str(error), "ok": False})
            print(f"{name:10}  BAD  {error}", flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
