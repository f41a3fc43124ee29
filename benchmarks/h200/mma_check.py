"""The families on warp-wide products on a device: formats, layouts, odd sizes and ways to share K against float64.

python benchmarks/h200/mma_check.py --seconds 40 --out benchmarks/h200
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "src")]

from common import run_main  # noqa: E402
from deepgen.kernels.base import Generator  # noqa: E402
from deepgen.kernels.gemm.mma_gemm import MmaGemm  # noqa: E402
from deepgen.kernels.gemm.skinny_gemm import SkinnyGemm  # noqa: E402
from deepgen.operators import Gemm, gemm  # noqa: E402
from deepgen.run.call.gpu_kernel import GpuKernel  # noqa: E402
from gpu_bench import DTYPES, gpu_torch, open_device, sources  # noqa: E402

MMA, SKINNY = MmaGemm(), SkinnyGemm()
SIZES: dict[Generator, tuple[tuple[int, int, int], ...]] = {
    MMA: ((200, 136, 264), (37, 41, 1053)),
    SKINNY: ((8, 1104, 1024), (1031, 5, 777), (32, 2048, 1536)),
}
EACH = 3  # sampled configs


def problems() -> list[tuple[Generator, Gemm]]:
    out: list[tuple[Generator, Gemm]] = []
    for dtype in ("bf16", "f16", "tf32", "i8", "f8e4m3", "f8e5m2", "f32"):
        for layout in ("nt", "nn", "tn", "tt"):
            for family, sizes in SIZES.items():
                for shape in sizes:
                    made = gemm(*shape, dtype=dtype, layout=layout, batch=2)
                    out.append((family, replace(made, c="bf16") if dtype.startswith("f8") else made))
    return out


def check(torch: Any, family: Generator, problem: Gemm, target: Any, driver: Any, codes: list[Any]) -> list[str]:
    """What is wrong, in words."""
    kind, most = getattr(torch, DTYPES[problem.a][0]), max(DTYPES[problem.a][1], DTYPES.get(problem.c, ("", 0.0))[1])
    a_shape = (2, problem.m, problem.k) if problem.layout[0] == "n" else (2, problem.k, problem.m)
    b_shape = (2, problem.k, problem.n) if problem.layout[1] == "n" else (2, problem.n, problem.k)

    def drawn(shape: tuple[int, ...]) -> Any:
        if problem.a == "i8":
            return torch.randint(-128, 128, shape, device="cuda", dtype=kind)
        return torch.randn(shape, device="cuda").to(kind)

    a, b = drawn(a_shape), drawn(b_shape)
    left = a.double() if problem.layout[0] == "n" else a.double().transpose(1, 2)
    right = b.double() if problem.layout[1] == "n" else b.double().transpose(1, 2)
    wanted = left @ right
    result = torch.int32 if problem.c == "i32" else getattr(torch, DTYPES[problem.c][0])
    wrong = []
    for kernel, config, code in codes:
        c = torch.full((2, problem.m, problem.n), -77777 if problem.c == "i32" else float("nan"), device="cuda").to(
            result
        )
        kept: list[Any] = []

        def allocate(_: Any, size: int, kept: list[Any] = kept) -> int:
            kept.append(torch.zeros(max(size, 16), dtype=torch.uint8, device="cuda"))
            return int(kept[-1].data_ptr())

        loaded = GpuKernel.read(driver, kernel, code.result().binary)
        places = {"A": a.data_ptr(), "B": b.data_ptr(), "C": c.data_ptr()}
        bound = loaded.bind(places, problem.scalars(), allocate)
        for _ in range(2):
            bound.run.run(0)
        torch.cuda.synchronize()
        error = ((c.double() - wanted).norm() / wanted.norm()).item()
        if not error <= most:
            wrong.append(f"{family.name} {problem.describe()} {config}: {error}")
        loaded.close()
    return wrong


def main() -> None:
    torch = gpu_torch()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args()
    with open_device(16) as (builder, target, driver):
        todo: list[tuple[Generator, Gemm, list[Any]]] = []
        for family, problem in problems():
            if family.refuses(problem, target) is None:
                configs = [family.default(problem, target), *family.space(problem, target).sample(EACH, 7)]
                kernels = [(family.emit(problem, target, c), dict(c)) for c in configs]
                todo.append((family, problem, [(k, c, builder.start(k)) for k, c in kernels]))
        ends, done, wrong = time.monotonic() + options.seconds, 0, list[str]()
        for family, problem, codes in todo:
            if time.monotonic() > ends:
                break
            wrong += check(torch, family, problem, target, driver, codes)
            done += len(codes)
    print(f"{done} kernels of {sum(len(c) for _, _, c in todo)} checked, {len(wrong)} wrong")
    print("\n".join(wrong[:20]))
    told = {"checked": done, "wrong": wrong, "sources": sources((MMA.name, SKINNY.name))}
    (options.out / "mma_check.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    run_main(main)
