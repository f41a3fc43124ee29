"""Kernels made by rules on a device: many expressions, sampled configs of each, all checked, the best beside torch.

Every config that is tried must compute what torch computes in float64. Half of the trials are drawn at random, the
others are the best ones with one knob changed. The best is then timed beside torch (cuDNN and cuBLAS, the best of
their algorithms), interleaved, with a cold L2. Writes OUT after each problem.

PYTHONPATH=src python benchmarks/h200/rules_check.py --trials 60 --out benchmarks/h200/rules_check.json
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "src")]

from common import run_main  # noqa: E402
from deepgen.build.base import BuildError  # noqa: E402
from deepgen.generators.rules.family import Rules  # noqa: E402
from deepgen.operators import OPERATORS, Operator  # noqa: E402
from deepgen.space import Space  # noqa: E402
from deepgen.vocabulary import DeepgenError  # noqa: E402
from gpu_bench import FLUSH_BYTES, Loaded, conditions, gpu_torch, interleaved, open_device  # noqa: E402

ROUNDS = 60
MOST_ERROR = {"f16": 2e-3, "bf16": 1.6e-2, "f32": 1e-4, "f64": 1e-9, "i32": 0.0}  # of the norm
Call = Callable[..., Any]


@dataclass(frozen=True)
class Problem:
    """An operator, and what torch makes of its inputs; `ready` has these as torch likes them, before any timing."""

    name: str
    operator: Operator
    ready: Call
    torch_call: Call


def problems() -> Iterator[Problem]:
    """Heron's cases in both layouts, and more kinds of expressions."""
    for name, n, size, ci, co, k, stride, pad, dilation in (
        ("C1", 16, 56, 64, 64, 3, 1, 1, 1),
        ("C2", 16, 56, 64, 64, 1, 1, 0, 1),
        ("C3", 16, 28, 128, 128, 3, 1, 1, 1),
        ("C4", 16, 28, 128, 256, 1, 2, 0, 1),
        ("C5", 16, 14, 256, 256, 3, 1, 1, 1),
        ("C6", 16, 14, 256, 512, 1, 2, 0, 1),
        ("D1", 16, 56, 64, 64, 3, 1, 1, 2),
        ("D3", 16, 28, 128, 128, 3, 1, 1, 2),
        ("D5", 16, 14, 256, 256, 3, 1, 1, 2),
    ):
        for layout in ("nhwc", "nchw"):
            words: dict[str, Any] = {
                "N": n,
                "H": size,
                "W": size,
                "CI": ci,
                "CO": co,
                "k": k,
                "stride": stride,
                "pad": pad,
            }
            made = _operator("dil", {**words, "dilation": dilation, "dtype": "f16", "layout": layout})
            yield Problem(f"{name} {layout}", made, _images(layout), _conv(layout, stride, pad, dilation))
    for name, n, size, ci, co, k, stride, pad in (("T1", 16, 56, 64, 64, 3, 1, 1), ("T5", 16, 14, 256, 512, 3, 1, 1)):
        words = {"N": n, "H": size, "W": size, "CI": ci, "CO": co, "k": k, "stride": stride, "pad": pad, "dtype": "f16"}
        yield Problem(f"{name} nhwc", _operator("t2d", words), _images("nhwc", turned=True), _turned(stride, pad))
    for layout in ("nhwc", "nchw"):
        words = {"N": 16, "H": 56, "W": 56, "C": 128, "k": 3, "pad": 1, "dtype": "f16", "layout": layout}
        yield Problem(f"dep {layout}", _operator("dep", words), _channels(layout), _conv(layout, 1, 1, 1, groups=128))
    for m, n, k in ((1024, 1024, 1024), (4096, 4096, 4096)):
        made = _operator("gemm", {"M": m, "N": n, "K": k, "dtype": "f16", "layout": "nt"})
        yield Problem(f"gemm {m}", made, lambda a, b: (a, b), lambda a, b: a @ b.T)
    for m, k in ((1024, 1024), (16384, 4096)):
        made = _operator("gemv", {"M": m, "K": k, "dtype": "f16"})
        yield Problem(f"gemv {m}x{k}", made, lambda a, x: (a, x), lambda a, x: a @ x)
    rows = {"rows": 4096, "cols": 4096, "dtype": "f32"}
    yield Problem("softmax", _operator("softmax", rows), lambda x: (x,), lambda x: x.softmax(-1))


def _operator(name: str, words: Mapping[str, Any]) -> Operator:
    return OPERATORS.get(name).make(words)


def _images(layout: str, turned: bool = False) -> Call:
    def ready(x: Any, weight: Any) -> tuple[Any, Any]:
        if layout == "nchw":
            return x, weight
        order = (2, 3, 0, 1) if turned else (3, 2, 0, 1)
        return x.permute(0, 3, 1, 2), weight.permute(*order).contiguous(memory_format=gpu_torch().channels_last)

    return ready


def _channels(layout: str) -> Call:
    def ready(x: Any, weight: Any) -> tuple[Any, Any]:
        if layout == "nchw":
            return x, weight[:, None]
        return x.permute(0, 3, 1, 2), weight.permute(2, 0, 1)[:, None].contiguous()

    return ready


def _conv(layout: str, stride: int, pad: int, dilation: int, groups: int = 1) -> Call:
    def call(x: Any, weight: Any) -> Any:
        made = gpu_torch().nn.functional.conv2d(x, weight, None, stride, pad, dilation, groups)
        return made.permute(0, 2, 3, 1) if layout == "nhwc" else made

    return call


def _turned(stride: int, pad: int) -> Call:
    def call(x: Any, weight: Any) -> Any:
        return gpu_torch().nn.functional.conv_transpose2d(x, weight, None, stride, pad).permute(0, 2, 3, 1)

    return call


class ExpressionBench:
    """The tensors of a problem on the device, and how a call on them is checked."""

    def __init__(self, problem: Problem, flush: Any) -> None:
        self.torch, self.flush, self.problem = gpu_torch(), flush, problem.operator
        given = {name: _on_device(self.torch, array) for name, array in problem.operator.inputs(1).items()}
        self.inputs = [given[p.name] for p in problem.operator.signature().inputs]
        self.ready = problem.ready(*self.inputs)
        self.reference = problem.torch_call(*problem.ready(*(x.double() for x in self.inputs)))
        (name,) = [p.name for p in problem.operator.signature().outputs]
        (out,) = [t for t in problem.operator.tensors() if t.name == name]
        self.kind = out.dtype.name
        self.out = self.torch.empty(out.shape, device="cuda", dtype=_torch_dtype(self.torch, self.kind))
        self.tensors = {name: x.data_ptr() for name, x in given.items()} | {out.name: self.out.data_ptr()}

    def error(self, call: Callable[[], Any]) -> float:
        self.out.fill_(float("nan"))
        call()
        return float(((self.out.double() - self.reference).norm() / self.reference.norm()).item())


def _torch_dtype(torch: Any, name: str) -> Any:
    return {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}[name]


def _on_device(torch: Any, array: Any) -> Any:
    return torch.from_numpy(array).to("cuda")


def configs(space: Space, default: Mapping[str, Any], trials: int) -> Iterator[dict[str, Any]]:
    yield dict(default)
    yield from (dict(config) for config in space.sample(trials // 2, seed=1))


def changed(space: Space, best: list[dict[str, Any]], count: int, dice: random.Random) -> list[dict[str, Any]]:
    """Good configs with one knob changed."""
    found: dict[str, dict[str, Any]] = {}
    for _ in range(count * 40):
        config = dict(dice.choice(best))
        knob = dice.choice([k for k in space.knobs if k.name in config and k.name != "sketch"])
        config[knob.name] = dice.choice(list(knob.values))
        if space.contains(config):
            found.setdefault(json.dumps(config, sort_keys=True), config)
        if len(found) == count:
            break
    return list(found.values())


def checked(problem: Problem, tools: Any, trials: int, flush: Any) -> dict[str, Any]:
    builder, target, driver = tools
    family = Rules()
    bench: Any = ExpressionBench(problem, flush)  # as far as it is asked for, one of gpu_bench.py
    space, default = family.space(problem.operator, target), family.default(problem.operator, target)
    tried: list[tuple[float, dict[str, Any]]] = []
    wrong: list[dict[str, Any]] = []
    dice = random.Random(1)
    waiting = list(configs(space, default, trials))
    first: float | None = None
    for turn in range(3):
        kernels = [(config, family.emit(problem.operator, target, config)) for config in waiting]
        for _, kernel in kernels:
            builder.start(kernel)
        for config, kernel in kernels:
            try:
                loaded = Loaded(bench, kernel, builder.image(kernel), driver)
            except (BuildError, DeepgenError) as error:
                wrong.append({"config": config, "error": str(error)[:300]})
                continue
            off = bench.error(loaded)
            if not off <= MOST_ERROR[bench.kind]:
                wrong.append({"config": config, "error": off})
            else:
                times = interleaved(bench, {"it": loaded}, 3)["it"]
                tried.append((min(times), config))
                first = min(times) if first is None and config == dict(default) else first
            loaded.close()
        if not tried or turn == 2:
            break
        tried.sort(key=lambda one: one[0])
        waiting = changed(space, [config for _, config in tried[:4]], trials // 4, dice)
    row: dict[str, Any] = {"problem": problem.name, "tried": len(tried) + len(wrong), "wrong": wrong}
    if not tried:
        return row
    config = min(tried, key=lambda one: one[0])[1]
    kernel = family.emit(problem.operator, target, config)
    loaded = Loaded(bench, kernel, builder.image(kernel), driver)
    calls: dict[str, Callable[[], Any]] = {"rules": loaded, "torch": lambda: problem.torch_call(*bench.ready)}
    for call in calls.values():
        call()
    with builder.quiet():
        taken = interleaved(bench, calls, ROUNDS)
    loaded.close()
    medians = {name: round(statistics.median(times), 2) for name, times in taken.items()}
    ratio = statistics.median(b / a for a, b in zip(taken["rules"], taken["torch"], strict=True))
    return {**row, "config": config, "default_us": first, **medians, "ratio": round(ratio, 3)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=60, help="of each problem")
    parser.add_argument("--only", default="", help="problems whose names begin so")
    parser.add_argument("--seconds", type=float, default=540.0, help="no problem begins later")
    parser.add_argument("--cores", type=int, default=14)
    parser.add_argument("--out", type=Path, default=HERE / "rules_check.json")
    options = parser.parse_args()
    torch = gpu_torch()
    torch.backends.cudnn.benchmark = True
    begin, rows = time.monotonic(), list[dict[str, Any]]()
    with open_device(options.cores) as tools:
        flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        for problem in problems():
            if not problem.name.startswith(options.only) or time.monotonic() - begin > options.seconds:
                continue
            rows.append(checked(problem, tools, options.trials, flush))
            row = rows[-1]
            timed = (
                f"{row['rules']:9.2f} us, torch {row['torch']:9.2f}, ratio {row['ratio']:.3f}" if "rules" in row else ""
            )
            print(f"{problem.name:14} {row['tried']:4} tried, {len(row['wrong']):3} wrong {timed}", flush=True)
            options.out.write_text(json.dumps({"conditions": conditions(), "rows": rows}, indent=1) + "\n")
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    if ratios:
        print(f"geometric mean of {len(ratios)}: {statistics.geometric_mean(ratios):.3f}")
    return int(any(row["wrong"] or "ratio" not in row for row in rows))


if __name__ == "__main__":
    run_main(main)
