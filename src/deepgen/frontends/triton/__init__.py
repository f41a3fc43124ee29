"""`@deepgen.autotune`, a replacement for `@triton.autotune`.

It is Triton's own autotuner except for measuring: configs are built and timed by deepgen, in a worker and on copies of
the call's tensors, so that one that hangs, crashes or is wrong only gets a verdict. Results are stored on disk. Calls
that deepgen cannot describe are timed by Triton in this process, with a warning.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from deepgen.frontends.triton.calls import Called, CalledFamily, Undescribable, operator_of, space_of
from deepgen.vocabulary import BadInput, DeepgenError, Missing, digest, foreign
from deepgen.vocabulary.folders import default_cache_folder, write_whole

__all__ = ["autotune"]


_TRIES = 3  # configs tried as the reference: the first may fail
_TRIALS = 200
_SAMPLED = 16  # configs of a space that Triton times in this process
_KEPT = 4  # finalists
FORMAT = "deepgen-autotune 1"  # of files with results
_LAUNCHING = ("grid", "warmup")  # arguments that `kernel[grid](...)` adds to a kernel's own


def autotune(
    configs: Sequence[Any] | None = None,
    key: Sequence[str] = (),
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Callable[..., Any] | None = None,
    post_hook: Callable[..., Any] | None = None,
    warmup: int | None = None,
    rep: int | None = None,
    use_cuda_graph: bool = False,
    do_bench: Callable[..., Any] | None = None,
    cache_results: bool = True,
    *,
    space: Mapping[str, Sequence[Any]] | None = None,
    requires: Sequence[str] = (),
    trials: int = _TRIALS,
    time_budget: float | None = None,
) -> Callable[[Any], Any]:
    """Triton's decorator of the same name, with its arguments; `kernel[grid](...)` stays as it is.

    Instead of `configs`, `space` lists knobs with their values (`tl.constexpr` parameters, num_warps, num_stages and
    other options) and `requires` lists constraints over knobs and the call's numbers; `trials` and `time_budget`
    limit the search. The tensors of a call are copied, and only the requested launch writes to the originals, so
    `restore_value` is not needed. `pre_hook` and `reset_to_zero` are applied to the copies. `rep` is the
    maximum time in milliseconds spent timing a config. Your own `do_bench` measures in this process, as in Triton.
    Results are stored on disk, unless `cache_results` is False.
    """
    if (configs is None) == (space is None):
        raise BadInput(
            "configs= and space= are " + ("missing" if space is None else "both given"), allowed="one of them"
        )
    listed = list(configs) if configs is not None else None

    def decorate(function: Any) -> Any:
        arguments = (prune_configs_by, reset_to_zero, restore_value, pre_hook, post_hook, warmup, rep, use_cuda_graph)
        tuner = _kind()(function, listed, list(key), *arguments, do_bench)
        tuner.deepgen = Tuning(
            dict(space or {}), tuple(requires), trials, time_budget, rep, cache_results, bool(do_bench)
        )
        return tuner

    return decorate


@dataclass
class Tuning:
    """How deepgen chooses a config for a call; `note` explains the last choice."""

    knobs: Mapping[str, Sequence[Any]]  # of a space; empty if configs are listed
    requires: Sequence[str]
    trials: int
    time_budget: float | None
    rep: int | None
    kept: bool  # on disk
    own_bench: bool  # whether the user measures
    note: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def rows(self, configs: Sequence[Any]) -> list[dict[str, Any]] | None:
        """The configs as plain values; None if there is a space. Raises Undescribable."""
        if self.knobs:
            return None
        if self.own_bench:
            raise Undescribable("do_bench is given")
        if any(config.pre_hook is not None for config in configs):
            raise Undescribable("a config has a pre_hook")
        return [_plain(config) for config in configs]

    def may_be(self, config: Mapping[str, Any], rows: list[dict[str, Any]] | None) -> bool:
        """Whether a config from a file is one of the given configs."""
        if rows is not None:
            return config in rows
        return set(config) == set(self.knobs) and all(config[name] in self.knobs[name] for name in config)

    def search(self, called: Called, rows: list[dict[str, Any]] | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """The best config, and facts about it."""
        skipped: list[str] = []
        for first in range(_TRIES if rows is not None else 1):
            try:
                config, facts = self._searched(called, rows if rows is None else rows[first:])
                return config, {**facts, "agrees_with": f"config {first}", "skipped": skipped}
            except DeepgenError as error:
                if isinstance(error, (BadInput, Missing, Undescribable)) or rows is None or first + 2 >= len(rows):
                    raise
                skipped.append(f"config {first}: {error}")
        raise DeepgenError(f"{called.function.fn.__name__}: the first {_TRIES} configs fail: {skipped[0]}")

    def _searched(self, called: Called, rows: list[dict[str, Any]] | None) -> tuple[dict[str, Any], dict[str, Any]]:
        from deepgen.frontends.api import tune
        from deepgen.run.measure.base import Policy

        operator = operator_of(called, rows, self.knobs, self.requires)
        family = operator.family
        assert isinstance(family, CalledFamily)
        policy = Policy() if self.rep is None else Policy(max_seconds=self.rep / 1000.0)
        with tempfile.TemporaryDirectory(prefix="deepgen-autotune-") as folder:
            study = tune(
                operator,
                target=_target(),
                trials=self.trials if rows is None else len(rows),
                time_budget=self.time_budget,
                strategy="model" if rows is None else "exhaustive",
                transfer=False,
                second_look=rows is None,
                keep_top=_KEPT,
                policy=policy,
                baselines=False,
                out=folder,
                progress=False,
            )
            best = study.best()
            verdicts = study.summary()["trials"]
        return dict(family.config(best.trial.config)), {"seconds": best.seconds, "verdicts": verdicts}


def _plain(config: Any) -> dict[str, Any]:
    """A triton.Config as knobs. Raises Undescribable."""
    options = {name: value for name, value in config.all_kwargs().items() if value is not None}
    if "ir_override" in options:
        raise Undescribable("a config overrides the kernel's IR")
    return options


def _target() -> str:
    """The target of Triton's calls: a GPU, or the CPU if its backend is active."""
    backend = _active().get_current_target().backend
    return f"{backend}:native" if backend in ("cuda", "hip") else "cpu"


def _device() -> str:
    if _target() == "cpu":
        return str(_active().get_current_target().arch)
    import torch

    return str(torch.cuda.get_device_name())


def _active() -> Any:
    from triton.runtime import driver

    return driver.active


@lru_cache(maxsize=1)
def _kind() -> type:
    """A subclass of Triton's autotuner that chooses differently; created once Triton is available."""
    try:
        import triton
        from triton.runtime.autotuner import Autotuner
    except ModuleNotFoundError as error:
        raise Missing(
            "Triton", blocks="autotune cannot work", remedy="Install it with `pip install triton==3.9.0`."
        ) from error

    class DeepgenAutotuner(Autotuner):  # type: ignore[misc]
        deepgen: Tuning
        configs: list[Any]
        cache: dict[Any, Any]

        def __init__(self, fn: Any, configs: Any, key: Any, *others: Any) -> None:
            prune, zeroed, restored, before, after, warmup, rep, graph, bench = others
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # warmup, rep: they keep their meaning
                super().__init__(
                    fn, fn.arg_names, configs or [triton.Config({}), triton.Config({})], key, zeroed, restored,
                    before, after, prune, warmup, rep, graph, bench,
                )  # fmt: skip

        def run(self, *args: Any, **kwargs: Any) -> Any:
            with self.deepgen.lock:
                self._choose(args, dict(kwargs))
            return super().run(*args, **kwargs)

        def _choose(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
            """Put the config for this call's key where Triton looks for it."""
            self.nargs = dict(zip(self.arg_names, args, strict=False))
            named = {name: value for name, value in {**self.nargs, **kwargs}.items() if name not in _LAUNCHING}
            chosen = tuple(_key(self.keys, named, self.arg_names))
            if chosen in self.cache:
                return
            function, heuristics = _unwrapped(self.fn)
            called = Called(function, self._prepared(named), kwargs["grid"], heuristics)
            if not hasattr(function, "params"):  # interpreted: nothing to time
                self.cache[chosen] = _sample(called, self.deepgen)[0] if self.deepgen.knobs else self.configs[0]
                return
            try:
                self._decide(called, chosen, kwargs)
            except Undescribable as why:
                self.deepgen.note = f"timed in this process: {why}"
                name = function.fn.__name__
                warnings.warn(f"deepgen.autotune: {name} is {self.deepgen.note}", RuntimeWarning, stacklevel=4)
                if self.deepgen.knobs:
                    self.configs = _sample(called, self.deepgen)

        def _decide(self, called: Called, chosen: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            configs = self.configs if self.deepgen.knobs else self.prune_configs(kwargs)
            rows = self.deepgen.rows(configs)
            if rows is not None and len(rows) == 1:
                self.cache[chosen] = configs[0]
                return
            searched = [str(rows), str(self.deepgen.knobs), str(self.deepgen.requires)]
            about = {"kernel": called.function.cache_key, "triton": triton.__version__, "device": _device()}
            path = place({**about, "key": [str(part) for part in chosen], "searched": searched})
            kept = read_kept(path) if self.deepgen.kept else None
            if kept is not None and self.deepgen.may_be(kept["config"], rows):
                config, facts = kept["config"], kept
            else:
                config, facts = self.deepgen.search(called, rows)
                if self.deepgen.kept:
                    write_kept(path, config, facts)
            self.deepgen.note = f"agrees with {facts.get('agrees_with', 'config 0')}"
            self.cache[chosen] = configs[rows.index(config)] if rows is not None else _config(config)

        def _prepared(self, named: Mapping[str, Any]) -> dict[str, Any]:
            """The arguments as in a timed run: hooks are called with copies of the tensors."""
            if not (self.reset_to_zero or self.user_defined_pre_hook):
                return dict(named)
            copies = {name: value.clone() if hasattr(value, "clone") else value for name, value in named.items()}
            self.pre_hook(copies)
            return copies

    return DeepgenAutotuner


def _unwrapped(function: Any) -> tuple[Any, list[Any]]:
    """The `@triton.jit` function inside heuristics, and the heuristics."""
    heuristics = []
    while hasattr(function, "values") and hasattr(function, "fn"):
        heuristics.append(function.values)
        function = function.fn
    return function, heuristics


def _key(names: Sequence[str], named: Mapping[str, Any], parameters: Sequence[str]) -> list[Any]:
    """The same key as Triton's: the values of the key's arguments, and the types of all tensors."""
    values = {name: value for name, value in named.items() if name in parameters}
    dtypes = [str(value.dtype) for value in values.values() if hasattr(value, "dtype")]
    return [*(values[name] for name in names if name in values), *dtypes]


def _config(chosen: Mapping[str, Any]) -> Any:
    import triton

    own = ("num_warps", "num_stages", "num_ctas", "maxnreg")
    kwargs = {name: value for name, value in chosen.items() if name not in own}
    return triton.Config(kwargs, **{name: value for name, value in chosen.items() if name in own})


def _sample(called: Called, tuning: Tuning) -> list[Any]:
    space = space_of(called, tuning.knobs, tuning.requires)
    count = space.count()
    ranks = range(0, count, max(1, count // _SAMPLED))
    return [_config(space.at(rank)) for rank in ranks][:_SAMPLED]


def place(about: Mapping[str, Any]) -> Path:
    """The cache file for a kernel, a device, its configs and a key."""
    return default_cache_folder() / "autotune" / f"{digest({'format': FORMAT, **about})}.json"


def read_kept(path: Path) -> dict[str, Any] | None:
    """The stored result; None if there is none, or it is unusable."""
    with contextlib.suppress(OSError, ValueError, DeepgenError):
        kept = json.loads(foreign.read_bytes(path))
        if isinstance(kept, dict) and kept.get("format") == FORMAT and isinstance(kept.get("config"), dict):
            return kept
    return None


def write_kept(path: Path, config: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Store a result; if that fails, the next process tunes again."""
    with contextlib.suppress(OSError, TypeError):
        write_whole(path, json.dumps({"format": FORMAT, "config": dict(config), **facts}, indent=1) + "\n")
