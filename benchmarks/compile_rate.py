"""Kernels built a second, with as many compilers at once as there are cores: the SIMT GEMM family through NVRTC.

A uniform sample of the family's space for a few shapes and targets goes through the build pool, with nothing cached,
just as a tuning run would send it. Writes benchmarks/results/compile_rate.json.

    python benchmarks/compile_rate.py --jobs 2 --kernels 60
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from common import run_main
from deepgen import targets
from deepgen.kernels.gemm.simt_gemm import SimtGemm
from deepgen.operators import gemm
from deepgen.toolchains import BuildError, BuildPool, Cache, toolchains_for

RESULTS = Path(__file__).resolve().parent / "results/compile_rate.json"
CASES = (("cuda:sm_90a", 4096), ("cuda:sm_80", 1024), ("cuda:sm_90a", 512))


def rate(name: str, size: int, jobs: int, kernels: int) -> dict[str, Any]:
    target, problem, family = targets.resolve(name), gemm(size, size, size, layout="nt"), SimtGemm()
    configs = family.space(problem, target).sample(kernels, 1, distinct=True)
    toolchains = toolchains_for(target)
    toolchain = toolchains("cuda")
    built = 0
    before = os.times()
    with (
        tempfile.TemporaryDirectory() as folder,
        BuildPool(toolchains, target, Cache(Path(folder)), jobs=jobs) as pool,
    ):
        started = time.perf_counter()
        futures = [pool.submit(family.emit(problem, target, config)) for config in configs]
        for future in futures:
            try:
                future.result()
                built += 1
            except BuildError as error:
                print("not built:", error.detail[:100])
        seconds = time.perf_counter() - started
    after = os.times()
    cpu = sum(after[:4]) - sum(before[:4])
    return {
        "target": name, "size": size, "jobs": jobs, "kernels": kernels, "built": built,
        "toolchain": f"{toolchain.name} {toolchain.version}", "seconds": round(seconds, 2),
        "cpu_seconds_a_kernel": round(cpu / kernels, 3), "kernels_a_second": round(kernels / seconds, 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--kernels", type=int, default=60, help="of each case")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = []
    for name, size in CASES:
        rows.append(rate(name, size, options.jobs, options.kernels))
        row = rows[-1]
        print(
            f"{name:12} {size:6} {row['kernels_a_second']:6.2f} kernels a second, "
            f"{row['cpu_seconds_a_kernel']:.3f} CPU seconds each, {row['built']} of {row['kernels']} built"
        )
    kernels, seconds = sum(r["kernels"] for r in rows), sum(r["seconds"] for r in rows)
    print(f"all: {kernels / seconds:.2f} kernels a second with {options.jobs} jobs")
    told = {"load": os.getloadavg(), "all_kernels_a_second": round(kernels / seconds, 2), "rows": rows}
    options.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    run_main(main)
