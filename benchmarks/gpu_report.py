"""The tables of docs/tensor-cores.md from the results under benchmarks/h200.

python benchmarks/gpu_report.py
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from gpu_bench import sources  # noqa: E402

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
RIVALS = ("cublaslt", "torch", "triton")


def read() -> dict[str, dict[str, Any]]:
    return {label: json.loads((RESULTS / f"{name}.json").read_text()) for label, name in RUNS.items()}


def overview(runs: dict[str, dict[str, Any]]) -> list[str]:
    lines = ["| | mean over cuBLASLt | least | aim | under the least | over torch | over Triton | mean of defaults |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for label, run in runs.items():
        told = run["summary"]
        means = [f"{told[r]['geomean']:.2f}" if r in told else "-" for r in RIVALS[1:]]
        over, bar = told["cublaslt"], told["bar"]
        defaults = [r["us"]["cublaslt"] / r["us"]["default"] for r in run["rows"] if "default" in r["us"]]
        default = f"{statistics.geometric_mean(defaults):.3f}" if len(defaults) == len(run["rows"]) else "-"
        cells = [label, f"**{over['geomean']:.3f}**", f"{over['least']:.3f}", f"{bar['geomean']}, {bar['least']}"]
        lines.append("| " + " | ".join([*cells, str(len(told["under_the_bar"])), *means, default]) + " |")
    return lines


def shapes(runs: dict[str, dict[str, Any]]) -> list[str]:
    """Ratios over cuBLASLt, a column for each run, and microseconds of the first."""
    first = next(iter(runs.values()))
    lines = ["| shape | " + " | ".join(runs) + " |", "|---|" + "---|" * len(runs)]
    for row in first["rows"]:
        cells = [name(row["shape"])]
        for run in runs.values():
            same = [r for r in run["rows"] if r["shape"] == row["shape"]]
            family = {"sm90_gemm": "", "mma_gemm": " m", "skinny_gemm": " s"}
            cells += [f"{r['ratio']['cublaslt']:.3f}{family[r['family']]}" for r in same] or ["-"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def times(run: dict[str, Any]) -> list[str]:
    lines = ["| shape | us | cuBLASLt | torch | Triton | TFLOP/s | of the roofline |", "|---|---|---|---|---|---|---|"]
    for row in run["rows"]:
        us = [f"{row['us'][n]:.1f}" if n in row["us"] else "-" for n in ("ours", *RIVALS)]
        share = f"{row['roofline']['share']:.0%} ({row['roofline']['bound']})"
        lines.append("| " + " | ".join([name(row["shape"]), *us, f"{row['tflops']:.0f}", share]) + " |")
    return lines


def misses(runs: dict[str, dict[str, Any]]) -> list[str]:
    """Shapes under the least that is asked for (!), and, where the mean falls short, all others under par."""
    lines = ["| | shape | ratio | what is gained without which part, counters, times |", "|---|---|---|---|"]
    for label, run in runs.items():
        told = run["summary"]
        found = [(told["bar"]["least"] - miss["by"], "!", miss) for miss in told["under_the_bar"]]
        found += [(miss["ratio"], "", miss) for miss in told.get("under_par", ())]
        for ratio, mark, miss in sorted(found, key=lambda f: f[0]):
            lines.append(f"| {label} | {name(miss['shape'])} | {ratio:.3f}{mark} | {miss['limiter']} |")
    return lines


def short(runs: dict[str, dict[str, Any]]) -> list[str]:
    """Which aims are reached, and by how much the others are missed."""
    lines = []
    for label, run in runs.items():
        told = run["summary"]
        under = [f"{name(m['shape'])} by {m['by']:.3f}" for m in told["under_the_bar"]]
        missed = [f"its mean by {told['short_of_the_mean_by']:.3f}"] if told["short_of_the_mean_by"] > 0 else []
        lines.append(f"- {label}: " + ("reached." if told["reached"] else f"misses {', '.join([*missed, *under])}."))
    return lines


def layouts(run: dict[str, Any]) -> str:
    """How much longer nn takes than nt, interleaved."""
    ratios = {tuple(r["shape"]): r["us"]["ours"] / r["us"]["nt"] for r in run["rows"] if "nt" in r["us"]}
    mean = statistics.geometric_mean(ratios.values())
    over = [f"{name(shape)} {ratio:.3f}" for shape, ratio in ratios.items() if ratio > 1.03]
    return f"nn takes {mean:.3f} of nt's time in the mean; more than 1.03: {', '.join(over) or 'none'}."


def ran_with(runs: dict[str, dict[str, Any]]) -> list[str]:
    """When, and with which kernels."""
    groups: dict[str, list[str]] = {}
    for label, run in runs.items():
        made = ", ".join(f"{family} {digest}" for family, digest in run["sources"].items())
        groups.setdefault(f"{run['date']}, sources {made}", []).append(label)
    return [f"- {'; '.join(labels)}: {words}." for words, labels in groups.items()]


def stale(runs: dict[str, dict[str, Any]]) -> str:
    """Runs whose kernels are not those at hand."""
    now = sources(next(iter(runs.values()))["sources"])
    old = [label for label, run in runs.items() if run["sources"] != now]
    return f"Sources have changed since these ran: {', '.join(old) or 'none'}."


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


def parts(runs: dict[str, dict[str, Any]]) -> list[list[str]]:
    """As they stand on the page."""
    tables = [ran_with(runs), overview(runs), short(runs), shapes(runs), times(runs["bf16 nt"])]
    return [*tables, [layouts(runs["bf16 nn"])], misses(runs), replayed()]


def main() -> None:
    runs = read()
    for part in [*parts(runs), [stale(runs)]]:
        print("\n".join(part) + "\n")


if __name__ == "__main__":
    main()
