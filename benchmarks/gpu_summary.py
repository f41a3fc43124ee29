"""What a run of the GPU benchmark comes to: means and least ratios, what misses its bar by how much, and a table."""

from __future__ import annotations

import statistics
from typing import Any

# The least geometric mean over cuBLASLt, and the least of any shape.
BARS = {"f32": (1.10, 0.95), "bf16": (1.06, 0.97), "f16": (1.06, 0.97), "f8e4m3": (1.05, 0.95), "i8": (1.05, 0.95)}
BARS["tf32"] = (1.08, 0.97)


def summary(rows: list[dict[str, Any]], dtype: str) -> dict[str, Any]:
    """Means and least ratios over each rival; by how much a bar is missed, and where."""
    out: dict[str, Any] = {}
    for rival in dict.fromkeys(name for row in rows for name in row["ratio"]):
        ratios = [row["ratio"][rival] for row in rows if rival in row["ratio"]]
        geomean = statistics.geometric_mean(ratios)
        out[rival] = {"geomean": geomean, "least": min(ratios), "shapes": len(ratios)}
    mean, least = BARS.get(dtype, (1.0, 1.0))
    over = out.get("cublaslt", {"geomean": 0.0, "least": 0.0})
    out["bar"] = {"geomean": mean, "least": least}
    out["reached"] = over["geomean"] >= mean and over["least"] >= least
    out["short_of_the_mean_by"] = max(mean - over["geomean"], 0.0)
    out["under_the_bar"] = [
        {"shape": row["shape"], "by": least - row["ratio"]["cublaslt"], "limiter": limiter(row)}
        for row in rows
        if row["ratio"].get("cublaslt", least) < least
    ]
    out["all_correct"] = all(all(row["correct"].values()) for row in rows)
    return out


def limiter(row: dict[str, Any]) -> str:
    """What an ablation of the row showed (h200/ablate.py); before there is one, what flops, bytes and time tell."""
    if "limiter" in row:
        return str(row["limiter"])
    bound, share = row["roofline"]["bound"], row["roofline"]["share"]
    rival = share / row["ratio"]["cublaslt"]
    words = f"bound by {bound}: {share:.0%} of the roofline ({row['tflops']:.0f} TFLOP/s, {row['gbs']:.0f} GB/s)"
    return f"{words}; cuBLASLt {rival:.0%}; best by {row['family']} of {row['tried']} configs tried"


def show(rows: list[dict[str, Any]], told: dict[str, Any]) -> None:
    names = ("ours", "default", "cublaslt", "torch", "triton")
    print(f"{'(batch, M, N, K)':>24} " + " ".join(f"{n:>9}" for n in names) + "  TFLOP/s  roof  ratio family")
    for row in rows:
        times = " ".join(f"{row['us'].get(n, float('nan')):9.1f}" for n in names)
        wrong = "" if all(row["correct"].values()) else f"  WRONG {row['correct']}"
        share, ratio = row["roofline"]["share"], row["ratio"].get("cublaslt", float("nan"))
        print(
            f"{tuple(row['shape'])!s:>24} {times} {row['tflops']:8.1f} {share:5.2f} {ratio:6.3f} {row['family']}{wrong}"
        )
    for rival in names[1:]:
        if rival in told:
            print(f"over {rival}: geometric mean {told[rival]['geomean']:.3f}, least {told[rival]['least']:.3f}")
    print("the bar", told["bar"], "is reached" if told["reached"] else "is not reached", flush=True)
