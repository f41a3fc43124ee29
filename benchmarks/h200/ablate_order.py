"""How the order of tiles shows in a large product: time, clock, and reads that multiprocessors share.

One tile (128 x 176, two warpgroups that take turns) on 4096x14336x4096 in bf16, alone and in pairs of blocks, in every
order that the family has. Timed interleaved with cuBLASLt, then looked at by ncu. Writes OUT/ablate_order.json, from
which gpu_gemm.py takes the best.

    python benchmarks/h200/ablate_order.py --out benchmarks/h200
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "src")]

from ablate import FAMILY, Ablation, Case, under_par  # noqa: E402
from ablate_counters import count  # noqa: E402

from common import run_main  # noqa: E402
from deepgen.baselines.cublaslt import CublasLt  # noqa: E402
from deepgen.generators import by_name  # noqa: E402
from deepgen.kernels.gemm.sm90_gemm.defaults import Way, config  # noqa: E402
from deepgen.operators import gemm  # noqa: E402
from deepgen.targets import Cuda  # noqa: E402
from deepgen.targets.cuda import parse_cuda  # noqa: E402
from deepgen.vocabulary import DeepgenError  # noqa: E402
from gpu_bench import FLUSH_BYTES, Bench, Config, conditions, gpu_torch, interleaved, open_device, sources  # noqa: E402

RUN, SHAPE, COLUMNS, ROUNDS = "gemm_bf16_nt", (4096, 14336, 4096), 176, 21


def orders(target: Cuda) -> list[Config]:
    problem = gemm(*SHAPE, dtype="bf16", layout="nt")
    space = by_name(FAMILY).space(problem, target)
    values = {knob.name: knob.values for knob in space.knobs}
    found = []
    for cluster in ((1, 1), (2, 1)):
        base = config(problem, target, Way(2, 2, COLUMNS, turns=True, cluster=cluster))
        assert base is not None, "stages fit"
        changed = [{"GROUP": g, "ALONG": along} for along in values["ALONG"] for g in values["GROUP"]]
        changed += [{"HILBERT": True}] if "HILBERT" in values else []
        found += [c for change in changed if not space.explain(c := {**base, **change})]
    return found


def raced(cases: list[Case], cache: Path | None) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Conditions, and microseconds of each order over those of cuBLASLt, interleaved."""
    torch = gpu_torch()
    problem = gemm(*SHAPE, dtype="bf16", layout="nt")
    with open_device(16, cache) as (builder, target, driver):
        flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        bench, ablation = Bench(problem, flush), Ablation(builder, target, driver, flush)
        for case in cases:
            builder.start(ablation.kernel(case))
        calls: dict[str, Any] = {str(i): ablation.load(bench, ablation.kernel(case)) for i, case in enumerate(cases)}
        if not all(bench.right(call) for call in calls.values()):
            raise DeepgenError("an order of tiles changed the results")
        calls["cublaslt"] = CublasLt().prepare(problem, bench.places, 1)
        us = {name: statistics.median(some) for name, some in interleaved(bench, calls, ROUNDS).items()}
    rows = [
        {
            "operator": problem.to_json(),
            "family": FAMILY,
            "config": case.config,
            "us": us[str(i)],
            "ratio": us["cublaslt"] / us[str(i)],
        }
        for i, case in enumerate(cases)
    ]
    return conditions(), rows


def listed(folder: Path) -> list[Case]:
    """The orders as a result file, which is how ncu's run of them is told which they are."""
    problem = gemm(*SHAPE, dtype="bf16", layout="nt")
    common = {"operator": problem.to_json(), "family": FAMILY, "ratio": {"cublaslt": 0.0}}
    rows = [{**common, "config": c} for c in orders(parse_cuda("h200"))]
    (folder / f"{RUN}.json").write_text(json.dumps({"rows": rows}))
    return under_par(folder, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, help="a folder of built kernels that other runs share")
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        cases = listed(Path(made))
        seen, rows = raced(cases, options.cache)
        kept = ["--cache", str(options.cache)] if options.cache else []
        counted = count(cases, ["--results", made, *kept])
    for row, counters in zip(rows, counted, strict=True):
        row["counters"] = counters["ours"]
    rows.sort(key=lambda row: float(row["us"]))
    for place, row in enumerate(rows):
        row["place"] = place
        c, k = row["config"], row["counters"]
        order = "Hilbert" if c.get("HILBERT") else f"{c['GROUP']} along {c['ALONG']}"
        print(
            f"{c['CLUSTER_M']}x{c['CLUSTER_N']} {order:12} {row['us']:.1f} us {row['ratio']:.3f} "
            f"tensor {k['tensor_pct']:.1f}% L2 {k['l2_reads'] / 1e6:.0f} of {k['sm_reads'] / 1e6:.0f} M, "
            f"memory {k['dram_read'] / 1e6:.0f} MB"
        )
    theirs = {
        "sources": sources((FAMILY,))[FAMILY],
        "cublaslt": counted[0]["cublaslt"],
        "conditions": {**seen, "l2": "cold", "rounds": ROUNDS},
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "ablate_order.json").write_text(json.dumps({**theirs, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    run_main(main)
