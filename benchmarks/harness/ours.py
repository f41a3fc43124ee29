"""Our kernels called from this process: as families rank them or a study finds them, and the cases one by one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import isnan
from statistics import geometric_mean
from typing import Any, TypeVar

import deepgen as dg
from deepgen import generators
from deepgen.run.call.loaded import load
from deepgen.toolchains import build_once
from harness.options import Options
from harness.results import keep, read, save

Case = TypeVar("Case")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Ours:
    """A kernel that is built; `seconds`: its time in a study's finals."""

    family: str
    values: Mapping[str, Any]
    load: Callable[[], Any]
    seconds: float | None = None

    @property
    def config(self) -> str:
        return f"{self.family} {dict(self.values)}"


def kernels(
    operator: Any,
    target: Any,
    *,
    seconds: float = 0.0,
    guesses: int = 1,
    family: str | None = None,
    threads: int | None = None,
    jobs: int = 1,
) -> list[Ours]:
    """What a study of so many seconds finds; or, without a search, the default and what the families rank next."""
    if seconds:
        return [_tuned(operator, target, seconds, threads)]
    generator = generators.find(operator, target, family)
    limited = target.limited_to(threads) if threads else target
    default = generator.default(operator, limited)
    others = (config for config in generators.best_guesses(generator, operator, limited) if config != default)
    members = [generators.member_of(generator, config) for config in (default, *islice(others, guesses - 1))]
    sources = [own.emit(operator, target, config) for own, config in members]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda kernel: build_once(kernel, target), sources))
    return [
        Ours(own.name, config, partial(load, kernel, operator, target))
        for (own, config), kernel in zip(members, sources, strict=True)
    ]


def _tuned(operator: Any, target: Any, seconds: float, threads: int | None) -> Ours:
    with tempfile.TemporaryDirectory() as folder:
        words: dict[str, Any] = {"threads": threads, "out": folder, "baselines": False, "progress": False}
        study = dg.tune(operator, target=target, time_budget=seconds, **words)
        best = study.best()
        loaded = best.load()
    name, config = generators.named_member(study.generator.name, best.trial.config)
    return Ours(name, config, lambda: loaded, best.seconds)


def off(result: Any, want: Any) -> float:
    """The norm of the error over that of the result; infinite where something was not written."""
    distance = float((result.double() - want).norm() / want.norm().clamp(min=1e-30))
    return float("inf") if isnan(distance) else distance


def before(options: Options, kind: Callable[..., Result]) -> list[Result]:
    """The results of an earlier run with the same file that did not fail."""
    rows = (read(options.json) if options.json else None) or []
    return [kind(**row) for row in rows if not row["error"]]


def measure(
    options: Options,
    cases: Iterable[Case],
    measured: Callable[[Case], Result],
    failed: Callable[[Case, str], Result],
    shown: Callable[[Result], Iterable[object]],
    done: Sequence[Result] = (),
    **where: Any,
) -> list[Result]:
    """The results of all cases, behind those that are done already. No case begins after the time limit."""
    results, deadline = [*done], options.deadline()
    for case in cases:
        if deadline.over:
            break
        try:
            one = measured(case)
        except (dg.DeepgenError, RuntimeError) as error:
            one = failed(case, f"{type(error).__name__}: {error}"[:300])
        results.append(one)
        print(*shown(one), flush=True)
        keep(options.json, results, **where)
    save(options.json, results, **where)
    return results


def mean_text(ratios: Iterable[float | None]) -> str:
    some = [ratio for ratio in ratios if ratio]
    behind = sum(ratio < 1 for ratio in some)
    if not some:
        return "no ratios"
    return f"geometric mean {geometric_mean(some):.3f}, least {min(some):.3f}, {behind} of {len(some)} below 1"
