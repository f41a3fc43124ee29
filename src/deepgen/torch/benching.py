"""A whole model, side by side: eager torch, torch.compile, and each with a library's kernels."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from math import ceil
from statistics import median
from typing import Any

import torch

from deepgen.libraries import Library
from deepgen.torch.routes import Met
from deepgen.torch.using import use
from deepgen.tuning.statistics import Ratio, paired_ratio
from deepgen.vocabulary import BadInput, JsonObject

_SAMPLE = 0.02  # seconds of a sample: short runs are repeated until they take this long
_MOST_CALLS = 200
EAGER, COMPILED, GRAPHS = "eager", "torch.compile", "CUDA graph"
WITH = " + deepgen"

Run = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """One way of running the model."""

    name: str
    samples: tuple[float, ...]  # seconds of a run, round by round
    faster: Ratio  # how many times as fast as the same without deepgen, or as eager torch
    than: str
    difference: float  # the largest of the outputs from eager torch's, as a share of their largest number

    @property
    def seconds(self) -> float:
        return median(self.samples)


@dataclass(frozen=True)
class Bench:
    """All ways, and what the library's kernels served."""

    rows: tuple[Row, ...]
    met: tuple[Met, ...]

    def to_json(self) -> JsonObject:
        return {
            "rows": [
                {
                    "name": row.name,
                    "seconds": row.seconds,
                    "faster": row.faster.estimate,
                    "interval": [row.faster.low, row.faster.high],
                    "than": row.than,
                    "difference": row.difference,
                    "rounds": len(row.samples),
                }
                for row in self.rows
            ],
            "operators": [
                {"operator": met.operator.describe(), "served_by": "deepgen" if met.ours else "torch", "why": met.why}
                for met in self.met
            ],
        }


@dataclass(frozen=True)
class _Way:
    name: str
    run: Run
    within: Callable[[], AbstractContextManager[Any]] = nullcontext
    calls: int = 1


def bench(
    make: Callable[[], Any], library: Library, *, rounds: int = 20, compiled: bool = True, graphs: bool = False
) -> Bench:
    """Run what `make` gives in each way, in turns and in another order each round."""
    with torch.no_grad():
        run = runnable(make())
        used = use(library)
        ways = [_Way(EAGER, run), _Way(EAGER + WITH, run, lambda: used)]
        if compiled:
            # In the library's scope another graph is compiled: functions that it calls are others there.
            fast = torch.compile(run)
            ways += [_Way(COMPILED, fast), _Way(COMPILED + WITH, fast, lambda: used)]
        outputs = {}
        for way in ways:
            with way.within():
                outputs[way.name] = [_numbers(way.run()) for _ in range(3)][-1]
        if graphs:
            ways += [_captured(way, outputs) for way in ways[:2]]
        samples = _timed([_often_enough(way) for way in ways], rounds)
    want = outputs[EAGER]
    rows = []
    for way in ways:
        plain = way.name.removesuffix(WITH)
        than = EAGER if plain == way.name else plain
        ratio = paired_ratio(samples[than], samples[way.name])
        rows.append(Row(way.name, tuple(samples[way.name]), ratio, than, _difference(outputs[way.name], want)))
    return Bench(tuple(rows), used.met)


def runnable(made: Any) -> Run:
    """What `make` gave as a function without arguments."""
    if isinstance(made, tuple) and made and callable(made[0]):
        model, *given = made
        args = tuple(given[0]) if len(given) == 1 and isinstance(given[0], (tuple, list)) else tuple(given)
        return lambda: model(*args)
    if callable(made):
        run: Run = made
        return run
    raise BadInput(f"it gave {type(made).__name__}", allowed="(model, input, ...), or a function without arguments")


def _timed(ways: Sequence[_Way], rounds: int) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {way.name: [] for way in ways}
    order, chance = [*ways], random.Random(0)
    for _ in range(rounds):
        chance.shuffle(order)
        for way in order:
            with way.within():
                samples[way.name].append(_seconds(way.run, way.calls))
    return samples


def _often_enough(way: _Way) -> _Way:
    with way.within():
        once = min(_seconds(way.run, 1) for _ in range(3))
    return replace(way, calls=max(1, min(_MOST_CALLS, ceil(_SAMPLE / once))))


def _seconds(run: Run, calls: int) -> float:
    """Of one run, the host's time included, as a program would see it."""
    _wait()
    started = time.perf_counter()
    for _ in range(calls):
        run()
    _wait()
    return (time.perf_counter() - started) / calls


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _captured(way: _Way, outputs: dict[str, Any]) -> _Way:
    """The same, recorded once in a graph of the GPU's and replayed."""
    name = way.name.replace(EAGER, GRAPHS)
    graph = torch.cuda.CUDAGraph()
    with way.within(), torch.cuda.graph(graph):
        out = way.run()
    graph.replay()
    _wait()
    outputs[name] = _numbers(out)
    return _Way(name, graph.replay)


def _numbers(out: Any) -> list[Any]:
    """All tensors of a result, whatever they lie in."""
    if isinstance(out, torch.Tensor):
        return [out.detach().clone()]
    inside = out.values() if isinstance(out, Mapping) else out if isinstance(out, (tuple, list)) else ()
    return [tensor for one in inside for tensor in _numbers(one)]


def _difference(found: Sequence[Any], want: Sequence[Any]) -> float:
    return max((_apart(one, other) for one, other in zip(found, want, strict=True)), default=0.0)


def _apart(found: Any, want: Any) -> float:
    largest = want.double().abs().max().item() if want.numel() else 0.0
    return float((found.double() - want.double()).abs().max().item() / largest) if largest else 0.0
