"""Is every single operator of KernelBench served, right, and faster than torch? A row for each problem of its level 1.

    python benchmarks/kernelbench.py CHECKOUT --json FILE [--seconds 20] [--no-compile] [--only conv] [--time-limit S]

CHECKOUT is a folder with KernelBench's repository (github.com/ScalingIntelligence/KernelBench); its problems are run
unchanged. `deepgen.torch.traced` converts each problem's module to an operator, which is tuned for `--seconds` (0: the
default, without a search), loaded, and compared with the module on the problem's own inputs and on drawn ones. Then
both, and torch.compile, are timed alternately, with cold caches. Problems with a result in FILE are skipped the next
time. torch may not round to tf32, except with `--torch-defaults`. `--small` makes all sizes small, for
a CPU.
"""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from types import ModuleType
from typing import Any

from deepgen import targets
from deepgen.operators import Operator
from deepgen.targets import Target
from harness import Deadline, Options, Samples, alternate, parser, per_call, read, run_main, save, table
from harness.gpu import Clock
from harness.ours import Ours, kernels

OURS, EAGER, COMPILED = "deepgen", "eager", "compile"
ROUNDS, CLOSE, CHUNK, AHEAD, OFTEN = 9, 1e-4, 1 << 27, 24, 10
HEADS = ("problem", "by", "ms", EAGER, COMPILED, "bw", "f32")
SMALL = {16: 0, 64: 16, 1 << 62: 26}  # sizes up to that -> their reduced size; 0: unchanged


@dataclass(frozen=True)
class Row:
    """One problem: seconds of each contender, our speedup over torch, and what limits ours."""

    problem: str
    budget: float
    tf32: bool
    operator: str = ""
    family: str = ""
    config: str = ""
    failed: str = ""
    off: tuple[float, ...] = ()  # largest errors compared with the module's results, relative to the allowed error
    times: dict[str, float] | None = None
    over: dict[str, float] | None = None
    bandwidth: float = 0.0  # share of the memory bandwidth, for the bytes that must be moved
    arithmetic: float = 0.0  # share of the f32 peak

    @property
    def key(self) -> tuple[str, float, bool]:
        return self.problem, self.budget, self.tf32


def number(path: Path) -> int:
    return int(path.name.partition("_")[0])


def problem(path: Path, *, small: bool) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"problem_{number(path)}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, value in vars(module).items() if small else ():
        if not name.startswith("_") and isinstance(value, (int, tuple)):
            setattr(module, name, smaller(value))
    return module


def smaller(size: Any) -> Any:
    if isinstance(size, tuple):
        return tuple(map(smaller, size))
    return size if not isinstance(size, int) else next(left for most, left in SMALL.items() if size <= most) or size


def fresh(module: ModuleType, device: str) -> tuple[Any, list[Any]]:
    """The problem's module and inputs."""
    import torch

    torch.manual_seed(0)
    with torch.device(device):
        return module.Model(*module.get_init_inputs()), module.get_inputs()


def drawn(inputs: Sequence[Any], *, positive: bool) -> list[Any]:
    """Floats from a normal distribution; other inputs unchanged."""
    import torch

    floats = [isinstance(one, torch.Tensor) and one.is_floating_point() for one in inputs]
    normal = [torch.randn_like(one) if of else one for one, of in zip(inputs, floats, strict=True)]
    return [one.abs_() if of and positive else one for one, of in zip(normal, floats, strict=True)]


def off(ours: Any, want: Any) -> float:
    """The largest error relative to the allowed error: more than 1 is wrong."""
    import torch

    if ours.shape != want.shape or ours.dtype != want.dtype:
        return float("inf")
    pairs = [*zip(ours.reshape(-1).split(CHUNK), want.detach().reshape(-1).split(CHUNK), strict=True)]
    # A sum may be far smaller than its terms, so the allowed error is relative to the usual size of results.
    usual, worst = sum(float(other.abs().double().sum()) for _, other in pairs) / want.numel(), 0.0
    for one, other in pairs:
        apart = (one - other).abs() / (CLOSE * (other.abs() + usual))
        worst = max(worst, float(torch.where(one == other, 0, apart).nan_to_num(float("inf")).max()))
    return worst


class Bench:
    """Runs problems with the given options."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.target: Target = targets.resolve(options.target)
        self.device = "cuda" if self.target.runner == "gpu" else "cpu"

    def operator(self, path: Path) -> Operator:
        """The problem's operator, traced with tensors without memory."""
        import deepgen.torch

        model, inputs = fresh(problem(path, small=self.options.small), "meta")
        return deepgen.torch.traced(model, *inputs).operator

    def kernel(self, operator: Operator) -> Ours:
        return kernels(operator, self.target, seconds=self.options.seconds)[0]

    def row(self, path: Path, ready: Future[Any]) -> Row:
        import torch

        import deepgen.torch

        begun = Row(path.stem, self.options.seconds, self.options.torch_defaults)
        try:
            operator, ours = ready.result()
            kernel = ours.load()
            model, inputs = fresh(problem(path, small=self.options.small), self.device)
            call = deepgen.torch.traced(model, *inputs)
            assert call.operator == operator, "its operator depends on its device"
            with torch.no_grad():
                ways: dict[str, Callable[..., Any]] = {
                    OURS: lambda *own: call.result(kernel(*call.arguments(*own))),
                    EAGER: model,
                    **({COMPILED: torch.compile(model)} if self.options.compile else {}),
                }
                away = [off(ways[OURS](*inputs), model(*inputs))]
                arguments = call.arguments(*inputs)
                samples = self.timed({**ways, OURS: lambda *_: call.result(kernel(*arguments))}, inputs)
                for positive in (False, True):
                    own = drawn(inputs, positive=positive)
                    want = model(*own)
                    if not want.isnan().any():
                        away.append(off(ways[OURS](*own), want))
                        break
            seconds = samples.median(OURS)
            peak = getattr(self.target, "vector_peak", self.target.peak)("f32")
            failed = "" if max(away) <= 1 else "wrong"
            return Row(
                *begun.key, operator.describe(), ours.family, str(dict(ours.values)), failed, tuple(away),
                {name: samples.median(name) for name in ways},
                {name: samples.ratio(name, OURS).estimate for name in ways if name != OURS},
                operator.least_bytes() / seconds / (self.target.bandwidth or 1e3) / 1e9,
                operator.flops() / seconds / (peak or 1e3) / 1e9,
            )  # fmt: skip
        except Exception as error:  # errors of other people's code too: the other problems continue
            return Row(*begun.key, failed=f"{type(error).__name__}: {error}"[:300])

    def timed(self, ways: dict[str, Callable[..., Any]], inputs: Sequence[Any]) -> Samples:
        calls = {name: partial(way, *inputs) for name, way in ways.items()}
        timed = per_call if self.device == "cpu" else partial(partial, Clock().seconds)
        return alternate({name: timed(call) for name, call in calls.items()}, ROUNDS, deadline=Deadline(2.0))


def both(make: Callable[[Operator], Any], operator: Operator) -> tuple[Operator, Any]:
    return operator, make(operator)


def summary(rows: Sequence[Row]) -> str:
    right = [row for row in rows if not row.failed]
    lines = [f"{len(rows)} problems, {len(right)} served and right"]
    for way in (EAGER, COMPILED):
        ratios = [row.over[way] for row in right if row.over and way in row.over]
        if ratios:
            ahead = sum(ratio > 1 for ratio in ratios)
            lines.append(f"over {way}: geometric mean {geometric_mean(ratios):.3f}, ahead in {ahead} of {len(ratios)}")
    return "\n".join(lines)


def shown(row: Row) -> tuple[object, ...]:
    times, over = row.times or {}, row.over or {}
    ms = times.get(OURS, 0.0) * 1e3 or None
    return (
        row.problem[:34],
        row.family or row.failed[:40],
        ms,
        over.get(EAGER),
        over.get(COMPILED),
        row.bandwidth,
        row.arithmetic,
    )


def main() -> int:
    words = parser(__doc__)
    words.add_argument("checkout", type=Path, metavar="CHECKOUT", help="a folder with KernelBench's repository")
    words.add_argument("--target", default=None, help="[the best device here]")
    words.add_argument("--seconds", type=float, default=20.0, help="for tuning each; 0: the default config [20]")
    words.add_argument("--no-compile", dest="compile", action="store_false", help="leave torch.compile out")
    words.add_argument(
        "--torch-defaults", action="store_true", help="torch may round to tf32 where it does so by itself"
    )
    words.add_argument("--small", action="store_true", help="small sizes: is everything right?")
    options = words.options()
    import torch

    if not options.torch_defaults:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    paths = sorted(options.checkout.glob("**/level1/*.py"), key=number)
    bench, deadline = Bench(options), options.deadline()
    rows = [Row(**row) for row in (read(options.json) if options.json else None) or []]
    done = {row.key for row in rows}
    left = [
        p
        for p in options.chosen(paths, lambda p: p.stem)
        if (p.stem, options.seconds, options.torch_defaults) not in done
    ]
    pool = ThreadPoolExecutor(12 if options.seconds == 0 and bench.device == "cuda" else 1)
    waiting: dict[Path, Future[Any]] = {}
    try:
        for place, path in enumerate(left):
            if deadline.over:
                break
            for one in left[place : place + (AHEAD if options.seconds == 0 else 1)]:
                if one not in waiting:
                    operator = bench.operator(one)
                    waiting[one] = pool.submit(both, bench.kernel, operator)
            rows.append(bench.row(path, waiting.pop(path)))
            print(table(HEADS, [shown(rows[-1])], 110).splitlines()[1], flush=True)
            if place % OFTEN == OFTEN - 1:
                save(options.json, rows, target=bench.target.name)
            gc.collect()
            torch.cuda.empty_cache()
    finally:
        save(options.json, rows, target=bench.target.name)
    pool.shutdown(wait=False, cancel_futures=True)
    print(summary(rows))
    return 0


if __name__ == "__main__":
    run_main(main)
