"""Kernels made by rules on an NVIDIA GPU, beside cuDNN and cuBLAS (through torch) and torch.compile.

Each case is tuned for a while: configs of which an estimate expects most, then the best ones with a knob changed. Every
config that is tried must compute what torch computes in float64. The best is timed beside the others, interleaved, with
a cold L2. Processes emit and build the kernels of later cases while those of one are measured. Writes OUT after each
case.

PYTHONPATH=src python benchmarks/rules.py --seconds 300 --out benchmarks/results/rules.json

`--known FILE` starts from an earlier run: its best configs are tried first, what it measured of torch.compile is not
measured again, and cases that do not run keep their rows. `--below-bar` then runs only groups that missed their bar;
there are bars for f16.

`--dtype bf16`, `i8` or `f32` runs the cases of that format, of which there are fewer. Of bytes torch has products of
matrices only on GPUs; where it has nothing, its kernels of f16 are timed (`torch f16`).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from common import run_main  # noqa: E402
from deepgen import generators, targets  # noqa: E402
from deepgen.compiler.family import Rules  # noqa: E402
from deepgen.compiler.rules.gpu.likely import likely  # noqa: E402
from deepgen.compiler.rules.sketch import SKETCH  # noqa: E402
from deepgen.space import Space  # noqa: E402
from deepgen.targets import Cuda  # noqa: E402
from deepgen.targets.gpu_driver import Driver  # noqa: E402
from deepgen.toolchains.base import BuildError  # noqa: E402
from deepgen.vocabulary import DeepgenError, Kernel  # noqa: E402
from gpu_bench import (  # noqa: E402
    FLUSH_BYTES,
    Builder,
    Config,
    Loaded,
    conditions,
    gpu_torch,
    interleaved,
    key_of,
    open_device,
)
from rules_gpu_cases import GpuCase, all_cases  # noqa: E402

MOST_ERROR = {"f16": 2e-3, "bf16": 1.6e-2, "i8": 0.0, "f32": 1e-5}  # of the norm
POISON = -123456789  # where results are whole numbers
AHEAD = 3  # cases whose kernels are built before they are measured
HOPELESS = 1.5  # times the least estimate of all sketches: one that is above is not tried
BEST = 4  # configs that a search goes on from
COMPILED = "torch.compile"
# How many times as fast as whom each group has to be, as a geometric mean.
BARS = {
    "conv nhwc": ("torch", 1.0), "conv nchw": ("torch", 1.6), "dilated nhwc": ("torch", 1.0),
    "dilated nchw": ("torch", 1.0), "transposed nhwc": ("torch", 1.0), "transposed nchw": ("torch", 1.0),
    "depthwise nhwc": ("torch", 1.25), "depthwise nchw": ("torch", 1.6), "conv1d nlc": ("torch", 1.0),
    "conv1d ncl": ("torch", 1.6), "conv3d ndhwc": ("torch", 1.0), "conv3d ncdhw": ("torch", 1.6),
    "gemm": ("sm90_gemm", 0.8), "bmm": ("torch", 1.0), "gemv": ("torch", 1.0), "scan": (COMPILED, 1.3),
}  # fmt: skip
Call = Callable[[], Any]
Emitted = tuple[Config, Kernel | str]  # a kernel, or why there is none

# Emitting kernels, by processes that have no GPU.

_family: Rules = Rules()
_cases: dict[str, GpuCase] = {case.name: case for case in all_cases()}


def starts(name: str, target: Cuda, count: int, known: Sequence[Config]) -> list[Emitted]:
    """What earlier runs found best, the default, and what the estimate or chance offers."""
    operator = _cases[name].made()
    space, sketches = _family.space(operator, target), _family.sketches(operator, target)
    several = len(sketches) > 1
    least = min((likely(sketch, target)[0][0] for sketch in sketches if sketch.counts), default=0.0)
    tried = [s for s in sketches if s.counts is None or likely(s, target)[0][0] <= HOPELESS * least]
    offered, share = list[Config](), max(2, count // len(tried))
    for sketch in tried:
        some = [({SKETCH: sketch.name} if several else {}) | config for _, config in likely(sketch, target, 2 * share)]
        offered += _spread(some, share)
    by_chance = 0 if least else max(0, count - len(offered))
    configs = [config for config in known if _fits(config, space)]
    configs += [dict(_family.default(operator, target)), *offered]
    configs += [dict(config) for config in space.sample(by_chance, seed=1)]
    return emitted(name, target, list({key_of(config): config for config in configs}.values()))


def _fits(config: Config, space: Space) -> bool:
    """Whether an earlier version's config is one of this one too."""
    return set(config) <= {knob.name for knob in space.knobs} and bool(space.contains(config))


def _spread(configs: list[Config], count: int) -> list[Config]:
    """The first half, and some of those after it."""
    first, rest = configs[: count // 2], configs[count // 2 :]
    random.Random(1).shuffle(rest)
    return first + rest[: count - len(first)]


def emitted(name: str, target: Cuda, configs: Sequence[Config]) -> list[Emitted]:
    operator, made = _cases[name].made(), list[Emitted]()
    for config in configs:
        try:
            made.append((config, _family.emit(operator, target, config)))
        except DeepgenError as error:
            made.append((config, str(error)))
    return made


def changed(name: str, target: Cuda, best: Sequence[Config], count: int, seed: int) -> list[Emitted]:
    """Good configs with one or two knobs changed."""
    space, dice = _family.space(_cases[name].made(), target), random.Random(seed)
    found: dict[str, Config] = {}
    for _ in range(count * 60):
        config = dict(dice.choice(best))
        knobs = [knob for knob in space.knobs if knob.name in config and knob.name != SKETCH]
        for knob in dice.sample(knobs, min(len(knobs), dice.choice((1, 1, 2)))):
            config[knob.name] = dice.choice(list(knob.values))
        if space.contains(config):
            found.setdefault(key_of(config), config)
        if len(found) == count:
            break
    return emitted(name, target, list(found.values()))


# Measuring.


class CaseBench:
    """The tensors of a case on the device, and how a call on them is checked."""

    def __init__(self, case: GpuCase, flush: Any) -> None:
        self.torch, self.flush, self.problem, self.case = gpu_torch(), flush, case.made(), case
        torch, words = self.torch, case.case.words
        make = torch.Generator(device="cuda").manual_seed(1)
        (out,) = [p.name for p in self.problem.signature().outputs]
        given = {t.name: self._random(t.shape, t.dtype.name, make) for t in self.problem.tensors()}
        self.out = given[out]
        self.tensors = {name: x.data_ptr() for name, x in given.items()}
        self._given = given  # the kernels have their addresses only
        self.torch_call = case.called(torch, given)
        torch.backends.cudnn.benchmark = False  # many algorithms in float64 take long to try
        exact = torch.float64 if self.out.numel() < 1 << 28 else torch.float32
        self.reference = case.case.torch(torch, {name: x.to(exact) for name, x in given.items()}, words)()
        self.scale = self.reference.norm().item()
        torch.backends.cudnn.benchmark = True

    def _random(self, shape: Sequence[int], dtype: str, make: Any) -> Any:
        torch = self.torch
        if dtype in ("i8", "i32"):
            kind = torch.int8 if dtype == "i8" else torch.int32
            return torch.randint(-128, 128, shape, device="cuda", generator=make, dtype=kind)
        kind = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[dtype]
        return torch.randn(shape, device="cuda", generator=make, dtype=kind)

    def wider_call(self) -> Call:
        """torch's call on the same numbers in f16."""
        given = {name: x.to(self.torch.float16) for name, x in self._given.items()}
        found: Call = self.case.case.torch(self.torch, given, self.case.case.words)
        return found

    def error(self, call: Call) -> float:
        self.out.fill_(float("nan") if self.out.dtype.is_floating_point else POISON)
        call()
        return float(((self.out.to(self.reference.dtype) - self.reference).norm() / self.scale).item())


@dataclass
class Search:
    """What was tried of a case."""

    tried: list[tuple[float, Config]] = field(default_factory=list)
    wrong: list[dict[str, Any]] = field(default_factory=list)

    def best(self) -> list[Config]:
        return [config for _, config in sorted(self.tried, key=lambda one: one[0])[:BEST]]


def start(kernels: Sequence[Emitted], builder: Builder) -> None:
    for _, kernel in kernels:
        if isinstance(kernel, Kernel):
            builder.start(kernel)


def measure(search: Search, bench: Any, kernels: Sequence[Emitted], builder: Builder, driver: Driver) -> None:
    done = {key_of(config) for _, config in search.tried}
    start(kernels, builder)
    for config, kernel in kernels:
        if key_of(config) in done:
            continue
        if isinstance(kernel, str):
            search.wrong.append({"config": config, "error": kernel[:300]})
            continue
        try:
            loaded = Loaded(bench, kernel, builder.image(kernel), driver)
        except (BuildError, DeepgenError) as error:
            search.wrong.append({"config": config, "error": str(error)[:300]})
            continue
        off = bench.error(loaded)
        if off <= MOST_ERROR[bench.case.dtype]:
            times = interleaved(bench, {"it": loaded}, 3)["it"]
            best = min((least for least, _ in search.tried), default=float("inf"))
            if min(times) < 1.1 * best:  # near the best: so that chance does not decide
                times += interleaved(bench, {"it": loaded}, 6)["it"]
            search.tried.append((min(times), config))
        else:
            search.wrong.append({"config": config, "error": off})
        loaded.close()


def rivals(case: GpuCase, bench: Any, tools: Any, compiled: str) -> Iterator[tuple[str, Call]]:
    builder, target, driver = tools
    if bench.torch_call is not None:
        yield "torch", bench.torch_call
    if case.dtype == "i8":
        yield "torch f16", bench.wider_call()
    if bench.torch_call is None:
        return
    if compiled == "all" or (compiled == "memory" and case.memory):
        yield COMPILED, gpu_torch().compile(bench.torch_call, dynamic=False)
    if case.case.expert:
        family = generators.find(bench.problem, target)
        kernel = family.emit(bench.problem, target, family.default(bench.problem, target))
        yield family.name, Loaded(bench, kernel, builder.image(kernel), driver)


def row_of(case: GpuCase, search: Search, first: Config, bench: Any, tools: Any, compiled: str) -> dict[str, Any]:
    builder, target, driver = tools
    row = {
        "case": case.name,
        "group": case.group,
        "tried": len(search.tried) + len(search.wrong),
        "wrong": search.wrong,
    }
    if not search.tried:
        return row
    config = search.best()[0]
    calls: dict[str, Call] = {}
    for name, one in (("rules", config), ("default", first)):
        kernel = _family.emit(bench.problem, target, one)
        calls[name] = Loaded(bench, kernel, builder.image(kernel), driver)
    for name, call in rivals(case, bench, tools, compiled):
        try:
            for _ in range(3):
                call()
            calls[name] = call
        except Exception as error:  # torch's compilers fail in many ways, and the case goes on without them
            row[f"{name} failed"] = f"{type(error).__name__}: {error}"[:300]
    with builder.quiet():
        taken = interleaved(bench, calls, 40)
    row["us"] = {name: round(statistics.median(times), 2) for name, times in taken.items()}
    row["ratio"] = {
        name: round(statistics.median(b / a for a, b in zip(taken["rules"], times, strict=True)), 3)
        for name, times in taken.items()
        if name != "rules"
    }
    return {**row, "config": config, "best": search.best()}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By group: the geometric mean over cases of each rival's time over ours, and the least."""
    found: dict[str, dict[str, Any]] = {}
    for group in dict.fromkeys(row["group"] for row in rows):
        own = [row["ratio"] for row in rows if row["group"] == group and "ratio" in row]
        for rival in dict.fromkeys(name for ratio in own for name in ratio):
            some = [ratio[rival] for ratio in own if rival in ratio]
            mean, least = round(statistics.geometric_mean(some), 3), min(some)
            found.setdefault(group, {})[rival] = {"cases": len(some), "mean": mean, "least": least}
    return found


def with_known(row: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """A row with what an earlier run measured of torch.compile."""
    before = known.get("us", {}).get(COMPILED)
    if before is None or "us" not in row or COMPILED in row["us"]:
        return row
    ratio = {**row["ratio"], COMPILED: round(before / row["us"]["rules"], 3)}
    return {**row, "us": {**row["us"], COMPILED: before}, "ratio": ratio}


def missed(rows: Sequence[dict[str, Any]]) -> set[str]:
    """The groups that are below their bar, or of which nothing is known."""
    found = summary(rows)
    reached = {g for g, (rival, bar) in BARS.items() if found.get(g, {}).get(rival, {}).get("mean", 0.0) >= bar}
    return set(BARS) - reached


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="no case begins later")
    parser.add_argument("--only", default="", help="groups or cases that begin so, separated by commas")
    parser.add_argument("--dtype", default="f16", help="of the cases: f16, bf16, i8 or f32; several with commas")
    parser.add_argument("--starts", type=int, default=28, help="configs that are tried first")
    parser.add_argument("--more", type=int, default=12, help="configs of each turn after that")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--compiled", choices=("none", "memory", "all"), default="memory", help="beside torch.compile")
    parser.add_argument("--known", type=Path, help="results of an earlier run, whose best configs are tried first")
    parser.add_argument("--below-bar", action="store_true", help="only groups that missed their bar in that run")
    parser.add_argument("--trials", type=Path, help="a file for all configs that were tried, with their times")
    parser.add_argument("--cores", type=int, default=14)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "rules.json")
    return parser.parse_args()


def main() -> int:
    options = parsed()
    wanted = options.only.split(",")
    formats = options.dtype.split(",")
    if strange := set(formats) - set(MOST_ERROR):
        raise SystemExit(f"--dtype {','.join(sorted(strange))}: one of {', '.join(MOST_ERROR)}")
    there = [case for case in _cases.values() if case.dtype in formats]
    chosen = [case for w in wanted for case in there if w == case.group or case.name.startswith(w)]
    known = {row["case"]: row for row in _rows(options.known)} if options.known else {}
    if options.below_bar:
        below = missed(list(known.values()))
        chosen = [case for case in chosen if case.group in below]
    cases = list({case.name: case for case in chosen}.values())
    begin, rows, trials = time.monotonic(), list[dict[str, Any]](), dict[str, Any]()
    native = targets.resolve("cuda:native")
    assert isinstance(native, Cuda)
    with ProcessPoolExecutor(options.cores, multiprocessing.get_context("forkserver")) as emitters:
        waiting: dict[str, Future[list[Emitted]]] = {
            case.name: emitters.submit(
                starts, case.name, native, options.starts, known.get(case.name, {}).get("best", [])
            )
            for case in cases
        }
        with open_device(options.cores) as tools:
            builder, target, driver = tools
            flush = gpu_torch().empty(FLUSH_BYTES, dtype=gpu_torch().uint8, device="cuda")
            for n, case in enumerate(cases):
                if time.monotonic() - begin > options.seconds:
                    break
                kernels = waiting[case.name].result()
                for later in cases[n : n + AHEAD]:
                    if waiting[later.name].done():
                        start(waiting[later.name].result(), builder)
                bench: Any = CaseBench(case, flush)  # as far as it is asked for, one of gpu_bench.py
                search, seen = Search(), time.monotonic()
                measure(search, bench, kernels, builder, driver)
                for turn in range(options.turns if search.tried else 0):
                    parts = [
                        emitters.submit(changed, case.name, target, search.best(), options.more // 4, 4 * turn + part)
                        for part in range(4)
                    ]
                    measure(search, bench, [one for part in parts for one in part.result()], builder, driver)
                first = next(c for c, _ in kernels if c == dict(_family.default(bench.problem, target)))
                before = known.get(case.name, {})
                compiled = "none" if COMPILED in before.get("us", {}) else options.compiled
                row = with_known(row_of(case, search, first, bench, tools, compiled), before)
                rows.append({**row, "seconds": round(time.monotonic() - seen, 1)})
                print(_line(rows[-1]), flush=True)
                trials[case.name] = [[round(us, 2), config] for us, config in search.tried]
                if options.trials:
                    options.trials.write_text(json.dumps(trials) + "\n")
                del bench
                gpu_torch().cuda.empty_cache()
                own = {row["case"]: row for row in (*known.values(), *rows)}
                every = [own[name] for name in _cases if name in own]
                told = {"conditions": conditions(), "groups": summary(every), "rows": every}
                options.out.write_text(json.dumps(told, indent=1) + "\n")
        for future in waiting.values():
            future.cancel()
    for group, others in summary(rows).items():
        means = (f"{name} {r['mean']:.3f} (least {r['least']:.3f})" for name, r in others.items())
        print(f"{group:18}", "; ".join(means))
    return int(any(row["wrong"] or "us" not in row for row in rows))


def _rows(file: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"]
    return rows


def _line(row: dict[str, Any]) -> str:
    if "us" not in row:
        return f"{row['case']:12} {row['tried']:3} tried, all wrong: {str(row['wrong'][:1])[:300]}"
    times = ", ".join(f"{name} {us:8.2f}" for name, us in row["us"].items())
    ratios = ", ".join(f"{name} {r:.2f}" for name, r in row["ratio"].items() if name != "default")
    tried = f"{row['tried']:3} tried, {len(row['wrong'])} wrong, {row['seconds']:5.1f} s"
    return f"{row['case']:12} {tried}: {times} us; {ratios}"


if __name__ == "__main__":
    run_main(main)
