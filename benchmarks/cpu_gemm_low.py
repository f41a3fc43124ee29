"""bf16 and 8-bit GEMM on this machine's processor against torch (oneDNN): verified, timed side by side.

    python benchmarks/cpu_gemm_low.py                                  bf16, the suite, default configs, one thread
    python benchmarks/cpu_gemm_low.py --dtype i8 --seconds 60          each shape tuned first
    python benchmarks/cpu_gemm_low.py --dtype i8 --vnni                AMX switched off on both sides
    python benchmarks/cpu_gemm_low.py --dtype u8 --shape 1024x1024x1024 --layout nt
    python benchmarks/cpu_gemm_low.py --summary                        what the results say against the goals

The torch operators are torch.matmul (bf16) and torch._int_mm (i8 x i8 and u8 x i8), both into a given output.
Everything else is as in cpu_gemm.py, whose harness this uses.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cpu_gemm import ENOUGH, HERE, OURS, SUITES, Job, merge, read
from deepgen import generators, targets
from deepgen.measure.peak import arithmetic, x86_bounds
from deepgen.operators import Gemm, gemm
from deepgen.targets import X86
from deepgen.vocabulary import DeepgenError

RESULTS = HERE / "results" / "cpu_gemm_low.json"
AMX, VNNI = "x86_amx_gemm", "x86_vector_dot_gemm"
# generator, A's dtype, batched -> geometric mean, least ratio
GOALS = {
    (AMX, "bf16", False): (1.40, 1.0),
    (AMX, "bf16", True): (1.5, 1.0),
    (AMX, "i8", False): (2.0, 1.1),
    (AMX, "u8", False): (2.0, 1.1),
    (VNNI, "i8", False): (1.10, 0.95),
    (VNNI, "u8", False): (1.10, 0.95),
}


@dataclass(frozen=True)
class LowJob(Job):
    """Bounded by what dot products do, not by what the sums' dtype does."""

    def bound_seconds(self, cold: bool) -> float:
        bounds = x86_bounds(self.target, arithmetic(self.operator, self.target) or "f32", self.threads)
        compute = self.operator.flops() / bounds.gflops * 1e-9
        memory = self.operator.least_bytes() / bounds.gbytes_per_second * 1e-9
        return max(compute, memory) if cold or self.operator.least_bytes() > self.target.l3_bytes else compute


def main() -> None:
    options = _options()
    if not options.summary:
        _measure(options)
    if options.out.exists():
        print(summary(read(options.out)))


def _measure(options: argparse.Namespace) -> None:
    target = targets.resolve("x86:avx512_bf16" if options.vnni else "x86:native")
    if not isinstance(target, X86):
        raise DeepgenError(f"{target.name} is not an x86 target")
    if options.vnni:  # oneDNN reads it when it is loaded, in the worker
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_VNNI"
    with TemporaryDirectory() as scratch:
        for operator in _operators(options):
            family = generators.find(operator, target)
            for threads in options.threads:
                for piece in LowJob(operator, target, family, threads, options.seconds, {}, Path(scratch)).pieces():
                    merge(options.out, piece)
                    ours = piece["contenders"][OURS]
                    ratio = f"{piece['ratio']:.2f}" if piece["ratio"] else "no baseline"
                    print(
                        f"{operator.describe():32} {threads} {piece['caches']} {ours['seconds'] * 1e6:9.1f} us"
                        f" {ours['gflops']:7.0f} GFLOP/s, {piece['share_of_bound']:.0%} of the bound, ratio {ratio}",
                        flush=True,
                    )


def _operators(options: argparse.Namespace) -> list[Gemm]:
    kind: dict[str, Any] = {"dtype": "bf16"} if options.dtype == "bf16" else {"dtype": "i8", "a": options.dtype}
    suite = json.loads(SUITES.read_text())["cpu"]
    shapes = suite["gemm"] + (suite["batched_gemm"] if options.dtype == "bf16" else [])
    if options.shape:
        shapes = [[int(size) for size in text.split("x")] for text in options.shape]
    return [gemm(*s[-3:], batch=s[0] if len(s) == 4 else 1, layout=options.layout, **kind) for s in shapes]


def summary(races: Sequence[Mapping[str, Any]]) -> str:
    """For each goal: the mean, the least, and the shapes that miss their floor."""
    lines = []
    for (generator, dtype, batched), (goal, floor) in GOALS.items():
        own = [
            r
            for r in races
            if (r["generator"], r["operator"]["a"], r["operator"]["batch"] > 1) == (generator, dtype, batched)
            and r["ratio"]
        ]
        for threads, caches in sorted({(r["threads"], r["caches"]) for r in own}):
            found = [r for r in own if (r["threads"], r["caches"]) == (threads, caches)]
            mean = exp(sum(log(r["ratio"]) for r in found) / len(found))
            least = min(r["ratio"] for r in found)
            low = [r for r in found if r["ratio"] < floor and r["share_of_bound"] < ENOUGH]
            missed = ", ".join(f"{_shape(r)} {r['ratio']:.2f} ({r['share_of_bound']:.0%})" for r in low) or "none"
            what = f"{generator} {dtype}{' batched' if batched else ''}, {threads} threads, {caches}"
            lines.append(f"{what}: mean {mean:.2f} (goal {goal:.2f}), least {least:.2f}; under {floor}: {missed}")
    return "\n".join(lines)


def _shape(race: Mapping[str, Any]) -> str:
    o = race["operator"]
    batch = f"{o['batch']}x" if o["batch"] > 1 else ""
    return f"{batch}{o['m']}x{o['n']}x{o['k']}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "i8", "u8"))
    parser.add_argument("--vnni", action="store_true", help="without AMX on either side")
    parser.add_argument("--shape", action="append", metavar="[BATCHx]MxNxK", help="may be given several times")
    parser.add_argument("--layout", default="nn", choices=("nn", "nt", "tn", "tt"))
    parser.add_argument("--threads", type=int, action="append", help="may be given several times; 1 when not given")
    parser.add_argument("--seconds", type=float, default=0.0, help="of tuning a shape; 0: the default config")
    parser.add_argument("--summary", action="store_true", help="measure nothing")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.threads = options.threads or [1]
    return options


if __name__ == "__main__":
    main()
