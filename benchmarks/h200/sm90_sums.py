"""How exact sums of 8-bit floats are: the Hopper family's, warp-wide products' and cuBLASLt's against float64.

Results are f32, so that nothing but sums is rounded. `normal` are standard-normal inputs, `positive` their absolute
values, with which every error goes the same way. Told are the largest error of an element over the largest element, and
the norm of the error over the norm of the result.

    python benchmarks/h200/sm90_sums.py --out $OUT
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "src")]

from common import run_main  # noqa: E402
from deepgen.baselines.cublaslt import CublasLt  # noqa: E402
from deepgen.generators import by_name  # noqa: E402
from deepgen.kernels.gemm.sm90_gemm.defaults import Way, config  # noqa: E402
from deepgen.operators import Gemm, gemm  # noqa: E402
from deepgen.targets import Cuda  # noqa: E402
from deepgen.vocabulary import DeepgenError, Kernel  # noqa: E402
from gpu_bench import FLUSH_BYTES, Bench, Loaded, conditions, gpu_torch, open_device, sources  # noqa: E402

SIDE, DEPTHS = 512, (128, 1024, 4096, 16384)
DTYPES = ("f8e4m3", "f8e5m2")


def problem(dtype: str, k: int, fast_sums: bool) -> Gemm:
    return gemm(SIDE, SIDE, k, dtype=dtype, c="f32", layout="nt", fast_sums=fast_sums)


def kernels(dtype: str, k: int, target: Cuda) -> Iterator[tuple[str, Kernel]]:
    """Every way to add up that the families have."""
    sm90, mma = by_name("sm90_gemm"), by_name("mma_gemm")
    for fast in (True, False):
        of = problem(dtype, k, fast)
        made = config(of, target, Way(1, 1, 64))
        assert made is not None, "64 x 64 always fits"
        yield "fast" if fast else "f32", sm90.emit(of, target, made)
    of = problem(dtype, k, fast_sums=False)
    yield "warp-wide products", mma.emit(of, target, mma.default(of, target))


def make_positive(bench: Bench) -> None:
    for numbers in (bench.a, bench.b):
        numbers.view(bench.torch.uint8).bitwise_and_(127)
    bench.reference = bench.left.double() @ bench.right_side.double()
    bench.scale = bench.reference.norm().item()


def errors(bench: Bench, call: Callable[[], Any]) -> dict[str, float]:
    bench.c.fill_(float("nan"))
    call()
    off = (bench.c.double() - bench.reference).abs()
    return {
        "largest": float((off.max() / bench.reference.abs().max()).item()),
        "norm": float((off.norm() / bench.scale).item()),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depths", type=int, nargs="+", default=DEPTHS, help="numbers that are added up")
    parser.add_argument("--cores", type=int, default=15)
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args(argv)
    torch, rows = gpu_torch(), list[dict[str, Any]]()
    with open_device(options.cores) as (builder, target, driver):
        flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        every = {(d, k): list(kernels(d, k, target)) for d in DTYPES for k in options.depths}
        for some in every.values():
            for _, kernel in some:
                builder.start(kernel)
        for (dtype, k), some in every.items():
            bench = Bench(problem(dtype, k, fast_sums=True), flush)
            for inputs in ("normal", "positive"):
                if inputs == "positive":
                    make_positive(bench)
                calls: dict[str, Callable[[], Any]] = {
                    name: Loaded(bench, kernel, builder.image(kernel), driver) for name, kernel in some
                }
                for name, fast in (("cuBLASLt, fast", True), ("cuBLASLt", False)):
                    try:
                        calls[name] = CublasLt().prepare(problem(dtype, k, fast), bench.places, 1)
                    except DeepgenError as error:  # it has no product of two f8e5m2
                        print(dtype, name, error, flush=True)
                told = {name: errors(bench, call) for name, call in calls.items()}
                rows.append({"dtype": dtype, "k": k, "inputs": inputs, "errors": told})
                words = ", ".join(f"{name} {e['largest']:.1e}/{e['norm']:.1e}" for name, e in told.items())
                print(f"{dtype} K={k} {inputs}: {words}", flush=True)
    families = ("sm90_gemm", "mma_gemm")
    found = {"conditions": {**conditions(), "shape": [SIDE, SIDE]}, "sources": sources(families), "rows": rows}
    (options.out / "sm90_sums.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    run_main(main)
