"""The tables of docs/tensor-cores.md from the results under benchmarks/h200.

    python benchmarks/gpu_report.py
    python benchmarks/gpu_report.py --page docs/tensor-cores.md

The second form writes them into the page, between the marks `<!-- NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from common import run_main  # noqa: E402
from deepgen.vocabulary import BadInput  # noqa: E402
from gpu_bench import sources  # noqa: E402
from gpu_summary import limiter  # noqa: E402

RESULTS, REPLAY = HERE / "h200", HERE / "h200/recorded/replay.json"
RUNS = {
    "bf16 nt": "gemm_bf16_nt",
    "bf16 nn": "gemm_bf16_nn",
    "f16 nt": "gemm_f16_nt",
    "f8e4m3 nt, fast sums": "gemm_f8e4m3_nt_fast",
    "f8e4m3 nt, sums in f32": "gemm_f8e4m3_nt_exact",
    "i8 nt": "gemm_i8_nt",
    "tf32 nt": "gemm_tf32_nt",
}
RIVALS = ("torch", "triton")  # beside cuBLASLt
FAMILIES = ("sm90_gemm", "mma_gemm", "skinny_gemm")
Run = dict[str, Any]


def results(runs: dict[str, Run]) -> list[str]:
    """Means and least ratios over cuBLASLt, means over the others, and what one gets without a search."""
    lines = ["| | mean over cuBLASLt | least | aim | over torch | over Triton | defaults over cuBLASLt | sources |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for label, run in runs.items():
        told, rows = run["summary"], run["rows"]
        worst = min(rows, key=lambda row: float(row["ratio"]["cublaslt"]))
        cells = [label, f"**{told['cublaslt']['geomean']:.3f}**"]
        cells += [f"{told['cublaslt']['least']:.3f} ({name(worst['shape'])})"]
        cells += [f"{told['bar']['geomean']}, {told['bar']['least']}" + ("" if told["reached"] else ": **missed**")]
        cells += [f"{told[rival]['geomean']:.2f}" if rival in told else "-" for rival in RIVALS]
        defaults = [row["us"]["cublaslt"] / row["us"]["default"] for row in rows if "default" in row["us"]]
        cells += [f"{statistics.geometric_mean(defaults):.3f}" if len(defaults) == len(rows) else "-"]
        lines.append("| " + " | ".join([*cells, run["sources"]["sm90_gemm"]]) + " |")
    return lines


def shapes(runs: dict[str, Run]) -> list[str]:
    """Ratios over cuBLASLt, a column for each format."""
    lines = ["| shape | " + " | ".join(runs) + " |", "|---|" + "---|" * len(runs)]
    for row in next(iter(runs.values()))["rows"]:
        same = [next(r for r in run["rows"] if r["shape"] == row["shape"]) for run in runs.values()]
        lines.append(f"| {name(row['shape'])} | " + " | ".join(f"{r['ratio']['cublaslt']:.3f}" for r in same) + " |")
    return lines


def times(run: Run) -> list[str]:
    lines = ["| shape | us | cuBLASLt | TFLOP/s | of the roofline | by |", "|---|---|---|---|---|---|"]
    for row in run["rows"]:
        roof, us = row["roofline"], row["us"]
        cells = [name(row["shape"]), f"{us['ours']:.1f}", f"{us['cublaslt']:.1f}", f"{row['tflops']:.0f}"]
        cells += [f"{roof['share']:.0%} ({roof['bound']})", f"`{row['family']}`"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def layouts(nn: Run) -> str:
    """How much longer nn takes than nt, timed interleaved."""
    both = {name(r["shape"]): r["us"]["ours"] / r["us"]["nt"] for r in nn["rows"] if "nt" in r["us"]}
    over = [f"{shape} {ratio:.3f}" for shape, ratio in both.items() if ratio > 1.03]
    most = max(both, key=lambda shape: both[shape])
    words = f"Interleaved, nn takes {statistics.geometric_mean(both.values()):.3f} of nt's time in the mean"
    words += f" of {len(both)} shapes and {both[most]:.3f} at most ({most})"
    return f"{words}; more than 1.03: {', '.join(over) or 'none'}."


def behind(runs: dict[str, Run]) -> list[str]:
    """Shapes under the least that is asked for (!), and others behind cuBLASLt that were looked into."""
    lines = ["| | shape | ratio | what is gained without which part, counters, times |", "|---|---|---|---|"]
    for label, run in runs.items():
        least = run["summary"]["bar"]["least"]
        for row in sorted(run["rows"], key=lambda row: float(row["ratio"]["cublaslt"])):
            ratio = row["ratio"]["cublaslt"]
            if ratio < least or (ratio < 1.0 and "limiter" in row):
                mark = "!" if ratio < least else ""
                lines.append(f"| {label} | {name(row['shape'])} | {ratio:.3f}{mark} | {limiter(row)} |")
    return lines


def orders(found: dict[str, Any]) -> list[str]:
    """The same tiles in other orders, and what the counters say of each."""
    lines = [
        "| order | over cuBLASLt | MHz | tensor cores busy | reads of L2, millions of 32 bytes | from memory, MB |"
    ]
    lines.append("|---|---|---|---|---|---|")
    for row in found["rows"]:
        c = row["config"]
        blocks = "alone" if c["CLUSTER_M"] * c["CLUSTER_N"] == 1 else "pairs"
        order = "along a curve" if c["HILBERT"] else f"bands of {c['GROUP']} along {c['ALONG']}"
        lines.append(f"| {blocks}, {order} | {row['ratio']:.3f} | {_counted(row['counters'])} |")
    return [*lines, f"| cuBLASLt | 1 | {_counted(found['cublaslt'])} |"]


def _counted(counters: dict[str, float]) -> str:
    cells = [f"{counters['hz'] / 1e6:.0f}", f"{counters['tensor_pct']:.1f}%"]
    return " | ".join([*cells, f"{counters['l2_reads'] / 1e6:.0f}", f"{counters['dram_read'] / 1e6:.0f}"])


def replayed() -> list[str]:
    told = json.loads(REPLAY.read_text())["strategies"]
    lines = ["| | strategy | 25 | 50 | 100 | 200 |", "|---|---|---|---|---|---|"]
    for space in told["model"]["spaces"]:
        for word, result in told.items():
            points = result["spaces"].get(space, {})
            cells = [f"{mean:.3f} ({low:.3f} to {high:.3f})" for mean, low, high in points.values()]
            lines.append("| " + " | ".join([space.removeprefix("sm90_gemm_bf16_"), f"`{word}`", *cells]) + " |")
    return lines


def name(shape: Any) -> str:
    batch, m, n, k = shape
    return f"{batch} of {m}x{n}x{k}" if batch > 1 else f"{m}x{n}x{k}"


def parts() -> dict[str, list[str]]:
    """As they stand on the page."""
    runs = {label: json.loads((RESULTS / f"{name}.json").read_text()) for label, name in RUNS.items()}
    return {
        "results": results(runs),
        "shapes": shapes(runs),
        "times": times(runs["bf16 nt"]),
        "layouts": [layouts(runs["bf16 nn"])],
        "behind": behind(runs),
        "orders": orders(json.loads((RESULTS / "ablate_order.json").read_text())),
        "replayed": replayed(),
    }


def written(page: str) -> str:
    """The page with its parts made anew."""
    for part, lines in parts().items():
        mark = f"<!-- {part} -->\n"
        if mark not in page:
            raise BadInput(f"the page has no place for {part}", allowed=f"{mark.strip()}, lines, and <!-- end -->")
        head, rest = page.split(mark)
        page = head + mark + "\n".join(lines) + "\n" + rest[rest.index("<!-- end -->") :]
    return page


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="write the tables into this file")
    page: Path | None = parser.parse_args(argv).page
    if page is not None:
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
        return
    for part in parts().values():
        print("\n".join(part) + "\n")
    print("Sources at hand:", sources(FAMILIES))


if __name__ == "__main__":
    run_main(main)
