"""Are rows and elements at the rate of a copy? Operators drawn by a seed, beside torch, torch.compile and a copy.

    python benchmarks/any_rows.py --target cuda:native --seed 2 [--seconds 10:12] [--json FILE] [--time-limit S]
    taskset -c 0,1 python benchmarks/any_rows.py --target cpu --seed 2 --threads 2

Elements, casts, reductions, norms, scans, permutations and pooling; 1 element to 1 GB, ranks 1 to 4, f32, bf16 and f16.
Defaults without a search and, with `--seconds S:N`, the result of a study of S seconds for N of them. All are called
from this process, interleaved, with cold caches; ours is compared with torch in f64. The copy moves as many bytes as
all tensors have. With `--json` a run resumes an earlier one. `--jobs` processes compile ahead.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from statistics import geometric_mean
from typing import Any

from any_shape import words_of_all
from deepgen import targets
from deepgen.operators.expr.operator import as_operator
from harness import Options, alternate, run_main, table
from harness.cases import draw
from harness.gpu import timer
from harness.ours import Ours, before, kernels, measure, off
from rows_cases import Case, expression_of, make, torch_call

FORMATS = {"f32": ("float32", 1e-5), "bf16": ("bfloat16", 5e-3), "f16": ("float16", 1e-3), "i64": ("int64", 0.0)}
COPY, COMPILED, OURS = "copy", "torch.compile", "ours"
LARGE = 32 << 20  # bytes from which the copy rate matters


@dataclass(frozen=True)
class Result:
    """A case: our time, and our speedup over each other; `ratio` is over the faster one of torch's."""

    name: str
    group: str
    bytes: int
    seconds: float  # time for tuning; 0: the default, without a search
    time: float | None = None
    ratio: float | None = None
    beside: Sequence[Sequence[Any]] = ()
    finals: float | None = None  # the time in the study's finals
    config: str = ""
    error: str = ""

    @property
    def share(self) -> float | None:
        """Our share of the copy rate."""
        return next((float(ratio) for name, ratio in self.beside if name == COPY), None)


def tensors(torch: Any, case: Case, device: str) -> list[Any]:
    specs = expression_of(case).tensors
    return [torch.randn(one.shape, device=device).to(getattr(torch, FORMATS[one.dtype][0])) for one in specs]


def compile_ahead(case: Case, device: str) -> None:
    """Compile in another process: torch.compile caches its results on disk."""
    import torch
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1  # there is one process per core
    torch._dynamo.reset()
    torch.compile(torch_call(torch, case), dynamic=False)(*tensors(torch, case, device))


class Bench:
    def __init__(self, options: Options) -> None:
        import torch

        self.torch, self.options, self.target = torch, options, targets.resolve(options.target)
        self.device = "cuda" if self.target.runner == "gpu" else "cpu"
        if options.threads:
            torch.set_num_threads(options.threads)
        self.seconds = timer(torch, self.target, options.threads)

    def built(self, case: Case) -> Ours:
        return kernels(as_operator(expression_of(case)), self.target, threads=self.options.threads)[0]

    def measured(self, case: Case, seconds: float, kernel: Ours) -> Result:
        torch, of = self.torch, expression_of(case)
        inputs, call, ours = tensors(torch, case, self.device), torch_call(torch, case), kernel.load()
        kind, most = FORMATS[of.dtype_of("y")]
        out = torch.full(of.shape_of("y"), -77, dtype=getattr(torch, kind), device=self.device)
        count = sum(one.nbytes for one in (*inputs, out))
        facts: dict[str, Any] = {"finals": kernel.seconds, "config": kernel.config}
        ours(*inputs, out=out)
        exact = call(*(one.double() for one in inputs)).reshape(out.shape).to(out.dtype).double()
        if not (distance := off(out, exact)) <= most:
            return Result(case.name, case.group, count, seconds, **facts, error=f"off by {distance:.2g}")
        source = torch.zeros(-(-count // 2), dtype=torch.uint8, device=self.device)
        copied = torch.empty_like(source)
        calls: dict[str, Callable[[], Any]] = {
            OURS: lambda: ours(*inputs, out=out), "torch": lambda: call(*inputs), COPY: lambda: copied.copy_(source),
        }  # fmt: skip
        if not self.options.eager:
            torch._dynamo.reset()  # otherwise only a few shapes of one kind would be compiled
            compiled = torch.compile(call, dynamic=False)
            calls[COMPILED] = lambda: compiled(*inputs)
        contenders = {name: partial(self.seconds, one) for name, one in calls.items()}
        samples = alternate(contenders, self.options.rounds or 15)
        beside = {name: samples.ratio(name, OURS).estimate for name in calls if name != OURS}
        facts |= {"time": samples.median(OURS), "beside": tuple(beside.items())}
        return Result(
            case.name, case.group, count, seconds, ratio=min(r for n, r in beside.items() if n != COPY), **facts
        )

    def run(self, cases: Sequence[tuple[Case, float]], done: list[Result]) -> list[Result]:
        deadline, jobs = self.options.deadline(), self.options.jobs
        with ThreadPoolExecutor(jobs) as threads, ProcessPoolExecutor(jobs, get_context("spawn")) as processes:
            compiled = [] if jobs == 1 or self.options.eager else [case for case, _ in cases]
            ahead = [processes.submit(compile_ahead, case, self.device) for case in compiled]
            built: list[Future[Any]] = [threads.submit(self.built, case) for case, seconds in cases if not seconds]
            wait(ahead, timeout=min(deadline.left / 2, 1e6))
            processes.shutdown(wait=True, cancel_futures=True)  # nothing else may run during timing
            wait(built)
            waiting, threads_of_ours = iter(built), self.options.threads

            def one(case: Case, seconds: float) -> Result:
                if not seconds:
                    return self.measured(case, seconds, next(waiting).result())
                operator = as_operator(expression_of(case))
                kernel = kernels(operator, self.target, seconds=seconds, threads=threads_of_ours)[0]
                return self.measured(case, seconds, kernel)

            return measure(
                self.options, cases, lambda of: one(*of), failed, shown, done,
                seed=self.options.seed, target=self.options.target,
            )  # fmt: skip


def failed(of: tuple[Case, float], error: str) -> Result:
    case, seconds = of
    return Result(case.name, case.group, 0, seconds, error=error)


def shown(one: Result) -> tuple[object, ...]:
    beside = " ".join(f"{name} {ratio:.2f}" for name, ratio in one.beside)
    return one.name, f"{one.seconds:g}", f"{one.time * 1e6:.1f} us" if one.time else "", beside, one.config, one.error


def summary(results: Sequence[Result]) -> list[tuple[object, ...]]:
    """For all and for each group: the ratio over torch's faster one, how many are below 0.97, and the share of the copy
    rate.
    """
    rows: list[tuple[object, ...]] = []
    for seconds in sorted({one.seconds for one in results}):
        mine = [one for one in results if one.seconds == seconds]
        for group in ("all", *sorted({one.group for one in mine})):
            some = [one for one in mine if group in ("all", one.group)]
            ratios, wrong = sorted(one.ratio for one in some if one.ratio), sum(bool(one.error) for one in some)
            shares = sorted(one.share for one in some if one.share and one.bytes >= LARGE)
            means = [geometric_mean(numbers) if numbers else None for numbers in (ratios, shares)]
            least = [numbers[0] if numbers else None for numbers in (ratios, shares)]
            behind = sum(ratio < 0.97 for ratio in ratios)
            rows.append((group, f"{seconds:g}", len(some), wrong, means[0], least[0], behind, means[1], least[1]))
    return rows


def main() -> int:
    words = words_of_all(__doc__)
    words.add_argument("--least", type=int, default=0, metavar="BYTES", help="of x, in every case that is drawn [0]")
    words.add_argument("--eager", action="store_true", help="without torch.compile")
    words.set_defaults(cases=60)
    options = words.options()
    every = draw(options.seed, options.cases, partial(make, least=options.least))
    wanted = [] if options.no_default else [(case, 0.0) for case in options.chosen(every, lambda case: case.name)]
    for seconds, count in options.seconds:
        wanted += [
            (case, seconds) for case in random.Random(f"{options.seed} {seconds}").sample(every, min(count, len(every)))
        ]
    done = before(options, Result)
    names = {(one.name, one.seconds) for one in done}
    done = Bench(options).run([one for one in wanted if (one[0].name, one[1]) not in names], done)
    print(table(("group", "s", "cases", "wrong", "mean", "least", "<0.97", "of a copy", "least"), summary(done)))
    return 0


if __name__ == "__main__":
    run_main(main)
