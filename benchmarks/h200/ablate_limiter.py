"""What limits each shape under par, in a sentence, from ablate.json and ablate_counters.json into the result files.

Needs no GPU:

    python benchmarks/h200/ablate_limiter.py --results benchmarks/h200
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from gpu_summary import summary  # noqa: E402

LEAST = 0.03  # of the time: what is gained by less is not named

Row = dict[str, Any]


def limiter(row: Row, counted: Row | None) -> str:
    """What is gained without which part, the largest first; then what the counters say, and the times."""
    us, zeros = row["us"]["drawn"], row["us"]["zeros"]
    whole = us["whole"]
    costs = {
        "power": whole - zeros["whole"],
        "storing results": whole - us["no_stores"],
        "fetching tiles": whole - us["products"],
    }
    named = [
        f"{name} {cost / whole:.0%}"
        for name, cost in sorted(costs.items(), key=lambda c: -c[1])
        if cost > LEAST * whole
    ]
    words = [", ".join(named) or "no part of it: a launch, the first tile and the last results follow one another"]
    if counted:
        ours, theirs = counted["ours"], counted["cublaslt"]
        busy = [f"{k['tensor_pct']:.0f}% of cycles at {k['hz'] / 1e6:.0f} MHz" for k in (ours, theirs)]
        words.append(f"tensor cores busy {busy[0]}, cuBLASLt's {busy[1]}")
        if "l2_reads" in ours:
            words.append(f"{ours['l2_reads'] / theirs['l2_reads']:.2f} of its reads from L2")
    words.append(f"{whole:.1f} us where cuBLASLt takes {us['cublaslt']:.1f}")
    words.append(f"on zeros {zeros['whole']:.1f} and {zeros['cublaslt']:.1f}")
    words.append(f"without stores {us['no_stores']:.1f}, fetches {us['products']:.1f}, products {us['copies']:.1f}")
    return "; ".join(words)


def key(row: Row) -> tuple[str, tuple[int, ...]]:
    return row["run"], tuple(row["shape"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE, help="the folder of results and ablations")
    folder: Path = parser.parse_args().results
    counters = folder / "ablate_counters.json"
    counted = {key(row): row for row in json.loads(counters.read_text())} if counters.exists() else {}
    told = {key(r): limiter(r, counted.get(key(r))) for r in json.loads((folder / "ablate.json").read_text())["rows"]}
    for run in sorted({run for run, _ in told}):
        file = folder / f"{run}.json"
        result = json.loads(file.read_text())
        for row in result["rows"]:
            words = told.get((run, tuple(row["shape"])))
            if words is not None:
                row["limiter"] = words
                print(run, row["shape"], f"{row['ratio']['cublaslt']:.3f}", words)
        result["summary"] = summary(result["rows"], result["rows"][0]["operator"]["a"])
        file.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
