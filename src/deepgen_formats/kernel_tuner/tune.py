"""`tune_kernel` and `run_kernel` with Kernel Tuner's arguments, on a device or on a cache file."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from deepgen.extend import (
    DEFAULT_STRATEGY,
    INPUT,
    BadInput,
    DeepgenError,
    OwnKernel,
    Policy,
    Setting,
    Space,
    Target,
    TensorArgument,
    Trial,
    foreign,
    load,
    make_strategy,
    read_recorded,
    settle_options,
    targets,
    tune,
)
from deepgen_formats.kernel_tuner import results
from deepgen_formats.kernel_tuner.kernel import TARGETS, kernel_of

# Kernel Tuner's strategies and the closest ones here.
_STRATEGIES = {
    "brute_force": "exhaustive", "random_sample": "random", "simulated_annealing": "annealing",
    "dual_annealing": "annealing", "genetic_algorithm": "evolution", "diff_evo": "evolution",
}  # fmt: skip
_OTHERS = (
    "adaptive_tabu_greywolf", "basinhopping", "bayes_opt", "firefly_algorithm", "greedy_ils", "greedy_mls",
    "hybrid_vndx", "minimize", "mls", "ordered_greedy_mls", "pso", "pyatf_strategies", "skopt",
)  # fmt: skip
_COMPILERS = (None, "cc", "c++", "gcc", "g++", "clang", "clang++", "nvcc", "hipcc")
_NEVER = 1e9  # ratio to the best time: every config is timed to the end
_USUAL_TRIALS = 100  # for strategies that do not try all configs


def tune_kernel(
    kernel_name: str,
    kernel_source: Any,
    problem_size: Any,
    arguments: Sequence[Any],
    tune_params: Mapping[str, Sequence[Any]],
    grid_div_x: Any = None,
    grid_div_y: Any = None,
    grid_div_z: Any = None,
    restrictions: Any = None,
    answer: Sequence[Any] | None = None,
    atol: float = 1e-6,
    verify: Any = None,
    verbose: bool = False,
    lang: str | None = None,
    device: int = 0,
    platform: int = 0,
    smem_args: Mapping[str, Any] | None = None,
    cmem_args: Mapping[str, Any] | None = None,
    texmem_args: Mapping[str, Any] | None = None,
    compiler: str | None = None,
    compiler_options: Sequence[str] | None = None,
    defines: Mapping[str, Any] | None = None,
    log: Any = None,
    iterations: int = 7,
    block_size_names: Sequence[str] | None = None,
    quiet: bool = False,
    strategy: str | None = None,
    strategy_options: Mapping[str, Any] | None = None,
    cache: str | Path | None = None,
    metrics: results.Metrics | None = None,
    simulation_mode: bool | None = None,
    parallel: Any = None,
    observers: Sequence[Any] | None = None,
    objective: str | None = None,
    objective_higher_is_better: bool | None = None,
    objectives: Mapping[str, bool] | None = None,
    seed: int | None = None,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Tune a kernel described as for Kernel Tuner, and return its `results, env`.

    Every config runs in a separate process and is timed by deepgen, whatever a C function returns. Without `cache`
    nothing is stored; with it, the study is stored next to the cache file, and the same call resumes it.
    """
    started = time.perf_counter()
    _refuse(verify, observers, objectives, compiler, device)
    kernel = kernel_of(
        kernel_name, kernel_source, problem_size, arguments, tune_params,
        grid_div=(grid_div_x, grid_div_y, grid_div_z), restrictions=restrictions, answer=answer, atol=atol, lang=lang,
        smem_args=smem_args, cmem_args=cmem_args, texmem_args=texmem_args, compiler_options=compiler_options,
        defines=defines, block_size_names=block_size_names,
    )  # fmt: skip
    # A search on a cache needs no device.
    target = targets.resolve("cpu" if simulation_mode else TARGETS[kernel.description.language])
    search = _search(kernel, target, strategy, strategy_options or {}, iterations, seed or 0)
    names, measured = list(tune_params), metrics or {}
    results.check(measured, objective, search.space.first())
    file = None if cache is None else results.with_suffix(cache)
    if simulation_mode:
        rows, winner = simulated(file, search, names, measured), None
    else:
        about = {
            "kernel_name": kernel_name,
            "problem_size": str(problem_size) if callable(problem_size) else problem_size,
            "tune_params": {name: list(values) for name, values in tune_params.items()},
            "objective": objective or "time",
        }
        rows, winner = _tuned(search, file, names, measured, about)
    best = results.best_of(rows, objective or "time", objective_higher_is_better)
    if winner is not None and objective in (None, "time"):
        best = winner  # timed side by side with the next best: single times cannot distinguish them
    env = results.environment(rows, best, search.target, iterations, compiler_options)
    env["overhead_time"] = (time.perf_counter() - started) * 1e3 - env["total_benchmark_time"]
    if not quiet:
        _print(rows, best, names, ["time", *measured])
    return rows, env


def _refuse(verify: Any, observers: Any, objectives: Any, compiler: str | None, device: int) -> None:
    """Raise an error for arguments that are not supported, by name."""
    if verify is not None:
        raise BadInput("verify is given", allowed="use answer and atol: kernels are compared in a separate process")
    if observers:
        raise BadInput("observers are given", allowed="omit them: deepgen times kernels itself")
    if objectives:
        raise BadInput("objectives are given", allowed="one objective")
    if compiler not in _COMPILERS:
        raise BadInput(
            f"compiler is {compiler!r}", allowed="omit it: deepgen finds its own compiler for C, C++, CUDA and HIP"
        )
    if device != 0:
        raise BadInput(f"device is {device!r}", allowed="0; CUDA_VISIBLE_DEVICES chooses another")


def _search(
    kernel: OwnKernel, target: Target, strategy: str | None, options: Mapping[str, Any], iterations: int, seed: int
) -> Search:
    """The search settings: Kernel Tuner's options converted to deepgen's."""
    space = kernel.family.space(kernel.operator(), target)
    left = dict(options)
    most, share, seconds = left.pop("max_fevals", None), left.pop("fraction", None), left.pop("time_limit", None)
    if left:
        warnings.warn(f"strategy_options not used: {', '.join(sorted(left))}", stacklevel=3)
    named = "brute_force" if strategy is None else strategy
    if named not in _STRATEGIES and named not in _OTHERS:
        raise BadInput(f"strategy is {strategy!r}", allowed="one of " + ", ".join([*_STRATEGIES, *_OTHERS]))
    if space.empty():
        raise BadInput("restrictions exclude every config", allowed="unsatisfiable: " + ", ".join(space.why_empty()))
    count = space.size().count
    if share is not None:
        most = max(1, int(share * count))
    usual = count if named == "brute_force" else _USUAL_TRIALS
    trials = min(count, usual if most is None else int(most))
    return Search(kernel, target, space, _STRATEGIES.get(named, DEFAULT_STRATEGY), trials, seconds, iterations, seed)


def _tuned(
    search: Search, cache: Path | None, names: Sequence[str], metrics: results.Metrics, about: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """The rows of an actual run, and that of the winner."""
    # As in Kernel Tuner: this many runs in sequence on the same data.
    runs = search.iterations
    policy = Policy(cold=False, min_samples=runs, max_samples=runs, give_up=_NEVER)
    with TemporaryDirectory(prefix="deepgen-compat-") as folder:
        study = tune(
            search.kernel,
            target=search.target,
            trials=search.trials,
            time_budget=search.time_budget,
            seed=search.seed,
            strategy=search.strategy,
            second_look=False,
            policy=policy,
            baselines=False,
            out=folder if cache is None else cache.with_suffix(".studies"),
            progress=False,
        )
        trials = study.trials()
        took: Any = study.summary()["time"]
        spent = float(took["search"]) * 1e3 / max(1, len(trials))
        rows = {trial.id: results.result_of(trial, names, metrics, spent) for trial in trials}
        try:
            winner = rows[study.best().trial.id]
        except DeepgenError:
            winner = None  # every config failed: the rows say why
        if cache is not None:
            results.write_cache(cache, study, list(rows.values()), about)
    return list(rows.values()), winner


def _print(
    rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any], names: Sequence[str], more: Sequence[str]
) -> None:
    """Print one line per config, as Kernel Tuner does, and the best."""
    for row in rows:
        error = f", {row['__error__']}" if "__error__" in row else ""
        print(foreign.printable(_line(row, [*names, *more]) + error))
    print(f"best: {_line(best, [*names, *more])}" if best else "no config finished")


def _line(row: Mapping[str, Any], names: Sequence[str]) -> str:
    shown = {name: row[name] for name in names if name in row}
    return ", ".join(f"{n}={value:.3f}" if isinstance(value, float) else f"{n}={value}" for n, value in shown.items())


@dataclass(frozen=True)
class Search:
    """The space and how it is searched."""

    kernel: OwnKernel
    target: Target
    space: Space
    strategy: str
    trials: int
    time_budget: float | None
    iterations: int
    seed: int


def simulated(
    cache: Path | None, search: Search, names: Sequence[str], metrics: results.Metrics
) -> list[dict[str, Any]]:
    """The rows that a strategy requests, taken from a cache file."""
    if cache is None or not cache.is_file():
        raise BadInput("simulation_mode needs a cache", allowed="cache=, a file of an earlier run")
    recorded = read_recorded(cache)
    options = settle_options(search.strategy, {})
    strategy = make_strategy(search.strategy, Setting(recorded.space, search.seed, options=options))
    rows: list[dict[str, Any]] = []
    while len(rows) < search.trials:
        configs = strategy.ask(1)
        if not configs:
            break
        for config in configs:
            trial = Trial(len(rows), recorded.space.rank(config), config, "", recorded.measure(config))
            strategy.tell(trial)
            rows.append(results.result_of(trial, names, metrics, 0.0))
    return rows


def run_kernel(
    kernel_name: str,
    kernel_source: Any,
    problem_size: Any,
    arguments: Sequence[Any],
    params: Mapping[str, Any],
    grid_div_x: Any = None,
    grid_div_y: Any = None,
    grid_div_z: Any = None,
    lang: str | None = None,
    device: int = 0,
    platform: int = 0,
    smem_args: Mapping[str, Any] | None = None,
    cmem_args: Mapping[str, Any] | None = None,
    texmem_args: Mapping[str, Any] | None = None,
    compiler: str | None = None,
    compiler_options: Sequence[str] | None = None,
    defines: Mapping[str, Any] | None = None,
    block_size_names: Sequence[str] | None = None,
    quiet: bool = False,
    log: Any = None,
) -> list[Any]:
    """Build a kernel with these parameters, run it once in this process, and return its arguments afterwards."""
    kernel = kernel_of(
        kernel_name, kernel_source, problem_size, arguments, {name: [value] for name, value in params.items()},
        grid_div=(grid_div_x, grid_div_y, grid_div_z), lang=lang, smem_args=smem_args, cmem_args=cmem_args,
        texmem_args=texmem_args, compiler_options=compiler_options, defines=defines, block_size_names=block_size_names,
    )  # fmt: skip
    if kernel.description.language != "c++":
        raise BadInput("run_kernel is given a kernel for a GPU", allowed="lang C: tune_kernel runs kernels on GPUs")
    target, operator = targets.resolve(TARGETS["c++"]), kernel.operator()
    config = kernel.family.default(operator, target)
    called = load(kernel.family.emit(operator, target, config), operator, target)
    tensors = [a for a in kernel.description.arguments if isinstance(a, TensorArgument)]
    held = {a.name: a.fill.copy() for a in tensors}
    called(**held)
    changed = {a.name: held[a.name] for a in tensors if a.role != INPUT}
    after = []
    for argument, passed in zip(kernel.description.arguments, arguments, strict=False):
        written = changed.get(argument.name)
        after.append(passed if written is None else written.view(np.asarray(passed).dtype).reshape(np.shape(passed)))
    return after
