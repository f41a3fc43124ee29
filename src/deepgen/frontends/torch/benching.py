"""A whole model, compared side by side: eager torch, torch.compile, and each with a library's kernels."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from statistics import median
from typing import Any, TypeAlias, TypeVar

import torch

from deepgen.frontends.torch.race import Met
from deepgen.frontends.torch.using import Use
from deepgen.libraries import Choice, Library
from deepgen.libraries.entry import Entry
from deepgen.operators import Operator
from deepgen.operators.expr.operator import ExpressionOperator
from deepgen.run.measure.race import Ratio, interleaved, paired_ratio, race
from deepgen.targets import Target
from deepgen.vocabulary import BadInput, DeepgenError, JsonObject, Missing

_SAMPLE = 0.02  # seconds per sample: short runs are repeated until they take this long
_MOST_CALLS = 200
EAGER, COMPILED, GRAPHS = "eager", "torch.compile", "CUDA graph"
WITH = " + deepgen"
_FAILS = {EAGER: "the model fails", COMPILED: "torch.compile fails; skip it with --no-compile"}

Run = Callable[[], Any]
_Counts: TypeAlias = "tuple[dict[str, int], dict[str, int]]"
T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One way of running the model."""

    name: str
    samples: tuple[float, ...]  # seconds per run, one per round
    faster: Ratio  # speedup over the same without deepgen, or over eager torch
    than: str
    difference: float  # largest difference of the outputs from eager torch, relative to their largest value
    served: Mapping[str, int] = field(default_factory=dict)  # calls per run served by kernels; for a graph, as captured
    refused: Mapping[str, int] = field(default_factory=dict)  # calls that a kernel handed back to torch

    @property
    def slower(self) -> bool:
        """Whether the library makes it slower, with the whole interval below 1."""
        return self.name.endswith(WITH) and self.faster.high < 1.0

    @property
    def seconds(self) -> float:
        return median(self.samples)


@dataclass(frozen=True)
class ModelBench:
    """All ways of running the model, and which calls the library's kernels served."""

    rows: tuple[Row, ...]
    met: tuple[Met, ...]
    # If eager torch became slower: the model's speedup with the kernel of a single operator.
    alone: tuple[tuple[str, Ratio], ...] = ()
    unused: str = ""  # set if the model made no call for which the library has a kernel

    def calls_of(self, operator: Operator) -> str:
        """How many calls of an eager run were served by kernels, and how many they handed back to torch."""
        row = next(row for row in self.rows if row.name == EAGER + WITH)
        name = operator.describe()
        back = row.refused.get(name, 0)
        return f"{row.served.get(name, 0)}" + (f", {back} given back" if back else "")

    @property
    def warning(self) -> str:
        """What is slower with the library and which operators cause it, or that the library has no kernel for it."""
        slower = [row for row in self.rows if row.slower]
        if not slower:
            return self.unused
        rows = "; ".join(f"{row.name} reaches {row.faster.estimate:.2f} of {row.than}" for row in slower)
        lose = [f"{name} ({ratio.estimate:.2f} alone)" for name, ratio in self.alone if ratio.high < 1.0]
        cause = f"Slower kernels: {', '.join(lose)}." if lose else "No single operator's kernel is slower beyond noise."
        return f"The library makes this model slower: {rows}. {cause if self.alone else ''}".rstrip()

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
                    "served": dict(row.served),
                    "refused": dict(row.refused),
                }
                for row in self.rows
            ],
            "operators": [
                {"operator": met.operator.describe(), "served_by": "deepgen" if met.ours else "torch", "why": met.why}
                for met in self.met
            ],
            "warning": self.warning,
        }


@dataclass(frozen=True)
class ModelWay:
    name: str
    run: Run
    within: Callable[[], AbstractContextManager[Any]] = nullcontext
    calls: int = 1


def bench(
    make: Callable[[], Any], library: Library, *, rounds: int = 20, compiled: bool = True, graphs: bool = False
) -> ModelBench:
    """Run what `make` returns in each way, interleaved and in another order each round."""
    if graphs and not torch.cuda.is_available():
        raise Missing("a GPU that torch can use", blocks="--cuda-graphs needs a GPU", remedy="Leave it out")
    with torch.no_grad():
        run = runnable(of_the_users(make, "the function that makes the model fails"))
        used = Use(library, warns=False)
        ways = [ModelWay(EAGER, run), _with(used, run)]
        if compiled:
            # In the library's scope another graph is compiled, because the functions called there differ.
            fast = torch.compile(run)
            ways += [ModelWay(COMPILED, fast), ModelWay(COMPILED + WITH, fast, lambda: used)]
        outputs: dict[str, Any] = {}
        counts: dict[str, _Counts] = {}
        for way in ways:
            if way.name in _FAILS:
                of_the_users(way.run, _FAILS[way.name])
            with way.within():
                way.run(), way.run()
                result, counts[way.name] = _counted(used, way.run)
                outputs[way.name] = _numbers(result)
        if graphs:
            for way in ways[:2]:
                captured, calls = _counted(used, partial(_captured, way, outputs))
                ways.append(captured)
                counts[captured.name] = calls
        samples = _timed([often_enough(way) for way in ways], rounds)
    want = outputs[EAGER]
    rows = []
    for way in ways:
        plain = way.name.removesuffix(WITH)
        than = EAGER if plain == way.name else plain
        ratio = paired_ratio(samples[than], samples[way.name])
        far = _difference(outputs[way.name], want)
        rows.append(Row(way.name, tuple(samples[way.name]), ratio, than, far, *counts[way.name]))
    slower = next(row for row in rows if row.name == EAGER + WITH)
    served = {met.operator: None for met in used.met if met.operator.describe() in slower.served}
    alone = _alone(run, library, [*served], rounds) if slower.slower else ()
    return ModelBench(tuple(rows), used.met, alone, used.unused)


def _alone(run: Run, library: Library, operators: Sequence[Operator], rounds: int) -> tuple[tuple[str, Ratio], ...]:
    """For each operator, the model's speedup with only that operator's kernels."""
    ratios = []
    for operator in operators:
        ways = [ModelWay(EAGER, run), _with(Use(Only(library, (operator,)), race=False, warns=False), run)]  # type: ignore[arg-type]
        with torch.no_grad():
            samples = _timed([often_enough(way) for way in ways], rounds)
        ratios.append((operator.describe(), paired_ratio(samples[EAGER], samples[EAGER + WITH])))
    return tuple(ratios)


def _with(used: Use, run: Run) -> ModelWay:
    return ModelWay(EAGER + WITH, run, lambda: used)


class Only:
    """A library restricted to the kernels of some operators, whatever serves recorded models. None: all of them."""

    def __init__(self, library: Library, operators: Collection[Operator] | None) -> None:
        self._library, self._operators = library, operators

    def list(self) -> list[Entry]:
        """Expressions are served only by their own kernels; kernels for other shapes of a named operator may serve this
        one.
        """
        return [entry for entry in self._library.list() if self._may_serve(entry.operator)]

    def _may_serve(self, tuned: Operator) -> bool:
        of = self._operators
        kinds = {type(one) for one in of or ()} - {ExpressionOperator}
        return of is None or tuned in of or type(tuned) in kinds

    def choose(self, operator: Operator, target: Target, among: tuple[str, ...] | None = None) -> Choice:
        if self._operators is None or operator in self._operators:
            return self._library.choose(operator, target, among)
        return Choice(operator, target, "none", None, None, None, "other operators are being measured")


def _counted(used: Use, run: Callable[[], T]) -> tuple[T, _Counts]:
    """A result, with the calls of each operator that kernels served during it, and those that they handed back."""
    before = {id(met.calls): (met.calls.served, met.calls.refused) for met in used.met}
    result = run()
    served, refused = dict[str, int](), dict[str, int]()
    for met in used.met:
        first, second = before.get(id(met.calls), (0, 0))
        for calls, more in ((served, met.calls.served - first), (refused, met.calls.refused - second)):
            if more:
                name = met.operator.describe()
                calls[name] = calls.get(name, 0) + more
    return result, (served, refused)


def of_the_users(call: Run, words: str) -> Any:
    """Calls the user's code, without any of ours: its exceptions are reported as the user's."""
    try:
        return call()
    except Exception as error:
        first_line = (str(error).splitlines() or [""])[0]
        raise DeepgenError(f"{words}: {type(error).__name__}: {first_line}") from error


def runnable(subject: Any) -> Run:
    """The return value of `make` as a function without arguments."""
    if isinstance(subject, tuple) and subject and callable(subject[0]):
        model, *inputs = subject
        args = tuple(inputs[0]) if len(inputs) == 1 and isinstance(inputs[0], (tuple, list)) else tuple(inputs)
        return lambda: model(*args)
    if callable(subject):
        run: Run = subject
        return run
    raise BadInput(
        f"it returned {type(subject).__name__}", allowed="(model, input, ...), or a callable without arguments"
    )


def _timed(ways: Sequence[ModelWay], rounds: int) -> dict[str, list[float]]:
    timers = {way.name: partial(sample, way) for way in ways}
    return race(timers, interleaved(timers, seed=0), rounds).samples


def sample(way: ModelWay) -> float:
    with way.within():
        way.run()  # after torch's functions are replaced, Python has to look all of them up again
        return _seconds(way.run, way.calls)


def often_enough(way: ModelWay) -> ModelWay:
    with way.within():
        once = min(_seconds(way.run, 1) for _ in range(3))
    return replace(way, calls=max(1, min(_MOST_CALLS, ceil(_SAMPLE / once))))


def _seconds(run: Run, calls: int) -> float:
    """Seconds of one run including the host's time, as a program experiences it."""
    _wait()
    started = time.perf_counter()
    for _ in range(calls):
        run()
    _wait()
    return (time.perf_counter() - started) / calls


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _captured(way: ModelWay, outputs: dict[str, Any]) -> ModelWay:
    """The same run, captured once in a CUDA graph and replayed."""
    name = way.name.replace(EAGER, GRAPHS)
    graph = torch.cuda.CUDAGraph()
    with way.within(), torch.cuda.graph(graph):
        out = way.run()
    graph.replay()
    _wait()
    outputs[name] = _numbers(out)
    return ModelWay(name, graph.replay)


def _numbers(out: Any) -> list[Any]:
    """All tensors in a result, however nested."""
    if isinstance(out, torch.Tensor):
        return [out.detach().clone()]
    inside = out.values() if isinstance(out, Mapping) else out if isinstance(out, (tuple, list)) else ()
    return [tensor for one in inside for tensor in _numbers(one)]


def _difference(results: Sequence[Any], want: Sequence[Any]) -> float:
    return max((_apart(one, other) for one, other in zip(results, want, strict=True)), default=0.0)


def _apart(result: Any, want: Any) -> float:
    largest = want.double().abs().max().item() if want.numel() else 0.0
    return float((result.double() - want.double()).abs().max().item() / largest) if largest else 0.0
