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
from deepgen.operators import Gemm  # noqa: E402
from deepgen.targets.cuda import parse_cuda  # noqa: E402
from deepgen.vocabulary import BadInput  # noqa: E402
from gpu_bench import sources, suite  # noqa: E402
from gpu_summary import BARS  # noqa: E402

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
FAMILIES = ("sm90_gemm", "mma_gemm", "skinny_gemm")
Run = dict[str, Any]


def read() -> dict[str, Run]:
    return {label: json.loads((RESULTS / f"{name}.json").read_text()) for label, name in RUNS.items()}


def read_races() -> dict[str, Run]:
    races: dict[str, Run] = json.loads((RESULTS / "settled.json").read_text())["formats"]
    return races


# The best that was measured of the kernels at hand -------------------------------------------------------------------


def evidence(runs: dict[str, Run], races: dict[str, Run]) -> dict[str, Run]:
    """Of each format the whole run, if what won there is of the sources at hand; what races showed, if not."""
    now, all_ = sources(FAMILIES), len(suite())

    def present(run: Run) -> bool:
        won = {row["family"] for row in run["rows"]}
        return len(run["rows"]) == all_ and all(run.get("sources", {}).get(family) == now[family] for family in won)

    return {label: _whole(runs[label]) if present(runs[label]) else race for label, race in races.items()}


def _whole(run: Run) -> Run:
    kept = [{k: row[k] for k in ("shape", "operator")} | _times(row["us"]) for row in run["rows"]]
    return {"how": "whole", "sources": run["sources"]["sm90_gemm"], "rows": kept}


def _times(us: dict[str, float]) -> dict[str, float]:
    return {"us": us["ours"], "cublaslt_us": us["cublaslt"], "ratio": us["cublaslt"] / us["ours"]}


def results(races: dict[str, Run]) -> list[str]:
    """Means and least ratios; from the second fastest to the fastest where the winner was not settled before."""
    lines = ["| | mean over cuBLASLt | least | aim | how | sources |", "|---|---|---|---|---|---|"]
    for label, race in races.items():
        low = {name(r["shape"]): r["ratio"] for r in race["rows"]}
        high = {name(r["shape"]): r["cublaslt_us"] / r.get("fastest_us", r["us"]) for r in race["rows"]}
        means = (statistics.geometric_mean(low.values()), statistics.geometric_mean(high.values()))
        worst = min(low, key=lambda shape: low[shape])
        mean, least = BARS[label.split()[0]]
        cells = [label, f"**{_range(*means)}**", f"{_range(low[worst], high[worst])} ({worst})", f"{mean}, {least}"]
        lines.append("| " + " | ".join([*cells, race["how"], race["sources"]]) + " |")
    return lines


def _range(low: float, high: float) -> str:
    return f"{low:.3f}" if low == high else f"{low:.3f} to {high:.3f}"


def shapes(races: dict[str, Run]) -> list[str]:
    """Ratios over cuBLASLt, a column for each format."""
    lines = ["| shape | " + " | ".join(races) + " |", "|---|" + "---|" * len(races)]
    for row in next(iter(races.values()))["rows"]:
        same = [next(r for r in race["rows"] if r["shape"] == row["shape"]) for race in races.values()]
        lines.append(f"| {name(row['shape'])} | " + " | ".join(f"{r['ratio']:.3f}" for r in same) + " |")
    return lines


def times(race: Run) -> list[str]:
    target = parse_cuda("h200")
    lines = ["| shape | us | cuBLASLt | TFLOP/s | of the roofline |", "|---|---|---|---|---|"]
    for row in race["rows"]:
        problem, us = Gemm.from_json(row["operator"]), row["us"]
        floors = {"products": problem.flops() / (target.peak(problem.a) or 1) / 1e3}
        floors["memory"] = problem.least_bytes() / target.bandwidth_gbs / 1e3
        bound = max(floors, key=lambda word: floors[word])
        cells = [name(row["shape"]), f"{us:.1f}", f"{row['cublaslt_us']:.1f}", f"{problem.flops() / us / 1e6:.0f}"]
        lines.append("| " + " | ".join([*cells, f"{floors[bound] / us:.0%} ({bound})"]) + " |")
    return lines


def layouts(nt: Run, nn: Run, run: Run) -> str:
    """How much longer nn takes than nt: from a run that timed both interleaved, if there is one.

    Otherwise cuBLASLt's own difference stands beside it, since the chip's clock may have changed between two runs.
    """
    both = {name(r["shape"]): r["us"]["ours"] / r["us"]["nt"] for r in run["rows"] if "nt" in r["us"]}
    if both:
        over = [f"{shape} {ratio:.3f}" for shape, ratio in both.items() if ratio > 1.03]
        words = f"Interleaved, nn takes {statistics.geometric_mean(both.values()):.3f} of nt's time in the mean"
        return f"{words} of {len(both)} shapes; more than 1.03: {', '.join(over) or 'none'}."
    before = {name(r["shape"]): r for r in nt["rows"]}
    ratios = {name(r["shape"]): r["us"] / before[name(r["shape"])]["us"] for r in nn["rows"]}
    rival = {name(r["shape"]): r["cublaslt_us"] / before[name(r["shape"])]["cublaslt_us"] for r in nn["rows"]}
    mean = statistics.geometric_mean(ratios.values())
    over = [f"{shape} {ratio:.3f} (cuBLASLt {rival[shape]:.3f})" for shape, ratio in ratios.items() if ratio > 1.03]
    words = f"In runs one after the other, nn takes {mean:.3f} of nt's time in the mean"
    return f"{words}; more than 1.03: {', '.join(over) or 'none'}."


# What whole runs measured -------------------------------------------------------------------------------------------


def overview(runs: dict[str, Run]) -> list[str]:
    lines = ["| | mean over cuBLASLt | least | over torch | over Triton | mean of defaults | sources |"]
    lines.append("|---|---|---|---|---|---|---|")
    for label, run in runs.items():
        told = run["summary"]
        means = [f"{told[r]['geomean']:.2f}" if r in told else "-" for r in RIVALS[1:]]
        defaults = [r["us"]["cublaslt"] / r["us"]["default"] for r in run["rows"] if "default" in r["us"]]
        default = f"{statistics.geometric_mean(defaults):.3f}" if len(defaults) == len(run["rows"]) else "-"
        over = told["cublaslt"]
        cells = [label, f"**{over['geomean']:.3f}**", f"{over['least']:.3f}", *means, default]
        lines.append("| " + " | ".join([*cells, run.get("sources", {}).get("sm90_gemm", "earlier")]) + " |")
    return lines


def short(runs: dict[str, Run]) -> list[str]:
    """Which aims are reached, and by how much the others are missed."""
    lines = []
    for label, run in runs.items():
        told = run["summary"]
        under = [f"{name(m['shape'])} by {m['by']:.3f}" for m in told["under_the_bar"]]
        missed = [f"its mean by {told['short_of_the_mean_by']:.3f}"] if told["short_of_the_mean_by"] > 0 else []
        lines.append(f"- {label}: " + ("reached." if told["reached"] else f"misses {', '.join([*missed, *under])}."))
    return lines


def misses(runs: dict[str, Run]) -> list[str]:
    """Shapes under the least that is asked for (!), and, where the mean falls short, others that were looked into."""
    lines = ["| | shape | ratio | what is gained without which part, counters, times |", "|---|---|---|---|"]
    for label, run in runs.items():
        told = run["summary"]
        found = [(told["bar"]["least"] - miss["by"], "!", miss) for miss in told["under_the_bar"]]
        found += [(miss["ratio"], "", miss) for miss in told.get("under_par", ()) if _ablated(run, miss)]
        for ratio, mark, miss in sorted(found, key=lambda f: f[0]):
            lines.append(f"| {label} | {name(miss['shape'])} | {ratio:.3f}{mark} | {miss['limiter']} |")
    return lines


def _ablated(run: Run, miss: dict[str, Any]) -> bool:
    return any("limiter" in row for row in run["rows"] if row["shape"] == miss["shape"])


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
    runs, races = read(), read_races()
    best = evidence(runs, races)
    return {
        "results": results(best),
        "shapes": shapes(best),
        "times": times(best["bf16 nt"]),
        "layouts": [layouts(races["bf16 nt"], races["bf16 nn"], runs["bf16 nn"])],
        "overview": overview(runs),
        "short": short(runs),
        "misses": misses(runs),
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
