"""Small products drawn by a seed, in every format, layout and kind of edge, compared with the exact result.

python tests/kernels/drawn_products.py --target cuda:sm_90a --count 300     emulated on this processor
python tests/kernels/drawn_products.py --target cuda:native --count 2000    run, as cpu and other targets are

Each uses one family drawn by the seed, with its default or a random config. Of Hopper's own instructions those for
16-bit floats are emulated, with few blocks. The exit status is 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path[:0] = [str(Path(__file__).parent)]

import hopper_emulation  # noqa: E402
import simt_emulation  # noqa: E402

from deepgen import generators, targets  # noqa: E402
from deepgen.kernels import Generator  # noqa: E402
from deepgen.libraries.racing import opened  # noqa: E402
from deepgen.operators import Gemm, gemm  # noqa: E402
from deepgen.run.call.plans import evaluate  # noqa: E402
from deepgen.run.measure.base import Contender, Task  # noqa: E402
from deepgen.targets import Target  # noqa: E402
from deepgen.toolchains import build_once  # noqa: E402
from deepgen.vocabulary import DeepgenError, Kernel, dtype  # noqa: E402

FORMATS = ("bf16", "f16", "f32", "tf32", "f8e4m3", "i8", "f64")
LAYOUTS = ("nt", "nn", "tn", "tt")
ON_HOPPER, MOST_THREADS = "sm90_gemm", 4096
Drawn = tuple[Gemm, Generator, dict[str, Any]]


def drawn(chance: random.Random, target: Target, largest: int, emulates: bool) -> Drawn:
    """A product that the target supports, one of the families that support it, and a config."""
    while True:
        kind, layout = chance.choice(FORMATS), chance.choice(LAYOUTS)
        m, n, k = (round(largest ** chance.random()) for _ in range(3))
        if chance.random() < 0.4:  # rows of whole 16 bytes: other ways of loading and storing
            whole = 16 // dtype(kind).bytes
            m, n, k = (-(-size // whole) * whole for size in (m, n, k))
        batch = chance.randint(2, 5) if chance.random() < 0.25 else 1
        more: dict[str, Any] = {"beta": chance.choice((0.0, 0.0, -2.0)), "alpha": chance.choice((1.0, 1.0, 3.0))}
        if kind != "i8" and chance.random() < 0.3:
            more |= {"bias": True, "activation": chance.choice(("none", "relu", "gelu"))}
        try:
            operator = gemm(m, n, k, batch=batch, dtype=kind, layout=layout, **more)
            family = chance.choice(generators.serving(operator, target))
            config = dict(family.default(operator, target))
            if chance.random() < 0.6:
                (config,) = family.space(operator, target).sample(1, seed=chance.randrange(1 << 30))
            if not emulates or family.name != ON_HOPPER or _emulates(family.emit(operator, target, config), operator):
                return operator, family, dict(config)
        except DeepgenError:
            continue


def _emulates(kernel: Kernel, operator: Gemm) -> bool:
    """Whether Hopper's emulation can run it: one step, without lines loaded by lanes, and few blocks."""
    step, sizes = kernel.plan.steps[0], operator.scalars()
    blocks, threads = (int(evaluate(size[0], sizes)) for size in (step.grid, step.block))
    plain = len(kernel.plan.steps) == 1 and not any(source.name == "lines.h" for source in kernel.sources)
    return plain and operator.a == operator.c in ("bf16", "f16") and blocks * threads <= MOST_THREADS


def emulated(case: Drawn, target: Target) -> str:
    """What is wrong with a kernel emulated on this CPU."""
    operator, family, config = case
    with TemporaryDirectory() as name:
        folder = Path(name)
        if family.name == ON_HOPPER:
            kernel = family.emit(operator, target, config)
            found = hopper_emulation.run(kernel, hopper_emulation.build(kernel, folder), operator)
            return "" if found.ok else str(found)
        for package in ("deepgen.compiler.text", "deepgen.kernels.shared", "deepgen.kernels.gemm.mma_gemm"):
            for file in resources.files(package).iterdir():
                if file.name.endswith(".h") and file.name not in simt_emulation.dialect():
                    (folder / file.name).write_text(file.read_text())
        kernel = family.emit(operator, target, config)
        return simt_emulation.wrong(kernel, simt_emulation.build(kernel, folder), operator)


def results(cases: Iterator[Drawn], target: Target, emulates: bool, jobs: int) -> Iterator[tuple[Drawn, str]]:
    """Cases as they are drawn, built in parallel, with what is wrong with each."""
    with ThreadPoolExecutor(jobs) as pool, opened() as runners:

        def run(case: Drawn) -> Callable[[], str]:
            if emulates:
                wrong = emulated(case, target)
                return lambda: wrong
            kernel = case[1].emit(case[0], target, case[2])
            contender = Contender("it", kernel, build_once(kernel, target))

            def measured() -> str:
                (one,) = runners.on(Task(case[0], target)).compare([contender], 1, 1)
                return "" if one.right else f"{one.verdict.name}: {one.detail}"

            return measured

        waiting: list[tuple[Drawn, Any]] = []
        for case in cases:
            waiting.append((case, pool.submit(run, case)))
            if len(waiting) > 2 * jobs:
                first, job = waiting.pop(0)
                yield first, job.result()()
        for first, job in waiting:
            yield first, job.result()()


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--target", default="cuda:sm_90a")
    words.add_argument("--count", type=int, default=2000)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--largest", type=int, default=0, help="size [80 emulated, 600 otherwise]")
    words.add_argument("--jobs", type=int, default=1, help="builds side by side [1]; emulation has one machine")
    words.add_argument("--seconds", type=float, default=1e9, help="no more are begun after so long")
    options = words.parse_args()
    target, began, count = targets.resolve(options.target), time.monotonic(), Counter[str]()
    emulates = target.kind == "cuda" and "native" not in options.target
    largest, chance = options.largest or (80 if emulates else 600), random.Random(options.seed)

    def cases() -> Iterator[Drawn]:
        for _ in range(options.count):
            if time.monotonic() - began > options.seconds:
                return
            yield drawn(chance, target, largest, emulates)

    for (operator, family, config), wrong in results(cases(), target, emulates, 1 if emulates else options.jobs):
        count[family.name] += 1
        if wrong:
            count["wrong"] += 1
            print(f"WRONG {family.name}: {operator.describe()}: {wrong} {config}"[:600], flush=True)
    total = sum(count.values()) - count["wrong"]
    print(f"{total} products on {options.target}, seed {options.seed}: {dict(count)}, {time.monotonic() - began:.0f} s")
    return int(count["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
