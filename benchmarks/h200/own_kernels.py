"""Kernels of a user's own on a GPU: one that is right, one with configs that hang and crash, one without a reference.

PYTHONPATH=src python benchmarks/h200/own_kernels.py --out benchmarks/h200/own_kernels.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "src")]

import deepgen as dg  # noqa: E402
from common import run_main, save  # noqa: E402
from deepgen.kernels.own import OwnKernel  # noqa: E402
from deepgen.vocabulary import finding  # noqa: E402
from gpu_bench import conditions  # noqa: E402

EXAMPLES = HERE.parents[1] / "examples" / "kernels"
FAULTY = """
template <int V>
__global__ void scale(float *y, const float *x, float f, int n) {
    if (HOW == 1) while (((volatile const float *)x)[0] == ((volatile const float *)x)[0]) ;  // never ends
    if (HOW == 2) *(int *)8 = 1;                                  // an address that is nobody's
    const int first = (blockIdx.x * blockDim.x + threadIdx.x) * V;
    for (int i = first; i < first + V; i++)
        if (i < n) y[i] = (HOW == 3 ? f + 1 : f) * x[i];
}
"""


def faulty(**others: Any) -> OwnKernel:
    return dg.kernel(
        FAULTY,
        language="cuda",
        entry="scale<VEC>",
        arguments=[
            dg.output("y", "n", "f32"),
            dg.input("x", "n", "f32"),
            dg.scalar("f", "f32", 3.0),
            dg.scalar("n", "i32"),
        ],
        sizes={"n": 1 << 20},
        knobs={"HOW": [0, 1, 2, 3], "VEC": [1, 4]},
        grid="ceil_div(n, 128 * VEC)",
        block=128,
        flops="n",
        bytes="8 * n",
        **others,
    )


right = faulty(reference=lambda x, f: f * x)
alone = faulty(name="scale_alone")


def tried(kernel: OwnKernel, name: str, out: Path, target: str) -> dict[str, Any]:
    """Tune it, open the study anew and call the winner on torch's tensors."""
    import torch

    started = time.monotonic()
    study = dg.tune(kernel, target=target, trials=12, out=out)
    seconds = time.monotonic() - started
    summary: dict[str, Any] = study.summary()
    loaded = dg.Study.open(study.folder).best().load()
    x = torch.randn(1000003, device="cuda")
    good = (loaded(x, x) == x + x) if name == "vadd" else (loaded(x, f=0.5) == x / 2)
    winner = summary["winner"]
    return {
        "kernel": name,
        "trials": summary["trials"],
        "config": winner["config"],
        "verdict": winner["verdict"],
        "microseconds": winner["seconds"] * 1e6,
        "share_of_bound": winner["share_of_bound"],
        "called": bool(good.all()),
        "wall_seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", default="cuda:native")
    options = parser.parse_args()
    vadd = finding.module_at(EXAMPLES / "vadd_cuda.py").kernel
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, kernel in (("vadd", vadd), ("faulty", right), ("without a reference", alone)):
            try:
                rows.append(tried(kernel, name, Path(folder), options.target))
            except dg.DeepgenError as error:
                rows.append({"kernel": name, "error": str(error)})
            print(json.dumps(rows[-1]), flush=True)
    save(options.out, rows, gpu=conditions())


if __name__ == "__main__":
    run_main(main)
